"""Who answers a request: the one table of precedence, without any I/O.

Header fault, then the model's own fault, then an echo-directive, then the engine.
"""

from __future__ import annotations

from attrs import frozen

from inference_lab.content.directives import Directive
from inference_lab.faults.grammar import HEALTHY, Fault, ModelFault


@frozen
class Die:
    """The stream plays this fault; the engine hears nothing of it."""

    fault: Fault


@frozen
class Generate:
    """The engine generates the answer."""


@frozen
class Script:
    """A message of the request wrote the answer itself."""

    directive: Directive


Decision = Die | Script | Generate


def decide(
    header: Fault | None,
    model: ModelFault | None,
    endpoint: str,
    streaming: bool,
    directive: Directive | None = None,
) -> Decision:
    """Pick what answers a request to ``endpoint`` (`chat` or `completions`).

    A header fault is taken as it is: whoever read it has refused it where it
    cannot be honoured, and one that says `none` keeps the model's away. A model's
    fault passes by what it does not cover.
    """
    fault = shape_of(header, model, endpoint, streaming)
    if fault is not None and fault.mode != HEALTHY:
        return Die(fault)
    if directive is not None:
        return Script(directive)
    return Generate()


def shape_of(
    header: Fault | None, model: ModelFault | None, endpoint: str, streaming: bool
) -> Fault | None:
    """Whose parameters a stream takes, be it a death or healthy."""
    if header is not None or model is None:
        return header
    return model.fault if streaming and endpoint in model.endpoints else None
