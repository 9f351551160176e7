"""What the weights cost one step: FLOPs and bytes of every weight stream.

A dense stream is read whole. Of a routed one a step reads the shared part and the
experts that at least one of its tokens picked, in expectation under uniform routing.
"""

from __future__ import annotations

from math import floor

from inference_lab.configuration.schema import PRECISION_BYTES, WeightStream


def parameters_read(stream: WeightStream, tokens: int) -> int:
    """Parameters of ``stream`` that a step over ``tokens`` positions touches."""
    routing = stream.routing
    if routing is None or routing.routed_experts <= routing.experts_per_tok or tokens == 0:
        return stream.active_params
    experts, picked = routing.routed_experts, routing.experts_per_tok
    expert = (stream.resident_params - stream.active_params) / (experts - picked)
    shared = max(0.0, stream.active_params - picked * expert)
    touched = experts * (1 - (1 - 1 / experts) ** (tokens * picked))
    return floor(shared + expert * touched + 0.5)


def stream_flops(stream: WeightStream, tokens: int) -> int:
    """FLOPs of the stream's GEMMs: a multiply and an add per active parameter and token."""
    return tokens * 2 * stream.active_params


def stream_bytes(stream: WeightStream, tokens: int) -> int:
    """Weight bytes read for ``tokens`` positions, whole bytes."""
    return int(parameters_read(stream, tokens) * PRECISION_BYTES[stream.precision])
