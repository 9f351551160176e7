"""A clock that turns like a reactor: what a turn schedules for now waits for the next."""

from __future__ import annotations

from twisted.internet.task import Clock


class TurningClock(Clock):
    """`task.Clock`, which would run a chain of ``callLater(0)`` to its end in one advance."""

    def turn(self, seconds: float = 0.0) -> int:
        """Let ``seconds`` pass, run what is due by then, and say how much that was."""
        self.rightNow += seconds
        due = [call for call in self.calls if call.getTime() <= self.rightNow]
        ran = 0
        for call in due:
            if call.active():
                self.calls.remove(call)
                call.called = 1
                call.func(*call.args, **call.kw)
                ran += 1
        return ran
