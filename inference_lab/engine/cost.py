"""The price of one forward pass: a roofline per precision, plus the talk between GPUs.

Work in each precision takes as long as its FLOPs or its bytes, whichever is slower;
the precisions run one after another, and the collectives after them. Attention of a
data-parallel group is as slow as its busiest rank, which shows as skew.
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import frozen

from inference_lab.configuration.memory import attention_parameters, projection_precision
from inference_lab.configuration.schema import (
    PRECISION_BYTES,
    Hardware,
    Model,
    TimeCorrection,
)
from inference_lab.engine.attention import (
    AttentionProfile,
    AttentionWork,
    Chunk,
    attention_profile,
)
from inference_lab.engine.collectives import collective_seconds
from inference_lab.engine.weights import stream_bytes, stream_flops


@frozen
class StepCost:
    """One step, priced. Dictionaries are by precision name; times are seconds.

    ``compute_seconds`` and ``memory_seconds`` are those of the whole group working
    evenly. ``roofline_seconds`` is the uncalibrated time without skew, ``step_seconds``
    what the step takes.
    """

    tokens: int
    flops: dict[str, int]
    bytes: dict[str, int]
    compute_seconds: dict[str, float]
    memory_seconds: dict[str, float]
    collective_seconds: float
    skew_seconds: float
    roofline_seconds: float
    step_seconds: float

    @property
    def flops_utilisation(self) -> float:
        """Share of the step in which the FLOP units would be busy, at most 1."""
        return min(1.0, sum(self.compute_seconds.values()) / self.step_seconds)

    @property
    def bandwidth_utilisation(self) -> float:
        """Share of the step in which the memory would be busy, at most 1."""
        return min(1.0, sum(self.memory_seconds.values()) / self.step_seconds)


@frozen
class WeightWork:
    """What ``tokens`` positions cost apart from attention; FLOPs and bytes by precision."""

    flops: dict[str, int]
    bytes: dict[str, int]
    collective_seconds: float
    rows: tuple[tuple[str, int, int, float, float], ...]
    """Per precision: its name, FLOPs, bytes, and the group's FLOP/s and bytes/s."""


def flop_rate(hardware: Hardware, precision: str) -> float:
    """Dense FLOP/s of one GPU; bf16 and fp16 stand in for each other, fp32 is half of fp16.

    Raises ValueError when the hardware has no rate for that precision.
    """
    half = hardware.flops_fp16 or hardware.flops_bf16
    rates: dict[str, float | None] = {
        "fp4": hardware.flops_fp4,
        "fp8": hardware.flops_fp8,
        "bf16": hardware.flops_bf16 or half,
        "fp16": half,
        "fp32": half / 2 if half else None,
    }
    rate = rates[precision]
    if not rate:
        raise ValueError(f"{hardware.name} has no FLOP rate for {precision}")
    return rate


class CostModel:
    """Prices the steps of one model on one tensor-parallel group of GPUs.

    Raises ValueError when the hardware cannot compute a precision the model uses, or
    has no link for a group that wide.
    """

    def __init__(
        self,
        model: Model,
        hardware: Hardware,
        *,
        tp: int = 1,
        ep: int = 1,
        dp_attention: bool = False,
        time_correction: TimeCorrection | None = None,
    ) -> None:
        self.model = model
        self.hardware = hardware
        self.tp = tp
        self.ep = ep
        self.dp_attention = dp_attention
        self.time_correction = time_correction or TimeCorrection()
        self.attention: AttentionProfile = attention_profile(model)
        precisions: dict[str, None] = dict.fromkeys(s.precision for s in model.weights)
        precisions[self.attention.precision] = None
        for term in self.attention.terms:
            precisions.update(dict.fromkeys(term.index_flops))
        self.precisions: tuple[str, ...] = tuple(precisions)
        self.rates = {name: flop_rate(hardware, name) for name in self.precisions}
        self.bandwidth = hardware.memory_bandwidth
        self._projection = projection_precision(model)
        self._replicated_bytes = 0
        if dp_attention and tp > 1:
            width = PRECISION_BYTES[self._projection]
            self._replicated_bytes = int((tp - 1) * attention_parameters(model) * width)
        self._weight_work: dict[int, WeightWork] = {}
        self.weight_work(1)

    def weight_work(self, tokens: int) -> WeightWork:
        """Weights and collectives of a step over ``tokens`` positions, remembered."""
        known = self._weight_work.get(tokens)
        if known is not None:
            return known
        bandwidth = self.bandwidth * self.tp
        flops = dict.fromkeys(self.precisions, 0)
        read = dict.fromkeys(self.precisions, 0)
        for stream in self.model.weights:
            flops[stream.precision] += stream_flops(stream, tokens)
            read[stream.precision] += stream_bytes(stream, tokens)
        read[self._projection] += self._replicated_bytes
        work = WeightWork(
            flops=flops,
            bytes=read,
            collective_seconds=collective_seconds(
                self.model,
                self.hardware.fabric,
                tokens,
                tp=self.tp,
                ep=self.ep,
                dp_attention=self.dp_attention,
            ),
            rows=tuple(
                (name, flops[name], read[name], self.rates[name] * self.tp, bandwidth)
                for name in self.precisions
            ),
        )
        self._weight_work[tokens] = work
        return work

    def step(self, batch: Sequence[Chunk], common_prefix: int = 0) -> StepCost:
        """Price a step of one scheduler's batch."""
        tokens = sum(chunk.new * chunk.count for chunk in batch)
        return self.price(tokens, [self.attention.work(batch, common_prefix)])

    def group_step(self, ranks: Sequence[Sequence[Chunk]]) -> StepCost:
        """Price a lockstep step of a data-parallel attention group, one batch per rank."""
        tokens = sum(chunk.new * chunk.count for batch in ranks for chunk in batch)
        return self.price(tokens, [self.attention.work(batch) for batch in ranks])

    def price(self, tokens: int, ranks: Sequence[AttentionWork]) -> StepCost:
        """Price ``tokens`` new positions whose attention is ``ranks``, one entry per rank."""
        weights = self.weight_work(tokens)
        flops, read = dict(weights.flops), dict(weights.bytes)
        for rank in ranks:
            for precision, amount in rank.flops.items():
                flops[precision] += amount
            read[self.attention.precision] += rank.bytes
        compute = {name: flops[name] / (self.rates[name] * self.tp) for name in flops}
        memory = {name: read[name] / (self.bandwidth * self.tp) for name in read}
        roofline = sum(max(compute[name], memory[name]) for name in flops)
        roofline += weights.collective_seconds
        skew = self.skew_seconds(ranks) if self.dp_attention else 0.0
        correction = self.time_correction
        return StepCost(
            tokens=tokens,
            flops=flops,
            bytes=read,
            compute_seconds=compute,
            memory_seconds=memory,
            collective_seconds=weights.collective_seconds,
            skew_seconds=skew,
            roofline_seconds=roofline,
            step_seconds=correction.alpha * roofline + correction.beta + skew,
        )

    def seconds(self, tokens: int, ranks: Sequence[AttentionWork]) -> float:
        """``step_seconds`` of :meth:`price`, without the account of how it comes about."""
        if len(ranks) == 1:
            work = ranks[0]
        else:
            work = AttentionWork(bytes=sum(rank.bytes for rank in ranks))
            for rank in ranks:
                work.add_flops(rank.flops)
        weights = self._weight_work.get(tokens) or self.weight_work(tokens)
        total = weights.collective_seconds
        attended, at = work.flops, self.attention.precision
        for name, flops, read, rate, bandwidth in weights.rows:
            if name in attended:
                flops += attended[name]
            if name == at:
                read += work.bytes
            compute_seconds, memory_seconds = flops / rate, read / bandwidth
            total += compute_seconds if compute_seconds > memory_seconds else memory_seconds
        total = self.time_correction.alpha * total + self.time_correction.beta
        return total + self.skew_seconds(ranks) if self.dp_attention else total

    def skew_seconds(self, ranks: Sequence[AttentionWork]) -> float:
        """By how much the busiest rank's attention exceeds an even share."""
        seconds = [self.rank_seconds(rank) for rank in ranks]
        return max(0.0, max(seconds) - sum(seconds) / self.tp)

    def rank_seconds(self, work: AttentionWork) -> float:
        """Roofline of one rank's own attention, on its one GPU."""
        compute = sum(amount / self.rates[name] for name, amount in work.flops.items())
        return max(compute, work.bytes / self.bandwidth)
