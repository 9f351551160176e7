"""How a request to generate is answered: understood, decided, planned, played on a wire."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from inference_lab.content.answers import scripted
from inference_lab.content.directives import Directive
from inference_lab.decision import Die, Script, shape_of
from inference_lab.dialects.base import Usage
from inference_lab.engine.requests import Refused
from inference_lab.faults.grammar import HEALTHY, Fault
from inference_lab.faults.parameters import Value
from inference_lab.faults.player import Player
from inference_lab.faults.script import Scene
from inference_lab.faults.shaping import shaped
from inference_lab.faults.steps import End, Step
from inference_lab.lab import Lab, Served
from inference_lab.pacing.backend import Job, Listener, Ticket
from inference_lab.pacing.feed import Feeds, Generated, Overtime
from inference_lab.web.aside import Aside
from inference_lab.web.attempts import header_plan, turn_of
from inference_lab.web.decoding import body_of, decode, media_type_of
from inference_lab.web.endpoints import (
    Endpoint,
    fault_identity,
)
from inference_lab.web.errors import (
    APPLIED_HEADER,
    RESUME_HEADER,
    ApiError,
    misplaced_fault,
    refused_by_engine,
)
from inference_lab.web.exchange import Asking, Exchange
from inference_lab.web.planning import Plan, fault_answer, thinking_tokens
from inference_lab.web.records import StreamRecord, WholeRecord
from inference_lab.web.requests import (
    ChatRequest,
    CompletionRequest,
)
from inference_lab.web.site import set_json
from inference_lab.web.speech import (
    LONG_WRITING,
    check_whole,
    engine_steps,
    whole_body,
    written_steps,
)
from inference_lab.web.wire import Wire


class Answering:
    """Answers the two endpoints that generate."""

    _log = Logger()

    def __init__(self, lab: Lab, aside: Aside) -> None:
        self._lab = lab
        self._aside = aside

    def answer(
        self,
        request: Any,
        endpoint: Endpoint,
        kind: type[ChatRequest] | type[CompletionRequest],
    ) -> Any:
        """Refuse in the order body, fault, model, limits; then decide, and answer."""
        lab = self._lab
        started = lab.clock.seconds()
        body = body_of(request)
        asked: ChatRequest | CompletionRequest = decode(kind, media_type_of(request), body)
        streaming = bool(asked.stream)
        # A wrong header comes before an unknown model.
        plan = header_plan(lab, request, streaming)
        served = lab.served(asked.model)
        turn = turn_of(lab, request, endpoint.name, body, served, plan, streaming)
        fault = shape_of(turn.header, turn.model, endpoint.name, streaming)
        shape = {} if fault is None else self._parameters(fault, endpoint)
        asking = Asking(request, endpoint, asked, served, body, turn, fault, shape, started)
        turn.take()
        if asking.long:
            later = self._aside.run(lambda: asking.understand(lab)).addCallback(self._reply)
            return later.addErrback(turn.refused)
        try:
            return self._reply(asking.understand(lab))
        except ApiError:
            turn.give_back()
            raise

    def _reply(self, exchange: Exchange) -> Any:
        exchange.asking.request.setHeader(RESUME_HEADER, exchange.prompt.header)
        match exchange.decision:
            case Die(fault):
                return self._die(exchange, fault)
            case Script(directive):
                return self._script(exchange, directive)
        assert exchange.plan is not None
        if exchange.asked.stream:
            return self._stream(exchange, exchange.plan)
        return self._whole(exchange, exchange.plan)

    def _parameters(self, fault: Fault, endpoint: Endpoint) -> Mapping[str, Value]:
        mode = self._lab.modes[fault.mode]
        if endpoint.name not in mode.endpoints:
            names = ", ".join(mode.endpoints)
            raise misplaced_fault(f"names {mode.name}, which is for {names} only", self._lab.modes)
        return fault.values(mode.parameters)

    def _die(self, exchange: Exchange, fault: Fault) -> Deferred[Any]:
        mode = self._lab.modes[fault.mode]
        name = exchange.served.deployment.name
        identity = fault_identity(exchange.endpoint, exchange.asking.body, fault, name)
        answer = fault_answer(exchange.asked, exchange.prompt, self._lab.tokenizer)
        thinking = thinking_tokens(exchange.asked, exchange.prompt)
        scene = Scene(
            dialect=exchange.endpoint.dialect(identity, exchange.speech.style),
            fault=fault,
            token=lambda index: exchange.speech.said(answer.piece(index)),
            usage=Usage(
                exchange.prompt.tokens, thinking + fault.after_chunks, reasoning_tokens=thinking
            ),
            usage_requested=exchange.asked.usage_requested,
            thinking=thinking,
            hide_thinking=exchange.speech.hide_reasoning,
        )
        steps = shaped(mode.steps(scene), exchange.shape, mode.own_head)
        if exchange.shape["pace"] != "engine":
            return self._play(exchange, steps, own_head=mode.own_head)
        feeds = Overtime()
        tickets = _submit(exchange.served, exchange.overture(fault), [feeds])
        return self._play(exchange, steps, feeds, tickets, mode.own_head)

    def _play(
        self,
        exchange: Exchange,
        steps: Iterator[Step],
        feeds: Feeds | None = None,
        tickets: Sequence[Ticket] = (),
        own_head: bool = False,
    ) -> Deferred[Any]:
        """Put ``steps`` on the wire; a script with a head of its own gets no other.

        What ``tickets`` stand for is forgotten when the stream is gone.
        """
        wire = self._open(exchange, tickets)
        if not own_head:
            wire.open()
        player = Player(steps, wire, self._lab.clock, feeds)
        if feeds is not None:
            feeds.wake = player.wake
        wire.play(player)
        return wire.gone

    def _script(self, exchange: Exchange, directive: Directive) -> Any:
        answer = scripted(directive, self._lab.tokenizer)
        plan = Plan(exchange.prompt, answer, answer.tokens, exchange.asked.choices)
        if not exchange.asked.stream:
            record = WholeRecord.begin(self._lab, exchange, ())
            return self._respond(exchange, plan, plan.usage(), record)
        usage = plan.usage if exchange.asked.usage_requested else None
        speakers = exchange.speakers(exchange.fresh_identity())
        steps = written_steps(speakers, answer, exchange.speech, usage)
        return self._play(exchange, shaped(steps, exchange.shape))

    def _stream(self, exchange: Exchange, plan: Plan) -> Deferred[Any]:
        feeds = Feeds(plan.choices)
        tickets = _submit(exchange.served, exchange.job(plan), feeds.listeners)

        def usage() -> Usage:
            return plan.usage(tickets[0].cached_tokens)

        steps = engine_steps(
            exchange.speakers(exchange.fresh_identity()),
            plan,
            exchange.speech,
            feeds,
            usage if exchange.asked.usage_requested else None,
        )
        return self._play(exchange, shaped(steps, exchange.shape), feeds, tickets)

    def _whole(self, exchange: Exchange, plan: Plan) -> Deferred[Any]:
        check_whole(plan, exchange.speech)
        generated = Generated(plan.choices)
        listeners = [generated] * plan.choices
        tickets = generated.tickets = _submit(exchange.served, exchange.job(plan), listeners)
        record = WholeRecord.begin(self._lab, exchange, tickets)

        def respond(_: None) -> Any:
            return self._respond(exchange, plan, plan.usage(tickets[0].cached_tokens), record)

        return generated.done.addCallback(respond)

    def _respond(self, exchange: Exchange, plan: Plan, usage: Usage, record: WholeRecord) -> Any:
        identity = exchange.fresh_identity()

        def write() -> bytes:
            return whole_body(exchange.endpoint, identity, plan, exchange.speech, usage)

        def send(body: bytes) -> bytes:
            set_json(exchange.asking.request, 200, body)
            record.sent(body, usage.completion_tokens)
            return body

        if plan.usage().completion_tokens <= LONG_WRITING:
            return send(write())
        return self._aside.run(write).addCallback(send)

    def _open(self, exchange: Exchange, tickets: Sequence[Ticket]) -> Wire:
        """Keep the wire of a stream until it is gone."""
        lab, asking = self._lab, exchange.asking
        applied = HEALTHY if asking.fault is None else asking.fault.canonical()
        if asking.turn.planned:
            asking.request.setHeader(APPLIED_HEADER, applied)

        def gone(how: End | None) -> None:
            lab.open.discard(wire)
            record.end()
            for ticket in tickets:
                ticket.abort()
            end = "client_left" if how is None else how.value
            if isinstance(exchange.decision, Die):
                lab.metrics.fault_ended(exchange.decision.fault.mode, end)
            if wire.undelivered:
                lab.metrics.undelivered()
            self._log.info(
                "{path} {fault}: {end}",
                path=exchange.endpoint.path,
                fault=applied,
                end=end,
            )

        wire = Wire(asking.request, lab.clock, lab.settings.drain_timeout, gone)
        lab.open.add(wire)
        record = StreamRecord.begin(lab, exchange, wire, tickets)
        return wire


def _submit(served: Served, job: Job, listeners: Sequence[Listener]) -> list[Ticket]:
    """Queue ``job`` once for each listener: all, or none of them."""
    tickets: list[Ticket] = []
    try:
        for listener in listeners:
            tickets.append(served.backend.submit(job, listener))
    except Refused as refusal:
        for ticket in tickets:
            ticket.abort()
        raise refused_by_engine(refusal) from None
    return tickets
