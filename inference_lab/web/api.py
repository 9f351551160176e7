"""The routes: a request comes in, is understood, decided, and handed to the wire."""

from __future__ import annotations

from typing import Any

import msgspec
from klein import Klein
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4
from twisted.logger import Logger
from twisted.python.failure import Failure
from werkzeug.exceptions import HTTPException, MethodNotAllowed

from inference_lab.journal import Record
from inference_lab.lab import Lab, Served
from inference_lab.web import bench
from inference_lab.web.answering import Answering
from inference_lab.web.aside import Aside
from inference_lab.web.decoding import Body, body_of, decode, media_type_of
from inference_lab.web.endpoints import (
    CHAT_ENDPOINT,
    COMPLETIONS_ENDPOINT,
)
from inference_lab.web.errors import (
    ApiError,
    server_error,
    unknown_path,
    wrong_method,
)
from inference_lab.web.exchange import LARGE_BODY
from inference_lab.web.prompts import tokenizable
from inference_lab.web.requests import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    TokenizeRequest,
)
from inference_lab.web.site import set_json

MODEL_CREATED = 1_700_000_000
"""``created`` (Unix s) of every model: the same on every call and every day."""


class Api:
    """All HTTP routes of one `Lab`."""

    _log = Logger()
    app = Klein()

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._aside = Aside()
        self._answering = Answering(lab, self._aside)

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
        return self._json(request, _card(self._lab.served(name)))

    @app.route("/metrics", methods=["GET"])
    def metrics(self, request: Any) -> bytes:
        """Figures for Prometheus."""
        body = self._lab.metrics.render()
        request.setHeader("content-type", CONTENT_TYPE_PLAIN_0_0_4)
        request.setHeader("content-length", str(len(body)))
        return body

    # -- tokens ------------------------------------------------------------

    @app.route("/tokenize", methods=["POST"])
    def tokenize(self, request: Any) -> Any:
        """The ids of a text or of a chat."""
        asked = self._decoded(request, TokenizeRequest)
        served = self._lab.served(asked.model)
        tokenizer = self._lab.tokenizer

        def count() -> bytes:
            ids = tokenizer.encode(tokenizable(asked))
            strings = [tokenizer.decode([id]) for id in ids] if asked.return_token_strs else None
            return msgspec.json.encode(
                {
                    "count": len(ids),
                    "max_model_len": served.deployment.max_model_len,
                    "tokens": ids,
                    "token_strs": strings,
                }
            )

        def send(body: bytes) -> bytes:
            set_json(request, 200, body)
            return body

        if len(body_of(request)) < LARGE_BODY:
            return send(count())
        return self._aside.run(count).addCallback(send)

    @app.route("/detokenize", methods=["POST"])
    def detokenize(self, request: Any) -> bytes:
        """The text of ids."""
        asked = self._decoded(request, DetokenizeRequest)
        self._lab.served(asked.model)
        return self._json(request, {"prompt": self._lab.tokenizer.decode(asked.tokens)})

    def _decoded(self, request: Any, kind: type[Body]) -> Body:
        return decode(kind, media_type_of(request), body_of(request))

    # -- the journal -------------------------------------------------------

    @app.route(bench.PATH, methods=["GET"])
    def journal(self, request: Any) -> Any:
        """What happened on the wire of each exchange; may wait for ends."""
        lab = self._lab
        self._with_directives(request)
        reading = bench.reading_of(request.args, lab.modes)
        if reading.wait is None:
            return self._records(request, (lab.journal.find(reading.query), False))
        told = lab.journal.wait(reading.query, reading.wait)
        return told.addCallback(lambda found: self._records(request, found))

    @app.route(bench.PATH, methods=["DELETE"])
    def clear_journal(self, request: Any) -> bytes:
        """Forget all of it, or a session."""
        self._with_directives(request)
        deleted = self._lab.journal.clear(bench.session_of(request.args))
        return self._json(request, {"deleted": deleted})

    def _records(self, request: Any, found: tuple[list[Record], bool]) -> bytes:
        records, late = found
        return self._json(request, {"records": records, "timed_out": late})

    def _with_directives(self, request: Any) -> None:
        if not self._lab.settings.directives:
            raise unknown_path(request.path.decode("ascii"))

    # -- generating --------------------------------------------------------

    @app.route(CHAT_ENDPOINT.path, methods=["POST"])
    def chat(self, request: Any) -> Any:
        """A chat answer, streamed or not."""
        return self._answering.answer(request, CHAT_ENDPOINT, ChatRequest)

    @app.route(COMPLETIONS_ENDPOINT.path, methods=["POST"])
    def completions(self, request: Any) -> Any:
        """A completion, streamed or not."""
        return self._answering.answer(request, COMPLETIONS_ENDPOINT, CompletionRequest)

    # -- refusing ----------------------------------------------------------

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
