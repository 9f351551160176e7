"""What one step of a deployment costs, and why: figures first, then a table of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attrs import frozen
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from inference_lab.configuration.deployment import Deployment
from inference_lab.configuration.memory import kv_memory, ranks
from inference_lab.engine.attention import Chunk
from inference_lab.engine.cost import CostModel, StepCost
from inference_lab.engine.kv_cache import BlockTable


@frozen
class Explanation:
    """One step, priced.

    ``decodes`` requests get one token each; ``cost`` is the whole step's.
    ``kv_capacity_tokens`` is what one replica's KV cache holds, windows and states
    aside. ``kv_blocks_needed`` and ``kv_blocks`` are of its fullest scheduler: with
    data-parallel attention each rank has one.
    """

    deployment: Deployment
    decodes: int
    cost: StepCost
    kv_capacity_tokens: int
    kv_blocks_needed: int
    kv_blocks: int

    @property
    def tokens_per_second(self) -> float:
        """New positions over time; of a step that only decodes, the generated tokens."""
        return self.cost.tokens / self.cost.step_seconds

    def as_dict(self) -> dict[str, Any]:
        """For machines: seconds, FLOPs, bytes and tokens, unrounded."""
        cost = self.cost
        return {
            "step_seconds": cost.step_seconds,
            "tokens": cost.tokens,
            "streams": {
                name: {
                    "flops": cost.flops[name],
                    "bytes": cost.bytes[name],
                    "compute_seconds": cost.compute_seconds[name],
                    "memory_seconds": cost.memory_seconds[name],
                }
                for name in cost.flops
            },
            "collective_seconds": cost.collective_seconds,
            "skew_seconds": cost.skew_seconds,
            "kv_capacity_tokens": self.kv_capacity_tokens,
        }


def explain(
    deployment: Deployment, batch: int, context: int, prefills: Sequence[Chunk] = ()
) -> Explanation:
    """Price a step of ``batch`` decodes on ``context`` resident positions each, and ``prefills``.

    With data-parallel attention the ranks take the requests in turn, decodes first.

    :raises ValueError: for a step without any request.
    """
    if not (batch or prefills):
        raise ValueError("a step needs at least one request")
    model = CostModel(
        deployment.model,
        deployment.hardware,
        tp=deployment.tensor_parallel,
        ep=deployment.expert_parallel,
        dp_attention=deployment.dp_attention,
        time_correction=deployment.time_correction,
    )
    schedulers = ranks(deployment)
    shares: list[list[Chunk]] = []
    for rank in range(schedulers):
        decodes = len(range(rank, batch, schedulers))
        shares.append([Chunk(context, count=decodes)] if decodes else [])
    for turn, prefill in enumerate(prefills, batch):
        shares[turn % schedulers].append(prefill)
    memory = kv_memory(deployment)
    blocks = BlockTable(deployment.model, memory.block_size).blocks
    return Explanation(
        deployment=deployment,
        decodes=batch,
        cost=model.group_step(shares) if deployment.dp_attention else model.step(shares[0]),
        kv_capacity_tokens=memory.tokens * schedulers,
        kv_blocks_needed=max(
            sum(blocks(chunk.resident + chunk.new) * chunk.count for chunk in share)
            for share in shares
        ),
        kv_blocks=memory.blocks,
    )


# -- for people ----------------------------------------------------------------


def render(explained: Explanation) -> RenderableType:
    """A heading, the roofline by precision, and what the step comes to."""
    parts: list[RenderableType] = [_heading(explained), _roofline(explained.cost), _sum(explained)]
    return Group(*parts, *(Text(f"Note: {note}", style="yellow") for note in _notes(explained)))


def _heading(explained: Explanation) -> Text:
    where = explained.deployment
    words = [f"{where.name} on {where.entry}, tp {where.tensor_parallel}"]
    if where.expert_parallel > 1:
        words.append(f"ep {where.expert_parallel}")
    if where.dp_attention:
        words.append("data-parallel attention")
    prefill = explained.cost.tokens - explained.decodes
    words.append(f"{explained.decodes} decodes")
    if prefill:
        words.append(f"{prefill} prefill positions")
    return Text(", ".join(words), style="bold")


def _roofline(cost: StepCost) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("precision")
    for name in ("FLOPs", "bytes", "compute", "memory"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("bound by")
    for name in cost.flops:
        compute, memory = cost.compute_seconds[name], cost.memory_seconds[name]
        table.add_row(
            name,
            _scaled(cost.flops[name], "FLOP"),
            _scaled(cost.bytes[name], "B"),
            _time(compute),
            _time(memory),
            "compute" if compute > memory else "memory",
        )
    return table


def _sum(explained: Explanation) -> Table:
    cost, correction = explained.cost, explained.deployment.time_correction
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column()
    table.add_column(justify="right", no_wrap=True)
    table.add_row("collectives", _time(cost.collective_seconds))
    table.add_row("skew between ranks", _time(cost.skew_seconds))
    if (correction.alpha, correction.beta) != (1.0, 0.0):
        factor = f"x {correction.alpha:g} + {_time(correction.beta)}"
        table.add_row("time correction (not on skew)", factor)
    table.add_row("step", _time(cost.step_seconds), style="bold")
    table.add_row("new positions", f"{cost.tokens:,}")
    mixed = explained.cost.tokens > explained.decodes
    what = "tokens/s, prefill included" if mixed else "tokens/s"
    table.add_row(what, f"{explained.tokens_per_second:,.0f}", style="bold")
    if explained.decodes:
        if mixed:
            table.add_row("tokens/s generated", f"{explained.decodes / cost.step_seconds:,.0f}")
        table.add_row("tokens/s per decode", f"{1 / cost.step_seconds:,.1f}")
    table.add_row("KV capacity, tokens", f"{explained.kv_capacity_tokens:,}")
    used = f"{explained.kv_blocks_needed:,} of {explained.kv_blocks:,}"
    whose = " (fullest rank)" if explained.deployment.dp_attention else ""
    table.add_row(f"KV blocks in use{whose}", used)
    return table


def _notes(explained: Explanation) -> list[str]:
    """Why the scheduler would never make this step."""
    settings = explained.deployment.scheduler
    notes: list[str] = []
    if explained.kv_blocks_needed > explained.kv_blocks:
        notes.append("these requests do not fit the KV cache together.")
    share = -(-explained.cost.tokens // ranks(explained.deployment))
    if share > settings.max_num_batched_tokens:
        notes.append(
            f"the scheduler's budget is {settings.max_num_batched_tokens:,} new positions a step."
        )
    if -(-explained.decodes // ranks(explained.deployment)) > settings.max_num_seqs:
        notes.append(f"the scheduler runs at most {settings.max_num_seqs:,} requests.")
    return notes


def _time(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:,.3f} s"
    return f"{seconds * 1e3:.3f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.1f} us"


def _scaled(amount: float, unit: str) -> str:
    """Three digits and a decimal prefix."""
    prefixes = ("", "k", "M", "G", "T", "P", "E")
    power = 0
    while amount >= 999.5 and power < len(prefixes) - 1:
        amount /= 1000
        power += 1
    return f"{amount:.3g} {prefixes[power]}{unit}"
