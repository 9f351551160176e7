"""``inference-lab verify-splice``: files in, a verdict and an exit code out.

The exit code is 0 if what the client has is identical to the golden answer, and 1 for all else:
findings are printed on stdout, a reason why nothing could be compared is one line on stderr.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import msgspec
from twisted.python import usage

from inference_lab.content.legs import is_recording, read_leg
from inference_lab.content.splice import Verdict, plain_text, verify

__all__ = ["SpliceOptions", "main"]


class SpliceError(SystemExit):
    """Exit code 1 with ``message`` as the one line on stderr."""

    def __init__(self, message: object) -> None:
        super().__init__(f"inference-lab verify-splice: {' '.join(str(message).split())}")


class SpliceOptions(usage.Options):
    """The flags of the command."""

    synopsis = (
        "Usage: inference-lab verify-splice --golden FILE (--text FILE | --leg FILE ...) "
        "[--usage N] [--json]"
    )
    longdesc = (
        "Compare what a client ended up with to the answer that never died. Recorded responses "
        "are what `curl -N` wrote. Exits with 0 if both are identical, with 1 if they differ or "
        "cannot be compared."
    )

    optParameters: ClassVar[list[list[Any]]] = [
        ["golden", None, None, "The answer that never died: a recorded response, or its text."],
        ["text", None, None, "The text that the client ended up with."],
        ["usage", None, None, "The completion tokens that the client accounts for, in all."],
    ]
    optFlags: ClassVar[list[list[Any]]] = [["json", None, "Print the verdict as JSON."]]

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self["leg"] = []

    def opt_leg(self, path: str) -> None:
        """A recorded response. Repeatable, in the order of the legs; instead of --text."""
        self["leg"].append(path)

    def opt_version(self) -> None:
        """The version is that of the whole command."""
        raise usage.UsageError("use inference-lab --version")

    def parseArgs(self, *rest: str) -> None:
        """Refuse words that belong to no flag."""
        if rest:
            raise usage.UsageError(f"unexpected argument {rest[0]!r}; all files are given by flags")

    def postOptions(self) -> None:
        """Refuse flags that do not go together.

        :raises usage.UsageError: with one line.
        """
        if self["golden"] is None:
            raise usage.UsageError("--golden is required")
        if (self["text"] is None) == (not self["leg"]):
            raise usage.UsageError("give either one --text or at least one --leg")
        count = self["usage"]
        if count is not None and not (count.isascii() and count.isdigit()):
            raise usage.UsageError(f"--usage must be a number of tokens, not {count!r}")


def main(argv: Sequence[str]) -> int:
    """Run the command; returns its exit code.

    :raises SystemExit: with one line, if nothing can be compared.
    """
    options = SpliceOptions()
    try:
        options.parseOptions(argv)  # type: ignore[no-untyped-call]
    except usage.UsageError as error:
        raise SpliceError(error) from None
    verdict = _verdict(options)
    print(msgspec.json.encode(verdict.as_dict()).decode() if options["json"] else verdict)
    return 0 if verdict.identical else 1


def _verdict(options: SpliceOptions) -> Verdict:
    golden: bytes | str = _read(options["golden"])
    if is_recording(golden):
        # Two refusals would be equal, and prove nothing.
        whole = read_leg(golden)
        if not whole.text:
            why = f": {whole.error}" if whole.error else ""
            raise SpliceError(f"{options['golden']}: no text of an answer is in it{why}")
    else:
        golden = plain_text(_read(options["golden"]))
    count = None if options["usage"] is None else int(options["usage"])
    if options["text"] is not None:
        return verify(golden, text=plain_text(_read(options["text"])), usage=count)
    return verify(golden, legs=[_leg(path) for path in options["leg"]], usage=count)


def _leg(path: str) -> bytes:
    data = _read(path)
    # Nothing at all is a leg that died before its first frame.
    if data.strip() and not is_recording(data):
        raise SpliceError(f"{path}: not a recorded response; give the text of all legs as --text")
    return data


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise SpliceError(f"{path}: {error.strerror}") from None
