"""The HTTP front: what is true of every request before a route sees it."""

from __future__ import annotations

import hmac
import uuid
from collections.abc import Callable, Collection, Sequence
from io import BytesIO
from typing import Any

from twisted.internet.interfaces import IReactorTime
from twisted.internet.protocol import connectionDone
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.web.http import HTTPChannel
from twisted.web.resource import IResource, Resource
from twisted.web.server import NOT_DONE_YET, Site

from inference_lab.faults.modes import built_in
from inference_lab.web import drain
from inference_lab.web.decoding import MAX_BODY_BYTES
from inference_lab.web.errors import (
    APPLIED_HEADER,
    FAULT_HEADER,
    RESUME_HEADER,
    SESSION_HEADER,
    ApiError,
    bad_request,
    misplaced_fault,
    wrong_key,
)

GENERATING_PATHS = (b"/v1/chat/completions", b"/v1/completions")
"""Where a fault header can be honoured at all."""

OPEN_PATHS = (b"/health", b"/metrics")
"""What needs no key, even where keys are asked for."""

_HEADERS_OF_OURS = f"{FAULT_HEADER}, {SESSION_HEADER}"
_EXPOSED = f"x-request-id, {APPLIED_HEADER}, {RESUME_HEADER}, retry-after"


class CappedBody(BytesIO):
    """A request body in memory that keeps no more than `MAX_BODY_BYTES`.

    The rest is read and forgotten: a client that is still sending could not
    read the refusal.
    """

    overflowed = False

    def write(self, data: Any) -> int:
        """Keep ``data`` if there is room for all of it."""
        if self.overflowed or self.tell() + len(data) > MAX_BODY_BYTES:
            self.overflowed = True
            return len(data)
        return super().write(data)


MOST_AHEAD = 1024 * 1024
"""Bytes a client may send behind a request that is still being answered."""


class LabChannel(HTTPChannel):
    """Reads on while a request is answered, so that a client that leaves is seen to leave.

    Twisted stops reading a client that sends far ahead, and then cannot see it go.
    This one is kept until it has sent `MOST_AHEAD` bytes, and then cut off.
    """

    _log = Logger()
    _optimisticEagerReadSize = MOST_AHEAD
    # Told how many bytes never arrived, if the last response had ended by then.
    afterwards: Callable[[int], None] | None = None

    def rawDataReceived(self, data: bytes) -> None:
        """Take bytes of a body, or of what comes after it."""
        if self._handlingRequest and sum(map(len, self._dataBuffer)) + len(data) > MOST_AHEAD:
            self._log.warn(
                "A client sent more than {limit} bytes ahead of its answer: cutting it off",
                limit=MOST_AHEAD,
            )
            self.transport.abortConnection()  # type: ignore[union-attr]
            return
        super().rawDataReceived(data)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """Whatever was still on its way never arrived."""
        super().connectionLost(reason)  # type: ignore[no-untyped-call]
        afterwards, self.afterwards = self.afterwards, None
        lost = drain.lost(self.transport)
        if afterwards is not None and lost:
            afterwards(lost)


class LabSite(Site):
    """HTTP/1.1 only, bodies in memory, no form parsing, no access log.

    HTTP/2 would turn every FIN into an END_STREAM; the access log has no line
    for a response that never finished, so the exchange log stands in for it.
    """

    protocol = LabChannel  # type: ignore[assignment]

    def __init__(self, resource: IResource, clock: IReactorTime) -> None:
        super().__init__(  # type: ignore[no-untyped-call]
            resource, reactor=clock, parsePOSTFormSubmission=False
        )
        self.displayTracebacks = False

    def getContentFile(self, length: int | None) -> CappedBody:
        """Where `twisted.web` puts a request's body."""
        return CappedBody()

    def acceptableProtocols(self) -> list[bytes]:
        """For ALPN, under TLS."""
        return [b"http/1.1"]

    def log(self, request: Any) -> None:
        """Nothing: see the class."""


class Front(Resource):
    """Adds CORS to everything and refuses what no route may see."""

    isLeaf = True

    def __init__(
        self,
        routes: IResource,
        api_keys: Sequence[str] = (),
        modes: Collection[str] | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._routes = routes
        self._modes = built_in() if modes is None else modes
        self._api_keys = [key.encode() for key in api_keys]

    def render(self, request: Any) -> Any:
        """Answer a preflight or a misplaced fault header; else let the routes."""
        request.setHeader("access-control-allow-origin", "*")
        request.setHeader("access-control-expose-headers", _EXPOSED)
        if request.method == b"OPTIONS":
            return _preflight(request)
        request.setHeader("x-request-id", _request_id(request))
        refusal = self._unauthorized(request) or _refusal(request, self._modes)
        if refusal is not None:
            respond(request, refusal)
            return NOT_DONE_YET
        return self._routes.render(request)

    def _unauthorized(self, request: Any) -> ApiError | None:
        if not self._api_keys or request.path in OPEN_PATHS:
            return None
        sent = request.requestHeaders.getRawHeaders(b"authorization", [b""])[0]
        scheme, _, key = sent.partition(b" ")
        if scheme.lower() == b"bearer" and any(
            hmac.compare_digest(key.strip(), known) for known in self._api_keys
        ):
            return None
        return wrong_key(key)


def _request_id(request: Any) -> bytes:
    sent: bytes = request.requestHeaders.getRawHeaders(b"x-request-id", [b""])[0]
    return sent or uuid.uuid4().hex.encode()


def respond(request: Any, error: ApiError) -> None:
    """Send ``error`` as the whole response."""
    for name, value in error.headers.items():
        request.setHeader(name, value)
    respond_json(request, error.status, error.body())


def respond_json(request: Any, status: int, body: bytes) -> None:
    """Send ``body`` as the whole response, with its length."""
    set_json(request, status, body)
    request.write(body)
    request.finish()


def set_json(request: Any, status: int, body: bytes) -> None:
    """The head of a JSON response."""
    request.setResponseCode(status)
    request.setHeader("content-type", "application/json")
    request.setHeader("content-length", str(len(body)))


def _refusal(request: Any, modes: Collection[str]) -> ApiError | None:
    try:
        request.path.decode("ascii")
        request.method.decode("ascii")
        b"/".join(request.postpath).decode("utf-8")
    except UnicodeDecodeError:
        return bad_request("The request line is not valid: use UTF-8, percent-encoded.")
    if not request.path.startswith(b"/v1/") or not request.requestHeaders.hasHeader(FAULT_HEADER):
        return None
    if request.method == b"POST" and request.path in GENERATING_PATHS:
        return None
    return misplaced_fault(
        "is honoured by streaming POST /v1/chat/completions and streaming POST /v1/completions "
        "only, not here",
        modes,
    )


def _preflight(request: Any) -> bytes:
    asked = request.requestHeaders.getRawHeaders(b"access-control-request-headers", [])
    allowed = b", ".join([*asked, b"authorization", b"content-type", _HEADERS_OF_OURS.encode()])
    request.setHeader("access-control-allow-methods", "GET, POST, DELETE, OPTIONS")
    request.setHeader("access-control-allow-headers", allowed)
    request.setHeader("access-control-max-age", "86400")
    request.setResponseCode(204)
    return b""
