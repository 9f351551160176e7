"""The things a stream can do next. Plain values, no I/O.

A fault, a scripted answer and a healthy stream are all iterators of these, so
pacing, back-pressure and cleaning up work on any of them alike.
"""

from __future__ import annotations

import enum

from attrs import frozen


@frozen
class Send:
    """Put ``data`` on the wire as one piece of the response body.

    ``frames`` is how many frames begin with it: 0 for the rest of one. An
    ``opaque`` piece is no text of events, so nothing may respell it.
    """

    data: bytes
    frames: int = 1
    opaque: bool = False


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
    """Put ``data`` straight onto the connection, outside of the body's framing."""

    data: bytes


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
