"""Between the engine and one stream: the tokens it is owed, as a number.

The engine never waits for a reader; a reader that stopped finds what it is
owed when it reads again.
"""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.defer import Deferred


class Feed:
    """A `Listener` for the backend on one side, `Tokens` for the player on the other."""

    def __init__(self) -> None:
        self.owed = 0
        self.wake: Callable[[], None] = _nobody

    def generated(self, count: int) -> None:
        """``count`` more tokens are owed."""
        self.owed += count
        self.wake()

    def completed(self) -> None:
        """The stream's script knows its own length: nothing to do."""

    def take(self) -> bool:
        """Use up one owed token, if there is one."""
        if not self.owed:
            return False
        self.owed -= 1
        return True


class Generated:
    """A `Listener` for an answer that nobody sees before it is whole.

    :ivar done: fires when it is; cancelling it (the client left) aborts the job.
    """

    def __init__(self) -> None:
        self.abort: Callable[[], None] = _nobody
        self.done: Deferred[None] = Deferred(lambda _: self.abort())

    def generated(self, count: int) -> None:
        """Never called: such a job is not streaming."""

    def completed(self) -> None:
        """The answer is whole."""
        self.done.callback(None)


def _nobody() -> None:
    """Before anyone listens."""
