"""The types of every table an operator can write, as frozen structs.

The schema is that of the public Rust original's model files. Units stand in
each docstring; defaults that mean "derive it" are ``None`` or 0 as noted.
Ranges a single value can violate are declared here; rules that relate several
values (an expert group must divide its tensor group) live in
:mod:`inference_lab.configuration.rules`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

Positive = Annotated[int, Meta(ge=1)]
NonNegative = Annotated[int, Meta(ge=0)]
PositiveRate = Annotated[float, Meta(gt=0)]
NonNegativeAmount = Annotated[float, Meta(ge=0)]
Fraction = Annotated[float, Meta(gt=0, le=1)]

Precision = Literal["fp4", "fp8", "bf16", "fp16", "fp32"]

PRECISION_BYTES: dict[str, float] = {"fp4": 0.5, "fp8": 1, "bf16": 2, "fp16": 2, "fp32": 4}
"""Bytes per value of each precision name."""


class Table(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One TOML table: immutable, keyword-only, refusing unknown keys."""


# -- the model -------------------------------------------------------------


class Routing(Table):
    """Mixture-of-experts routing of one weight stream."""

    routed_experts: NonNegative
    experts_per_tok: Positive
    moe_layers: NonNegative


class WeightStream(Table):
    """Parameters of one precision, read once per step.

    ``active_params`` are touched by every token; ``resident_params`` occupy
    memory. With ``routing`` the difference is expert weight.
    """

    precision: Precision
    active_params: NonNegative
    resident_params: NonNegative
    routing: Routing | None = None


class AttentionLayers(Table, tag_field="kind", tag="attention"):
    """``count`` grouped-query attention layers; ``window`` 0 means full context.

    ``kv_shared`` says that K and V are one tensor, so the cache holds one.
    """

    count: Positive
    heads: Positive
    head_dim: Positive
    kv_heads: Positive
    kv_shared: bool = False
    window: NonNegative = 0
    kv_precision: Precision = "bf16"


class Indexer(Table):
    """The small scorer that picks which compressed positions are attended."""

    heads: Positive
    head_dim: Positive
    kv_precision: Precision = "bf16"
    precision: Precision | None = None
    """Precision of its GEMM; ``None`` is the model's attention precision."""


class History(Table):
    """Compressed history of an MLA layer: one entry per ``compress_ratio`` positions.

    ``index_topk`` 0 attends every entry.
    """

    compress_ratio: Positive
    index_topk: NonNegative = 0
    indexer: Indexer | None = None


class MlaLayers(Table, tag_field="kind", tag="mla"):
    """``count`` latent-attention layers.

    ``heads``, ``qk_head_dim`` and ``v_head_dim`` come all three or not at all;
    without them the layer is priced "headless" (H/128 heads of 128/128).
    """

    count: Positive
    latent_dim: Positive
    rope_dim: NonNegative = 0
    kv_precision: Precision = "bf16"
    window: NonNegative = 0
    history: History | None = None
    heads: Positive | None = None
    qk_head_dim: Positive | None = None
    v_head_dim: Positive | None = None
    q_latent_dim: Positive | None = None
    o_latent_dim: Positive | None = None


class LinearLayers(Table, tag_field="kind", tag="linear"):
    """``count`` linear-attention layers, each holding ``state_bytes`` per sequence."""

    count: Positive
    state_bytes: Positive


Layers = AttentionLayers | MlaLayers | LinearLayers


class Model(Table):
    """One model's architecture, as far as a step's cost depends on it.

    ``name`` is the id the API serves; ``hidden_dim`` and ``max_seq_len`` are in
    values and tokens; ``activation_bytes`` is the width on the fabric.
    """

    name: Annotated[str, Meta(min_length=1)]
    hidden_dim: Positive
    max_seq_len: Positive
    weights: Annotated[tuple[WeightStream, ...], Meta(min_length=1)]
    layers: Annotated[tuple[Layers, ...], Meta(min_length=1)]
    attention_precision: Precision = "bf16"
    activation_bytes: Positive = 2


# -- the hardware ----------------------------------------------------------


class Link(Table):
    """One fabric link: ``bandwidth`` B/s per GPU per direction, ``latency`` s."""

    bandwidth: PositiveRate
    latency: NonNegativeAmount = 0.0
    in_network_reduction: bool = False


class Fabric(Table):
    """How the GPUs of a group talk: inside a node, and between nodes."""

    gpus_per_node: Positive
    scale_up: Link
    scale_out: Link | None = None


class Hardware(Table):
    """One GPU: dense FLOP/s per precision, HBM bytes and bytes/s.

    A rate left out is unsupported, except that bf16 and fp16 stand in for
    each other; fp32 runs at half the fp16 rate. ``memory`` (KV tiers) is
    accepted as written and has no effect here.
    """

    name: Annotated[str, Meta(min_length=1)]
    memory_bandwidth: PositiveRate
    memory_capacity: Positive
    flops_fp4: PositiveRate | None = None
    flops_fp8: PositiveRate | None = None
    flops_bf16: PositiveRate | None = None
    flops_fp16: PositiveRate | None = None
    fabric: Fabric | None = None
    memory: dict[str, Any] | None = None


class TimeCorrection(Table):
    """Calibration of a measured step: ``alpha * roofline + beta`` seconds."""

    alpha: PositiveRate = 1.0
    beta: NonNegativeAmount = 0.0


# -- routing between replicas ----------------------------------------------


class RoundRobin(Table, tag_field="policy", tag="round_robin"):
    """Each request to the next replica in turn."""


class LeastLoaded(Table, tag_field="policy", tag="least_loaded"):
    """The fewest requests, then the fewest queued prefill tokens, then the index."""


class PrefixAffinity(Table, tag_field="policy", tag="prefix_affinity"):
    """The longest cached prefix, unless its holder is above ``max_load_ratio`` x mean load."""

    max_load_ratio: PositiveRate | None = None


class KvAware(Table, tag_field="policy", tag="kv_aware"):
    """The least of uncached prompt + ``load_weight`` x queued prefill tokens."""

    load_weight: NonNegativeAmount = 1.0


Router = RoundRobin | LeastLoaded | PrefixAffinity | KvAware


# -- the scheduler ---------------------------------------------------------

Policy = Literal["fcfs", "priority", "sif", "lif", "sof", "lof", "stf", "ltf"]


class Scheduler(Table):
    """Continuous-batching limits. Token counts are per step and per replica (or rank)."""

    max_num_batched_tokens: Positive
    max_num_seqs: Positive
    policy: Policy
    enable_chunked_prefill: bool
    block_size: Positive
    long_prefill_token_threshold: NonNegative = 0
    max_num_partial_prefills: Positive = 1
    gpu_memory_utilization: Fraction = 0.9
    kv_cache_capacity: NonNegative = 0
    """Bytes of KV for the whole tensor-parallel group; 0 derives it."""
    max_model_len: Positive | None = None
    enable_preemption_free: bool = False
    enable_cascade_attention: bool = False
