"""Deployments to test the engine with, and a plain loop that drives one through a workload."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attrs import define, field, frozen

from inference_lab.configuration.catalog import catalog_hardware, catalog_model
from inference_lab.configuration.deployment import Deployment
from inference_lab.configuration.memory import block_bytes
from inference_lab.configuration.schema import (
    AttentionLayers,
    History,
    Indexer,
    LinearLayers,
    MlaLayers,
    Model,
    Scheduler,
    WeightStream,
)
from inference_lab.engine.engine import Engine
from inference_lab.engine.requests import Handle, Refused
from tests.oracle import Oracle, Request

ODD = Model(
    name="odd",
    hidden_dim=256,
    max_seq_len=8192,
    weights=(WeightStream(precision="bf16", active_params=10**9, resident_params=10**9),),
    layers=(
        MlaLayers(
            count=3,
            latent_dim=33,
            rope_dim=2,
            kv_precision="fp4",
            window=50,
            history=History(compress_ratio=8, index_topk=20, indexer=Indexer(heads=2, head_dim=8)),
        ),
        AttentionLayers(count=2, heads=4, head_dim=16, kv_heads=1, window=200),
        AttentionLayers(count=1, heads=4, head_dim=16, kv_heads=1),
        LinearLayers(count=1, state_bytes=5000),
    ),
)
"""Fractions of bytes, which have to be rounded request by request, and growing windows."""

Result = tuple[int, float | None, float | None, int, int]


def deployment(
    model: str | Model,
    *,
    blocks: int = 0,
    tp: int = 1,
    ep: int = 1,
    dp_attention: bool = False,
    hardware: str = "b200",
    **settings: Any,
) -> Deployment:
    """A deployment of a catalog model; ``blocks`` KV blocks per scheduler, 0 as many as fit.

    Other keywords are those of the scheduler table.
    """
    resolved = catalog_model(model) if isinstance(model, str) else model
    outside = ("replicas", "router", "time_correction")
    outer = {key: settings.pop(key) for key in outside if key in settings}
    table: dict[str, Any] = {
        "max_num_batched_tokens": 8192,
        "max_num_seqs": 256,
        "policy": "fcfs",
        "enable_chunked_prefill": True,
        "block_size": 16,
        **settings,
    }
    if blocks:
        each = blocks * block_bytes(resolved, table["block_size"])
        table["kv_cache_capacity"] = each * (tp if dp_attention else 1)
    return Deployment(
        name=resolved.name,
        source="test",
        entry=hardware,
        model=resolved,
        hardware=catalog_hardware(hardware),
        scheduler=Scheduler(**table),
        tensor_parallel=tp,
        expert_parallel=ep,
        dp_attention=dp_attention,
        **outer,
    )


@frozen
class Arrival:
    """A request to come, and when it will be aborted, if at all."""

    at: float
    prompt_tokens: int
    max_tokens: int
    target: int | None = None
    priority: int = 0
    hashes: tuple[int, ...] = ()
    abort_at: float | None = None


@define
class Trace:
    """What a run came to. ``steps`` are (end, requests in the batch)."""

    steps: list[tuple[float, int]] = field(factory=list)
    requests: list[Handle | Request | None] = field(factory=list)
    free: int = 0
    prefix_hits: int = 0

    def results(self) -> list[Result | None]:
        """Per request: produced, first token, finish, preemptions, cached tokens."""
        return [
            None
            if r is None
            else (r.produced, r.first_token_at, r.finished_at, r.preemptions, r.cached_tokens)
            for r in self.requests
        ]


def run(engine: Engine | Oracle, arrivals: Sequence[Arrival]) -> Trace:
    """Drive the (first replica of the) engine until all work is done.

    Arrivals and aborts that fall into a step happen while it is in flight.
    """
    trace = Trace(requests=[None] * len(arrivals))
    events: list[tuple[float, int, int]] = []  # time, 0 for arrival and 1 for abort, index
    for index, arrival in enumerate(arrivals):
        events.append((arrival.at, 0, index))
        if arrival.abort_at is not None:
            events.append((arrival.abort_at, 1, index))
    events.sort()

    def happen(until: float) -> None:
        while events and events[0][0] <= until:
            _, abort, index = events.pop(0)
            there = trace.requests[index]
            if not abort:
                trace.requests[index] = _submit(engine, str(index), arrivals[index])
            elif isinstance(engine, Oracle):
                if isinstance(there, Request):
                    engine.abort(there)
            elif isinstance(there, Handle):
                engine.abort(there)

    now = 0.0
    while True:
        happen(now)
        if isinstance(engine, Oracle):
            end = engine.begin_step(now)
            batch = sum(len(rank.step) for rank in engine.ranks)
        else:
            plan = engine.replicas[0].begin_step(now)
            end = None if plan is None else plan.end
            batch = 0 if plan is None else plan.n_decode + len(plan.chunks)
        if end is None:
            if not events:
                break
            now = max(now, events[0][0])
            continue
        happen(end)
        if isinstance(engine, Oracle):
            engine.commit(end)
        else:
            assert plan is not None
            engine.replicas[0].commit(plan)
        now = end
        trace.steps.append((end, batch))
    if isinstance(engine, Oracle):
        trace.free = engine.free_blocks
        trace.prefix_hits = sum(rank.prefix_hits for rank in engine.ranks)
    else:
        stats = engine.stats()
        trace.free, trace.prefix_hits = stats.kv_blocks_free, stats.prefix_hits
    return trace


def _submit(engine: Engine | Oracle, name: str, arrival: Arrival) -> Handle | Request | None:
    try:
        return engine.submit(
            name,
            arrival.prompt_tokens,
            arrival.max_tokens,
            priority=arrival.priority,
            target=arrival.target,
            block_hashes=arrival.hashes,
            arrival=arrival.at,
        )
    except Refused:
        return None
