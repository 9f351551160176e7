"""What fills a GPU group's memory: weights, then KV blocks.

All sizes are bytes. A *group* is the GPUs of one replica; with data-parallel attention
each of them is a *rank* with its own KV cache and its own copy of the attention weights.
"""

from __future__ import annotations

from fractions import Fraction
from math import ceil

from attrs import frozen

from inference_lab.configuration.deployment import Deployment
from inference_lab.configuration.schema import (
    PRECISION_BYTES,
    AttentionLayers,
    LinearLayers,
    MlaLayers,
    Model,
    WeightStream,
)

# An MLA layer without head counts is priced as this classic shape.
HEADLESS_HEAD_DIM = 128


@frozen
class KvMemory:
    """The KV cache of one scheduler: a replica's, or a rank's with data-parallel attention."""

    capacity: int
    block_bytes: int
    block_size: int

    @property
    def blocks(self) -> int:
        """Whole blocks that fit."""
        return self.capacity // self.block_bytes

    @property
    def tokens(self) -> int:
        """Positions those blocks hold, windows and states aside."""
        return self.blocks * self.block_size


def kv_memory(deployment: Deployment) -> KvMemory:
    """The KV cache of each scheduler of ``deployment``."""
    size = deployment.scheduler.block_size
    capacity = kv_capacity(deployment) // ranks(deployment)
    return KvMemory(capacity, block_bytes(deployment.model, size), size)


def ranks(deployment: Deployment) -> int:
    """How many schedulers share one group."""
    return deployment.tensor_parallel if deployment.dp_attention else 1


def kv_capacity(deployment: Deployment) -> int:
    """KV bytes of the group: what the operator says, else what the weights leave."""
    explicit = deployment.scheduler.kv_cache_capacity
    return explicit or max(0, usable_bytes(deployment) - resident_bytes(deployment))


def usable_bytes(deployment: Deployment) -> int:
    """Memory of the group that weights and KV may fill together.

    As in vLLM, an explicit KV size overrules ``gpu_memory_utilization``.
    """
    memory = deployment.hardware.memory_capacity * deployment.tensor_parallel
    if deployment.scheduler.kv_cache_capacity:
        return memory
    return int(memory * deployment.scheduler.gpu_memory_utilization)


def resident_bytes(deployment: Deployment) -> int:
    """Weights in the memory of the group, copies included."""
    model, copies = deployment.model, ranks(deployment) - 1
    total = sum(stream.resident_params * _width(stream.precision) for stream in model.weights)
    return int(total + copies * attention_parameters(model) * _width(projection_precision(model)))


# -- the KV cache of one sequence --------------------------------------------


def kv_bytes_per_position(layer: AttentionLayers | MlaLayers) -> Fraction:
    """Bytes of one cached position in one layer of this kind."""
    width = _width(layer.kv_precision)
    if isinstance(layer, MlaLayers):
        return (layer.latent_dim + layer.rope_dim) * width
    tensors = 1 if layer.kv_shared else 2
    return tensors * layer.kv_heads * layer.head_dim * width


def content_bytes_per_token(model: Model) -> Fraction:
    """Bytes that each token adds and that stay while its sequence lives.

    Full-context KV, compressed history (a fraction of a position each) and the keys of
    its indexer; neither windows nor states, which stop growing.
    """
    total = Fraction(0)
    for layer in model.layers:
        if isinstance(layer, LinearLayers):
            continue
        history = layer.history if isinstance(layer, MlaLayers) else None
        if history is not None:
            entry = kv_bytes_per_position(layer)
            if history.indexer is not None:
                entry += history.indexer.head_dim * _width(history.indexer.kv_precision)
            total += layer.count * entry / history.compress_ratio
        elif not layer.window:
            total += layer.count * kv_bytes_per_position(layer)
    return total


def window_bytes(model: Model, context: int) -> int:
    """Bytes in the sliding windows of a sequence of ``context`` positions."""
    return ceil(
        sum(
            layer.count * kv_bytes_per_position(layer) * min(context, layer.window)
            for layer in model.layers
            if not isinstance(layer, LinearLayers)
        )
    )


def state_bytes(model: Model) -> int:
    """Bytes of linear-attention state that each sequence holds, whatever its length."""
    return sum(
        layer.count * layer.state_bytes for layer in model.layers if isinstance(layer, LinearLayers)
    )


def block_bytes(model: Model, block_size: int) -> int:
    """Bytes of one KV block of ``block_size`` positions.

    A model whose sequences stop growing has no content to page: its block is then as
    large as everything a sequence of one block holds.
    """
    content = content_bytes_per_token(model) * block_size
    return ceil(content) or window_bytes(model, block_size) + state_bytes(model)


def auxiliary_blocks(model: Model, block_size: int, context: int) -> int:
    """Blocks that the windows and states of a sequence take beside its content."""
    return -(-(window_bytes(model, context) + state_bytes(model)) // block_bytes(model, block_size))


# -- the attention weights ---------------------------------------------------


def projection_precision(model: Model) -> str:
    """Precision of the attention projections: that of the largest unrouted stream.

    The last of equals; of all streams, if every one is routed.
    """

    def size(stream: WeightStream) -> int:
        return stream.resident_params

    unrouted = [stream for stream in model.weights if stream.routing is None]
    return max(reversed(unrouted or model.weights), key=size).precision


def attention_parameters(model: Model) -> int:
    """Parameters of all attention projections: query, key, value and output."""
    return sum(
        layer.count * _projections(layer, model.hidden_dim)
        for layer in model.layers
        if not isinstance(layer, LinearLayers)
    )


def _projections(layer: AttentionLayers | MlaLayers, hidden: int) -> int:
    if isinstance(layer, AttentionLayers):
        key_value = layer.kv_heads * (1 if layer.kv_shared else 2)
        return hidden * layer.head_dim * (2 * layer.heads + key_value)
    heads = layer.heads or hidden // HEADLESS_HEAD_DIM
    qk = layer.qk_head_dim or HEADLESS_HEAD_DIM
    v = layer.v_head_dim or HEADLESS_HEAD_DIM
    latent, rope = layer.latent_dim, layer.rope_dim
    total = hidden * (latent + rope) + latent * heads * (max(0, qk - rope) + v)
    total += _low_rank(hidden, heads * qk, layer.q_latent_dim)
    total += _low_rank(heads * v, hidden, layer.o_latent_dim)
    if layer.history is not None and layer.history.indexer is not None:
        total += hidden * layer.history.indexer.heads * layer.history.indexer.head_dim
    return total


def _low_rank(rows: int, columns: int, rank: int | None) -> int:
    """Parameters of a matrix, or of its two factors of that rank."""
    return rows * columns if rank is None else (rows + columns) * rank


def _width(precision: str) -> Fraction:
    return Fraction(PRECISION_BYTES[precision])
