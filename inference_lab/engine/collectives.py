"""How long a tensor-parallel group talks in one step.

Ring and in-network collectives on a two-level fabric: a link inside the node
("scale up") and one between nodes ("scale out"). All volumes are bytes per GPU,
all results seconds.
"""

from __future__ import annotations

from inference_lab.configuration.schema import Fabric, Link, Model


def _scale_out(fabric: Fabric, group: int) -> Link:
    if fabric.scale_out is None:
        raise ValueError(
            f"a group of {group} GPUs is wider than a node of {fabric.gpus_per_node}, "
            "and the fabric has no scale_out link"
        )
    return fabric.scale_out


def _reduce(fabric: Fabric, group: int, volume: float, calls: int, in_network: bool) -> float:
    """A reduction in ``calls`` collective calls; ``in_network`` lets a switch do the adding."""
    up, node = fabric.scale_up, fabric.gpus_per_node
    if group <= node:
        passes = 1.0 if in_network and up.in_network_reduction else 2 * (group - 1) / group
        return calls * up.latency + passes * volume / up.bandwidth
    out, nodes = _scale_out(fabric, group), -(-group // node)
    passes = 1.0 if in_network and out.in_network_reduction else 2 * (nodes - 1) / nodes
    inside = 2 * (calls * up.latency + (node - 1) / node * volume / up.bandwidth)
    return inside + calls * out.latency + passes * (volume / node) / out.bandwidth


def all_reduce(fabric: Fabric, group: int, volume: float) -> float:
    """Seconds to sum ``volume`` bytes over ``group`` GPUs."""
    return _reduce(fabric, group, volume, calls=1, in_network=True)


def gather_and_scatter(fabric: Fabric, group: int, volume: float) -> float:
    """Seconds of an all-gather and, after the layer, a reduce-scatter of ``volume`` bytes."""
    return _reduce(fabric, group, volume, calls=2, in_network=False)


def all_to_all(fabric: Fabric, group: int, volume: float) -> float:
    """Seconds to exchange ``volume`` bytes per GPU among all of ``group``."""
    up, node = fabric.scale_up, fabric.gpus_per_node
    if group <= node:
        return up.latency + (group - 1) / group * volume / up.bandwidth
    out = _scale_out(fabric, group)
    return max(
        up.latency + (node - 1) / group * volume / up.bandwidth,
        out.latency + (group - node) / group * volume / out.bandwidth,
    )


def collective_seconds(
    model: Model, fabric: Fabric | None, tokens: int, *, tp: int, ep: int, dp_attention: bool
) -> float:
    """Seconds of all collectives of one step over ``tokens`` new positions.

    Every token-mixing layer is followed by a feed-forward, dense or expert. Tensor
    parallelism reduces after both; with data-parallel attention only the feed-forwards
    talk, and expert parallelism turns the experts' part into dispatch and combine.
    """
    if fabric is None or tp <= 1:
        return 0.0
    routings = [stream.routing for stream in model.weights if stream.routing is not None]
    mixing = sum(layer.count for layer in model.layers)
    experts = sum(routing.moe_layers for routing in routings)
    dense = max(0, mixing - experts)
    volume = tokens * model.hidden_dim * model.activation_bytes
    if not dp_attention:
        return (mixing + dense + experts) * all_reduce(fabric, tp, volume)
    exchange = gather_and_scatter(fabric, tp, volume)
    if ep <= 1:
        return (dense + experts) * exchange
    return dense * exchange + sum(
        2 * routing.moe_layers * all_to_all(fabric, ep, volume / ep * routing.experts_per_tok)
        for routing in routings
    )
