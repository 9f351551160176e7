"""The fault directive: what a header or a ``[fault]`` table may say.

Both spell the same four things, so both end in one `Fault`. A refusal names the
faulty part and lists the modes there are.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from attrs import frozen

U32_MAX = 2**32 - 1
U64_MAX = 2**64 - 1

CHAT = "chat"
COMPLETIONS = "completions"
ENDPOINTS = (CHAT, COMPLETIONS)

_BLANK = " \t"
_DIGITS = re.compile(r"[0-9]+", re.ASCII)


class FaultError(ValueError):
    """A directive that cannot be honoured; ``str()`` says which part and why.

    ``key`` is the parameter at fault, where there is one.
    """

    def __init__(self, message: str, key: str | None = None) -> None:
        super().__init__(message)
        self.key = key


@frozen
class Fault:
    """One valid directive.

    ``after_chunks`` counts content-bearing frames before the death, ``delay_ms``
    is the pacing between frames, ``utf8`` (`cut_mid_frame` only) cuts inside a
    two-byte character.
    """

    mode: str
    after_chunks: int = 3
    delay_ms: int = 10
    utf8: bool = False

    def canonical(self) -> str:
        """The directive spelt in full, as a header value."""
        text = f"{self.mode};after_chunks={self.after_chunks};delay_ms={self.delay_ms}"
        return f"{text};utf8=true" if self.utf8 else text


@frozen
class ModelFault:
    """A model's own `Fault` and the endpoints whose streams it strikes."""

    fault: Fault
    endpoints: frozenset[str] = frozenset({CHAT})


def _number(limit: int, kind: str) -> tuple[str, Callable[[str], int], Callable[[Any], bool]]:
    def parse(text: str) -> int:
        # Bounding the length first keeps int() from chewing on a huge header.
        if not _DIGITS.fullmatch(text) or len(text.lstrip("0")) > 20:
            raise ValueError
        return check(int(text.lstrip("0") or "0"))

    def check(value: int) -> int:
        if value > limit:
            raise ValueError
        return value

    def fits(value: Any) -> bool:
        return type(value) is int and 0 <= value <= limit

    return f"a {kind}: a whole number from 0 to {limit}", parse, fits


def _truth(text: str) -> bool:
    return {"true": True, "false": False}[text]


_KEYS: dict[str, tuple[str, Callable[[str], Any], Callable[[Any], bool]]] = {
    "after_chunks": _number(U32_MAX, "u32"),
    "delay_ms": _number(U64_MAX, "u64"),
    "utf8": ("true or false", _truth, lambda value: type(value) is bool),
}
_UTF8_MODE = "cut_mid_frame"


def parse_header(value: str, modes: Collection[str]) -> Fault:
    """Read ``<mode>[;key=value]...``.

    Names are case-sensitive; blanks around parts and values, and empty parts,
    are skipped.

    :raises FaultError: naming the part that is wrong.
    """
    parts = [part.strip(_BLANK) for part in value.split(";")]
    mode, *settings = [part for part in parts if part] or [""]
    _check_mode(mode, modes)
    found: dict[str, Any] = {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        key, text = key.strip(_BLANK), text.strip(_BLANK)
        _check_key(key, mode, modes)
        allowed, parse, _ = _KEYS[key]
        if key in found:
            raise _refusal(f"the parameter {key!r} is given twice", modes, key)
        try:
            if not equals:
                raise ValueError
            found[key] = parse(text)
        except (ValueError, KeyError):
            raise _refusal(
                f"{_shown(setting)} is not valid: {key} is {allowed}", modes, key
            ) from None
    return _fault(mode, found, modes)


def parse_table(table: Mapping[str, Any], modes: Collection[str]) -> ModelFault:
    """Read a model's ``[fault]`` table.

    :raises FaultError: naming the key that is wrong, and what is allowed.
    """
    rest = dict(table)
    if "mode" not in rest:
        raise _refusal("mode is missing", modes, "mode")
    mode = rest.pop("mode")
    if not isinstance(mode, str):
        raise _refusal(f"mode must be a string, not {_shown(mode)}", modes, "mode")
    _check_mode(mode, modes)
    endpoints = rest.pop("endpoints", [CHAT])
    if (
        not isinstance(endpoints, list)
        or not endpoints
        or not all(isinstance(e, str) and e in ENDPOINTS for e in endpoints)
    ):
        raise FaultError(
            f"endpoints must be a list of {' and '.join(ENDPOINTS)}, not {_shown(endpoints)}",
            "endpoints",
        )
    for key, value in rest.items():
        _check_key(key, mode, modes, also=("mode", "endpoints"))
        allowed, _, fits = _KEYS[key]
        if not fits(value):
            raise FaultError(f"{key} must be {allowed}, not {_shown(value)}", key)
    return ModelFault(_fault(mode, rest, modes), frozenset(endpoints))


def _fault(mode: str, found: Mapping[str, Any], modes: Collection[str]) -> Fault:
    if found.get("utf8") and mode != _UTF8_MODE:
        raise _refusal(f"utf8=true goes with {_UTF8_MODE} only, not with {mode}", modes, "utf8")
    return Fault(mode, **found)


def _check_mode(mode: str, modes: Collection[str]) -> None:
    if not mode:
        raise _refusal("no mode is given", modes, "mode")
    if mode not in modes:
        raise _refusal(f"unknown mode {_shown(mode)}", modes, "mode")


def _check_key(key: str, mode: str, modes: Collection[str], also: tuple[str, ...] = ()) -> None:
    if key not in _KEYS:
        known = ", ".join((*also, *_KEYS))
        raise _refusal(f"unknown parameter {_shown(key)} of {mode} (known: {known})", modes, key)


def _refusal(problem: str, modes: Collection[str], key: str | None) -> FaultError:
    return FaultError(f"{problem}. Valid modes: {', '.join(sorted(modes))}", key)


def _shown(value: object) -> str:
    """``value`` for a one-line message: quoted, and cut where a client went on and on."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
