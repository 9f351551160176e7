"""One replica: a group of GPUs that steps together, and the schedulers that feed it.

Usually there is one scheduler. With data-parallel attention each GPU is a rank with a
scheduler and a KV cache of its own, and all ranks go through each step in lockstep.
"""

from __future__ import annotations

from collections.abc import KeysView, Sequence

from attrs import define, frozen

from inference_lab.configuration.deployment import Deployment
from inference_lab.configuration.memory import ranks
from inference_lab.engine.attention import AttentionWork
from inference_lab.engine.cost import CostModel
from inference_lab.engine.requests import Handle
from inference_lab.engine.routing import Routing
from inference_lab.engine.scheduler import Scheduled, Scheduler


@define(slots=True)
class StepPlan:
    """A step in flight, from ``start`` to ``end`` in simulated seconds.

    ``n_decode`` requests get one position each; ``chunks`` are the prompts worked on,
    with how many new positions; ``preempted`` were thrown out to make room. ``tokens``
    are all new positions.
    """

    start: float
    end: float
    n_decode: int
    chunks: list[tuple[Handle, int]]
    preempted: list[Handle]
    tokens: int
    scheduled: list[Scheduled]


@define(slots=True)
class StepResult:
    """What the end of a step brought.

    ``first`` got their first token, ``decoded`` members one more each; those that thereby
    are complete are in ``finished`` with their reason, ``length`` or ``stop``.

    ``members`` is the live membership: the requests that decode in the next step. It
    changes under the reader. ``left`` and ``joined`` are the changes since the last
    result; those who finish leave, as do preempted and aborted ones.
    """

    end: float
    first: list[Handle]
    decoded: int
    finished: list[tuple[Handle, str]]
    preempted: list[Handle]
    members: KeysView[Handle]
    left: list[Handle]
    joined: list[Handle]


@frozen
class Stats:
    """Where a replica, or all of them, stand; counters run from the start.

    ``kv_usage`` is the share of KV blocks in use. Prefix cache figures and the last three
    counters are in tokens: ``prompt_tokens`` of requests that got their first token,
    ``generation_tokens`` produced, ``iteration_tokens`` new positions of all steps.
    """

    running: int
    waiting: int
    kv_blocks: int
    kv_blocks_free: int
    preemptions: int
    aborted: int
    prefix_queries: int
    prefix_hits: int
    prompt_tokens: int
    generation_tokens: int
    iteration_tokens: int
    steps: int

    @property
    def kv_usage(self) -> float:
        """Share of KV blocks in use, 0 to 1."""
        return 1 - self.kv_blocks_free / self.kv_blocks if self.kv_blocks else 0.0


class Replica:
    """The ranks of one replica and the step they are in.

    A step is begun, lasts until its ``end``, and is committed; in between, requests may
    be submitted and aborted.
    """

    def __init__(self, deployment: Deployment, cost: CostModel, index: int = 0) -> None:
        self.index = index
        self.steps = 0
        self._members: dict[Handle, None] = {}
        self.members = self._members.keys()
        self.ranks: tuple[Scheduler, ...] = tuple(
            Scheduler(deployment, cost.attention, self._members) for _ in range(ranks(deployment))
        )
        self._cost = cost
        self._routing = Routing(deployment.router)
        self._plan: StepPlan | None = None

    @property
    def requests(self) -> int:
        """Requests that run or wait here."""
        return sum(rank.requests for rank in self.ranks)

    @property
    def queued_prefill_tokens(self) -> int:
        """Prompt tokens still to be computed here."""
        return sum(rank.queued_prefill_tokens for rank in self.ranks)

    @property
    def stepping(self) -> bool:
        """Whether a step is in flight."""
        return self._plan is not None

    def cached_tokens(self, hashes: Sequence[int], prompt_tokens: int) -> int:
        """How much of a prompt a rank's prefix cache holds at best, in tokens."""
        return max(rank.cached_tokens(hashes, prompt_tokens) for rank in self.ranks)

    def choose_rank(self, hashes: Sequence[int], prompt_tokens: int) -> int:
        """Index of the rank for a request: the replicas' routing policy, once more."""
        return self._routing.choose(self.ranks, hashes, prompt_tokens)

    def begin_step(self, now: float) -> StepPlan | None:
        """Schedule and price the step that starts at ``now``; None when there is no work.

        Raises RuntimeError while a step is in flight.
        """
        if self._plan is not None:
            raise RuntimeError("the step in flight is not committed")
        scheduled: list[Scheduled] = []
        work: list[AttentionWork] = []
        chunks: list[tuple[Handle, int]] = []
        preempted: list[Handle] = []
        n_decode = tokens = 0
        for rank in self.ranks:
            plan = rank.schedule(now)
            scheduled.append(plan)
            work.append(rank.attention_work(plan))
            n_decode += plan.decodes
            tokens += plan.tokens
            if plan.chunks:
                chunks += plan.chunks
            if plan.preempted:
                preempted += plan.preempted
        if not tokens:
            return None
        end = now + self._cost.seconds(tokens, work)
        self._plan = StepPlan(now, end, n_decode, chunks, preempted, tokens, scheduled)
        return self._plan

    def commit(self, plan: StepPlan) -> StepResult:
        """End the step in flight.

        Raises RuntimeError when ``plan`` is not that step.
        """
        if plan is not self._plan:
            raise RuntimeError("not the step in flight")
        self._plan = None
        self.steps += 1
        first: list[Handle] = []
        finished: list[tuple[Handle, str]] = []
        left: list[Handle] = []
        joined: list[Handle] = []
        decoded = 0
        for rank, scheduled in zip(self.ranks, plan.scheduled, strict=True):
            batch = rank.batch
            decoded += batch.size
            begun, done = rank.commit(scheduled, plan.end)
            if begun:
                first += begun
            if done:
                finished += [(handle, handle.finish_reason) for handle in done]
            if batch.left:
                left += batch.left
                batch.left = []
            if batch.joined:
                joined += batch.joined
                batch.joined = []
        return StepResult(
            plan.end, first, decoded, finished, plan.preempted, self.members, left, joined
        )

    def stats(self) -> Stats:
        """Where this replica stands."""
        counters = [rank.counters for rank in self.ranks]
        return Stats(
            running=sum(len(rank.running) for rank in self.ranks),
            waiting=sum(len(rank.waiting) for rank in self.ranks),
            kv_blocks=sum(rank.kv.total for rank in self.ranks),
            kv_blocks_free=sum(rank.kv.free for rank in self.ranks),
            preemptions=sum(each.preemptions for each in counters),
            aborted=sum(each.aborted for each in counters),
            prefix_queries=sum(each.prefix_queries for each in counters),
            prefix_hits=sum(each.prefix_hits for each in counters),
            prompt_tokens=sum(each.prompt_tokens for each in counters),
            generation_tokens=sum(each.generation_tokens for each in counters),
            iteration_tokens=sum(each.iteration_tokens for each in counters),
            steps=self.steps,
        )
