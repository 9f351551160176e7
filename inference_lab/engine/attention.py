"""What attention costs one request: FLOPs and KV bytes as functions of its context.

For every kind of layer, both are a sum of constants times ``min(t // ratio, cap)``,
where ``t`` is the mean context in positions: full context is ratio 1 without a cap, a
sliding window is a cap, compressed history is a ratio, and its top-k a cap on that.
A profile holds each distinct pair once, whatever the number of layers, so that a batch
is priced from a handful of integer sums.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from math import lcm

from attrs import define, field, frozen

from inference_lab.configuration.memory import kv_bytes_per_position
from inference_lab.configuration.schema import (
    PRECISION_BYTES,
    AttentionLayers,
    LinearLayers,
    MlaLayers,
    Model,
)

FlopsByPrecision = dict[str, int]


@frozen
class Chunk:
    """``count`` requests that each compute ``new`` positions after ``resident`` cached ones."""

    resident: int
    new: int = 1
    prefill: bool = False
    count: int = 1

    @property
    def context(self) -> int:
        """The context a new position sees on average, in whole positions."""
        return self.resident + (self.new + 1) // 2


@define
class AttentionWork:
    """Attention of one rank's batch: FLOPs by precision, and KV and state bytes read."""

    flops: FlopsByPrecision = field(factory=dict)
    bytes: int = 0

    def add_flops(self, flops: FlopsByPrecision, count: int = 1) -> None:
        """Add ``count`` requests of these FLOPs."""
        for precision, amount in flops.items():
            self.flops[precision] = self.flops.get(precision, 0) + amount * count


@frozen
class Term:
    """``min(context // ratio, cap)`` positions and what each of them costs.

    ``cap`` None is no bound. ``read`` is KV bytes per position, times the profile's
    ``denominator``; ``prefill_flops`` and ``decode_flops`` are FLOPs per position and new
    token in the model's attention precision, ``index_flops`` those of the indexer.
    """

    ratio: int
    cap: int | None
    read: int
    prefill_flops: int
    decode_flops: int
    index_flops: FlopsByPrecision

    def positions(self, context: int) -> int:
        """How many positions of a context of ``context`` this term counts."""
        count = context // self.ratio
        return count if self.cap is None or count < self.cap else self.cap


@define
class _Sum:
    """A term while the layers are still being added up."""

    read: Fraction = Fraction(0)
    prefill_flops: int = 0
    decode_flops: int = 0
    index_flops: FlopsByPrecision = field(factory=dict)


class AttentionProfile:
    """The attention of one model, all layers together.

    ``state_bytes`` are read once per request and step (linear layers). ``denominator``
    is 1 unless some layer costs a fraction of a byte per position; only then must a
    batch's bytes be rounded request by request.
    """

    def __init__(
        self, precision: str, terms: tuple[Term, ...], state_bytes: int, denominator: int
    ) -> None:
        self.precision = precision
        self.terms = terms
        self.state_bytes = state_bytes
        self.denominator = denominator
        self._read = [(i, term.read) for i, term in enumerate(terms) if term.read]
        self._decode_flops = {precision: [(i, t.decode_flops) for i, t in enumerate(terms)]}
        for i, term in enumerate(terms):
            for name, flops in term.index_flops.items():
                self._decode_flops.setdefault(name, []).append((i, flops))

    @property
    def additive(self) -> bool:
        """Whether a batch's KV bytes follow from sums over its requests."""
        return self.denominator == 1

    def kv_read_bytes(self, context: int) -> int:
        """KV bytes read for one request at mean context ``context``, without its state."""
        total = 0
        for term in self.terms:
            total += term.read * term.positions(context)
        return total // self.denominator

    def flops(self, context: int, new: int, prefill: bool) -> FlopsByPrecision:
        """FLOPs of ``new`` positions at mean context ``context``, by precision."""
        result: FlopsByPrecision = {self.precision: 0}
        for term in self.terms:
            pairs = term.positions(context) * new
            each = term.prefill_flops if prefill else term.decode_flops
            result[self.precision] += each * pairs
            for precision, flops in term.index_flops.items():
                result[precision] = result.get(precision, 0) + flops * pairs
        return result

    def work(self, batch: Iterable[Chunk], common_prefix: int = 0) -> AttentionWork:
        """Attention of one rank's batch, request by request.

        ``common_prefix`` positions shared by the whole batch are read once (cascade
        attention), and each request reads only what lies behind them.
        """
        work = AttentionWork()
        if common_prefix:
            work.bytes += self.kv_read_bytes(common_prefix)
        for chunk in batch:
            context = chunk.context
            work.add_flops(self.flops(context, chunk.new, chunk.prefill), chunk.count)
            own = max(0, context - common_prefix)
            work.bytes += chunk.count * (self.kv_read_bytes(own) + self.state_bytes)
        return work

    def decode_work(self, totals: Sequence[int], members: int) -> AttentionWork:
        """Attention of ``members`` decodes whose terms add up to ``totals``.

        Exact for an additive profile only.
        """
        flops = {}
        for name, coefficients in self._decode_flops.items():
            amount = 0
            for i, each in coefficients:
                amount += each * totals[i]
            flops[name] = amount
        read = self.state_bytes * members
        for i, each in self._read:
            read += each * totals[i]
        return AttentionWork(flops, read)


def attention_profile(model: Model) -> AttentionProfile:
    """Add up the attention layers of ``model``."""
    sums: dict[tuple[int, int | None], _Sum] = {}
    state_bytes = 0

    def at(ratio: int, cap: int | None) -> _Sum:
        return sums.setdefault((ratio, cap), _Sum())

    for layer in model.layers:
        if isinstance(layer, LinearLayers):
            state_bytes += layer.count * layer.state_bytes
            continue
        read = layer.count * kv_bytes_per_position(layer)
        prefill, decode = (layer.count * flops for flops in _pair_flops(layer, model.hidden_dim))
        history = layer.history if isinstance(layer, MlaLayers) else None
        attended: list[_Sum] = []
        if history is None:
            attended.append(at(1, layer.window or None))
        else:
            attended.append(at(history.compress_ratio, history.index_topk or None))
            if layer.window:
                attended.append(at(1, layer.window))
            if history.indexer is not None:
                indexer = history.indexer
                scored = at(history.compress_ratio, None)
                precision = indexer.precision or model.attention_precision
                scored.index_flops[precision] = scored.index_flops.get(precision, 0) + (
                    layer.count * 2 * indexer.heads * indexer.head_dim
                )
                # Its keys stream in as they lie, so by context / ratio, not whole entries.
                at(1, None).read += (
                    layer.count
                    * indexer.head_dim
                    * Fraction(PRECISION_BYTES[indexer.kv_precision])
                    / history.compress_ratio
                )
        for term in attended:
            term.read += read
            term.prefill_flops += prefill
            term.decode_flops += decode
    denominator = lcm(*(total.read.denominator for total in sums.values()))
    return AttentionProfile(
        precision=model.attention_precision,
        terms=tuple(
            Term(
                ratio=ratio,
                cap=cap,
                read=int(total.read * denominator),
                prefill_flops=total.prefill_flops,
                decode_flops=total.decode_flops,
                index_flops=total.index_flops,
            )
            for (ratio, cap), total in sums.items()
        ),
        state_bytes=state_bytes,
        denominator=denominator,
    )


def _pair_flops(layer: AttentionLayers | MlaLayers, hidden_dim: int) -> tuple[int, int]:
    """FLOPs per (new, attended) pair of one layer, in prefill and in decode.

    Latent attention decodes "absorbed": scores and values are taken in the latent
    space itself, which trades more FLOPs for not expanding the cache.
    """
    if isinstance(layer, AttentionLayers):
        flops = 4 * layer.heads * layer.head_dim
        return flops, flops
    if layer.heads is None or layer.qk_head_dim is None or layer.v_head_dim is None:
        return 4 * hidden_dim, 4 * hidden_dim
    return (
        2 * layer.heads * (layer.qk_head_dim + layer.v_head_dim),
        2 * layer.heads * (2 * layer.latent_dim + layer.rope_dim),
    )
