"""The engine once more, as plainly as it can be said.

Every request and every block is an object, and every step looks at all of them. It
shares with the engine that serves only the price of a batch, which is tested against
figures, and the arithmetic of block counts. Far too slow to serve; here to be right.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from inference_lab.configuration.deployment import Deployment
from inference_lab.configuration.memory import auxiliary_blocks, kv_memory, ranks
from inference_lab.engine.attention import Chunk
from inference_lab.engine.cost import CostModel
from inference_lab.engine.requests import ContextTooLong, TooLargeForKV


class Block:
    """One KV block."""

    def __init__(self) -> None:
        self.hash: int | None = None
        self.users = 0


class Request:
    """One request, with the same names as a handle where a test reads them."""

    def __init__(self, **given: Any) -> None:
        self.id: str = given["id"]
        self.prompt_tokens: int = given["prompt_tokens"]
        self.max_tokens: int = given["max_tokens"]
        self.target: int = given["target"]
        self.priority: int = given["priority"]
        self.arrival: float = given["arrival"]
        self.hashes: tuple[int, ...] = given["hashes"]
        self.computed = 0
        self.produced = 0
        self.content: list[Block] = []
        self.named = 0  # prompt blocks that can be, or could have been, found by their hash
        self.auxiliary: list[Block] = []
        self.preemptions = 0
        self.cached_tokens = 0
        self.scheduled_at: float | None = None
        self.first_token_at: float | None = None
        self.finished_at: float | None = None
        self.over = False

    @property
    def prefill_length(self) -> int:
        return self.prompt_tokens + max(0, self.produced - 1)

    @property
    def in_prefill(self) -> bool:
        return self.computed < self.prefill_length


class Rank:
    """One scheduler and its blocks."""

    def __init__(self, deployment: Deployment) -> None:
        self.settings = deployment.scheduler
        self.model = deployment.model
        self.max_model_len = deployment.max_model_len
        self.blocks = [Block() for _ in range(kv_memory(deployment).blocks)]
        self.free = deque(self.blocks)
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.step: dict[Request, int] = {}
        self.preempted: list[Request] = []
        self.prefix_hits = 0

    # -- blocks ----------------------------------------------------------------

    def content_blocks(self, context: int) -> int:
        return -(-context // self.settings.block_size)

    def aux_blocks(self, context: int) -> int:
        return auxiliary_blocks(self.model, self.settings.block_size, context)

    def block_count(self, context: int) -> int:
        return self.content_blocks(context) + self.aux_blocks(context)

    def needed(self, request: Request, context: int) -> int:
        held = len(request.content) + len(request.auxiliary)
        return self.block_count(context) - held

    def cached(self, name: int) -> Block | None:
        for block in self.blocks:
            if block.hash == name:
                return block
        return None

    def take(self) -> Block:
        block = self.free.popleft()
        block.hash = None
        block.users = 1
        return block

    def allocate(self, request: Request, context: int) -> None:
        """Room for ``context`` positions, and names for the prompt blocks that become full."""
        while len(request.content) < self.content_blocks(context):
            request.content.append(self.take())
        while len(request.auxiliary) < self.aux_blocks(context):
            request.auxiliary.append(self.take())
        full = min(context // self.settings.block_size, len(request.hashes))
        while request.named < full:
            block, name = request.content[request.named], request.hashes[request.named]
            request.named += 1
            other = self.cached(name)
            if other is None or other.users == 0:
                if other is not None:
                    other.hash = None
                block.hash = name

    def free_blocks(self, request: Request) -> None:
        for block in request.auxiliary + request.content[::-1]:
            block.users -= 1
            if block.users == 0:
                self.free.append(block)
        request.auxiliary = []
        request.content = []
        request.named = 0

    def prefix_hits_of(self, request: Request) -> list[Block]:
        hits: list[Block] = []
        for name in request.hashes[: (request.prompt_tokens - 1) // self.settings.block_size]:
            block = self.cached(name)
            if block is None:
                break
            hits.append(block)
        return hits

    # -- the pass --------------------------------------------------------------

    def threshold(self) -> int:
        settings = self.settings
        if not settings.enable_chunked_prefill:
            return 10**9
        if settings.long_prefill_token_threshold:
            return settings.long_prefill_token_threshold
        if settings.max_num_partial_prefills > 1:
            return int(0.04 * self.max_model_len) or 10**9
        return 10**9

    def schedule(self, now: float) -> None:
        self.step = {}
        self.preempted = []
        while True:
            before = len(self.preempted)
            budget = self.schedule_running()
            if len(self.preempted) == before:
                self.schedule_waiting(now, budget)
            if self.step or len(self.preempted) == before:
                return

    def schedule_running(self) -> int:
        budget = self.settings.max_num_batched_tokens
        order = list(self.running)
        for index, request in enumerate(order):
            if budget == 0 or request not in self.running:
                continue
            want = request.prompt_tokens + request.target - 1 - request.computed
            if request.in_prefill:
                want = min(want, request.prefill_length - request.computed, self.threshold())
            else:
                want = min(want, 1)
            want = min(want, budget)
            while self.needed(request, request.computed + want) > len(self.free):
                loser = self.victim([r for r in order if r in self.running], order[:index])
                budget += self.step.pop(loser, 0)
                self.preempt(loser)
                if loser is request:
                    break
            if request in self.running:
                self.allocate(request, request.computed + want)
                self.step[request] = want
                budget -= want
        return budget

    def victim(self, running: list[Request], before: list[Request]) -> Request:
        policy = self.settings.policy
        candidates = [r for r in running if policy == "priority" or r not in before]
        if policy == "fcfs":
            return candidates[-1]

        def key(request: Request) -> tuple[float, ...]:
            if policy == "priority":
                return (request.priority, request.arrival)
            if policy in ("sif", "lif"):
                return (request.prompt_tokens,)
            if policy in ("sof", "lof"):
                return (request.max_tokens - request.produced,)
            return (request.prompt_tokens + request.max_tokens - request.computed,)

        return max(reversed(candidates), key=key)

    def preempt(self, request: Request) -> None:
        self.running.remove(request)
        self.free_blocks(request)
        request.computed = 0
        request.preemptions += 1
        self.preempted.append(request)
        self.waiting.insert(0, request)

    def pick(self) -> Request:
        policy, queue = self.settings.policy, self.waiting
        if policy == "fcfs":
            return queue[0]
        if policy == "priority":
            return min(queue, key=lambda r: (r.priority, r.arrival))
        if policy == "sif":
            return min(queue, key=lambda r: r.prompt_tokens)
        if policy == "lif":
            return max(reversed(queue), key=lambda r: r.prompt_tokens)
        if policy == "sof":
            return min(queue, key=lambda r: r.max_tokens)
        if policy == "lof":
            return max(reversed(queue), key=lambda r: r.max_tokens)
        if policy == "stf":
            return min(queue, key=lambda r: r.prompt_tokens + r.max_tokens)
        return max(reversed(queue), key=lambda r: r.prompt_tokens + r.max_tokens)

    def schedule_waiting(self, now: float, budget: int) -> None:
        settings = self.settings
        while budget > 0 and self.waiting and len(self.running) < settings.max_num_seqs:
            request = self.pick()
            hits = self.prefix_hits_of(request)
            cached = len(hits) * settings.block_size
            want = min(request.prefill_length - cached, self.threshold())
            if want > budget:
                fits_some_step = want <= settings.max_num_batched_tokens
                if not settings.enable_chunked_prefill and fits_some_step:
                    return
                want = budget
            if settings.enable_preemption_free:
                promised = sum(
                    self.block_count(r.prompt_tokens + r.max_tokens)
                    for r in [*self.running, request]
                )
                if promised > len(self.blocks):
                    return
            revived = [block for block in hits if block.users == 0]
            whole = self.block_count(request.prefill_length)
            if whole - len(hits) + len(revived) > len(self.free):
                return
            for block in hits:
                if block.users == 0:
                    self.free.remove(block)
                block.users += 1
            request.content = list(hits)
            request.named = len(hits)
            self.allocate(request, cached + want)
            self.waiting.remove(request)
            self.running.append(request)
            self.prefix_hits += cached
            request.computed = cached
            if request.scheduled_at is None:
                request.scheduled_at = now
                request.cached_tokens = cached
            self.step[request] = want
            budget -= want

    def common_prefix(self) -> int:
        if not self.settings.enable_cascade_attention or len(self.step) < 2:
            return 0
        count = 0
        lists = [
            request.content[: min(len(request.hashes), (request.computed + want) // self.size)]
            for request, want in self.step.items()
        ]
        while all(len(blocks) > count for blocks in lists) and all(
            blocks[count] is lists[0][count] for blocks in lists
        ):
            count += 1
        return count * self.settings.block_size

    @property
    def size(self) -> int:
        return self.settings.block_size

    def commit(self, end: float) -> list[Request]:
        finished = []
        for request, want in self.step.items():
            if request.over:
                continue
            request.computed += want
            emitted = request.computed - request.prompt_tokens + 1
            if emitted > request.produced:
                request.produced = emitted
                if emitted == 1:
                    request.first_token_at = end
            if request.produced >= request.target:
                finished.append(request)
        for request in [r for r in self.running if r in finished]:
            request.over = True
            request.finished_at = end
            self.running.remove(request)
            self.free_blocks(request)
        self.step = {}
        return finished

    def abort(self, request: Request) -> None:
        request.over = True
        if request in self.waiting:
            self.waiting.remove(request)
        else:
            self.running.remove(request)
            self.free_blocks(request)


class Oracle:
    """One replica of a deployment; requests go to its ranks in turn."""

    def __init__(self, deployment: Deployment) -> None:
        self.deployment = deployment
        self.cost = CostModel(
            deployment.model,
            deployment.hardware,
            tp=deployment.tensor_parallel,
            ep=deployment.expert_parallel,
            dp_attention=deployment.dp_attention,
            time_correction=deployment.time_correction,
        )
        self.ranks = [Rank(deployment) for _ in range(ranks(deployment))]
        self.turn = 0
        self.where: dict[Request, Rank] = {}

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
    ) -> Request:
        limit, settings = self.deployment.max_model_len, self.deployment.scheduler
        if prompt_tokens >= limit or prompt_tokens + max_tokens > limit:
            raise ContextTooLong(prompt_tokens, max_tokens, limit)
        if not settings.enable_chunked_prefill and prompt_tokens > settings.max_num_batched_tokens:
            raise ContextTooLong(prompt_tokens, max_tokens, settings.max_num_batched_tokens)
        target = max_tokens if target is None else max(1, min(target, max_tokens))
        rank = self.ranks[self.turn % len(self.ranks)]
        longest = prompt_tokens + target - 1
        if settings.enable_preemption_free:
            longest = prompt_tokens + max_tokens
        if rank.block_count(longest) > len(rank.blocks):
            raise TooLargeForKV(rank.block_count(longest), len(rank.blocks))
        self.turn += 1
        request = Request(
            id=id,
            prompt_tokens=prompt_tokens,
            max_tokens=max_tokens,
            target=target,
            priority=priority,
            arrival=arrival,
            hashes=tuple(block_hashes[: prompt_tokens // settings.block_size]),
        )
        rank.waiting.append(request)
        self.where[request] = rank
        return request

    def abort(self, request: Request) -> bool:
        if request.over:
            return False
        self.where[request].abort(request)
        return True

    def begin_step(self, now: float) -> float | None:
        """The end of the step that starts at ``now``."""
        for rank in self.ranks:
            rank.schedule(now)
        tokens = sum(sum(rank.step.values()) for rank in self.ranks)
        if not tokens:
            return None
        works = [
            self.cost.attention.work(
                [Chunk(r.computed, want, r.in_prefill) for r, want in rank.step.items()],
                rank.common_prefix(),
            )
            for rank in self.ranks
        ]
        return now + self.cost.price(tokens, works).step_seconds

    def commit(self, end: float) -> list[Request]:
        """Who is finished."""
        return [request for rank in self.ranks for request in rank.commit(end)]

    @property
    def free_blocks(self) -> int:
        return sum(len(rank.free) for rank in self.ranks)
