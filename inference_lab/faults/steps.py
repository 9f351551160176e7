"""The four things a stream can do next. Plain values, no I/O.

A fault, a scripted answer and a healthy stream are all iterators of these, so
pacing, back-pressure and cleaning up work on any of them alike.
"""

from __future__ import annotations

import enum

from attrs import frozen


@frozen
class Send:
    """Put ``data`` on the wire as one piece of the response body."""

    data: bytes


@frozen
class Pause:
    """Let ``seconds`` pass since the previous step was due.

    Due times are absolute, so a script's pauses do not add up their lateness.
    Zero still yields to the reactor: what follows is a write of its own.
    """

    seconds: float


@frozen
class AwaitToken:
    """Go on when the engine has generated one more token of this answer."""


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


Step = Send | Pause | AwaitToken | End
