"""The things a stream can do next. Plain values, no I/O.

A fault, a scripted answer and a healthy stream are all iterators of these, so
pacing, back-pressure and cleaning up work on any of them alike.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator

from attrs import frozen


@frozen
class Send:
    """Put ``data`` on the wire as one piece of the response body.

    ``frames`` are complete with it, and ``tokens`` of the answer are said: 0 for a piece of
    a frame that is not the last. An ``opaque`` piece is no text of events, so nothing may
    respell it.
    """

    data: bytes
    frames: int = 1
    opaque: bool = False
    tokens: int = 0

    def pieces(self, size: int) -> Iterator[Send | Pause]:
        """The same in writes of ``size`` bytes, each in a turn of its own."""
        for start in range(0, max(1, len(self.data)), size):
            if start:
                yield Pause(0)
            data = self.data[start : start + size]
            if start + size < len(self.data):
                yield Send(data, 0, self.opaque)
            else:
                yield Send(data, self.frames, self.opaque, self.tokens)


@frozen
class Head:
    """Send a status line and headers in place of the usual ones.

    ``framing`` is how the body's end is told: ``chunked``, ``length`` (headers
    hold a content-length, true or not), ``close`` or ``none``. ``exact`` leaves
    out everything that the server says of its own accord. A status below 200 is
    an interim head: another one may follow.
    """

    status: int = 200
    reason: str | None = None
    headers: tuple[tuple[str, str], ...] = ()
    framing: str = "chunked"
    exact: bool = False


@frozen
class Raw:
    """Put ``data`` straight onto the connection, outside of the body's framing.

    The last ``body`` bytes of it are part of the body all the same.
    """

    data: bytes
    body: int = 0

    def pieces(self, size: int) -> Iterator[Raw | Pause]:
        """The same in writes of ``size`` bytes, each in a turn of its own."""
        head = len(self.data) - self.body
        for start in range(0, max(1, len(self.data)), size):
            if start:
                yield Pause(0)
            data = self.data[start : start + size]
            yield Raw(data, min(len(data), max(0, start + len(data) - head)))


@frozen
class Terminate:
    """End the body with ``data`` in place of the framing's own last chunk."""

    data: bytes


@frozen
class Hold:
    """From here on the stream only pretends to live: it counts as held open."""


@frozen
class Pause:
    """Let ``seconds`` pass since the previous step was due.

    Due times are absolute, so a script's pauses do not add up their lateness.
    Zero still yields to the reactor: what follows is a write of its own.
    """

    seconds: float


@frozen
class AwaitToken:
    """Go on when the engine has generated one more token of this answer.

    Until then ``meanwhile`` is sent, every ``every`` seconds, if there is any.
    """

    meanwhile: bytes = b""
    every: float = 0.0


class End(enum.Enum):
    """How the response stops."""

    CLEAN = "clean"
    """The body's terminator is sent; the connection lives on."""
    FIN = "fin"
    """An orderly close without the terminator."""
    RST = "rst"
    """An abortive close: the peer gets a TCP reset."""
    HOLD = "hold"
    """Nothing more, until the client leaves."""


Step = Send | Pause | AwaitToken | Head | Raw | Terminate | Hold | End
