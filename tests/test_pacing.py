"""The stand-in backend and the listeners between it and a stream, on a clock."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.defer import CancelledError
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from inference_lab.faults.player import Player
from inference_lab.faults.steps import AwaitToken, End, Send, Step
from inference_lab.pacing.backend import Job, Ticket
from inference_lab.pacing.feed import Feeds, Generated
from tests.fixed_rate import TOKENS_PER_SECOND, FixedRate

TICK = 1 / TOKENS_PER_SECOND


class Witness:
    """A listener that writes down what it is told, and when."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.tokens: list[float] = []
        self.done: list[float] = []
        self.on_token: Callable[[], None] = lambda: None

    def generated(self, count: int) -> None:
        self.tokens += [self._clock.seconds()] * count
        self.on_token()

    def completed(self) -> None:
        self.done.append(self._clock.seconds())


def job(target: int, streaming: bool = True) -> Job:
    return Job(prompt_tokens=5, max_tokens=target, target=target, streaming=streaming)


class FixedRateTests(SynchronousTestCase):
    """Every answer at the same steady rate."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.backend = FixedRate(self.clock)
        self.witness = Witness(self.clock)

    def timers(self) -> int:
        return len(self.clock.getDelayedCalls())

    def test_a_token_a_tick(self) -> None:
        self.backend.submit(job(3), self.witness)
        self.assertEqual(self.witness.tokens, [])
        for count in (1, 2, 3):
            self.assertEqual(self.witness.done, [])
            self.clock.advance(TICK)
            self.assertEqual(len(self.witness.tokens), count)
        self.assertEqual(self.witness.done, [self.clock.seconds()])
        self.assertEqual(self.timers(), 0)

    @given(st.integers(1, 300), st.floats(0.001, 1.0))
    def test_as_many_as_asked_and_on_time(self, target: int, stride: float) -> None:
        clock = Clock()
        witness = Witness(clock)
        FixedRate(clock).submit(job(target), witness)
        while not witness.done:
            clock.advance(stride)
        self.assertEqual(len(witness.tokens), target)
        for index, when in enumerate(witness.tokens, 1):
            due = index / TOKENS_PER_SECOND
            self.assertGreaterEqual(when, due - 1e-9)
            # Late by no more than the clock's own stride: nothing adds up.
            self.assertLessEqual(when, due + stride + 1e-9)
        self.assertEqual(clock.getDelayedCalls(), [])

    def test_many_at_once_keep_their_own_pace(self) -> None:
        witnesses = [Witness(self.clock) for _ in range(5)]
        for length, witness in enumerate(witnesses, 1):
            self.backend.submit(job(length), witness)
        self.clock.pump([TICK] * 5)
        for length, witness in enumerate(witnesses, 1):
            self.assertEqual(len(witness.tokens), length)
            self.assertApproximates(witness.done[0], length * TICK, 1e-9)

    def test_a_job_that_does_not_stream_hears_of_its_end_only(self) -> None:
        self.backend.submit(job(50, streaming=False), self.witness)
        self.assertEqual(self.timers(), 1)
        self.clock.advance(49.5 * TICK)
        self.assertEqual((self.witness.tokens, self.witness.done), ([], []))
        self.clock.advance(0.5 * TICK)
        self.assertEqual(self.witness.tokens, [])
        self.assertEqual(len(self.witness.done), 1)

    def test_abort(self) -> None:
        for streaming in (True, False):
            ticket = self.backend.submit(job(10, streaming), self.witness)
            self.clock.advance(2.5 * TICK)
            told = len(self.witness.tokens)
            ticket.abort()
            ticket.abort()
            self.assertEqual(self.timers(), 0)
            self.clock.advance(1.0)
            self.assertEqual((len(self.witness.tokens), self.witness.done), (told, []))

    def test_abort_from_inside_any_token(self) -> None:
        """The stream was cut by the very write this token caused."""
        for last_heard in (1, 2, 3):
            witness = Witness(self.clock)
            ticket = self.backend.submit(job(3), witness)

            def leave(
                witness: Witness = witness, ticket: Ticket = ticket, last: int = last_heard
            ) -> None:
                if len(witness.tokens) == last:
                    ticket.abort()

            witness.on_token = leave
            self.clock.pump([TICK] * 5)
            self.assertEqual(len(witness.tokens), last_heard)
            self.assertEqual(witness.done, [], "nobody is told anything more")
            self.assertEqual(self.timers(), 0)

    def test_abort_after_the_end(self) -> None:
        ticket = self.backend.submit(job(1), self.witness)
        self.clock.advance(TICK)
        ticket.abort()
        self.assertEqual(len(self.witness.done), 1)

    def test_the_longest_answer_a_request_can_ask_for(self) -> None:
        for streaming in (True, False):
            ticket = self.backend.submit(job(2**63 - 1, streaming), self.witness)
            self.clock.advance(TICK)
            ticket.abort()
        self.assertEqual(len(self.witness.tokens), 1)
        self.assertEqual(self.timers(), 0)


class FeedTests(SynchronousTestCase):
    """What a stream is owed."""

    def test_counts(self) -> None:
        feed = Feeds()
        self.assertFalse(feed.take())
        feed.listeners[0].generated(2)
        feed.listeners[0].generated(1)
        self.assertEqual([feed.take() for _ in range(4)], [True, True, True, False])
        self.assertEqual(feed.owed[0], 0)

    def test_wakes_after_counting(self) -> None:
        feed = Feeds()
        owed: list[int] = []
        feed.wake = lambda: owed.append(feed.owed[0])
        feed.listeners[0].generated(2)
        feed.listeners[0].generated(3)
        feed.listeners[0].completed()
        self.assertEqual(owed, [2, 5])

    @given(st.lists(st.integers(-3, 5), max_size=50))
    def test_never_gives_what_it_was_not_given(self, happenings: list[int]) -> None:
        feed = Feeds()
        given_, taken = 0, 0
        for happening in happenings:
            if happening > 0:
                feed.listeners[0].generated(happening)
                given_ += happening
            else:
                taken += feed.take()
        self.assertLessEqual(taken, given_)
        self.assertEqual(feed.owed[0], given_ - taken)


class StreamTests(SynchronousTestCase):
    """Backend, feed and player together."""

    def test_a_healthy_stream(self) -> None:
        clock = Clock()
        writes: list[tuple[float, bytes]] = []
        ends: list[End] = []

        class Outlet:
            def write(self, data: bytes) -> None:
                writes.append((round(clock.seconds(), 6), data))

            def end(self, how: End) -> None:
                ends.append(how)

        steps: list[Step] = [Send(b"role")]
        for index in range(3):
            steps += [AwaitToken(), Send(b"%d" % index)]
        feed = Feeds()
        FixedRate(clock).submit(job(3), feed.listeners[0])
        player = Player(iter([*steps, Send(b"!"), End.CLEAN]), Outlet(), clock, feed)
        feed.wake = player.wake
        player.start()
        clock.pump([TICK] * 3)
        self.assertEqual(writes, [(0.0, b"role"), (0.01, b"0"), (0.02, b"1"), (0.03, b"2!")])
        self.assertEqual(ends, [End.CLEAN])
        self.assertEqual(clock.getDelayedCalls(), [])


class GeneratedTests(SynchronousTestCase):
    """An answer that nobody sees before it is whole."""

    def test_fires_when_it_is(self) -> None:
        clock = Clock()
        whole = Generated()
        FixedRate(clock).submit(job(20, streaming=False), whole)
        clock.advance(19 * TICK)
        self.assertNoResult(whole.done)
        clock.advance(TICK)
        self.assertIsNone(self.successResultOf(whole.done))

    def test_a_client_that_leaves_aborts_the_job(self) -> None:
        clock = Clock()
        whole = Generated()
        whole.tickets = [FixedRate(clock).submit(job(20, streaming=False), whole)]
        whole.done.cancel()
        self.failureResultOf(whole.done, CancelledError)
        self.assertEqual(clock.getDelayedCalls(), [])
        clock.advance(1.0)
