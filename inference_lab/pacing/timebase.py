"""Two clocks side by side: the engine's seconds and the reactor's."""

from __future__ import annotations

from typing import Protocol

from twisted.internet.interfaces import IReactorTime


class Timebase(Protocol):
    """Maps engine time to wall time; all arguments and results are in seconds."""

    def now(self) -> float:
        """The engine time that corresponds to this moment."""

    def at(self, wall: float) -> float:
        """The engine time that corresponds to ``wall`` on the reactor's clock."""

    def until(self, at: float) -> float:
        """Wall time from now to engine time ``at``; negative when that is past."""

    def reached(self, at: float) -> None:
        """A step has ended at engine time ``at``."""

    def slip(self, wall: float) -> None:
        """Give up ``wall`` seconds: from now on everything is due that much later."""


class Paced:
    """``speed`` engine seconds pass in each second of the reactor's clock."""

    def __init__(self, clock: IReactorTime, speed: float = 1.0) -> None:
        self._clock = clock
        self._speed = speed
        self._epoch = clock.seconds()

    def now(self) -> float:
        """The engine time that corresponds to this moment."""
        return self.at(self._clock.seconds())

    def at(self, wall: float) -> float:
        """The engine time that corresponds to ``wall``."""
        return (wall - self._epoch) * self._speed

    def until(self, at: float) -> float:
        """Wall time from now to engine time ``at``."""
        return self._epoch + at / self._speed - self._clock.seconds()

    def reached(self, at: float) -> None:
        """Nothing: wall time leads."""

    def slip(self, wall: float) -> None:
        """Move the epoch."""
        self._epoch += wall


class Unpaced:
    """Engine time runs as fast as steps can be computed, and stands still between them."""

    def __init__(self) -> None:
        self._now = 0.0

    def now(self) -> float:
        """The end of the latest step."""
        return self._now

    def at(self, wall: float) -> float:
        """The end of the latest step, too: wall time means nothing here."""
        return self._now

    def until(self, at: float) -> float:
        """Everything is due now."""
        return 0.0

    def reached(self, at: float) -> None:
        """Go on to ``at``."""
        self._now = max(self._now, at)

    def slip(self, wall: float) -> None:
        """Never called: nothing is late."""
