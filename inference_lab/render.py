"""The exact bytes of a mode, without a server: the real one, on a transport in memory.

A clock that only this module moves stands in for the reactor, so that an hour's
stall takes no time at all.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from attrs import frozen
from klein.resource import KleinResource
from twisted.internet.address import IPv4Address
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport

from inference_lab.configuration.loader import load, shipped_configs
from inference_lab.engine.engine import Engine
from inference_lab.faults.modes import Mode
from inference_lab.lab import Lab, Served, Settings
from inference_lab.metrics import DeploymentMetrics
from inference_lab.pacing.driver import Driver
from inference_lab.pacing.timebase import Paced
from inference_lab.web.api import Api
from inference_lab.web.endpoints import CHAT_ENDPOINT, COMPLETIONS_ENDPOINT
from inference_lab.web.errors import FAULT_HEADER
from inference_lab.web.site import Front, LabSite

ENDPOINTS = {endpoint.name: endpoint for endpoint in (CHAT_ENDPOINT, COMPLETIONS_ENDPOINT)}

MAX_BYTES = 1 << 20
"""What is rendered of a stream that never ends."""

MAX_SECONDS = 10.0
"""How long, on the clock, a stream that is held open is looked at."""


@frozen
class Rendered:
    """The bytes on the connection, and the end: ``clean``, ``fin``, ``rst``, ``hold`` or none."""

    wire: bytes
    end: str


def request_body(endpoint: str, model: str) -> bytes:
    """The request that is answered: streaming, with usage."""
    body: dict[str, Any] = {
        "model": model,
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": 16,
    }
    if endpoint == CHAT_ENDPOINT.name:
        body["messages"] = [{"role": "user", "content": "hello"}]
    else:
        body["prompt"] = [1, 2, 3, 4]
    return json.dumps(body).encode()


def render(
    directive: str, endpoint: str, modes: Mapping[str, Mode], model: str | None = None
) -> Rendered:
    """What a server with ``modes`` puts on the wire for the fault header ``directive``.

    ``model`` is one of the bundled configurations'; the first, if None.
    """
    deployments = load([shipped_configs()], None).deployments
    deployment = next((d for d in deployments if d.name == model), deployments[0])
    clock = _Clock()
    engine = Engine(deployment, max_waiting=1)
    figures = DeploymentMetrics(deployment.name, engine)
    backend = Driver(engine, clock, Paced(clock, 1.0), figures)
    served = {deployment.name: Served(deployment, None, backend)}
    lab = Lab(clock, Settings(directives=True), served, modes=modes)
    site: Any = LabSite(Front(KleinResource(Api(lab).app), (), modes), clock)
    transport: Any = _Transport()  # type: ignore[no-untyped-call]
    channel: Any = site.buildProtocol(IPv4Address("TCP", "127.0.0.1", 1))
    channel.makeConnection(transport)
    body = request_body(endpoint, model or deployment.name)
    head = (
        f"POST {ENDPOINTS[endpoint].path} HTTP/1.1\r\nhost: lab\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
        f"{FAULT_HEADER}: {directive}\r\n\r\n"
    )
    channel.dataReceived(head.encode() + body)
    wires = list(lab.open)
    while lab.open and clock.seconds() < MAX_SECONDS and len(transport.value()) < MAX_BYTES:
        clock.turn()
    ending = wires[0].ending if wires else None
    return Rendered(transport.value(), "clean" if not wires else ending.value if ending else "none")


class _Clock(Clock):
    """Goes from one timer to the next, a turn each."""

    def turn(self) -> None:
        """Run what is due next."""
        due = min((call.getTime() for call in self.calls), default=MAX_SECONDS)
        self.rightNow = max(self.rightNow, due)
        for call in [call for call in self.calls if call.getTime() <= self.rightNow]:
            if call.active():
                self.calls.remove(call)
                call.called = 1
                call.func(*call.args, **call.kw)


class _Transport(StringTransport):
    """As much of TCP as the HTTP channel asks for."""

    def setTcpNoDelay(self, enabled: bool) -> None:
        """Nothing is sent."""

    def abortConnection(self) -> None:
        """Nothing is connected."""
