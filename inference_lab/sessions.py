"""How many attempts each client has made: a count for every key, bounded in number and age."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable

from attrs import define, field
from twisted.internet.interfaces import IReactorTime

MOST = 10_000
"""Keys that are remembered; the one that was silent for longest goes first."""

OLDEST = 3600.0
"""Seconds of silence after which a key starts over."""


@define
class _Count:
    attempts: int
    at: float


@define
class Sessions:
    """Attempts by key. Keys know nothing of each other."""

    clock: IReactorTime
    most: int = MOST
    oldest: float = OLDEST
    # The one that was silent for longest stands first.
    _counts: OrderedDict[Hashable, _Count] = field(factory=OrderedDict)

    def upcoming(self, key: Hashable) -> int:
        """The number, from 1, of the attempt that `take` would count next."""
        self._expire()
        count = self._counts.get(key)
        return 1 if count is None else count.attempts + 1

    def take(self, key: Hashable) -> int:
        """Count one attempt, and say which it is."""
        attempt = self.upcoming(key)
        self._counts[key] = _Count(attempt, self.clock.seconds())
        self._counts.move_to_end(key)
        if len(self._counts) > self.most:
            self._counts.popitem(last=False)
        return attempt

    def give_back(self, key: Hashable, attempt: int) -> None:
        """Attempt ``attempt`` was none after all; if others came since, its number stays used."""
        count = self._counts.get(key)
        if count is not None and count.attempts == attempt:
            count.attempts -= 1

    def __len__(self) -> int:
        return len(self._counts)

    def _expire(self) -> None:
        limit = self.clock.seconds() - self.oldest
        while self._counts and next(iter(self._counts.values())).at <= limit:
            self._counts.popitem(last=False)
