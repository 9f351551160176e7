"""What a caller has in hand when a stream is over, whatever the client and its language."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from attrs import frozen

from tests.live import CHAT

# An answer's first tokens, written out.
TOKENS = (
    *("amber0.", " birch1.", " cedar2.", " delta3.", " ebony4.", " fjord5.", " grove6."),
    *(" heron7.", " iris8.", " jade9.", " kelp10.", " lotus11.", " maple12.", " nectar13."),
    *(" onyx14.", " pearl15."),
)

FAULTS = (
    "cut_between_frames",
    "cut_mid_frame",
    "cut_mid_frame;utf8=true",
    "reset",
    "stall",
    "error_envelope_200",
    "error_400_in_sse",
    "no_done",
    "no_usage",
    "cancelled_499",
    "mid_reasoning",
    "mid_tool_call",
)
"""The eleven modes, one of them in two ways."""

AFTER = 3
"""Content frames before a death, where the header names no number."""


@frozen
class Seen:
    """A stream's pieces in their order, one for each delta that carried some.

    ``call`` is the name of the tool call and then its fragments of arguments;
    ``counted`` is the number of completion tokens in the usage, if one came;
    ``strays`` are items that are no chunks at all.
    """

    text: tuple[str, ...] = ()
    reasoning: tuple[str, ...] = ()
    call: tuple[str, ...] = ()
    finish_reason: str | None = None
    counted: int | None = None
    strays: tuple[Any, ...] = ()


def gather(chunks: Iterable[dict[str, Any]]) -> Seen:
    """Fold a stream's chunks, as JSON objects, of either endpoint."""
    text: list[str] = []
    reasoning: list[str] = []
    call: list[str] = []
    finish_reason = counted = None
    strays = []
    for chunk in chunks:
        if "choices" not in chunk:
            strays.append(chunk)
            continue
        if chunk.get("usage"):
            counted = chunk["usage"]["completion_tokens"]
        for choice in chunk["choices"]:
            finish_reason = choice["finish_reason"] or finish_reason
            delta = choice.get("delta", choice)
            text += filter(None, [delta.get("text"), delta.get("content")])
            reasoning += filter(None, [delta.get("reasoning_content")])
            for tool in delta.get("tool_calls") or ():
                function = tool["function"]
                call += filter(None, [function.get("name"), function["arguments"]])
    return Seen(tuple(text), tuple(reasoning), tuple(call), finish_reason, counted, tuple(strays))


def promised(path: str, fault: str) -> Seen:
    """What a caller must have got before the death, and of the death itself."""
    tokens = TOKENS[:AFTER]
    first, *later = tokens
    match fault, path == CHAT:
        case "mid_reasoning", True:
            return Seen(reasoning=tokens)
        case "mid_reasoning", False:
            return Seen(text=("<think>" + first, *later))
        case "mid_tool_call", True:
            # Frame 1 is the opening, so that one token less is said.
            return Seen(call=("lookup", '{"query":"' + first, *later[:-1]))
        case "mid_tool_call", False:
            return Seen(text=('{"name":"lookup","arguments":{"query":"' + first, *later))
        case "no_done", _:
            return Seen(tokens, finish_reason="stop", counted=AFTER)
        case "no_usage", _:
            return Seen(tokens, finish_reason="stop")
        case _:
            return Seen(tokens)
