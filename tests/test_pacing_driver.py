"""The driver on a clock that only tests move: exact times, no sleeping."""

from __future__ import annotations

from typing import Any

from attrs import define, field
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from inference_lab.configuration.deployment import Deployment
from inference_lab.configuration.loader import load, shipped_configs
from inference_lab.engine.engine import Engine
from inference_lab.pacing.backend import Job
from inference_lab.pacing.driver import LATEST, LONGEST_READING, SLICE_STEPS, Driver
from inference_lab.pacing.timebase import Paced, Timebase, Unpaced


def deployment(name: str = "llama-3.1-8b-instruct", hardware: str = "gh200") -> Deployment:
    """A shipped deployment."""
    return load([shipped_configs() / f"{name}.toml"], hardware).deployments[0]


@define(slots=False)
class Seen:
    """What one listener was told, and when."""

    clock: Clock
    times: list[float] = field(factory=list)
    counts: list[int] = field(factory=list)
    completed_at: float | None = None

    def generated(self, count: int) -> None:
        self.times.append(self.clock.seconds())
        self.counts.append(count)

    def completed(self) -> None:
        assert self.completed_at is None
        self.completed_at = self.clock.seconds()


@define
class Figures:
    """Counts what the driver reports."""

    steps: int = 0
    slips: list[float] = field(factory=list)
    left: list[Any] = field(factory=list)
    reasons: list[str] = field(factory=list)

    def stepped(self, replica: object, plan: object, result: object) -> None:
        self.steps += 1

    def aborted(self, handle: object) -> None:
        self.left.append(handle)

    def finished(self, handle: object, reason: str) -> None:
        self.reasons.append(reason)

    def slipped(self, seconds: float) -> None:
        self.slips.append(seconds)


def offline(jobs: list[tuple[int, int]], at: float = 0.0) -> list[list[float]]:
    """When each token exists according to the engine alone, all jobs arriving ``at``."""
    engine = Engine(deployment())
    handles = [
        engine.submit(str(i), prompt, tokens, arrival=at) for i, (prompt, tokens) in enumerate(jobs)
    ]
    times: list[list[float]] = [[] for _ in jobs]
    replica = engine.replicas[0]
    now = at
    while (plan := replica.begin_step(now)) is not None:
        before = [handle.produced for handle in handles]
        replica.commit(plan)
        now = plan.end
        for i, handle in enumerate(handles):
            times[i] += [now] * (handle.produced - before[i])
    return times


class DriverTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.clock = Clock()
        self.clock.advance(1000.0)
        self.figures = Figures()

    def driver(self, time: Timebase | None = None) -> Driver:
        self.engine = Engine(deployment())
        return Driver(self.engine, self.clock, time or Paced(self.clock), self.figures)

    def start(
        self,
        driver: Driver,
        prompt: int,
        tokens: int,
        streaming: bool = True,
        asked_at: float | None = None,
    ) -> tuple[Seen, Any]:
        seen = Seen(self.clock)
        job = Job(prompt, tokens, tokens, streaming, asked_at=asked_at)
        return seen, driver.submit(job, seen)

    def run_for(self, seconds: float) -> None:
        """Move the clock from timer to timer, as a punctual reactor does."""
        end = self.clock.seconds() + seconds
        while True:
            due = [call.getTime() for call in self.clock.getDelayedCalls()]
            if not due or min(due) > end:
                break
            self.clock.advance(max(0.0, min(due) - self.clock.seconds()))
        self.clock.advance(max(0.0, end - self.clock.seconds()))

    def close(self, seen: list[float], expected: list[float], start: float = 1000.0) -> None:
        self.assertEqual(len(seen), len(expected))
        for one, other in zip(seen, expected, strict=True):
            self.assertAlmostEqual(one - start, other, places=9)

    def test_one_stream_is_told_at_the_end_of_each_step(self) -> None:
        seen, _ = self.start(self.driver(), 1000, 20)
        self.run_for(10)
        self.close(seen.times, offline([(1000, 20)])[0])
        self.assertEqual(seen.counts, [1] * 20)
        self.assertEqual(seen.completed_at, seen.times[-1])
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_requests_of_one_turn_share_the_batch(self) -> None:
        jobs = [(100 + 10 * i, 5 + i % 7) for i in range(32)]
        driver = self.driver()
        seen = [self.start(driver, *job)[0] for job in jobs]
        self.run_for(10)
        for one, expected in zip(seen, offline(jobs), strict=True):
            self.close(one.times, expected)

    def test_an_answer_in_one_piece_is_told_once(self) -> None:
        driver = self.driver()
        whole, _ = self.start(driver, 100, 50, streaming=False)
        self.run_for(10)
        self.assertEqual(whole.counts, [])
        assert whole.completed_at is not None
        self.assertAlmostEqual(whole.completed_at - 1000, offline([(100, 50)])[0][-1], places=9)

    def test_idle_time_is_not_replayed(self) -> None:
        driver = self.driver()
        self.start(driver, 100, 3)
        self.run_for(60)
        again, _ = self.start(driver, 100, 10)
        started = self.clock.seconds()
        self.run_for(10)
        self.close(again.times, offline([(100, 10)])[0], started)

    def test_arrivals_carry_the_time_they_came(self) -> None:
        driver = self.driver()
        self.start(driver, 5000, 10)
        self.run_for(0.01)
        _, ticket = self.start(driver, 10, 2)
        self.assertAlmostEqual(ticket.handle.arrival, 0.01)

    def test_reading_a_request_takes_no_time_of_an_idle_engine(self) -> None:
        """Neither when it is over before the first token is due, nor when not."""
        expected = offline([(5000, 30)])[0]
        driver = self.driver()
        self.clock.advance(expected[0] / 2)
        seen, ticket = self.start(driver, 5000, 30, asked_at=1000.0)
        self.assertAlmostEqual(ticket.handle.arrival, 0.0)
        self.run_for(10)
        self.close(seen.times, expected)
        asked = self.clock.seconds()
        self.clock.advance(expected[4] + 1e-6)
        late, _ = self.start(driver, 5000, 30, asked_at=asked)
        self.run_for(10)
        self.assertEqual(late.counts, [5] + [1] * 25)
        self.close(late.times[1:], expected[5:], asked)

    def test_reading_at_another_speed(self) -> None:
        expected = offline([(5000, 30)])[0]
        driver = self.driver(Paced(self.clock, 10))
        self.clock.advance(expected[0] / 20)
        seen, _ = self.start(driver, 5000, 30, asked_at=1000.0)
        self.run_for(10)
        self.close(seen.times, [time / 10 for time in expected])

    def test_a_request_that_took_too_long_to_read_begins_when_it_is(self) -> None:
        driver = self.driver()
        self.clock.advance(LONGEST_READING + 0.1)
        seen, ticket = self.start(driver, 1000, 10, asked_at=1000.0)
        self.assertAlmostEqual(ticket.handle.arrival, 0.0)
        self.run_for(10)
        self.close(seen.times, offline([(1000, 10)])[0], 1000.1 + LONGEST_READING)

    def test_requests_of_one_turn_begin_with_the_last(self) -> None:
        jobs = [(1000, 10), (900, 10)]
        driver = self.driver()
        self.clock.advance(0.02)
        last = self.start(driver, 1000, 10, asked_at=1000.01)[0]
        first = self.start(driver, 900, 10, asked_at=1000.0)[0]
        self.run_for(10)
        for seen, expected in zip((last, first), offline(jobs), strict=True):
            self.close(seen.times, expected, 1000.01)

    def test_what_is_read_while_others_run_does_not_run_before_them(self) -> None:
        """The engine is idle again when it comes, but was not when it was asked."""
        driver = self.driver()
        other, _ = self.start(driver, 100, 3)
        self.run_for(0.1)
        assert other.completed_at is not None
        seen, _ = self.start(driver, 1000, 10, asked_at=1000.0)
        self.run_for(10)
        expected = [max(0.1, other.completed_at - 1000 + t) for t in offline([(1000, 10)])[0]]
        self.assertEqual(seen.counts[0], sum(t <= 0.1 for t in expected))
        self.close(seen.times[1:], [t for t in expected if t > 0.1])

    def test_a_late_timer_catches_up_in_one_piece(self) -> None:
        seen, _ = self.start(self.driver(), 100, 200)
        expected = offline([(100, 200)])[0]
        self.clock.advance(0)
        self.clock.advance(expected[9] + 1e-6)
        self.assertEqual(seen.counts, [10])
        self.run_for(10)
        self.close(seen.times[1:], expected[10:])
        self.assertEqual(self.figures.slips, [])

    def test_catching_up_takes_turns(self) -> None:
        seen, _ = self.start(self.driver(), 100, 300)
        expected = offline([(100, 300)])[0]
        self.clock.advance(0)
        self.clock.advance(expected[99] + 1e-6)
        self.assertEqual(seen.counts, [SLICE_STEPS, 100 - SLICE_STEPS])
        self.run_for(10)
        self.close(seen.times[2:], expected[100:])

    def test_hopeless_lateness_slips(self) -> None:
        seen, _ = self.start(self.driver(), 100, 1000)
        expected = offline([(100, 1000)])[0]
        self.clock.advance(0)
        late = expected[SLICE_STEPS] + LATEST + 0.5
        self.clock.advance(late)
        self.assertEqual(len(self.figures.slips), 1)
        self.assertAlmostEqual(self.figures.slips[0], LATEST + 0.5, places=6)
        self.run_for(60)
        self.assertEqual(sum(seen.counts), 1000)
        for one, token in zip(seen.times[2:], expected[SLICE_STEPS + 1 :], strict=False):
            self.assertAlmostEqual(one - 1000 - self.figures.slips[0], token, places=6)

    def test_speed(self) -> None:
        seen, _ = self.start(self.driver(Paced(self.clock, 10)), 1000, 20)
        self.run_for(10)
        self.close(seen.times, [time / 10 for time in offline([(1000, 20)])[0]])

    def test_without_pacing_no_time_passes(self) -> None:
        seen, _ = self.start(self.driver(Unpaced()), 1000, 200)
        while self.clock.getDelayedCalls():
            self.clock.advance(0)
        self.assertEqual(sum(seen.counts), 200)
        self.assertEqual(self.clock.seconds(), 1000)
        self.assertLessEqual(max(seen.counts), SLICE_STEPS)

    def test_an_aborted_job_is_out_at_once(self) -> None:
        driver = self.driver()
        seen, ticket = self.start(driver, 1000, 500)
        other, _ = self.start(driver, 1000, 50)
        self.run_for(0.1)
        self.assertEqual(self.engine.stats().running, 2)
        told = sum(seen.counts)
        ticket.abort()
        ticket.abort()
        self.assertEqual(self.engine.stats().running, 1)
        self.assertEqual(len(self.figures.left), 1)
        self.run_for(10)
        self.assertEqual(sum(seen.counts), told)
        self.assertIsNone(seen.completed_at)
        self.assertEqual(sum(other.counts), 50)
        stats = self.engine.stats()
        self.assertEqual((stats.kv_blocks_free, stats.running), (stats.kv_blocks, 0))
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_a_listener_that_aborts_while_it_is_told(self) -> None:
        driver = self.driver()
        seen, ticket = self.start(driver, 100, 500)
        other, _ = self.start(driver, 100, 20)

        def generated(count: int) -> None:
            ticket.abort()

        seen.generated = generated  # type: ignore[method-assign]
        self.run_for(10)
        self.assertIsNone(seen.completed_at)
        self.assertEqual(sum(other.counts), 20)
