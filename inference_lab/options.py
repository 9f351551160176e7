"""The operator's words: one `usage.Options` for `serve`, `twistd` and `twist`.

Whatever is wrong with them ends the boot with one line and exit code 1. The
runners would print usage texts and tracebacks, so every error leaves here as a
`SystemExit` with that line.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from twisted.python import usage

from inference_lab import __version__
from inference_lab.configuration.loader import ConfigError, Loaded, load, shipped_configs
from inference_lab.content.lengths import OutputLengths
from inference_lab.content.tokens import HuggingFaceTokenizer, PieceTokenizer, Tokenizer
from inference_lab.content.workload import WorkloadError, load_workload
from inference_lab.faults.modes import Mode, ModeError, load_modes


class BootError(SystemExit):
    """Exit code 1 with ``message`` as the one line on stderr."""

    def __init__(self, message: object) -> None:
        super().__init__(f"inference-lab: {' '.join(str(message).split())}")


REASONING_FIELDS = ("reasoning_content", "reasoning")

_COERCION_FAILED = "Parameter type enforcement failed: "


def _whole(flag: str, low: int, high: int, doc: str) -> Callable[[str], int]:
    """Coerce ``--flag`` to a whole number."""

    def coerce(text: str) -> int:
        if not (text.isascii() and text.isdigit() and low <= int(text) <= high):
            raise ValueError(f"--{flag} must be a whole number from {low} to {high}, not {text!r}")
        return int(text)

    coerce.coerceDoc = doc  # type: ignore[attr-defined]
    return coerce


def _amount(flag: str, doc: str) -> Callable[[str], float]:
    """Coerce ``--flag`` to a finite number, 0 or more."""

    def coerce(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = -1.0
        if not 0 <= value < float("inf"):
            raise ValueError(f"--{flag} must be a number of {doc}, 0 or more, not {text!r}")
        return value

    coerce.coerceDoc = doc.capitalize() + "."  # type: ignore[attr-defined]
    return coerce


class Options(usage.Options):
    """Flags of the server. `loaded` holds the configuration after parsing."""

    synopsis = "Usage: inference-lab serve [options]"
    longdesc = "Serve simulated models over the OpenAI API, and kill their streams on demand."

    optParameters: ClassVar[list[list[Any]]] = [
        ["hardware", "w", None, "Run every model on this hardware entry of its file."],
        ["host", None, "127.0.0.1", "Address to listen on."],
        [
            "port",
            "p",
            8080,
            "TCP port to listen on.",
            _whole("port", 0, 65535, "0 picks a free one."),
        ],
        ["listen", None, None, "A Twisted endpoint string, instead of --host and --port."],
        [
            "drain-timeout",
            None,
            10.0,
            "Wait this long for a stuck reader before a death.",
            _amount("drain-timeout", "seconds"),
        ],
        [
            "default-output-tokens",
            None,
            256,
            "Chat answer length without max_tokens.",
            _whole("default-output-tokens", 1, 2**26, "Tokens."),
        ],
        ["workload", None, None, "A workload file; its output_len_dist draws answer lengths."],
        ["tokenizer", None, None, "A Hugging Face tokenizer.json to count prompts with."],
        [
            "reasoning-field",
            None,
            "reasoning_content",
            "What chat calls the thinking: reasoning_content or reasoning.",
        ],
        ["journal", None, None, "A file that gets the record of each exchange, as JSON lines."],
        [
            "speed",
            None,
            1.0,
            "Simulated seconds per second; 0 paces nothing.",
            _amount("speed", "simulated seconds per second"),
        ],
        [
            "max-queue",
            None,
            100_000,
            "Requests that may wait per model; more are refused.",
            _whole("max-queue", 1, 2**31, "Requests."),
        ],
    ]
    optFlags: ClassVar[list[list[Any]]] = [
        [
            "enable-directives",
            None,
            "Honour x-inference-lab-* headers. Never for untrusted clients.",
        ]
    ]

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self["config"] = []
        self["api-key"] = []
        self["modes"] = []

    def opt_config(self, path: str) -> None:
        """A model's TOML file, or a folder of them. Repeatable; default: the shipped ones."""
        # A daemon changes directory later.
        self["config"].append(os.path.abspath(path))

    opt_c = opt_config

    def opt_api_key(self, key: str) -> None:
        """A key that clients must send. Repeatable; default: none is asked for."""
        self["api-key"].append(key)

    def opt_modes(self, path: str) -> None:
        """A folder of *.toml: modes of your own, beside the built-in ones. Repeatable."""
        self["modes"].append(os.path.abspath(path))

    def opt_version(self) -> None:
        """Print the version and exit."""
        print(f"inference-lab {__version__}")
        raise SystemExit(0)

    def parseArgs(self, *rest: str) -> None:
        """Refuse words that belong to no flag."""
        if rest:
            raise usage.UsageError(f"unexpected argument {rest[0]!r}; all settings are flags")

    def parseOptions(self, options: Sequence[str] | None = None) -> None:
        """Parse and load everything.

        :raises BootError: with the one line that says what is wrong.
        """
        try:
            super().parseOptions(options)  # type: ignore[no-untyped-call]
        except usage.UsageError as error:
            raise BootError(str(error).removeprefix(_COERCION_FAILED)) from None

    def postOptions(self) -> None:
        """Load and validate the configuration, before any daemon is forked."""
        paths: list[Any] = self["config"] or [shipped_configs()]
        self.tokenizer: Tokenizer = PieceTokenizer()
        self.drawn_lengths: OutputLengths | None = None
        try:
            self.loaded: Loaded = load(paths, self["hardware"])
            if self["workload"] is not None:
                self.drawn_lengths = OutputLengths.of(load_workload(self["workload"]))
            if self["tokenizer"] is not None:
                self.tokenizer = HuggingFaceTokenizer(self["tokenizer"])
            self.modes: Mapping[str, Mode] = load_modes(self["modes"])
        except (ConfigError, ModeError, WorkloadError, ValueError, ImportError) as error:
            raise BootError(error) from None
        if self["journal"] is not None:
            self["journal"] = os.path.abspath(self["journal"])
        if self["reasoning-field"] not in REASONING_FIELDS:
            raise BootError(
                f"--reasoning-field must be {' or '.join(REASONING_FIELDS)}, "
                f"not {self['reasoning-field']!r}"
            )
