"""What ``/lab/journal`` may be asked, from its query string."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attrs import frozen

from inference_lab.faults.grammar import ENDPOINTS, FaultError, parse_header
from inference_lab.faults.modes import Mode
from inference_lab.journal import ENDS, ENGINE_STATES, Query
from inference_lab.web.errors import bad_request

PATH = "/lab/journal"

LONGEST_WAIT = 600.0
"""Seconds that a request may wait, at the most."""

DEFAULT_WAIT = 5.0
"""Seconds that it waits if it does not say."""

FILTERS = (
    "id",
    "session",
    "attempt",
    "endpoint",
    "model",
    "fault",
    "resume_position",
    "end",
    "engine_state",
)
"""Fields of a record that a query may name."""


@frozen
class Reading:
    """Which records are wanted, and for how long to wait until they are complete."""

    query: Query
    wait: float | None = None


def reading_of(args: Mapping[bytes, Sequence[bytes]], modes: Mapping[str, Mode]) -> Reading:
    """A query string as a `Reading`.

    :raises ApiError: 400, naming the parameter and what it may be.
    """
    given = _texts(args, (*FILTERS, "limit", "wait", "timeout"))
    wait = given.pop("wait", None)
    if wait not in (None, "ended"):
        raise bad_request(f"wait must be ended, not {wait[:80]!r}.", param="wait")
    timeout = given.pop("timeout", None)
    if timeout is not None and wait is None:
        raise bad_request("timeout goes with wait=ended.", param="timeout")
    seconds = DEFAULT_WAIT if timeout is None else _seconds(timeout)
    limit = given.pop("limit", None)
    wanted = {name: _READ[name](name, text, modes) for name, text in given.items()}
    query = Query(wanted, None if limit is None else _whole("limit", limit, modes))
    return Reading(query, None if wait is None else seconds)


def session_of(args: Mapping[bytes, Sequence[bytes]]) -> str | None:
    """Whose records are to be forgotten: None for everybody's.

    :raises ApiError: 400 for any other parameter.
    """
    return _texts(args, ("session",)).get("session")


def _texts(args: Mapping[bytes, Sequence[bytes]], allowed: Sequence[str]) -> dict[str, str]:
    found = {}
    for key, values in args.items():
        name = key.decode("utf-8", "replace")
        if name not in allowed:
            raise bad_request(
                f"Unknown parameter {name[:80]!r}; allowed: {', '.join(allowed)}.", param=name[:80]
            )
        if len(values) > 1:
            raise bad_request(f"{name} is given {len(values)} times; send one.", param=name)
        found[name] = values[0].decode("utf-8", "replace")
    return found


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= LONGEST_WAIT:
        raise bad_request(
            f"timeout must be seconds from 0 to {LONGEST_WAIT:g}, not {text[:80]!r}.",
            param="timeout",
        )
    return seconds


def _text(name: str, text: str, modes: Mapping[str, Mode]) -> str:
    return text


def _whole(name: str, text: str, modes: Mapping[str, Mode]) -> int:
    if not re.fullmatch(r"[0-9]{1,18}", text):
        raise bad_request(f"{name} must be a whole number, not {text[:80]!r}.", param=name)
    return int(text)


def _position(name: str, text: str, modes: Mapping[str, Mode]) -> int | None:
    return None if text == "none" else _whole(name, text, modes)


def _one_of(*allowed: str) -> Callable[[str, str, Mapping[str, Mode]], str]:
    def read(name: str, text: str, modes: Mapping[str, Mode]) -> str:
        if text not in allowed:
            raise bad_request(
                f"{name} must be one of {', '.join(allowed)}, not {text[:80]!r}.", param=name
            )
        return text

    return read


def _fault(name: str, text: str, modes: Mapping[str, Mode]) -> str:
    """A mode's name as it is, a directive spelt in full."""
    try:
        fault = parse_header(text, modes)
    except FaultError as error:
        raise bad_request(f"fault: {error}", param="fault") from None
    return fault.canonical() if ";" in text else fault.mode


_READ: Mapping[str, Callable[[str, str, Mapping[str, Mode]], Any]] = {
    "id": _text,
    "session": _text,
    "attempt": _whole,
    "endpoint": _one_of(*ENDPOINTS),
    "model": _text,
    "fault": _fault,
    "resume_position": _position,
    "end": _one_of(*ENDS),
    "engine_state": _one_of(*ENGINE_STATES),
}
