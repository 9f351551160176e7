"""Rules that relate several values, each refused with what would be right."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from attrs import evolve

from inference_lab.configuration.deployment import Deployment
from inference_lab.configuration.errors import Place
from inference_lab.configuration.memory import (
    kv_memory,
    ranks,
    resident_bytes,
    usable_bytes,
)
from inference_lab.configuration.schema import PRECISION_BYTES, MlaLayers, Model, WeightStream

# How many group sizes are tried for one that fits, where the fabric sets no limit.
_SIZES_TRIED = 1024


def check_model(model: Model, place: Place) -> None:
    """Refuse weight streams and layers that contradict themselves.

    :raises ConfigError: naming the array element and the key.
    """
    for i, stream in enumerate(model.weights):
        _check_stream(stream, place / "weights" / i)
    for i, layer in enumerate(model.layers):
        if isinstance(layer, MlaLayers):
            _check_mla(layer, place / "layers" / i)


def _check_stream(stream: WeightStream, place: Place) -> None:
    if stream.resident_params < stream.active_params:
        raise (place / "resident_params").error(
            f"expected at least active_params = {stream.active_params}, "
            f"got {stream.resident_params}"
        )
    routing = stream.routing
    if routing is not None and 0 < routing.routed_experts < routing.experts_per_tok:
        raise (place / "routing" / "routed_experts").error(
            f"expected 0 or at least experts_per_tok = {routing.experts_per_tok}, "
            f"got {routing.routed_experts}"
        )


def _check_mla(layer: MlaLayers, place: Place) -> None:
    if layer.latent_dim + layer.rope_dim == 0:
        raise (place / "latent_dim").error("expected latent_dim + rope_dim >= 1, got 0")
    shape = {
        "heads": layer.heads,
        "qk_head_dim": layer.qk_head_dim,
        "v_head_dim": layer.v_head_dim,
    }
    missing = [key for key, value in shape.items() if value is None]
    if 0 < len(missing) < len(shape):
        raise (place / missing[0]).error(
            "missing; give heads, qk_head_dim and v_head_dim, or none of the three"
        )


def check_deployment(deployment: Deployment) -> tuple[str, ...]:
    """Refuse a deployment that could not run; return warnings about one that can.

    :raises ConfigError: naming the hardware entry and the key.
    """
    entry = Place(deployment.source) / "hardware" / deployment.entry
    _check_group(deployment, entry)
    _check_precisions(deployment, entry)
    _check_memory(deployment, entry)
    return tuple(_doubts(deployment))


def _check_group(deployment: Deployment, entry: Place) -> None:
    tp, ep = deployment.tensor_parallel, deployment.expert_parallel
    if tp % ep:
        allowed = ", ".join(str(n) for n in range(1, tp + 1) if tp % n == 0) if tp < 1024 else ""
        raise (entry / "ep").error(
            f"expected a divisor of tp = {tp}{f' ({allowed})' if allowed else ''}, got {ep}"
        )
    if deployment.dp_attention and tp == 1:
        raise (entry / "dp_attention").error("expected false, or tp >= 2: one GPU has no ranks")
    widest = _widest_group(deployment)
    if widest is not None and tp > widest:
        name = deployment.hardware.name
        reason = (
            f"{name} has no [fabric] to join GPUs"
            if deployment.hardware.fabric is None
            else f"{name} has {widest} GPUs to a node and no scale_out link between nodes"
        )
        raise (entry / "tp").error(f"expected at most {widest}, got {tp}: {reason}")


def _widest_group(deployment: Deployment) -> int | None:
    fabric = deployment.hardware.fabric
    if fabric is None:
        return 1
    return fabric.gpus_per_node if fabric.scale_out is None else None


def _check_precisions(deployment: Deployment, entry: Place) -> None:
    hardware, model = deployment.hardware, deployment.model
    for precision, what in _precisions(model):
        if hardware.flop_rate(precision) is None:
            rates = [name for name in PRECISION_BYTES if hardware.flop_rate(name) is not None]
            raise (entry / "spec").error(
                f"{hardware.name} has no FLOP rate for {precision}, in which {model.name} "
                f"computes its {what}; it has {', '.join(rates) or 'none at all'}"
            )


def _precisions(model: Model) -> Iterator[tuple[str, str]]:
    for stream in model.weights:
        yield stream.precision, "weights"
    yield model.attention_precision, "attention"
    for layer in model.layers:
        if isinstance(layer, MlaLayers) and layer.history and layer.history.indexer:
            yield layer.history.indexer.precision or model.attention_precision, "indexer"


def _check_memory(deployment: Deployment, entry: Place) -> None:
    if fits(deployment):
        return
    tp, explicit = deployment.tensor_parallel, deployment.scheduler.kv_cache_capacity
    block = kv_memory(deployment).block_bytes
    weights = resident_bytes(deployment)
    kv = f"{_gb(explicit)} of KV" if explicit else f"one KV block of {_gb(block)} per scheduler"
    if explicit and explicit // ranks(deployment) < block:
        raise (Place(deployment.source) / "scheduler" / "kv_cache_capacity").error(
            f"expected at least {block * ranks(deployment)} bytes, one KV block per scheduler, "
            f"got {explicit}"
        )
    smallest = smallest_tp(deployment)
    advice = f"the smallest tp that fits is {smallest}" if smallest else "no tp fits"
    raise (entry / "tp").error(
        f"{_gb(weights)} of weights and {kv} do not fit into {_gb(usable_bytes(deployment))} "
        f"of memory on {tp} {deployment.hardware.name}; {advice}"
    )


def fits(deployment: Deployment) -> bool:
    """Whether the weights and at least one KV block per scheduler fit into the group."""
    explicit = deployment.scheduler.kv_cache_capacity
    if resident_bytes(deployment) + explicit > usable_bytes(deployment):
        return False
    return kv_memory(deployment).blocks >= 1


def smallest_tp(deployment: Deployment) -> int | None:
    """The fewest GPUs, in multiples of ``ep``, that hold the model; ``None`` if none do."""
    widest = _widest_group(deployment)
    sizes = range(deployment.expert_parallel, (widest or 2**62) + 1, deployment.expert_parallel)
    for tp in islice(sizes, _SIZES_TRIED):
        if fits(evolve(deployment, tensor_parallel=tp)):
            return tp
    return None


def _doubts(deployment: Deployment) -> Iterator[str]:
    scheduler, model = deployment.scheduler, deployment.model
    table = Place(deployment.source) / "scheduler"
    if scheduler.max_model_len is not None and scheduler.max_model_len > model.max_seq_len:
        yield (
            f"{table / 'max_model_len'}: {scheduler.max_model_len} is beyond what {model.name} "
            f"can hold; its context ends at {model.max_seq_len}"
        )
    longest = deployment.max_model_len
    if not scheduler.enable_chunked_prefill and scheduler.max_num_batched_tokens < longest:
        yield (
            f"{table / 'max_num_batched_tokens'}: without chunked prefill no prompt beyond "
            f"{scheduler.max_num_batched_tokens} tokens can run, though the context has {longest}"
        )


def _gb(amount: int) -> str:
    for unit, size in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6)):
        if amount >= size:
            return f"{amount / size:.1f} {unit}"
    return f"{amount} bytes"
