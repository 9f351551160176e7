"""The player on a clock: when things are said, and what is left when it is over."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from inference_lab.dialects.base import Identity, Said, Usage
from inference_lab.dialects.chat import Chat
from inference_lab.faults.grammar import Fault
from inference_lab.faults.modes import MODES
from inference_lab.faults.player import LONGEST_TIMER, SENDS_PER_TURN, Player, Tokens
from inference_lab.faults.script import Scene
from inference_lab.faults.steps import AwaitToken, End, Pause, Send, Step
from inference_lab.pacing.feed import Feeds
from tests.turns import TurningClock


class Recorder:
    """An outlet that remembers what was written when."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.writes: list[tuple[float, bytes]] = []
        self.ends: list[End] = []
        self.on_write: Callable[[], None] = lambda: None

    def write(self, data: bytes) -> None:
        assert not self.ends, "written after the end"
        self.writes.append((self._clock.seconds(), data))
        self.on_write()

    def end(self, how: End) -> None:
        self.ends.append(how)

    @property
    def data(self) -> list[bytes]:
        return [data for _, data in self.writes]

    @property
    def times(self) -> list[float]:
        return [when for when, _ in self.writes]


class Stage:
    """A player, its clock and what came out."""

    def __init__(
        self,
        steps: Iterable[Step],
        tokens: Tokens | None = None,
        clock: TurningClock | None = None,
    ) -> None:
        self.clock = clock or TurningClock()
        self.outlet = Recorder(self.clock)
        self.player = Player(iter(steps), self.outlet, self.clock, tokens)

    def start(self) -> Stage:
        self.player.start()
        return self

    def timers(self) -> int:
        return len(self.clock.getDelayedCalls())


def paced(count: int, seconds: float, end: End = End.CLEAN) -> Iterator[Step]:
    """``count`` frames, ``seconds`` apart."""
    for index in range(count):
        if index:
            yield Pause(seconds)
        yield Send(b"%d" % index)
    yield end


def fault_steps(mode: str, count: int, delay_ms: int) -> Iterator[Step]:
    fault = Fault(mode, count, delay_ms)
    identity = Identity("chatcmpl-0", 0, "m")
    return MODES[mode].steps(
        Scene(Chat(identity), fault, lambda i: Said(str(i)), Usage(1, count), True)
    )


class PacingTests(SynchronousTestCase):
    """Due times are absolute."""

    def test_frames_at_their_times(self) -> None:
        stage = Stage(paced(4, 0.5)).start()
        self.assertEqual(stage.outlet.writes, [(0.0, b"0")])
        stage.clock.pump([0.25] * 6)
        self.assertEqual(stage.outlet.writes, [(0.0, b"0"), (0.5, b"1"), (1.0, b"2"), (1.5, b"3")])
        self.assertEqual(stage.outlet.ends, [End.CLEAN])
        self.assertEqual(stage.timers(), 0)

    def test_lateness_does_not_add_up(self) -> None:
        """A reactor that is 3 ms late with every timer ends 3 ms late, not 300."""
        stage = Stage(paced(101, 0.010)).start()
        for _ in range(100):
            (call,) = stage.clock.getDelayedCalls()
            stage.clock.turn(call.getTime() + 0.003 - stage.clock.seconds())
        self.assertEqual(len(stage.outlet.writes), 101)
        self.assertApproximates(stage.outlet.times[-1], 1.003, 1e-9)

    @given(st.lists(st.floats(0, 0.05), min_size=1, max_size=60), st.integers(1, 30))
    def test_a_frame_waits_for_its_time_and_for_the_one_before(
        self, late: list[float], delay_ms: int
    ) -> None:
        stage = Stage(paced(len(late) + 1, delay_ms / 1000)).start()
        expected = [0.0]
        for index, lateness in enumerate(late, 1):
            (call,) = stage.clock.getDelayedCalls()
            stage.clock.turn(max(0.0, call.getTime() - stage.clock.seconds()) + lateness)
            expected.append(max(index * delay_ms / 1000, expected[-1]) + lateness)
        self.assertEqual(stage.outlet.data, [b"%d" % i for i in range(len(late) + 1)])
        for when, should in zip(stage.outlet.times, expected, strict=True):
            self.assertApproximates(when, should, 1e-9)

    def test_a_jump_is_caught_up_a_write_a_frame(self) -> None:
        stage = Stage(paced(10, 1.0)).start()
        stage.clock.turn(4.5)
        self.assertEqual(stage.outlet.data, [b"0", b"1"])
        while stage.clock.turn():
            pass
        # Frames 1 to 4 fell due; each is a write and a turn of its own.
        self.assertEqual(stage.outlet.writes[1:], [(4.5, b"%d" % i) for i in (1, 2, 3, 4)])
        stage.clock.turn(0.5)
        self.assertEqual(stage.outlet.writes[5:], [(5.0, b"5")])

    def test_the_clock_may_stand_anywhere(self) -> None:
        clock = TurningClock()
        clock.advance(1.7e9)
        stage = Stage(paced(3, 0.25), clock=clock).start()
        self.assertEqual(stage.outlet.times, [1.7e9])
        clock.pump([0.25, 0.25])
        self.assertEqual(stage.outlet.times, [1.7e9, 1.7e9 + 0.25, 1.7e9 + 0.5])

    def test_largest_delay_goes_in_hops(self) -> None:
        stage = Stage(fault_steps("reset", 1, 2**64 - 1)).start()
        for _ in range(50):
            (call,) = stage.clock.getDelayedCalls()
            wait = call.getTime() - stage.clock.seconds()
            self.assertGreater(wait, 0.0)
            self.assertLessEqual(wait, LONGEST_TIMER)
            stage.clock.turn(wait)
        self.assertEqual(len(stage.outlet.writes), 1)
        stage.player.stop()
        self.assertEqual(stage.timers(), 0)

    def test_hops_arrive_on_time(self) -> None:
        stage = Stage(paced(2, 10_000.5)).start()
        while stage.timers():
            (call,) = stage.clock.getDelayedCalls()
            stage.clock.turn(call.getTime() - stage.clock.seconds())
        self.assertEqual(stage.outlet.writes, [(0.0, b"0"), (10_000.5, b"1")])

    def test_sends_without_a_wait_are_one_write(self) -> None:
        stage = Stage([Send(b"a"), Send(b"b"), Pause(1.0), Send(b"c"), Send(b"d"), End.FIN])
        stage.start()
        self.assertEqual(stage.outlet.data, [b"ab"])
        stage.clock.turn(1.0)
        self.assertEqual(stage.outlet.data, [b"ab", b"cd"])
        self.assertEqual(stage.outlet.ends, [End.FIN])

    def test_much_at_once_does_not_pile_up(self) -> None:
        big = b"x" * 40_000
        stage = Stage([Send(big), Send(big), Send(big), End.FIN]).start()
        self.assertEqual(b"".join(stage.outlet.data), big * 3)
        self.assertLess(max(map(len, stage.outlet.data)), 100_000)

    def test_every_mode_on_the_clock(self) -> None:
        ends = {"reset": End.RST, "stall": End.HOLD}
        fins = {"cut_between_frames", "cut_mid_frame", "mid_reasoning", "mid_tool_call"}
        for mode in MODES:
            sends = [s for s in fault_steps(mode, 3, 20) if isinstance(s, Send)]
            stage = Stage(fault_steps(mode, 3, 20)).start()
            for _ in sends[1:]:
                self.assertEqual(stage.outlet.ends, [], mode)
                stage.clock.turn(0.020)
            self.assertEqual(stage.outlet.data, [s.data for s in sends], mode)
            expected = End.FIN if mode in fins else ends.get(mode, End.CLEAN)
            self.assertEqual(stage.outlet.ends, [expected], mode)
            self.assertEqual(stage.timers(), 0, mode)


class FairnessTests(SynchronousTestCase):
    """Nobody has the reactor to himself."""

    def test_no_delay_is_a_turn_and_a_write_a_frame(self) -> None:
        stage = Stage(paced(6, 0.0)).start()
        for turns in range(1, 6):
            self.assertEqual(len(stage.outlet.writes), turns)
            self.assertEqual(stage.clock.turn(), 1)
        self.assertEqual(stage.outlet.data, [b"0", b"1", b"2", b"3", b"4", b"5"])
        self.assertEqual(stage.outlet.ends, [End.CLEAN])

    def test_the_largest_count_lets_others_speak(self) -> None:
        clock = TurningClock()
        greedy = Stage(fault_steps("stall", 2**32 - 1, 0), clock=clock).start()
        modest = Stage(paced(5, 0.0), clock=clock).start()
        for turn in range(4):
            self.assertEqual(len(greedy.outlet.writes), turn + 1)
            self.assertEqual(len(modest.outlet.writes), turn + 1)
            clock.turn()
        self.assertEqual(modest.outlet.ends, [End.CLEAN])
        self.assertEqual(len(clock.getDelayedCalls()), 1)
        greedy.player.stop()
        self.assertEqual(clock.getDelayedCalls(), [])

    def test_a_script_without_pauses_yields_too(self) -> None:
        def endless() -> Iterator[Step]:
            while True:
                yield Send(b".")

        stage = Stage(endless()).start()
        for turns in range(1, 4):
            self.assertEqual(sum(map(len, stage.outlet.data)), turns * SENDS_PER_TURN)
            self.assertEqual(stage.clock.turn(), 1)
        stage.player.stop()
        self.assertEqual(stage.timers(), 0)


class BackPressureTests(SynchronousTestCase):
    """A reader that is behind."""

    def test_nothing_is_written_while_paused(self) -> None:
        stage = Stage(paced(5, 1.0)).start()
        stage.player.pause()
        stage.clock.turn(1.0)
        stage.clock.turn(10.0)
        self.assertEqual(stage.outlet.data, [b"0"])
        self.assertEqual(stage.timers(), 0)

    def test_resume_plays_what_fell_due(self) -> None:
        stage = Stage(paced(5, 1.0)).start()
        stage.player.pause()
        stage.clock.turn(1.0)
        stage.clock.turn(1.5)
        stage.player.resume()
        while stage.clock.turn():
            pass
        self.assertEqual(stage.outlet.writes, [(0.0, b"0"), (2.5, b"1"), (2.5, b"2")])
        stage.clock.turn(0.5)
        self.assertEqual(stage.outlet.writes[3:], [(3.0, b"3")])

    def test_resume_before_anything_was_due_changes_nothing(self) -> None:
        stage = Stage(paced(2, 1.0)).start()
        stage.player.pause()
        stage.player.resume()
        stage.player.resume()
        self.assertEqual(stage.outlet.data, [b"0"])
        self.assertEqual(stage.timers(), 1)
        stage.clock.turn(1.0)
        self.assertEqual(stage.outlet.writes, [(0.0, b"0"), (1.0, b"1")])

    def test_a_write_that_fills_the_buffer(self) -> None:
        """The transport pauses its producer from inside the write."""
        stage = Stage(paced(4, 0.0))
        stage.outlet.on_write = stage.player.pause
        stage.start()
        for expected in range(1, 5):
            while stage.clock.turn():
                pass
            self.assertEqual(len(stage.outlet.writes), expected)
            stage.player.resume()
        self.assertEqual(stage.outlet.ends, [End.CLEAN])

    def test_paused_from_the_start(self) -> None:
        stage = Stage([Send(b"a"), End.FIN])
        stage.player.pause()
        stage.start()
        self.assertEqual((stage.outlet.data, stage.outlet.ends), ([], []))
        stage.player.resume()
        self.assertEqual((stage.outlet.data, stage.outlet.ends), ([b"a"], [End.FIN]))

    @given(st.lists(st.sampled_from(["pause", "resume", "turn", "second", "token"]), max_size=60))
    def test_nothing_is_lost_or_doubled(self, happenings: list[str]) -> None:
        feed = Feeds()

        def script() -> Iterator[Step]:
            for index in range(10):
                yield AwaitToken()
                yield Send(b"%d" % index)
                yield Pause(index % 3)
            yield End.CLEAN

        stage = Stage(script(), feed)
        feed.wake = stage.player.wake
        stage.start()
        told = 0
        for happening in happenings:
            match happening:
                case "pause":
                    stage.player.pause()
                case "resume":
                    stage.player.resume()
                case "turn":
                    stage.clock.turn()
                case "second":
                    stage.clock.turn(1.0)
                case "token":
                    told += 1
                    feed.listeners[0].generated(1)
            written = b"".join(stage.outlet.data)
            self.assertEqual(written, b"0123456789"[: len(written)])
            self.assertLessEqual(len(written), told)
            self.assertLessEqual(stage.timers(), 1)
        feed.listeners[0].generated(10)
        stage.player.resume()
        stage.clock.pump([1.0] * 40)
        self.assertEqual(b"".join(stage.outlet.data), b"0123456789")
        self.assertEqual(stage.outlet.ends, [End.CLEAN])
        self.assertEqual(stage.timers(), 0)


class StopTests(SynchronousTestCase):
    """What an early end leaves: nothing."""

    def test_in_every_state(self) -> None:
        def waiting() -> Iterator[Step]:
            yield Send(b"a")
            yield AwaitToken()
            yield Send(b"b")

        pausing, awaiting, held = (
            Stage(paced(3, 1.0)),
            Stage(waiting(), Feeds()),
            Stage(paced(3, 0)),
        )
        held.player.pause()
        fresh = Stage(paced(3, 1.0))
        for stage in (pausing, awaiting, held):
            stage.start()
        for stage in (pausing, awaiting, held, fresh):
            before = list(stage.outlet.data)
            stage.player.stop()
            stage.player.stop()
            self.assertEqual(stage.timers(), 0)
            stage.player.resume()
            stage.player.wake()
            stage.clock.turn(5.0)
            self.assertEqual(stage.outlet.data, before)
            self.assertEqual(stage.outlet.ends, [], "who stops a player needs no telling")

    def test_the_script_is_closed(self) -> None:
        closed = []

        def script() -> Iterator[Step]:
            try:
                yield Pause(1.0)
            finally:
                closed.append(True)

        stage = Stage(script()).start()
        stage.player.stop()
        self.assertEqual(closed, [True])

    def test_stop_from_inside_a_write(self) -> None:
        """The write found the connection gone."""
        scripts: list[Iterator[Step]] = [paced(3, 1.0), iter([Send(b"a"), AwaitToken()])]
        for steps in scripts:
            stage = Stage(steps)
            stage.outlet.on_write = stage.player.stop
            stage.start()
            self.assertEqual(stage.timers(), 0)
            stage.clock.turn(5.0)
            self.assertEqual(len(stage.outlet.writes), 1)
            self.assertEqual(stage.outlet.ends, [])

    def test_a_stall_leaves_no_timer(self) -> None:
        for count in (0, 1, 3):
            stage = Stage(fault_steps("stall", count, 5)).start()
            for _ in range(count):
                stage.clock.turn(0.005)
            self.assertEqual(len(stage.outlet.writes), count + 1)
            self.assertEqual(stage.outlet.ends, [End.HOLD])
            self.assertEqual(stage.timers(), 0)

    def test_nothing_is_played_after_an_end(self) -> None:
        stage = Stage([Send(b"a"), End.HOLD, Send(b"b"), End.CLEAN]).start()
        stage.player.resume()
        stage.player.wake()
        self.assertEqual((stage.outlet.data, stage.outlet.ends), ([b"a"], [End.HOLD]))

    def test_a_script_that_just_stops_ends_clean(self) -> None:
        stage = Stage([Send(b"a")]).start()
        self.assertEqual((stage.outlet.data, stage.outlet.ends), ([b"a"], [End.CLEAN]))


class BrokenScriptTests(SynchronousTestCase):
    """A defect never looks like a finished answer."""

    def broken(self) -> Iterator[Step]:
        yield Send(b"a")
        yield Pause(1.0)
        yield Send(b"b")
        raise ZeroDivisionError("broken script")

    def test_ends_without_a_terminator(self) -> None:
        stage = Stage(self.broken()).start()
        stage.clock.turn(1.0)
        self.assertEqual(stage.outlet.data, [b"a", b"b"])
        self.assertEqual(stage.outlet.ends, [End.FIN])
        self.assertEqual(stage.timers(), 0)
        (failure,) = self.flushLoggedErrors(ZeroDivisionError)
        self.assertIn("broken script", str(failure.value))

    def test_at_its_first_step(self) -> None:
        def broken() -> Iterator[Step]:
            raise ZeroDivisionError
            yield Send(b"a")

        stage = Stage(broken()).start()
        self.assertEqual((stage.outlet.data, stage.outlet.ends), ([], [End.FIN]))
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)

    def test_an_unknown_step(self) -> None:
        """Neither skipped nor fatal."""
        odd: list[Step] = [Send(b"a"), "what?", Send(b"b"), End.CLEAN]  # type: ignore[list-item]
        stage = Stage(odd).start()
        self.assertEqual(stage.outlet.ends, [End.FIN])
        self.assertEqual(len(self.flushLoggedErrors(AssertionError)), 1)


class TokenTests(SynchronousTestCase):
    """An engine behind the script."""

    def stage(self, count: int) -> tuple[Stage, Feeds]:
        def script() -> Iterator[Step]:
            yield Send(b"role ")
            for index in range(count):
                yield AwaitToken()
                yield Send(b"%d " % index)
            yield End.CLEAN

        feed = Feeds()
        stage = Stage(script(), feed)
        feed.wake = stage.player.wake
        return stage, feed

    def test_a_token_a_frame(self) -> None:
        stage, feed = self.stage(3)
        stage.start()
        self.assertEqual(stage.outlet.data, [b"role "])
        self.assertEqual(stage.timers(), 0)
        for index in range(3):
            self.assertEqual(stage.outlet.ends, [])
            stage.clock.turn(0.5)
            feed.listeners[0].generated(1)
            self.assertEqual(stage.outlet.writes[-1], (0.5 * (index + 1), b"%d " % index))
        self.assertEqual(stage.outlet.ends, [End.CLEAN])

    def test_tokens_of_one_step_are_one_write(self) -> None:
        stage, feed = self.stage(4)
        stage.start()
        feed.listeners[0].generated(3)
        self.assertEqual(stage.outlet.data, [b"role ", b"0 1 2 "])
        self.assertEqual(feed.owed[0], 0)

    def test_tokens_before_the_start(self) -> None:
        stage, feed = self.stage(2)
        feed.listeners[0].generated(2)
        self.assertEqual(stage.outlet.data, [])
        stage.start()
        self.assertEqual(stage.outlet.data, [b"role 0 1 "])
        self.assertEqual(stage.outlet.ends, [End.CLEAN])

    def test_tokens_while_the_reader_is_behind(self) -> None:
        stage, feed = self.stage(5)
        stage.start()
        stage.player.pause()
        for _ in range(4):
            feed.listeners[0].generated(1)
        self.assertEqual(stage.outlet.data, [b"role "])
        stage.player.resume()
        self.assertEqual(stage.outlet.data, [b"role ", b"0 1 2 3 "])
        feed.listeners[0].generated(1)
        self.assertEqual(stage.outlet.data[2:], [b"4 "])

    def test_a_pause_after_a_token_counts_from_the_token(self) -> None:
        feed = Feeds()
        steps: list[Step] = [AwaitToken(), Send(b"a"), Pause(1.0), Send(b"b"), End.CLEAN]
        stage = Stage(steps, feed)
        feed.wake = stage.player.wake
        stage.start()
        stage.clock.turn(7.0)
        feed.listeners[0].generated(1)
        stage.clock.turn(1.0)
        self.assertEqual(stage.outlet.writes, [(7.0, b"a"), (8.0, b"b")])

    def test_waking_one_who_does_not_wait_takes_nothing(self) -> None:
        feed = Feeds()
        stage = Stage(paced(3, 1.0), feed)
        feed.wake = stage.player.wake
        stage.start()
        feed.listeners[0].generated(2)
        self.assertEqual(feed.owed[0], 2)
        self.assertEqual(stage.outlet.data, [b"0"])

    def test_without_an_engine_it_waits_for_ever(self) -> None:
        stage = Stage([Send(b"a"), AwaitToken(), Send(b"b"), End.CLEAN]).start()
        stage.player.wake()
        self.assertEqual(stage.outlet.data, [b"a"])
        self.assertEqual(stage.timers(), 0)

    def test_a_flood_of_tokens_is_fair_and_ordered(self) -> None:
        stage, feed = self.stage(1000)
        stage.start()
        feed.listeners[0].generated(1000)
        first = b"".join(stage.outlet.data).split()
        self.assertLess(len(first), 300)
        while stage.clock.turn():
            pass
        words = b"".join(stage.outlet.data).split()
        self.assertEqual(words, [b"role", *(b"%d" % i for i in range(1000))])
        self.assertEqual(stage.outlet.ends, [End.CLEAN])
