"""The wire over the real HTTP channel in memory: every end, and who may hold it up."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, cast

from klein import Klein
from klein.resource import KleinResource
from twisted.internet.defer import Deferred
from twisted.logger import ILogObserver, LogEvent, LogLevel, globalLogPublisher
from twisted.trial.unittest import SynchronousTestCase

from inference_lab.faults.player import Player
from inference_lab.faults.steps import AwaitToken, End, Pause, Send, Step
from inference_lab.web import drain
from inference_lab.web.wire import GRACE, POLL, Wire
from tests.memory import TERMINATOR, Connection, chunk
from tests.turns import TurningClock

DRAIN_TIMEOUT = 10.0
STEPS: tuple[Step, ...] = (Send(b"one"), Pause(1.0), Send(b"two"))


class Theatre:
    """A Klein app whose only route plays ``steps``, as the product's routes do."""

    app = Klein()

    def __init__(self, clock: TurningClock, steps: Iterable[Step]) -> None:
        self.clock = clock
        self.steps = steps
        self.wires: list[Wire] = []
        self.players: list[Player] = []
        self.gone: list[End | None] = []

    @app.route("/", methods=["GET"])
    def stream(self, request: Any) -> Deferred[None]:
        wire = Wire(request, self.clock, DRAIN_TIMEOUT, self.gone.append)
        wire.open()
        player = Player(iter(self.steps), wire, self.clock)
        self.wires.append(wire)
        self.players.append(player)
        wire.play(player)
        return wire.gone

    @app.route("/plain", methods=["GET"])
    def plain(self, request: Any) -> bytes:
        return b"plain"


class WireCase(SynchronousTestCase):
    """A stage, and everything the log says."""

    def setUp(self) -> None:
        self.clock = TurningClock()
        self.logged: list[LogEvent] = []
        observer = cast(ILogObserver, self.logged.append)
        globalLogPublisher.addObserver(observer)
        self.addCleanup(globalLogPublisher.removeObserver, observer)

    def request(self, *steps: Step, version: str = "1.1") -> Connection:
        self.theatre = Theatre(self.clock, steps)
        connection = Connection(KleinResource(self.theatre.app), self.clock)
        connection.send(f"GET / HTTP/{version}\r\nHost: lab\r\n\r\n".encode())
        return connection

    def streams(self) -> int:
        """Timers that belong to streams; the channel has its own for idle clients."""
        ours = ("Player", "Wire")
        return sum(
            any(name in repr(getattr(call, "func", "")) for name in ours)
            for call in self.clock.getDelayedCalls()
        )

    def warnings(self) -> list[str]:
        return [
            event["log_format"].format(**event)
            for event in self.logged
            if event["log_level"] is LogLevel.warn
        ]

    def troubles(self) -> list[LogEvent]:
        return [event for event in self.logged if event["log_level"] > LogLevel.warn]

    def tcp(self, *unsent: int | None) -> None:
        """Pretend that the transport is a TCP socket whose queue reads like this.

        The last figure stays.
        """
        figures = list(unsent)

        def read(transport: object) -> int | None:
            return figures.pop(0) if len(figures) > 1 else figures[0]

        self.patch(drain, "can_reset", lambda transport: True)
        self.patch(drain, "unsent", read)


class OpeningTests(WireCase):
    """The head, and the pieces."""

    def test_head_goes_out_before_anything_is_said(self) -> None:
        connection = self.request(AwaitToken())
        status, headers = connection.head
        self.assertEqual(status, 200)
        self.assertEqual(headers["content-type"], "text/event-stream; charset=utf-8")
        self.assertEqual(headers["transfer-encoding"], "chunked")
        self.assertEqual(headers["cache-control"], "no-cache")
        self.assertEqual(connection.rest, b"")

    def test_a_write_is_a_chunk(self) -> None:
        connection = self.request(*STEPS, AwaitToken())
        self.assertEqual(connection.rest, chunk(b"one"))
        self.clock.turn(1.0)
        self.assertEqual(connection.rest, chunk(b"one") + chunk(b"two"))

    def test_http_1_0_is_not_chunked(self) -> None:
        connection = self.request(Send(b"one"), End.FIN, version="1.0")
        self.clock.turn(GRACE)
        self.assertEqual(connection.rest, b"one")
        self.assertEqual(connection.closings, ["FIN"])


class CleanEndTests(WireCase):
    """The terminator, and the connection lives on."""

    def test_terminator_and_keep_alive(self) -> None:
        connection = self.request(*STEPS, End.CLEAN)
        self.assertEqual(self.theatre.gone, [])
        self.clock.turn(1.0)
        self.assertEqual(connection.rest, chunk(b"one") + chunk(b"two") + TERMINATOR)
        self.assertEqual(self.theatre.gone, [End.CLEAN])
        self.assertEqual(connection.closings, [])
        self.assertEqual(self.streams(), 0)
        connection.ask("GET", "/plain")
        self.assertTrue(connection.raw.endswith(b"plain" + b"\r\n" + TERMINATOR))
        connection.leave()
        self.assertEqual(self.theatre.gone, [End.CLEAN])
        self.assertEqual(self.troubles(), [])

    def test_an_end_without_a_frame(self) -> None:
        connection = self.request(End.CLEAN)
        self.assertEqual(connection.rest, TERMINATOR)

    def test_a_second_stream_on_the_same_connection(self) -> None:
        connection = self.request(Send(b"one"), End.CLEAN)
        connection.ask("GET", "/")
        self.assertEqual(connection.raw.count(chunk(b"one") + TERMINATOR), 2)
        self.assertEqual(self.theatre.gone, [End.CLEAN, End.CLEAN])

    def test_a_pipelined_request_waits(self) -> None:
        connection = self.request(*STEPS, End.CLEAN)
        connection.ask("GET", "/plain")
        self.assertNotIn(b"plain", connection.rest)
        self.clock.turn(1.0)
        self.clock.pump([0.0] * 3)
        self.assertIn(b"plain", connection.rest)


class AbruptEndTests(WireCase):
    """FIN and RST, and never a terminator."""

    def test_fin(self) -> None:
        connection = self.request(*STEPS, End.FIN)
        self.clock.turn(1.0)
        self.assertEqual(connection.closings, [], "not before the grace is over")
        self.clock.turn(GRACE)
        self.assertEqual(connection.closings, ["FIN"])
        self.assertEqual(connection.rest, chunk(b"one") + chunk(b"two"))
        self.assertEqual(self.theatre.gone, [End.FIN])
        self.assertEqual(self.streams(), 0)

    def test_rst(self) -> None:
        self.tcp(0)
        connection = self.request(*STEPS, End.RST)
        self.clock.turn(1.0)
        self.assertEqual(connection.closings, [])
        self.clock.turn(GRACE)
        self.assertEqual(connection.closings, ["RST"], "an abort alone: no FIN before it")
        self.assertEqual(connection.rest, chunk(b"one") + chunk(b"two"))
        self.assertEqual(self.theatre.gone, [End.RST])
        self.assertEqual(self.warnings(), [])

    def test_nothing_follows_when_the_connection_is_down(self) -> None:
        """Klein finishes whatever returns; the handler must stay parked until it cannot."""
        for end in (End.FIN, End.RST):
            self.tcp(0)
            connection = self.request(Send(b"one"), end)
            self.clock.turn(GRACE)
            self.assertEqual(self.theatre.wires[0].gone.called, False)
            connection.leave()
            self.clock.pump([1.0] * 3)
            self.assertEqual(self.theatre.wires[0].gone.called, True)
            self.assertEqual(connection.rest, chunk(b"one"))
            self.assertEqual(self.theatre.gone, [end])
            self.assertEqual(self.troubles(), [])
            self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_grace_is_the_floor(self) -> None:
        """Even with an empty queue, and without a delay between frames."""
        self.tcp(0)
        for end in (End.FIN, End.RST):
            connection = self.request(Send(b"one"), Pause(0.0), Send(b"two"), end)
            self.clock.turn()
            self.clock.turn(GRACE - 0.001)
            self.assertEqual(connection.closings, [])
            self.clock.turn(0.0011)
            self.assertEqual(len(connection.closings), 1)

    def test_fin_of_a_broken_script(self) -> None:
        def broken() -> Iterator[Step]:
            yield Send(b"one")
            raise ZeroDivisionError

        self.theatre = Theatre(self.clock, broken())
        connection = Connection(KleinResource(self.theatre.app), self.clock)
        connection.ask("GET", "/")
        self.clock.turn(GRACE)
        self.assertEqual(connection.rest, chunk(b"one"), "no HTML page, no terminator")
        self.assertEqual(connection.closings, ["FIN"])
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)

    def test_no_request_is_answered_after_an_abrupt_end(self) -> None:
        connection = self.request(Send(b"one"), End.FIN)
        connection.ask("GET", "/plain")
        self.clock.turn(GRACE)
        connection.leave()
        self.clock.pump([1.0] * 3)
        self.assertNotIn(b"plain", connection.raw)


class DegradedResetTests(WireCase):
    """Where there is nothing to reset."""

    def test_no_socket(self) -> None:
        connection = self.request(Send(b"one"), End.RST)
        self.clock.turn(GRACE)
        self.assertEqual(connection.closings, ["FIN"])
        self.assertEqual(connection.rest, chunk(b"one"))
        (warning,) = self.warnings()
        self.assertIn("reset", warning)

    def test_unix_socket(self) -> None:
        """Its queue can be asked, and is; it has no RST all the same."""
        self.tcp(5, 5, 0)
        self.patch(drain, "can_reset", lambda transport: False)
        connection = self.request(Send(b"one"), End.RST)
        self.clock.turn(GRACE)
        self.assertEqual(connection.closings, [])
        self.clock.turn(POLL)
        self.assertEqual(connection.closings, ["FIN"])
        self.assertEqual(len(self.warnings()), 1)

    def test_a_handler_driven_without_a_server(self) -> None:
        for end, warnings in ((End.FIN, 0), (End.RST, 1)):
            request = LooseRequest()
            wire = Wire(request, self.clock, DRAIN_TIMEOUT)
            wire.open()
            wire.play(Player(iter([Send(b"one"), end]), wire, self.clock))
            self.clock.turn(GRACE)
            self.assertEqual(request.said, ["200", "", "producer", "one", "lose"])
            self.assertEqual(len(self.warnings()), warnings)

    def test_a_fin_is_no_reason_to_warn(self) -> None:
        self.request(Send(b"one"), End.FIN)
        self.clock.turn(GRACE)
        self.assertEqual(self.warnings(), [])


class LooseRequest:
    """As much of a request as a wire needs, with no channel and no transport."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def notifyFinish(self) -> Deferred[None]:
        return Deferred()

    def setResponseCode(self, code: int) -> None:
        self.said.append(str(code))

    def setHeader(self, name: str, value: str) -> None:
        pass

    def write(self, data: bytes) -> None:
        self.said.append(data.decode())

    def registerProducer(self, producer: object, streaming: bool) -> None:
        self.said.append("producer")

    def unregisterProducer(self) -> None:
        self.said.append("no producer")

    def finish(self) -> None:
        self.said.append("finish")

    def loseConnection(self) -> None:
        self.said.append("lose")


class DrainTests(WireCase):
    """An abrupt end waits for its reader, as long as there is one."""

    def test_waits_while_the_peer_goes_on_acknowledging(self) -> None:
        for end, closing in ((End.FIN, "FIN"), (End.RST, "RST")):
            left = [1000]
            self.patch(drain, "can_reset", lambda transport: True)
            self.patch(drain, "unsent", lambda transport, left=left: left[0])
            connection = self.request(Send(b"one"), end)
            # Twenty times the timeout, a byte every nine tenths of it.
            while left[0] > 980:
                for _ in range(9):
                    self.clock.turn(DRAIN_TIMEOUT / 10)
                    self.assertEqual(connection.closings, [])
                left[0] -= 1
            self.assertGreater(self.clock.seconds(), 10 * DRAIN_TIMEOUT)
            left[0] = 0
            self.clock.turn(POLL)
            self.assertEqual(connection.closings, [closing])
            self.assertEqual(self.warnings(), [])
            self.assertEqual(self.streams(), 0)

    def test_looks_often(self) -> None:
        self.tcp(7, 7, 3, 0)
        connection = self.request(Send(b"one"), End.RST)
        self.clock.turn(GRACE)
        self.clock.turn(POLL)
        self.assertEqual(connection.closings, [])
        self.clock.turn(POLL)
        self.assertEqual(connection.closings, ["RST"])
        self.assertLess(self.clock.seconds(), 0.050)

    def test_gives_up_on_a_reader_that_takes_nothing(self) -> None:
        for end in (End.FIN, End.RST):
            self.logged.clear()
            self.tcp(4096)
            connection = self.request(Send(b"one"), end)
            began = self.clock.seconds()
            while not connection.closings:
                self.assertLess(self.clock.seconds() - began, DRAIN_TIMEOUT + 1.0)
                self.clock.turn(POLL)
            self.assertGreaterEqual(self.clock.seconds() - began, DRAIN_TIMEOUT - 1e-6)
            # An orderly close would keep the socket until that reader reads.
            self.assertEqual(connection.closings, ["RST"])
            (warning,) = self.warnings()
            self.assertIn("4096", warning)
            self.assertIn("10", warning)
            self.assertEqual(self.streams(), 0)
            # What is told is what went out.
            self.assertEqual(self.theatre.gone, [End.RST])

    def test_progress_starts_the_wait_anew(self) -> None:
        left = [10]
        self.patch(drain, "can_reset", lambda transport: True)
        self.patch(drain, "unsent", lambda transport: left[0])
        connection = self.request(Send(b"one"), End.RST)
        self.clock.pump([0.5] * 19)
        left[0] = 9
        self.clock.turn(POLL)
        self.clock.pump([0.5] * 19)
        self.assertEqual(connection.closings, [])
        self.clock.pump([0.5] * 2)
        self.assertEqual(connection.closings, ["RST"])

    def test_where_nobody_can_tell_the_grace_decides(self) -> None:
        self.tcp(None)
        connection = self.request(Send(b"one"), End.RST)
        self.clock.turn(GRACE)
        self.assertEqual(connection.closings, ["RST"])

    def test_client_leaves_meanwhile(self) -> None:
        self.tcp(4096)
        connection = self.request(Send(b"one"), End.RST)
        self.clock.turn(GRACE)
        self.assertEqual(self.streams(), 1)
        connection.leave()
        self.assertEqual(self.streams(), 0)
        self.assertEqual(self.theatre.gone, [None])
        self.clock.pump([1.0] * 20)
        self.assertEqual((connection.closings, self.warnings(), self.troubles()), ([], [], []))


class LeavingTests(WireCase):
    """A client that goes takes everything of its along."""

    def test_in_every_state(self) -> None:
        states: list[tuple[str, list[Step], End | None]] = [
            ("between frames", list(STEPS), None),
            ("awaiting a token", [Send(b"one"), AwaitToken()], None),
            ("stalled", [Send(b"one"), End.HOLD], End.HOLD),
            ("in the grace", [Send(b"one"), End.FIN], None),
            ("in a long pause", [Pause(1e15), End.FIN], None),
            ("in a flood", [step for _ in range(50) for step in (Send(b"x"), Pause(0.0))], None),
        ]
        for clean in (True, False):
            for name, steps, how in states:
                connection = self.request(*steps)
                connection.leave(clean)
                self.assertEqual(self.theatre.gone, [how], name)
                self.assertEqual(self.clock.getDelayedCalls(), [], name)
                sent = connection.raw
                self.clock.pump([1.0] * 3)
                self.assertEqual(connection.raw, sent, name)
                self.assertEqual(self.theatre.wires[0].gone.called, True)
        self.assertEqual(self.logged_by_us(), [])

    def logged_by_us(self) -> list[LogEvent]:
        return [event for event in self.logged if event["log_level"] >= LogLevel.warn]

    def test_stall_holds_on_without_a_timer(self) -> None:
        connection = self.request(Send(b"one"), End.HOLD)
        self.assertEqual(self.streams(), 0)
        self.clock.pump([3600.0] * 24)
        self.assertEqual(connection.rest, chunk(b"one"))
        self.assertEqual(connection.closings, [])
        self.assertEqual(self.theatre.gone, [])

    def test_a_failing_write_is_no_news(self) -> None:
        """Whatever still holds the wire may go on calling it."""
        connection = self.request(*STEPS)
        wire = self.theatre.wires[0]
        connection.leave()
        wire.write(b"late")
        for end in End:
            wire.end(end)
        wire.cut()
        wire.pauseProducing()
        wire.resumeProducing()
        wire.stopProducing()
        self.assertNotIn(b"late", connection.raw)
        self.assertEqual(self.theatre.gone, [None])
        self.assertEqual(self.clock.getDelayedCalls(), [])


class CutTests(WireCase):
    """The server goes down."""

    def test_in_every_state(self) -> None:
        states: list[list[Step]] = [
            list(STEPS),
            [Send(b"one"), AwaitToken()],
            [Send(b"one"), End.HOLD],
            [Send(b"one"), End.RST],
        ]
        for steps in states:
            connection = self.request(*steps)
            self.theatre.wires[0].cut()
            self.theatre.wires[0].cut()
            self.assertEqual(connection.closings, ["FIN"])
            self.assertEqual(self.theatre.gone, [End.FIN])
            self.assertEqual(self.streams(), 0)
            self.assertEqual(connection.rest, chunk(b"one"))


class BackPressureTests(WireCase):
    """The transport's word reaches the player."""

    def test_pause_and_resume(self) -> None:
        connection = self.request(*STEPS, Pause(1.0), Send(b"three"), End.FIN)
        producer: Any = connection.transport.producer
        producer.pauseProducing()
        self.clock.turn(1.0)
        self.clock.turn(1.0)
        self.assertEqual(connection.rest, chunk(b"one"))
        producer.resumeProducing()
        self.clock.turn()
        self.assertEqual(connection.rest, chunk(b"one") + chunk(b"two") + chunk(b"three"))

    def test_a_death_waits_for_the_frames_before_it(self) -> None:
        self.tcp(0)
        connection = self.request(Send(b"one"), Pause(1.0), Send(b"two"), End.RST)
        producer: Any = connection.transport.producer
        producer.pauseProducing()
        self.clock.pump([1.0] * 60)
        self.assertEqual(connection.closings, [])
        producer.resumeProducing()
        self.clock.turn(GRACE)
        self.assertEqual(connection.rest, chunk(b"one") + chunk(b"two"))
        self.assertEqual(connection.closings, ["RST"])

    def test_leaving_while_paused(self) -> None:
        connection = self.request(*STEPS, End.FIN)
        producer: Any = connection.transport.producer
        producer.pauseProducing()
        connection.leave()
        self.clock.pump([1.0] * 3)
        self.assertEqual(connection.rest, chunk(b"one"))
        self.assertEqual(self.clock.getDelayedCalls(), [])
