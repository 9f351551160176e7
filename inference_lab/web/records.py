"""From an exchange to its record in the journal."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import define, evolve

from inference_lab.faults.grammar import HEALTHY
from inference_lab.faults.steps import End
from inference_lab.journal import OPEN, Entry, Facts, Figures
from inference_lab.lab import Lab
from inference_lab.pacing.backend import Ticket
from inference_lab.web.exchange import Exchange
from inference_lab.web.wire import Wire, head_size

HELD = "held"
LEFT = "client_left"

_ENDS = {End.CLEAN: "clean", End.FIN: "fin", End.RST: "rst", End.HOLD: HELD, None: LEFT}


@define
class StreamRecord:
    """The record of one stream, for as long as its wire lives."""

    exchange: Exchange
    wire: Wire
    tickets: Sequence[Ticket]
    entry: Entry | None = None
    engine_state: str | None = None

    @classmethod
    def begin(
        cls, lab: Lab, exchange: Exchange, wire: Wire, tickets: Sequence[Ticket]
    ) -> StreamRecord:
        """Open the record of a stream that is about to be sent."""
        record = cls(exchange, wire, tickets)
        entry = record.entry = lab.journal.begin(_facts(exchange), record.figures)
        wire.on_held = entry.held
        wire.on_lost = entry.ended
        return record

    def figures(self) -> Figures:
        """What has reached the client."""
        wire, arrived = self.wire, self.wire.arrived
        if self.engine_state is None:
            end = HELD if wire.ending is End.HOLD else OPEN
        else:
            end = _ENDS[wire.ended]
        return Figures(
            completion_tokens=arrived.tokens,
            frames=arrived.frames,
            body_bytes=arrived.body_bytes,
            wire_bytes=arrived.wire_bytes,
            ttfb_ms=_milliseconds(self.exchange, wire.first_byte_at),
            end=end,
            left_after_bytes=arrived.wire_bytes if wire.left else None,
            engine_state=self.engine_state or _state(self.tickets),
        )

    def end(self) -> None:
        """The stream is over. Call it while the engine still has what it has."""
        self.engine_state = _state(self.tickets)
        if self.entry is not None:
            self.entry.ended()


@define
class WholeRecord:
    """The record of an answer in one piece."""

    lab: Lab
    exchange: Exchange
    tickets: Sequence[Ticket]
    last: Figures | None = None
    entry: Entry | None = None

    @classmethod
    def begin(cls, lab: Lab, exchange: Exchange, tickets: Sequence[Ticket]) -> WholeRecord:
        """Open the record of an answer that is being generated."""
        record = cls(lab, exchange, tickets)
        record.entry = lab.journal.begin(_facts(exchange), record.figures)
        exchange.asking.request.notifyFinish().addErrback(record._left)
        return record

    def figures(self) -> Figures:
        """Nothing is sent before all is."""
        return Figures(engine_state=_state(self.tickets)) if self.last is None else self.last

    def sent(self, body: bytes, completion_tokens: int) -> None:
        """``body`` goes out now, behind the request's head, and that is all."""
        request = self.exchange.asking.request
        wire_bytes = head_size(request) + len(body)
        self._end(
            Figures(
                completion_tokens=completion_tokens,
                body_bytes=len(body),
                wire_bytes=wire_bytes,
                ttfb_ms=_milliseconds(self.exchange, self.lab.clock.seconds()),
                end=_ENDS[End.CLEAN],
            )
        )
        if request.channel is not None:
            request.channel.afterwards = self._lost

    def _lost(self, lost: int) -> None:
        """The client left while its answer was on the way."""
        assert self.last is not None
        arrived = max(0, self.last.wire_bytes - lost)
        head = self.last.wire_bytes - self.last.body_bytes
        self._end(
            evolve(
                self.last,
                completion_tokens=0,
                body_bytes=max(0, arrived - head),
                wire_bytes=arrived,
                end=LEFT,
                left_after_bytes=arrived,
            )
        )

    def _left(self, reason: object) -> None:
        if self.last is None:
            self._end(Figures(end=LEFT, left_after_bytes=0, engine_state=_state(self.tickets)))

    def _end(self, figures: Figures) -> None:
        self.last = figures
        if self.entry is not None:
            self.entry.ended()


def _facts(exchange: Exchange) -> Facts:
    asking, prompt = exchange.asking, exchange.prompt
    request, turn, fault = asking.request, asking.turn, asking.fault
    ids = request.responseHeaders.getRawHeaders("x-request-id", [""])
    return Facts(
        id=ids[0],
        session=turn.session,
        attempt=turn.attempt,
        endpoint=exchange.endpoint.name,
        model=exchange.served.deployment.name,
        fault=HEALTHY if fault is None else fault.canonical(),
        prompt_tokens=prompt.tokens,
        resume_position=prompt.resume.position if prompt.resume else None,
    )


def _milliseconds(exchange: Exchange, at: float | None) -> float | None:
    return None if at is None else round((at - exchange.asking.started) * 1000, 3)


def _state(tickets: Sequence[Ticket]) -> str:
    """Where the engine has the first of the choices that it still has."""
    return next((t.state for t in tickets if t.state != "finished"), "none")
