"""The parameters of a mode: their types, and how a header spells their values.

Text becomes a value and a value becomes text again without loss, so that a
directive which was applied can be sent back to apply it once more.
"""

from __future__ import annotations

import math
import re
from typing import Any

from attrs import evolve, frozen

U32_MAX = 2**32 - 1
U64_MAX = 2**64 - 1

TYPES = ("u32", "u64", "bool", "str", "enum", "float")

Value = int | float | bool | str
"""What a parameter can be."""

_DIGITS = re.compile(r"[0-9]+", re.ASCII)
_DECIMAL = re.compile(r"[0-9]+(\.[0-9]+)?(e[+-]?[0-9]{1,3})?", re.ASCII)
_BARE = re.compile(r"[A-Za-z0-9_.:+/-]+", re.ASCII)
_CONTROL = re.compile(r"[\x00-\x1f\x7f]|[\ud800-\udfff]")


@frozen
class Parameter:
    """One thing that a directive may set.

    ``kind`` is one of `TYPES`; ``allowed`` are an enum's values; ``low`` is the
    least of a whole number. ``doc`` is a line for people.
    """

    name: str
    kind: str
    default: Value
    allowed: tuple[str, ...] = ()
    low: int = 0
    doc: str = ""

    def describe(self) -> str:
        """What values it takes."""
        match self.kind:
            case "u32" | "u64":
                return f"a {self.kind}: a whole number from {self.low} to {self._limit}"
            case "bool":
                return "true or false"
            case "float":
                return "a number, 0 or more"
            case "enum":
                return "one of " + ", ".join(self.allowed)
        return "text without control characters"

    def parse(self, text: str, quoted: bool = False) -> Value:
        """The value of a header's ``text``.

        :raises ValueError: if it is none; numbers and truths are never quoted.
        """
        value: Value
        if self.kind in ("str", "enum"):
            value = text
            if not text and not quoted:
                raise ValueError
        elif quoted:
            raise ValueError
        elif self.kind == "bool":
            if text not in ("true", "false"):
                raise ValueError
            value = text == "true"
        elif self.kind == "float":
            if not _DECIMAL.fullmatch(text) or len(text) > 40:
                raise ValueError
            value = float(text)
        else:
            # Bounding the length first keeps int() from chewing on a huge header.
            if not _DIGITS.fullmatch(text) or len(text.lstrip("0")) > 20:
                raise ValueError
            value = int(text.lstrip("0") or "0")
        if not self.fits(value):
            raise ValueError
        return value

    def fits(self, value: Any) -> bool:
        """Whether a configuration's ``value`` is one of this parameter's."""
        match self.kind:
            case "u32" | "u64":
                return type(value) is int and self.low <= value <= self._limit
            case "bool":
                return type(value) is bool
            case "float":
                number = type(value) in (int, float)
                return number and math.isfinite(value) and value >= 0
            case "enum":
                return isinstance(value, str) and value in self.allowed
        return isinstance(value, str) and not _CONTROL.search(value)

    def with_default(self, value: Value) -> Parameter:
        """The same, with another default."""
        return evolve(self, default=value)

    @property
    def _limit(self) -> int:
        return U32_MAX if self.kind == "u32" else U64_MAX


def spell(value: Value) -> str:
    """``value`` as a header says it, quoted where it must be."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str) and not _BARE.fullmatch(value):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'
    return str(value)


def unquote(text: str) -> tuple[str, bool]:
    """A header's value without its quotes, and whether it had any.

    :raises ValueError: for a quote that does not end, or not at the end.
    """
    if not text.startswith('"'):
        return text, False
    matched = re.fullmatch(r'"((?:[^"\\]|\\.)*)"', text, re.DOTALL)
    if matched is None:
        raise ValueError
    return re.sub(r"\\(.)", r"\1", matched[1], flags=re.DOTALL), True


def split(text: str, mark: str) -> list[str]:
    """``text`` at each ``mark`` that stands in no quoted value.

    A quote opens one only right after ``=`` and blanks.
    """
    parts = [""]
    quoted = escaped = False
    for letter in text:
        if quoted:
            parts[-1] += letter
            quoted = escaped or letter != '"'
            escaped = letter == "\\" and not escaped
        elif letter == mark:
            parts.append("")
        else:
            quoted = letter == '"' and parts[-1].rstrip(" \t").endswith("=")
            parts[-1] += letter
    return parts


CORE = (
    Parameter("after_chunks", "u32", 3, doc="Content-bearing frames before the death."),
    Parameter("delay_ms", "u64", 10, doc="Milliseconds between two frames."),
    Parameter("utf8", "bool", False, doc="Cut inside a character; cut_mid_frame only."),
)
"""What every directive has."""

SHAPING = (
    Parameter(
        "framing",
        "enum",
        "lf",
        ("lf", "crlf", "cr", "mixed", "nospace", "multiline", "bom"),
        doc="How events are spelt.",
    ),
    Parameter("segment", "u32", 0, doc="Bytes per write; 0 writes frames whole."),
    Parameter(
        "keepalive",
        "enum",
        "none",
        ("none", "comment", "empty_data", "data_comment", "retry"),
        doc="What is sent every every_ms beside the frames.",
    ),
    Parameter("every_ms", "u32", 1000, low=1, doc="Milliseconds between two keepalives."),
    Parameter(
        "end",
        "enum",
        "own",
        ("own", "fin", "rst", "clean", "hold"),
        doc="Another end than the mode's own.",
    ),
    Parameter(
        "field",
        "enum",
        "server",
        ("server", "reasoning_content", "reasoning", "both"),
        doc="What chat calls the thinking.",
    ),
    Parameter(
        "pace",
        "enum",
        "delay",
        ("delay", "engine"),
        doc="What content frames wait for: delay_ms, or the simulation engine.",
    ),
)
"""What goes with any mode, and with healthy streams."""
