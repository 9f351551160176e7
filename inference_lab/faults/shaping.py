"""Parameters that go with any stream: they respell its steps, whatever wrote them.

Each is a wrapper of a step iterator, so a healthy stream gets them like a death.
The defaults wrap nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

from attrs import evolve

from inference_lab.faults.parameters import Value
from inference_lab.faults.steps import (
    AwaitToken,
    End,
    Head,
    Hold,
    Pause,
    Raw,
    Send,
    Step,
    Terminate,
)

KEEPALIVES = {
    "comment": b": keep-alive\n\n",
    "empty_data": b"data:\n\n",
    "data_comment": b"data: : keepalive\n\n",
    "retry": b"retry: 3000\n\n",
}
"""What ``keepalive`` sends."""

BOM = b"\xef\xbb\xbf"

_FIELD = re.compile(rb"^(data|event|id|retry): ", re.MULTILINE)
_STRING_OR_COMMA = re.compile(rb'"(?:[^"\\]|\\.)*"|,', re.DOTALL)


def shaped(
    steps: Iterator[Step], values: Mapping[str, Value], own_head: bool = False
) -> Iterator[Step]:
    """``steps`` as ``values`` want them: ``end``, ``keepalive``, ``framing``, ``segment``.

    ``own_head`` says that the steps bring their own head: nothing goes before it.
    """
    end = values.get("end", "own")
    if end != "own":
        steps = ended(steps, End(end))
    keepalive = str(values.get("keepalive", "none"))
    if keepalive != "none":
        every = int(values["every_ms"]) / 1000
        steps = kept_alive(steps, KEEPALIVES[keepalive], every, begun=not own_head)
    framing = str(values.get("framing", "lf"))
    if framing != "lf":
        steps = respelt(steps, _SPELLINGS[framing]())
    size = int(values.get("segment", 0))
    return segmented(steps, size) if size else steps


def ended(steps: Iterator[Step], how: End) -> Iterator[Step]:
    """The same steps with another end."""
    for step in steps:
        yield how if isinstance(step, End) else step


def kept_alive(
    steps: Iterator[Step], event: bytes, every: float, begun: bool = True
) -> Iterator[Step]:
    """``event`` every ``every`` seconds, from the head to the end of the body.

    A stream that is held open gets them until its client leaves.
    """
    since = 0.0
    for step in steps:
        match step:
            case Head(status):
                begun = begun or status >= 200
            case Terminate():
                begun = False
            case Pause(seconds) if begun and seconds:
                left = seconds
                while since + left >= every:
                    yield Pause(every - since)
                    yield Send(event)
                    left -= every - since
                    since = 0.0
                since += left
                yield Pause(left)
                continue
            case AwaitToken() if begun:
                yield AwaitToken(event, every)
                continue
            case End.HOLD if begun:
                yield Hold()
                while True:
                    yield Pause(every - since)
                    since = 0.0
                    yield Send(event)
            case _:
                pass
        yield step


def respelt(steps: Iterator[Step], spell: Callable[[bytes], bytes]) -> Iterator[Step]:
    """Every piece of text as ``spell`` has it."""
    for step in steps:
        match step:
            case Send(data, _, False):
                yield evolve(step, data=spell(data))
            case AwaitToken(meanwhile) if meanwhile:
                yield evolve(step, meanwhile=spell(meanwhile))
            case _:
                yield step


def segmented(steps: Iterator[Step], size: int) -> Iterator[Step]:
    """Writes of ``size`` bytes, each in a turn of its own."""
    for step in steps:
        match step:
            case Send() | Raw():
                yield from step.pieces(size)
            case _:
                yield step


def _ends(*ends: bytes) -> Callable[[], Callable[[bytes], bytes]]:
    """Line ends that take turns, a frame each."""

    def fresh() -> Callable[[bytes], bytes]:
        number = 0

        def spell(data: bytes) -> bytes:
            nonlocal number
            number += 1
            return data.replace(b"\n", ends[(number - 1) % len(ends)])

        return spell

    return fresh


def _nospace() -> Callable[[bytes], bytes]:
    return lambda data: _FIELD.sub(rb"\1:", data)


def _multiline() -> Callable[[bytes], bytes]:
    """JSON over several lines, broken after each comma that is in no string."""

    def broken(matched: re.Match[bytes]) -> bytes:
        return b",\ndata: " if matched[0] == b"," else matched[0]

    def spell(data: bytes) -> bytes:
        return _STRING_OR_COMMA.sub(broken, data) if data.startswith(b"data: {") else data

    return spell


def _bom() -> Callable[[bytes], bytes]:
    first = True

    def spell(data: bytes) -> bytes:
        nonlocal first
        mark, first = (BOM if first else b""), False
        return mark + data

    return spell


_SPELLINGS: dict[str, Callable[[], Callable[[bytes], bytes]]] = {
    "crlf": _ends(b"\r\n"),
    "cr": _ends(b"\r"),
    "mixed": _ends(b"\n", b"\r\n", b"\r"),
    "nospace": _nospace,
    "multiline": _multiline,
    "bom": _bom,
}
