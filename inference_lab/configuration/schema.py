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
NonEmpty = Annotated[str, Meta(min_length=1)]

# Whole amounts people write in exponent notation: 192e9 bytes, 8.03e9 parameters.
Amount = Annotated[int, Meta(ge=0, extra={"integral": True})]
PositiveAmount = Annotated[int, Meta(ge=1, extra={"integral": True})]

Precision = Literal["fp4", "fp8", "bf16", "fp16", "fp32"]

PRECISION_BYTES: dict[str, float] = {"fp4": 0.5, "fp8": 1, "bf16": 2, "fp16": 2, "fp32": 4}
"""Bytes per value of each precision name."""


class Table(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One TOML table: immutable, keyword-only, refusing unknown keys."""


# -- the model -------------------------------------------------------------


class Routing(Table, frozen=True):
    """Mixture-of-experts routing of one weight stream."""

    routed_experts: NonNegative
    experts_per_tok: Positive
    moe_layers: Positive


class WeightStream(Table, frozen=True):
    """Parameters of one precision, read once per step.

    ``active_params`` are touched by every token; ``resident_params`` occupy
    memory. With ``routing`` the difference is expert weight.
    """

    precision: Precision
    active_params: Amount
    resident_params: Amount
    routing: Routing | None = None


class AttentionLayers(Table, frozen=True, tag_field="kind", tag="attention"):
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


class Indexer(Table, frozen=True):
    """The small scorer that picks which compressed positions are attended."""

    heads: Positive
    head_dim: Positive
    kv_precision: Precision = "bf16"
    precision: Precision | None = None
    """Precision of its GEMM; ``None`` is the model's attention precision."""


class History(Table, frozen=True):
    """Compressed history of an MLA layer: one entry per ``compress_ratio`` positions.

    ``index_topk`` 0 attends every entry.
    """

    compress_ratio: Positive
    index_topk: NonNegative = 0
    indexer: Indexer | None = None


class MlaLayers(Table, frozen=True, tag_field="kind", tag="mla"):
    """``count`` latent-attention layers.

    ``heads``, ``qk_head_dim`` and ``v_head_dim`` come all three or not at all;
    without them the layer is priced "headless" (H/128 heads of 128/128).
    """

    count: Positive
    latent_dim: NonNegative
    rope_dim: NonNegative = 0
    kv_precision: Precision = "bf16"
    window: NonNegative = 0
    history: History | None = None
    heads: Positive | None = None
    qk_head_dim: Positive | None = None
    v_head_dim: Positive | None = None
    q_latent_dim: Positive | None = None
    o_latent_dim: Positive | None = None


class LinearLayers(Table, frozen=True, tag_field="kind", tag="linear"):
    """``count`` linear-attention layers, each holding ``state_bytes`` per sequence."""

    count: Positive
    state_bytes: PositiveAmount


Layers = AttentionLayers | MlaLayers | LinearLayers


class Model(Table, frozen=True):
    """One model's architecture, as far as a step's cost depends on it.

    ``name`` is the id the API serves; ``hidden_dim`` and ``max_seq_len`` are in
    values and tokens; ``activation_bytes`` is the width on the fabric.
    """

    name: NonEmpty
    hidden_dim: Positive
    max_seq_len: Positive
    weights: Annotated[tuple[WeightStream, ...], Meta(min_length=1)]
    layers: Annotated[tuple[Layers, ...], Meta(min_length=1)]
    attention_precision: Precision = "bf16"
    activation_bytes: Positive = 2


# -- the hardware ----------------------------------------------------------


class Link(Table, frozen=True):
    """One fabric link: ``bandwidth`` B/s per GPU per direction, ``latency`` s."""

    bandwidth: PositiveRate
    latency: NonNegativeAmount = 0.0
    in_network_reduction: bool = False


class Fabric(Table, frozen=True):
    """How the GPUs of a group talk: inside a node, and between nodes."""

    gpus_per_node: Positive
    scale_up: Link
    scale_out: Link | None = None


class Hardware(Table, frozen=True):
    """One GPU: dense FLOP/s per precision, HBM bytes and bytes/s.

    A rate left out is unsupported, except that bf16 and fp16 stand in for
    each other; fp32 runs at half the fp16 rate. ``memory`` (KV tiers) is
    accepted as written and has no effect here.
    """

    name: NonEmpty
    memory_bandwidth: PositiveRate
    memory_capacity: PositiveAmount
    flops_fp4: PositiveRate | None = None
    flops_fp8: PositiveRate | None = None
    flops_bf16: PositiveRate | None = None
    flops_fp16: PositiveRate | None = None
    fabric: Fabric | None = None
    memory: dict[str, Any] | None = None

    def flop_rate(self, precision: str) -> float | None:
        """Dense FLOP/s of one GPU in ``precision``; ``None`` if it cannot compute in it."""
        half = self.flops_fp16 or self.flops_bf16
        return {
            "fp4": self.flops_fp4,
            "fp8": self.flops_fp8,
            "bf16": self.flops_bf16 or half,
            "fp16": half,
            "fp32": half / 2 if half else None,
        }[precision]


class TimeCorrection(Table, frozen=True):
    """Calibration of a measured step: ``alpha * roofline + beta`` seconds."""

    alpha: PositiveRate = 1.0
    beta: NonNegativeAmount = 0.0


# -- routing between replicas ----------------------------------------------


class RoundRobin(Table, frozen=True, tag_field="policy", tag="round_robin"):
    """Each request to the next replica in turn."""


class LeastLoaded(Table, frozen=True, tag_field="policy", tag="least_loaded"):
    """The fewest requests, then the fewest queued prefill tokens, then the index."""


class PrefixAffinity(Table, frozen=True, tag_field="policy", tag="prefix_affinity"):
    """The longest cached prefix, unless its holder is above ``max_load_ratio`` x mean load."""

    max_load_ratio: PositiveRate | None = None


class KvAware(Table, frozen=True, tag_field="policy", tag="kv_aware"):
    """The least of uncached prompt + ``load_weight`` x queued prefill tokens."""

    load_weight: NonNegativeAmount = 1.0


Router = RoundRobin | LeastLoaded | PrefixAffinity | KvAware


# -- the scheduler ---------------------------------------------------------

Policy = Literal["fcfs", "priority", "sif", "lif", "sof", "lof", "stf", "ltf"]


class Scheduler(Table, frozen=True):
    """Continuous-batching limits. Token counts are per step and per replica (or rank)."""

    max_num_batched_tokens: Positive
    max_num_seqs: Positive
    policy: Policy
    enable_chunked_prefill: bool
    block_size: Positive
    long_prefill_token_threshold: NonNegative = 0
    max_num_partial_prefills: Positive = 1
    gpu_memory_utilization: Fraction = 0.9
    kv_cache_capacity: Amount = 0
    """Bytes of KV for the whole tensor-parallel group; 0 derives it."""
    max_model_len: Positive | None = None
    enable_preemption_free: bool = False
    enable_cascade_attention: bool = False


# -- the file --------------------------------------------------------------

FreeTable = dict[str, Any]
"""A table kept as written: read elsewhere, or without effect."""


class HardwareEntry(Table, frozen=True):
    """``[hardware.<entry>]``: how the model is deployed on one kind of GPU.

    ``spec`` is a catalog name or an inline hardware table; without it the
    entry's own key is the catalog name. ``scheduler`` is laid over the file's;
    the other tables replace the file's whole.
    """

    tp: Positive = 1
    ep: Positive = 1
    dp_attention: bool = False
    replicas: Positive = 1
    spec: str | FreeTable | None = None
    scheduler: FreeTable = {}
    router: Router | None = None
    time_correction: TimeCorrection = TimeCorrection()
    speculative: FreeTable | None = None
    decode_router: FreeTable | None = None
    memory: FreeTable | None = None


class ModelFile(Table, frozen=True):
    """One model file. ``model`` is a catalog name or an inline model table."""

    model: str | FreeTable
    scheduler: FreeTable
    hardware: Annotated[dict[str, HardwareEntry], Meta(min_length=1)]
    served_name: NonEmpty | None = None
    router: Router | None = None
    speculative: FreeTable | None = None
    decode_router: FreeTable | None = None
    memory: FreeTable | None = None
    fault: FreeTable | None = None
