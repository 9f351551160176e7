"""A whole server in memory: a `Lab`, its routes, and clients without sockets."""

from __future__ import annotations

import json
from typing import Any

from klein.resource import KleinResource

from inference_lab.configuration.deployment import Deployment
from inference_lab.configuration.schema import (
    AttentionLayers,
    Hardware,
    Model,
    Scheduler,
    WeightStream,
)
from inference_lab.content.lengths import OutputLengths
from inference_lab.content.tokens import PieceTokenizer, Tokenizer
from inference_lab.faults.grammar import ModelFault
from inference_lab.lab import Lab, Served, Settings
from inference_lab.web.api import Api
from inference_lab.web.planning import Lengths
from inference_lab.web.site import Front, LabSite
from tests.fixed_rate import FixedRate
from tests.memory import Connection
from tests.turns import TurningClock

MODEL = "lab-1"
CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"


def deployment(name: str, aliases: tuple[str, ...] = ()) -> Deployment:
    """The least that is valid."""
    return Deployment(
        name=name,
        source=f"{name}.toml",
        entry="gpu",
        model=Model(
            name=name,
            hidden_dim=1,
            max_seq_len=4096,
            weights=(WeightStream(precision="fp8", active_params=1, resident_params=1),),
            layers=(AttentionLayers(count=1, heads=1, head_dim=1, kv_heads=1),),
        ),
        hardware=Hardware(name="gpu", memory_bandwidth=1.0, memory_capacity=1),
        scheduler=Scheduler(
            max_num_batched_tokens=1,
            max_num_seqs=1,
            policy="fcfs",
            enable_chunked_prefill=True,
            block_size=1,
        ),
        aliases=aliases,
    )


class Server:
    """One server and its clock."""

    def __init__(
        self,
        directives: bool = True,
        fault: ModelFault | None = None,
        default_output_tokens: int = 8,
        drawn: OutputLengths | None = None,
        tokenizer: Tokenizer | None = None,
        **settings: Any,
    ) -> None:
        self.clock = TurningClock()
        backend = FixedRate(self.clock)
        served = Served(deployment(MODEL, ("lab-one",)), fault, backend)
        other = Served(deployment("modèle-é"), None, backend)
        self.lab = Lab(
            self.clock,
            Settings(
                directives=directives,
                drain_timeout=10.0,
                lengths=Lengths(default_output_tokens, drawn),
                **settings,
            ),
            {MODEL: served, "lab-one": served, "modèle-é": other},
            tokenizer or PieceTokenizer(),
        )
        front = Front(KleinResource(Api(self.lab).app), self.lab.settings.api_keys)
        self.site = LabSite(front, self.clock)

    def connect(self) -> Connection:
        """A new client."""
        return Connection(self.site, self.clock)

    def ask(self, method: str, path: str, body: bytes = b"", *headers: str) -> Connection:
        """A new client with one request."""
        connection = self.connect()
        connection.ask(method, path, body, *headers)
        return connection

    def post(self, path: str, body: Any, *headers: str) -> Connection:
        """A new client that posts ``body`` as JSON."""
        return self.ask(
            "POST", path, json.dumps(body).encode(), "Content-Type: application/json", *headers
        )

    def run(self, seconds: float = 1.0) -> None:
        """Let time pass in steps of a millisecond."""
        for _ in range(round(seconds * 1000)):
            self.clock.turn(0.001)


def request(path: str, stream: bool = True, **fields: Any) -> dict[str, Any]:
    """A valid request to ``path``."""
    asked: dict[str, Any] = {"model": MODEL, "stream": stream}
    if path == CHAT:
        asked["messages"] = [{"role": "user", "content": "hello"}]
    else:
        asked["prompt"] = [1, 2, 3, 4]
    return asked | fields
