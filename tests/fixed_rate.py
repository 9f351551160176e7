"""A backend without a GPU behind it: every answer at the same steady rate."""

from __future__ import annotations

from attrs import define
from twisted.internet.interfaces import IDelayedCall, IReactorTime

from inference_lab.pacing.backend import Job, Listener

TOKENS_PER_SECOND = 100.0


class FixedRate:
    """Generates each job's tokens at `TOKENS_PER_SECOND`, however many there are."""

    def __init__(self, clock: IReactorTime) -> None:
        self._clock = clock

    def submit(self, job: Job, listener: Listener) -> _Run:
        """Start ``job`` now."""
        run = _Run(self._clock, job, listener, self._clock.seconds())
        run.arm()
        return run


@define(slots=False)
class _Run:
    clock: IReactorTime
    job: Job
    listener: Listener
    started: float
    out: int = 0
    timer: IDelayedCall | None = None
    aborted: bool = False
    cached_tokens: int = 0
    state: str = "decode"

    def arm(self) -> None:
        """Set the timer for the next token, or for the last if no one listens before."""
        due = self.out + 1 if self.job.streaming else self.job.target
        at = self.started + due / TOKENS_PER_SECOND
        self.timer = self.clock.callLater(max(0.0, at - self.clock.seconds()), self.tick, due)

    def tick(self, due: int) -> None:
        """``due`` tokens exist now."""
        self.timer = None
        self.out = due
        if self.out < self.job.target:
            self.arm()
        if self.job.streaming:
            self.listener.generated(1)
        if self.out >= self.job.target and not self.aborted:
            self.listener.completed()

    def abort(self) -> None:
        """Stop the timer, and say no more even if called from inside a token."""
        self.aborted = True
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
