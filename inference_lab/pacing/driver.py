"""Runs an engine at the reactor's pace.

Strategy: each replica has at most one timer, due at the end of the step in
flight. When it fires, the step is committed, what it brought is delivered, and
the next step starts at that very end, so that late timers do not add up. A
timer that comes late finds further steps due: they run in the same turn, up to
a slice, and each stream gets what they brought as one piece. If that does not
help either, the engine's time slips.

A request came when its bytes had come. What this server needs to understand them is not
the GPU's time: an idle engine begins in the past by that much.

The engine never hears of readers. A stream is told how many tokens exist; when
it takes them is its own affair.
"""

from __future__ import annotations

from typing import Protocol

from attrs import define
from twisted.internet.interfaces import IDelayedCall, IReactorTime

from inference_lab.engine.engine import Engine
from inference_lab.engine.replica import Replica, StepPlan, StepResult
from inference_lab.engine.requests import Handle
from inference_lab.pacing.backend import Job, Listener
from inference_lab.pacing.timebase import Timebase

SLICE_STEPS = 64
"""Steps a replica runs in one reactor turn, at the most."""

SLICE_SECONDS = 0.004
"""Wall time after which a replica lets others have their turn."""

LATEST = 1.0
"""Wall seconds behind which catching up is given up."""

LONGEST_READING = 0.5
"""Wall seconds by which an idle engine begins in the past, at the most."""


class Observer(Protocol):
    """Who keeps the figures of a deployment."""

    def stepped(self, replica: Replica, plan: StepPlan, result: StepResult) -> None:
        """A step has ended."""

    def finished(self, handle: Handle, reason: str) -> None:
        """An answer is complete; ``reason`` is its finish reason."""

    def aborted(self, handle: Handle) -> None:
        """A client left before its answer was complete."""

    def slipped(self, seconds: float) -> None:
        """Pacing was given up for so many wall seconds."""


class Driver:
    """The `Backend` of one deployment: its engine, paced by ``time`` on ``clock``."""

    def __init__(
        self, engine: Engine, clock: IReactorTime, time: Timebase, observer: Observer
    ) -> None:
        self._engine = engine
        self._time = time
        self._observer = observer
        self._pacers = tuple(_Pacer(replica, clock, time, observer) for replica in engine.replicas)

    def submit(self, job: Job, listener: Listener) -> _Ticket:
        """Queue ``job``; requests of one reactor turn share a batch.

        :raises inference_lab.engine.requests.Refused: when the engine does not take it.
        """
        handle = self._engine.submit(
            job.id,
            job.prompt_tokens,
            job.max_tokens,
            priority=job.priority,
            target=job.target,
            block_hashes=job.block_hashes,
            arrival=self._time.now() if job.asked_at is None else self._time.at(job.asked_at),
        )
        pacer = self._pacers[handle.replica]
        ticket = _Ticket(handle, listener, job, self)
        pacer.admit(ticket)
        return ticket

    def abort(self, ticket: _Ticket) -> None:
        """Take a job out of the engine; its KV blocks and its slot are free at once."""
        self._pacers[ticket.handle.replica].forget(ticket)
        if self._engine.abort(ticket.handle):
            self._observer.aborted(ticket.handle)


@define(eq=False)
class _Ticket:
    """One job: its request in the engine, who listens, and how much they were told."""

    handle: Handle
    listener: Listener
    job: Job
    driver: Driver
    told: int = 0
    over: bool = False

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that came from the prefix cache."""
        return self.handle.cached_tokens

    @property
    def state(self) -> str:
        """Where the engine has it."""
        return self.handle.state.value

    def abort(self) -> None:
        """Forget the job."""
        if not self.over:
            self.over = True
            self.driver.abort(self)

    def deliver(self) -> None:
        """Tell of tokens that are new."""
        new = self.handle.produced - self.told
        if new and not self.over:
            self.told += new
            self.listener.generated(new)

    def complete(self) -> None:
        """Tell that there will be no more."""
        if not self.over:
            self.over = True
            self.listener.completed()


class _Pacer:
    """Keeps one replica stepping while it has work."""

    def __init__(
        self, replica: Replica, clock: IReactorTime, time: Timebase, observer: Observer
    ) -> None:
        self._replica = replica
        self._clock = clock
        self._time = time
        self._observer = observer
        self._timer: IDelayedCall | None = None
        self._plan: StepPlan | None = None
        self._at = 0.0
        self._asked = 0.0
        self._tickets: dict[Handle, _Ticket] = {}
        # Those whose every step brings a token that somebody wants to see.
        self._streaming: dict[Handle, _Ticket] = {}

    def admit(self, ticket: _Ticket) -> None:
        """The engine has a new request; start if the replica is idle."""
        self._tickets[ticket.handle] = ticket
        self._asked = max(self._asked, ticket.handle.arrival)
        if self._timer is None:
            self._timer = self._clock.callLater(0, self._start)

    def forget(self, ticket: _Ticket) -> None:
        """Tell this job nothing any more."""
        self._tickets.pop(ticket.handle, None)
        self._streaming.pop(ticket.handle, None)

    def _start(self) -> None:
        self._timer = None
        # Time that passed idle is not made up for, but the reading of requests is.
        recent = self._time.until(self._asked) >= -LONGEST_READING
        self._at = max(self._at, self._asked if recent else self._time.now())
        self._plan = self._replica.begin_step(self._at)
        self._arm()

    def _turn(self) -> None:
        self._timer = None
        yield_at = self._clock.seconds() + SLICE_SECONDS
        first: list[_Ticket] = []
        finished: list[_Ticket] = []
        for _ in range(SLICE_STEPS):
            self._step(first, finished)
            if self._plan is None or self._time.until(self._plan.end) > 0:
                break
            if self._clock.seconds() >= yield_at:
                break
        for ticket in (*first, *self._streaming.values(), *finished):
            if ticket.job.streaming:
                ticket.deliver()
        for ticket in finished:
            ticket.complete()
        self._arm()

    def _step(self, first: list[_Ticket], finished: list[_Ticket]) -> None:
        """End the step in flight and begin the next."""
        plan = self._plan
        assert plan is not None
        result = self._replica.commit(plan)
        self._at = plan.end
        self._time.reached(plan.end)
        self._observer.stepped(self._replica, plan, result)
        tickets, streaming = self._tickets, self._streaming
        for handle in result.left:
            streaming.pop(handle, None)
        for handle in result.joined:
            ticket = tickets.get(handle)
            # It may have left again within the step.
            if ticket is not None and ticket.job.streaming and handle in result.members:
                streaming[handle] = ticket
        first += [tickets[handle] for handle in result.first if handle in tickets]
        for handle, _ in result.finished:
            ticket = tickets.pop(handle, None)
            if ticket is not None:
                finished.append(ticket)
                self._observer.finished(handle, ticket.job.finish_reason)
        self._plan = self._replica.begin_step(plan.end)

    def _arm(self) -> None:
        """Set the timer for the step in flight, if there is one and none is set."""
        if self._plan is None or self._timer is not None:
            return
        wait = self._time.until(self._plan.end)
        if wait < -LATEST:
            self._observer.slipped(-wait)
            self._time.slip(-wait)
            wait = 0.0
        self._timer = self._clock.callLater(max(0.0, wait), self._turn)
