"""One scheduler: continuous batching over one KV cache, in the manner of vLLM's v1 engine.

Each pass first serves the running requests in the order of their admission, then admits
waiting ones, until the step's token budget is spent. When KV blocks run out a running
request is preempted: it loses its cache, goes to the front of the queue, and computes
again later what it had.

As long as the blocks suffice for all who run, the decoding ones are served in bulk, at a
price that does not depend on how many they are. Otherwise the pass goes through them one
by one. The budget never ends at somebody who decodes: a request is only admitted with
what all before it leave, and from then on none of them asks for more than it did, save
the last, whose prompt chunk may have been cut.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from attrs import define

from inference_lab.configuration.deployment import Deployment
from inference_lab.engine.attention import AttentionProfile, AttentionWork, Chunk
from inference_lab.engine.decoding import DecodeBatch
from inference_lab.engine.kv_cache import Block, KvCache
from inference_lab.engine.policies import WaitingQueue, victim
from inference_lab.engine.requests import Handle, RequestState


@define(slots=True)
class Scheduled:
    """What one pass put into a step: prompt chunks of so many positions, and decodes.

    ``tokens`` are the new positions in all.
    """

    chunks: list[tuple[Handle, int]]
    decodes: int
    tokens: int
    preempted: list[Handle]


@define(slots=True)
class Counters:
    """What one scheduler has done so far; prefix cache figures are in tokens."""

    preemptions: int = 0
    aborted: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    iteration_tokens: int = 0


def prefill_threshold(deployment: Deployment) -> int:
    """Cap on one request's prompt chunk per step, in tokens; 0 is no cap.

    With several partial prefills allowed and no cap given, vLLM caps at 4 % of the
    context length. Without chunked prefill there are no chunks to cap.
    """
    scheduler = deployment.scheduler
    if not scheduler.enable_chunked_prefill:
        return 0
    if scheduler.long_prefill_token_threshold == 0 and scheduler.max_num_partial_prefills > 1:
        return int(deployment.max_model_len * 0.04)
    return scheduler.long_prefill_token_threshold


class Scheduler:
    """Schedules the requests of one KV cache. ``members`` is told who decodes."""

    def __init__(
        self, deployment: Deployment, profile: AttentionProfile, members: dict[Handle, None]
    ) -> None:
        settings = deployment.scheduler
        self.kv = KvCache.of(deployment)
        self.batch = DecodeBatch(profile.terms, self.kv.table, members)
        self.waiting = WaitingQueue(settings.policy)
        self.running: dict[Handle, None] = {}
        self.prefilling: dict[Handle, None] = {}
        self.counters = Counters()
        self.queued_prefill_tokens = 0
        """Prompt positions that are not computed yet, waiting and running."""
        self._profile = profile
        self._policy = settings.policy
        self._budget = settings.max_num_batched_tokens
        self._most_running = settings.max_num_seqs
        self._threshold = prefill_threshold(deployment)
        self._chunked = settings.enable_chunked_prefill
        self._preemption_free = settings.enable_preemption_free
        self._cascade = settings.enable_cascade_attention
        self._itemised = self._cascade or not profile.additive
        self._admissions = 0
        self._promised_blocks = 0

    @property
    def requests(self) -> int:
        """Requests that run or wait."""
        return len(self.running) + len(self.waiting)

    def cached_tokens(self, hashes: Sequence[int], prompt_tokens: int) -> int:
        """How much of a prompt the prefix cache holds, in tokens."""
        return self.kv.cached_tokens(hashes, prompt_tokens)

    def largest_need(self, handle: Handle) -> int:
        """Blocks that must exist for ``handle`` to be sure to finish."""
        if self._preemption_free:
            return self._promise(handle)
        return self.kv.table.blocks(handle.last_context)

    def _promise(self, handle: Handle) -> int:
        return self.kv.table.blocks(handle.prompt_tokens + handle.max_tokens)

    # -- in and out ------------------------------------------------------------

    def submit(self, handle: Handle) -> None:
        """Queue a new request."""
        handle.prefill_length = handle.prompt_tokens
        self.queued_prefill_tokens += handle.prompt_tokens
        self.waiting.append(handle)

    def abort(self, handle: Handle) -> bool:
        """Drop a request and free what it holds at once; False if it is over already."""
        if handle.state is RequestState.FINISHED:
            return False
        if handle.state is RequestState.WAITING:
            self.queued_prefill_tokens -= handle.prefill_length
            self.waiting.discard(handle)
        else:
            self._stop_running(handle)
            handle.state = RequestState.FINISHED
        handle.aborted = True
        self.counters.aborted += 1
        return True

    def _stop_running(self, handle: Handle) -> None:
        """Take a request off the GPU: out of the batch, its blocks freed."""
        if handle.batch is not None:
            self.batch.leave(handle)
        elif handle in self.prefilling:
            del self.prefilling[handle]
            self.queued_prefill_tokens -= handle.prefill_length - handle.computed
        del self.running[handle]
        self.kv.release(handle.kv)
        if self._preemption_free:
            self._promised_blocks -= self._promise(handle)

    def _preempt(self, handle: Handle) -> None:
        self._stop_running(handle)
        handle.computed = 0
        handle.prefill_length = handle.prompt_tokens + max(0, handle.produced - 1)
        handle.preemptions += 1
        self.counters.preemptions += 1
        self.queued_prefill_tokens += handle.prefill_length
        self.waiting.push_front(handle)

    # -- a pass ----------------------------------------------------------------

    def schedule(self, now: float) -> Scheduled:
        """Choose what the step that starts at ``now`` computes, and reserve its blocks."""
        plan = self._serve_in_bulk() or self._serve_one_by_one()
        # None is admitted beside a preemption, unless all who ran were preempted.
        if self.waiting and not (plan.preempted and plan.tokens):
            self._admit(plan, now)
        self.batch.reserved = plan.decodes > 0
        self.counters.iteration_tokens += plan.tokens
        return plan

    def _wanted(self, handle: Handle, computed: int) -> int:
        """Prompt positions that ``handle`` would compute next if the budget allows."""
        wanted = handle.prefill_length - computed
        return min(wanted, self._threshold) if self._threshold else wanted

    def _serve_in_bulk(self) -> Scheduled | None:
        """Serve all who run, or None if that takes more blocks than are free."""
        budget = self._budget - self.batch.size
        needed = self.batch.blocks_needed()
        chunks: list[tuple[Handle, int]] = []
        for handle in self.prefilling:
            new = min(self._wanted(handle, handle.computed), budget)
            budget -= new
            needed += self.kv.missing(handle.kv, handle.computed + new)
            chunks.append((handle, new))
        if needed > self.kv.free:
            return None
        for handle, new in chunks:
            needed -= self.kv.missing(handle.kv, handle.computed + new)
            self.kv.grow(handle.kv, handle.computed + new)
        if needed:
            self.kv.take(needed)
        return Scheduled(chunks, self.batch.size, self._budget - budget, [])

    def _serve_one_by_one(self) -> Scheduled:
        """Serve whom the blocks allow, in order, preempting where they lack.

        Decodes that need no block cannot fail, so they are passed over.
        """
        order = list(self.running)
        chunks: dict[Handle, int] = {}
        preempted: list[Handle] = []
        for position, handle in self.batch.wanting(order):
            if handle not in self.running:
                continue
            context = handle.resident
            if handle.batch is not None:
                handle.kv.count = self.batch.holding(handle)
                context += 1
            else:
                budget = self._budget - self.batch.size - sum(chunks.values())
                chunks[handle] = min(self._wanted(handle, context), budget)
                context += chunks[handle]
            needed = self.kv.missing(handle.kv, context)
            while needed > self.kv.free and handle in self.running:
                loser = self._victim(order, position)
                chunks.pop(loser, None)
                preempted.append(loser)
                self._preempt(loser)
            if handle in self.running:
                self.kv.grow(handle.kv, context)
        tokens = self.batch.size + sum(chunks.values())
        return Scheduled(list(chunks.items()), self.batch.size, tokens, preempted)

    def _victim(self, order: Sequence[Handle], position: int) -> Handle:
        """Whom to preempt for the request at ``position``.

        Those before it are served already and safe, except from the priority policy, which
        takes the least important of all; the budget it had is free again.
        """
        if self._policy == "fcfs":
            return next(reversed(self.running))
        start = 0 if self._policy == "priority" else position
        return victim(self._policy, [h for h in order[start:] if h in self.running])

    def _admit(self, plan: Scheduled, now: float) -> None:
        """Admit waiting requests until the first that does not fit."""
        budget = self._budget - plan.tokens
        while budget > 0 and self.waiting and len(self.running) < self._most_running:
            handle = self.waiting.peek()
            hits = self.kv.lookup(handle.kv, handle.prompt_tokens)
            cached = len(hits) * self.kv.table.block_size
            new = self._wanted(handle, cached)
            if new > budget:
                # Without chunks a prompt waits for a step that holds it, if any can: what
                # a preempted request computes again may have outgrown them all.
                if not self._chunked and new <= self._budget:
                    break
                new = budget
            if self._preemption_free:
                promised = self._promised_blocks + self._promise(handle)
                if promised > self.kv.total:
                    break
            if not self.kv.admit(handle.kv, hits, cached + new, handle.prefill_length):
                break
            self.waiting.pop()
            self._start(handle, cached, now)
            budget -= new
            plan.tokens += new
            plan.chunks.append((handle, new))

    def _start(self, handle: Handle, cached: int, now: float) -> None:
        self._admissions += 1
        handle.admission = self._admissions
        handle.state = RequestState.PREFILL
        handle.computed = cached
        self.running[handle] = self.prefilling[handle] = None
        self.queued_prefill_tokens -= cached
        self.counters.prefix_queries += handle.prompt_tokens
        self.counters.prefix_hits += cached
        if handle.scheduled_at is None:
            handle.scheduled_at = now
            handle.cached_tokens = cached
        if self._preemption_free:
            self._promised_blocks += self._promise(handle)

    # -- what the step costs ---------------------------------------------------

    def attention_work(self, plan: Scheduled) -> AttentionWork:
        """FLOPs and bytes of the attention of a step as planned."""
        if self._itemised:
            return self._attention_work_one_by_one(plan)
        profile = self._profile
        work = profile.decode_work(self.batch.totals, plan.decodes)
        for handle, new in plan.chunks:
            context = handle.computed + (new + 1) // 2
            work.add_flops(profile.flops(context, new, prefill=True))
            work.bytes += profile.kv_read_bytes(context) + profile.state_bytes
        return work

    def _attention_work_one_by_one(self, plan: Scheduled) -> AttentionWork:
        decoding = [handle for handle in self.running if handle.batch is not None]
        everyone = decoding + [handle for handle, _ in plan.chunks]
        common = 0
        if self._cascade and len(everyone) > 1:
            common = self.kv.table.block_size * _common_blocks([h.kv.blocks for h in everyone])
        batch = [Chunk(handle.resident) for handle in decoding]
        batch += [Chunk(handle.computed, new, prefill=True) for handle, new in plan.chunks]
        return self._profile.work(batch, common)

    # -- the end of a step -----------------------------------------------------

    def commit(self, plan: Scheduled, now: float) -> tuple[list[Handle], list[Handle]]:
        """End the step in flight at ``now``: who got a first token, and who is finished.

        Requests that were aborted meanwhile have left, and get nothing.
        """
        produced = self.batch.size
        first: list[Handle] = []
        finished = self.batch.finishing()
        ready: list[Handle] = []
        for handle, new in plan.chunks:
            if handle.state is not RequestState.PREFILL:
                continue
            handle.computed += new
            self.queued_prefill_tokens -= new
            if handle.computed < handle.prefill_length:
                continue
            del self.prefilling[handle]
            if not handle.produced:
                handle.produced = 1
                handle.first_token_at = now
                produced += 1
                self.counters.prompt_tokens += handle.prompt_tokens
                first.append(handle)
            if handle.produced >= handle.target:
                finished.append(handle)
            else:
                ready.append(handle)
        if finished:
            finished.sort(key=lambda handle: handle.admission)
            self._finish(finished, now)
        self.batch.advance()
        for handle in ready:
            handle.state = RequestState.DECODE
            self.batch.join(handle)
        self.counters.generation_tokens += produced
        return first, finished

    def _finish(self, handles: Iterable[Handle], now: float) -> None:
        for handle in handles:
            self._stop_running(handle)
            handle.state = RequestState.FINISHED
            handle.produced = handle.target
            handle.finished_at = now


def _common_blocks(sequences: Sequence[Sequence[Block]]) -> int:
    """How many blocks all sequences begin with together."""
    count = 0
    for together in zip(*sequences, strict=False):
        if any(block is not together[0] for block in together):
            break
        count += 1
    return count
