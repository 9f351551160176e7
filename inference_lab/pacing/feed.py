"""Between the engine and one response: the tokens it is owed, as numbers.

The engine never waits for a reader; a reader that stopped finds what it is
owed when it reads again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from attrs import define
from twisted.internet.defer import Deferred

from inference_lab.pacing.backend import Ticket


class Feeds:
    """The choices of one stream: `Listener`s on one side, `Tokens` for the player on the other.

    :ivar owed: tokens that exist and were not taken, per choice.
    :ivar taken: the choice that the last token was of.
    """

    def __init__(self, choices: int = 1) -> None:
        self.taken = choices - 1
        self.wake: Callable[[], None] = _nobody
        self.owed = [0] * choices
        self.listeners = [_Feed(self, choice) for choice in range(choices)]

    def owe(self, choice: int, count: int) -> None:
        """``count`` more tokens of a choice are owed."""
        self.owed[choice] += count
        self.wake()

    def take(self) -> bool:
        """Use up one owed token, if there is one; the choices take turns."""
        count = len(self.owed)
        for offset in range(1, count + 1):
            choice = (self.taken + offset) % count
            if self.owed[choice]:
                self.owed[choice] -= 1
                self.taken = choice
                return True
        return False


class Overtime(Feeds):
    """One choice whose script may say more than the engine was asked for.

    Once the engine is through, tokens are there for the asking.
    """

    def __init__(self) -> None:
        super().__init__()
        self._through = False

    def generated(self, count: int) -> None:
        """``count`` more tokens are owed."""
        self.owe(0, count)

    def completed(self) -> None:
        """Nothing has to be waited for any longer."""
        self._through = True
        self.wake()

    def take(self) -> bool:
        """Use up a token."""
        return super().take() or self._through


@define
class _Feed:
    """The `Listener` of one choice."""

    feeds: Feeds
    choice: int

    def generated(self, count: int) -> None:
        """``count`` more tokens are owed."""
        self.feeds.owe(self.choice, count)

    def completed(self) -> None:
        """The stream's script knows its own length: nothing to do."""


class Generated:
    """The `Listener` of an answer that nobody sees before it is whole, all choices of it.

    :ivar done: fires when it is; cancelling it (the client left) aborts the jobs.
    """

    def __init__(self, choices: int = 1) -> None:
        self.tickets: Sequence[Ticket] = ()
        self.done: Deferred[None] = Deferred(lambda _: self.abort())
        self._missing = choices

    def generated(self, count: int) -> None:
        """Never called: such a job is not streaming."""

    def completed(self) -> None:
        """One choice is whole."""
        self._missing -= 1
        if not self._missing:
            self.done.callback(None)

    def abort(self) -> None:
        """Forget all of it."""
        for ticket in self.tickets:
            ticket.abort()


def _nobody() -> None:
    """Before anyone listens."""
