"""The engine of one deployment: its replicas, and the way in.

Nothing here knows the time. A driver submits requests as they arrive, and for each
replica begins a step, waits until its end, commits it, delivers what came of it, and
begins the next at that very end::

    handle = engine.submit("a", 1000, 200, arrival=now)
    replica = engine.replicas[handle.replica]
    plan = replica.begin_step(now)
    ...                                     # until plan.end
    result = replica.commit(plan)

Requests that arrive while a step is in flight are considered by the next one. Progress
is read from ``handle.produced`` whenever somebody wants to know, so a request nobody
reads costs nothing per token.
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import fields

from inference_lab.configuration.deployment import Deployment
from inference_lab.configuration.memory import kv_memory, ranks
from inference_lab.engine.cost import CostModel
from inference_lab.engine.kv_cache import Holding
from inference_lab.engine.replica import Replica, Stats
from inference_lab.engine.requests import ContextTooLong, Handle, QueueFull, TooLargeForKV
from inference_lab.engine.routing import Routing


class Engine:
    """The simulated GPUs of ``deployment``.

    ``max_waiting`` bounds the requests that wait, over all replicas; None is no bound.
    Raises ValueError when the hardware cannot run the model.
    """

    def __init__(self, deployment: Deployment, *, max_waiting: int | None = None) -> None:
        self.deployment = deployment
        self.max_waiting = max_waiting
        self.cost = CostModel(
            deployment.model,
            deployment.hardware,
            tp=deployment.tensor_parallel,
            ep=deployment.expert_parallel,
            dp_attention=deployment.dp_attention,
            time_correction=deployment.time_correction,
        )
        self.replicas: tuple[Replica, ...] = tuple(
            Replica(deployment, self.cost, index) for index in range(deployment.replicas)
        )
        self._routing = Routing(deployment.router)

    @property
    def kv_capacity_tokens(self) -> int:
        """Positions that the KV cache of one replica holds, windows and states aside."""
        return kv_memory(self.deployment).tokens * ranks(self.deployment)

    def submit(
        self,
        id: str,
        prompt_tokens: int,
        max_tokens: int,
        *,
        priority: int = 0,
        target: int | None = None,
        block_hashes: Sequence[int] = (),
        arrival: float,
    ) -> Handle:
        """Queue a request and say where it went.

        It will produce ``target`` tokens, by default all of ``max_tokens``, at least one
        in any case. Lower ``priority`` goes first, under that policy.
        ``block_hashes`` are those of :func:`~inference_lab.engine.prefix.block_hashes` for
        the deployment's block size. ``arrival`` is in simulated seconds.

        Raises ContextTooLong, TooLargeForKV or QueueFull, and ValueError for an empty
        prompt.
        """
        if prompt_tokens < 1:
            raise ValueError("a prompt has at least one token")
        max_tokens = max(1, max_tokens)
        self._check_context(prompt_tokens, max_tokens)
        settings = self.deployment.scheduler
        handle = Handle(
            id=id,
            prompt_tokens=prompt_tokens,
            max_tokens=max_tokens,
            target=max_tokens if target is None else min(max(target, 1), max_tokens),
            priority=priority,
            arrival=arrival,
            kv=Holding(block_hashes[: prompt_tokens // settings.block_size]),
        )
        some = self.replicas[0].ranks[0]
        needed = some.largest_need(handle)
        if needed > some.kv.total:
            raise TooLargeForKV(needed, some.kv.total)
        if self.max_waiting is not None and self._waiting() >= self.max_waiting:
            raise QueueFull(self.max_waiting)
        handle.replica = self._routing.choose(self.replicas, handle.kv.hashes, prompt_tokens)
        replica = self.replicas[handle.replica]
        handle.rank = replica.choose_rank(handle.kv.hashes, prompt_tokens)
        replica.ranks[handle.rank].submit(handle)
        return handle

    def _check_context(self, prompt_tokens: int, max_tokens: int) -> None:
        limit = self.deployment.max_model_len
        if prompt_tokens >= limit or prompt_tokens + max_tokens > limit:
            raise ContextTooLong(prompt_tokens, max_tokens, limit)
        settings = self.deployment.scheduler
        if not settings.enable_chunked_prefill:
            budget = settings.max_num_batched_tokens
            if prompt_tokens > budget:
                raise ContextTooLong(prompt_tokens, max_tokens, budget)

    def _waiting(self) -> int:
        return sum(len(rank.waiting) for replica in self.replicas for rank in replica.ranks)

    def abort(self, handle: Handle) -> bool:
        """Drop a request; its KV blocks and its slot are free at once.

        A step in flight takes as long as planned, but brings it nothing any more. False
        when the request is over already.
        """
        return self.replicas[handle.replica].ranks[handle.rank].abort(handle)

    def stats(self) -> Stats:
        """Where all replicas together stand."""
        each = [replica.stats() for replica in self.replicas]
        names = [attribute.name for attribute in fields(Stats)]
        return Stats(**{name: sum(getattr(stats, name) for stats in each) for name in names})
