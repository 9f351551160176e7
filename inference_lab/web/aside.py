"""Long work, aside from the reactor: one job at a time, in a thread.

Threads share one interpreter, so a second one would only take more turns from
the streams that play meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from attrs import define, field
from twisted.internet.defer import CancelledError, Deferred, DeferredLock
from twisted.internet.threads import deferToThread

Result = TypeVar("Result")


@define
class Aside:
    """A queue of long jobs."""

    _lock: DeferredLock = field(factory=DeferredLock)

    def run(self, work: Callable[[], Result]) -> Deferred[Result]:
        """What ``work`` returns or raises.

        Cancelling (the client left) forgets work that waits. Work that runs cannot be
        stopped: the next waits for it all the same, and nobody hears of its result.
        """
        outcome: Deferred[Result] = Deferred(lambda d: d.errback(CancelledError()))

        def start() -> Deferred[Any] | None:
            return None if outcome.called else deferToThread(work).addBoth(tell)

        def tell(result: Any) -> None:
            if not outcome.called:
                outcome.callback(result)

        self._lock.run(start)
        return outcome
