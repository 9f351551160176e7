"""``inference-lab explain``: a deployment and a batch in, the price of its step out."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec
from twisted.python import usage

from inference_lab.configuration.deployment import Deployment
from inference_lab.configuration.loader import ConfigError, load, shipped_configs
from inference_lab.engine.attention import Chunk
from inference_lab.explain import explain, render

__all__ = ["ExplainOptions", "main"]

MOST = 10**9
"""Requests or tokens; nothing simulated here has more."""

PREFILL = re.compile(r"([0-9]{1,10})(?:@([0-9]{1,10}))?")


class ExplainError(SystemExit):
    """Exit code 1 with ``message`` as the one line on stderr."""

    def __init__(self, message: object) -> None:
        super().__init__(f"inference-lab explain: {' '.join(str(message).split())}")


class ExplainOptions(usage.Options):
    """The flags of the command."""

    synopsis = (
        "Usage: inference-lab explain [--config PATH] [--model NAME] [--hardware ENTRY] "
        "[--batch N] [--context N] [--prefill N[@C] ...] [--json]"
    )
    longdesc = (
        "Price one step: FLOPs and bytes per precision, what bounds it, what the GPUs "
        "spend on talking, and the tokens per second that come of it."
    )

    optParameters: ClassVar[list[list[Any]]] = [
        ["model", "m", None, "Which model, where the files have several: its id or catalog key."],
        ["hardware", "w", None, "The hardware entry of its file; default: the first."],
        ["batch", "b", None, "Requests that decode; default: 1, or none beside a --prefill."],
        ["context", None, "0", "Positions that each of them has in the KV cache before the step."],
    ]
    optFlags: ClassVar[list[list[Any]]] = [["json", None, "Print the figures as JSON."]]

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self["config"] = []
        self["prefill"] = []

    def opt_config(self, path: str) -> None:
        """A model's TOML file, or a folder of them. Repeatable; default: the shipped ones."""
        self["config"].append(path)

    opt_c = opt_config

    def opt_prefill(self, text: str) -> None:
        """N positions of a prompt, N@C on C resident ones. Repeatable, a chunk each."""
        matched = PREFILL.fullmatch(text)
        new, resident = (0, 0) if matched is None else map(int, matched.groups("0"))
        if not (0 < new <= MOST and resident <= MOST):
            raise usage.UsageError(
                f"--prefill must be N or N@C, N from 1 and C from 0 to {MOST}, not {text!r}"
            )
        self["prefill"].append(Chunk(resident, new, prefill=True))

    def opt_version(self) -> None:
        """The version is that of the whole command."""
        raise usage.UsageError("use inference-lab --version")

    def parseArgs(self, *rest: str) -> None:
        """Refuse words that belong to no flag."""
        if rest:
            raise usage.UsageError(f"unexpected argument {rest[0]!r}; all settings are flags")

    def postOptions(self) -> None:
        """Make numbers of the words.

        :raises usage.UsageError: with one line.
        """
        if self["batch"] is None:
            self["batch"] = "0" if self["prefill"] else "1"
        for flag in ("batch", "context"):
            text = self[flag]
            if not (text.isascii() and text.isdigit() and len(text) < 11 and int(text) <= MOST):
                raise usage.UsageError(
                    f"--{flag} must be a whole number from 0 to {MOST}, not {text!r}"
                )
            self[flag] = int(text)
        if not (self["batch"] or self["prefill"]):
            raise usage.UsageError("--batch 0 needs a --prefill: a step has at least one request")


def main(argv: Sequence[str]) -> int:
    """Run the command; returns its exit code.

    :raises SystemExit: with one line, for anything the operator can mend.
    """
    options = ExplainOptions()
    try:
        options.parseOptions(argv)  # type: ignore[no-untyped-call]
        deployment = _deployment(options)
        explained = explain(deployment, options["batch"], options["context"], options["prefill"])
    except (usage.UsageError, ConfigError, ValueError) as error:
        raise ExplainError(error) from None
    if options["json"]:
        print(msgspec.json.encode(explained.as_dict()).decode())
    else:
        from rich.console import Console

        Console(highlight=False).print(render(explained))
    return 0


def _deployment(options: ExplainOptions) -> Deployment:
    """The one that is meant.

    :raises ConfigError: as loading does, and when there are several or none.
    """
    there = load(options["config"] or [shipped_configs()], options["hardware"]).deployments
    name = options["model"]
    if name is None:
        if len(there) == 1:
            return there[0]
        problem = "--model is required: there are several models"
    else:
        for deployment in there:
            if name in (deployment.name, *deployment.aliases):
                return deployment
        problem = f"--model: no such model: {name!r}"
    raise ConfigError(f"{problem}; allowed are {', '.join(d.name for d in there)}")
