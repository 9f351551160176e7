"""The routes: a request comes in, is understood, decided, and handed to the wire."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from typing import Any

import msgspec
from klein import Klein
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4
from twisted.internet.defer import Deferred
from twisted.internet.threads import deferToThread
from twisted.logger import Logger
from twisted.python.failure import Failure
from werkzeug.exceptions import HTTPException, MethodNotAllowed

from inference_lab.content import text
from inference_lab.content.prompt import Prompt
from inference_lab.decision import Die, Generate, decide
from inference_lab.dialects.base import Identity, Usage
from inference_lab.engine.prefix import block_hashes
from inference_lab.engine.requests import Refused
from inference_lab.faults.grammar import Fault, FaultError, parse_header
from inference_lab.faults.modes import MODES
from inference_lab.faults.player import Player
from inference_lab.faults.script import Scene
from inference_lab.faults.steps import End
from inference_lab.lab import Lab, Served
from inference_lab.pacing.backend import Job, Listener, Ticket
from inference_lab.pacing.feed import Feed, Generated
from inference_lab.web.answers import (
    CHAT_ENDPOINT,
    COMPLETIONS_ENDPOINT,
    Endpoint,
    Plan,
    fault_identity,
    healthy_steps,
    make_plan,
    whole_body,
)
from inference_lab.web.errors import (
    FAULT_HEADER,
    ApiError,
    bad_fault,
    misplaced_fault,
    refused_by_engine,
    server_error,
    unknown_model,
    unknown_path,
    wrong_method,
)
from inference_lab.web.prompts import read_prompt
from inference_lab.web.requests import (
    MAX_BODY_BYTES,
    ChatRequest,
    CompletionRequest,
    Request,
    decode,
)
from inference_lab.web.site import set_json
from inference_lab.web.wire import Wire

MODEL_CREATED = 1_700_000_000
"""``created`` (Unix s) of every model: the same on every call and every day."""


LARGE_BODY = 256 * 1024
"""Bytes from which on a request's prompt is read in a thread."""


class Api:
    """All HTTP routes of one `Lab`."""

    _log = Logger()
    app = Klein()

    def __init__(self, lab: Lab) -> None:
        self._lab = lab

    # -- small routes ------------------------------------------------------

    @app.route("/health", methods=["GET"])
    def health(self, request: Any) -> bytes:
        """Alive."""
        return self._json(request, {"status": "ok"})

    @app.route("/v1/models", methods=["GET"])
    def models(self, request: Any) -> bytes:
        """The models served, once each."""
        served = {id(s): s for s in self._lab.models.values()}.values()
        return self._json(request, {"object": "list", "data": [_card(s) for s in served]})

    @app.route("/v1/models/<path:name>", methods=["GET"])
    def model(self, request: Any, name: str) -> bytes:
        """One model."""
        return self._json(request, _card(self._served(name)))

    @app.route("/metrics", methods=["GET"])
    def metrics(self, request: Any) -> bytes:
        """Figures for Prometheus."""
        body = self._lab.metrics.render()
        request.setHeader("content-type", CONTENT_TYPE_PLAIN_0_0_4)
        request.setHeader("content-length", str(len(body)))
        return body

    # -- generating --------------------------------------------------------

    @app.route(CHAT_ENDPOINT.path, methods=["POST"])
    def chat(self, request: Any) -> Deferred[Any]:
        """A chat answer, streamed or not."""
        body = _body(request)
        asked = decode(ChatRequest, _media_type(request), body)
        return self._answer(request, CHAT_ENDPOINT, body, asked)

    @app.route(COMPLETIONS_ENDPOINT.path, methods=["POST"])
    def completions(self, request: Any) -> Deferred[Any]:
        """A completion, streamed or not."""
        body = _body(request)
        asked = decode(CompletionRequest, _media_type(request), body)
        asked.single_prompt()
        return self._answer(request, COMPLETIONS_ENDPOINT, body, asked)

    def _answer(
        self, request: Any, endpoint: Endpoint, body: bytes, asked: ChatRequest | CompletionRequest
    ) -> Deferred[Any]:
        """Refuse in the order fault, model, limits; then decide, and answer."""
        streaming = bool(asked.stream)
        header = self._header_fault(request, streaming)
        served = self._served(asked.model)
        decision = decide(header, served.fault, endpoint.name, streaming)

        def answer(prompt: Prompt) -> Deferred[Any]:
            match decision:
                case Die(fault):
                    return self._die(request, endpoint, body, asked, served, prompt, fault)
                case Generate():
                    return self._generate(request, endpoint, asked, served, prompt)

        if len(body) < LARGE_BODY:
            return answer(read_prompt(asked, self._lab.tokenizer))
        # Counting takes long enough for other streams to notice.
        return deferToThread(read_prompt, asked, self._lab.tokenizer).addCallback(answer)

    def _die(
        self,
        request: Any,
        endpoint: Endpoint,
        body: bytes,
        asked: Request,
        served: Served,
        prompt: Prompt,
        fault: Fault,
    ) -> Deferred[Any]:
        identity = fault_identity(endpoint, body, fault, served.deployment.name)
        scene = Scene(
            dialect=endpoint.dialect(identity),
            fault=fault,
            token=text.token,
            usage=Usage(prompt.tokens, fault.after_chunks),
            usage_requested=asked.usage_requested,
        )
        wire = self._open(request, endpoint, fault)
        wire.play(Player(MODES[fault.mode].steps(scene), wire, self._lab.clock))
        return wire.gone

    def _generate(
        self,
        request: Any,
        endpoint: Endpoint,
        asked: ChatRequest | CompletionRequest,
        served: Served,
        prompt: Prompt,
    ) -> Deferred[Any]:
        deployment = served.deployment
        plan = make_plan(
            asked, prompt, deployment.max_model_len, self._lab.settings.default_output_tokens
        )
        hashes = block_hashes(prompt.ids(self._lab.tokenizer), deployment.scheduler.block_size)
        job = plan.job(bool(asked.stream), hashes, asked.priority or 0)
        if asked.stream:
            return self._stream(request, endpoint, asked, served, plan, job)
        return self._whole(request, endpoint, served, plan, job)

    def _stream(
        self,
        request: Any,
        endpoint: Endpoint,
        asked: Request,
        served: Served,
        plan: Plan,
        job: Job,
    ) -> Deferred[Any]:
        dialect = endpoint.dialect(_fresh_identity(endpoint, served))
        feed = Feed()
        ticket = _submit(served, job, feed)
        wire = self._open(request, endpoint, None, ticket.abort)
        steps = healthy_steps(dialect, plan, asked.usage_requested, ticket)
        player = Player(steps, wire, self._lab.clock, feed)
        feed.wake = player.wake
        wire.play(player)
        return wire.gone

    def _whole(
        self, request: Any, endpoint: Endpoint, served: Served, plan: Plan, job: Job
    ) -> Deferred[Any]:
        generated = Generated()
        ticket = _submit(served, job, generated)
        generated.abort = ticket.abort

        def respond(_: None) -> bytes:
            identity = _fresh_identity(endpoint, served)
            body = whole_body(endpoint, identity, plan, ticket.cached_tokens)
            set_json(request, 200, body)
            return body

        return generated.done.addCallback(respond)

    def _open(
        self,
        request: Any,
        endpoint: Endpoint,
        fault: Fault | None,
        on_gone: Callable[[], None] = lambda: None,
    ) -> Wire:
        """Send the head of a stream and keep its wire until it is gone."""
        lab = self._lab

        def gone(how: End | None) -> None:
            lab.open.discard(wire)
            on_gone()
            end = "client_left" if how is None else how.value
            if fault is not None:
                lab.metrics.fault_ended(fault.mode, end)
            if wire.undelivered:
                lab.metrics.undelivered()
            self._log.info(
                "{path} {fault}: {end}",
                path=endpoint.path,
                fault="none" if fault is None else fault.canonical(),
                end=end,
            )

        wire = Wire(request, lab.clock, lab.settings.drain_timeout, gone)
        lab.open.add(wire)
        wire.open()
        return wire

    # -- refusing ----------------------------------------------------------

    def _header_fault(self, request: Any, streaming: bool) -> Fault | None:
        values = request.requestHeaders.getRawHeaders(FAULT_HEADER.encode(), [])
        if not values:
            return None
        if len(values) > 1:
            raise misplaced_fault(f"is given {len(values)} times; send one", MODES)
        try:
            fault = parse_header(_readable(values[0]), MODES)
        except FaultError as error:
            raise bad_fault(f"{FAULT_HEADER}: {error}") from None
        if not self._lab.settings.directives:
            raise misplaced_fault(
                "is honoured only by a server started with --enable-directives", MODES
            )
        if not streaming:
            raise misplaced_fault('needs a streaming request: set "stream": true', MODES)
        return fault

    def _served(self, name: str) -> Served:
        try:
            return self._lab.models[name]
        except KeyError:
            known = {served.deployment.name for served in self._lab.models.values()}
            raise unknown_model(name, sorted(known)) from None

    @app.handle_errors(ApiError)
    def refused(self, request: Any, failure: Failure) -> bytes:
        """A refusal, in the OpenAI shape."""
        assert isinstance(failure.value, ApiError)
        return _refuse(request, failure.value)

    @app.handle_errors(HTTPException)
    def unrouted(self, request: Any, failure: Failure) -> bytes:
        """No such path, or not with this method."""
        path = request.path.decode("ascii")
        error = failure.value
        if isinstance(error, MethodNotAllowed):
            allowed = sorted({*(error.valid_methods or ()), "OPTIONS"})
            return _refuse(request, wrong_method(request.method.decode("ascii"), path, allowed))
        return _refuse(request, unknown_path(path))

    @app.handle_errors(Exception)
    def failed(self, request: Any, failure: Failure) -> bytes:
        """A defect of ours: the traceback goes to the log only."""
        self._log.failure("Request failed: {path}", failure, path=request.path)
        return _refuse(request, server_error())

    def _json(self, request: Any, value: object) -> bytes:
        body = msgspec.json.encode(value)
        set_json(request, 200, body)
        return body


def _refuse(request: Any, error: ApiError) -> bytes:
    body = error.body()
    set_json(request, error.status, body)
    for name, value in error.headers.items():
        request.setHeader(name, value)
    return body


def _body(request: Any) -> bytes:
    if request.content.overflowed:
        raise ApiError(
            413,
            f"The request body is larger than {MAX_BODY_BYTES} bytes.",
            "request_too_large",
        )
    body: bytes = request.content.getvalue()
    return body


def _media_type(request: Any) -> str | None:
    value = request.getHeader(b"content-type")
    return None if value is None else _readable(value)


def _readable(header: bytes) -> str:
    """A header's value as text. Bytes that are none become a character no header allows."""
    return header.decode("utf-8", "replace")


def _submit(served: Served, job: Job, listener: Listener) -> Ticket:
    try:
        return served.backend.submit(job, listener)
    except Refused as refusal:
        raise refused_by_engine(refusal) from None


def _fresh_identity(endpoint: Endpoint, served: Served) -> Identity:
    return Identity(endpoint.id_prefix + uuid.uuid4().hex, int(time.time()), served.deployment.name)


def _card(served: Served) -> dict[str, Any]:
    deployment = served.deployment
    return {
        "id": deployment.name,
        "object": "model",
        "created": MODEL_CREATED,
        "owned_by": "inference-lab",
        "root": deployment.name,
        "parent": None,
        "max_model_len": deployment.max_model_len,
    }
