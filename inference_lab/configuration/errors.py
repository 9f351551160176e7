"""Where in an operator's files something is wrong, in one line."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from difflib import get_close_matches

from attrs import frozen

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)


class ConfigError(ValueError):
    """A configuration that cannot be served; ``str()`` is one printable line."""

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message))


def one_line(text: str) -> str:
    """``text`` with line breaks and whatever else does not print escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


@frozen
class Place:
    """A key of a file: ``source`` names the file, ``path`` leads to the key.

    Whole numbers in ``path`` are positions in an array, from 0; they are shown
    as ``#1``, ``#2`` and so on. Shown, a place reads ``x.toml: [scheduler] policy``
    or ``x.toml: [[model.layers]] #2 heads``.
    """

    source: str
    path: tuple[str | int, ...] = ()

    def __truediv__(self, key: str | int) -> Place:
        return Place(self.source, (*self.path, key))

    def __str__(self) -> str:
        *table, key = self.path or ("",)
        shown = _dotted(self.path)
        at = max((i for i, part in enumerate(self.path) if isinstance(part, int)), default=None)
        if at is not None:
            inner = _dotted(self.path[at + 1 :])
            shown = f"[[{_dotted(self.path[:at])}]] #{int(self.path[at]) + 1} {inner}".rstrip()
        elif table:
            shown = f"[{_dotted(table)}] {_dotted([key])}"
        return f"{self.source}: {shown}" if self.path else self.source

    def error(self, problem: str) -> ConfigError:
        """An error here."""
        return ConfigError(f"{self}: {problem}")


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A suggestion to put after "unknown ...", empty if nothing is close."""
    close = get_close_matches(word, list(known), n=1)
    return f', did you mean "{close[0]}"?' if close else ""


def _dotted(parts: Iterable[str | int]) -> str:
    return ".".join(
        part if isinstance(part, str) and _BARE_KEY.fullmatch(part) else json.dumps(part)
        for part in parts
    )
