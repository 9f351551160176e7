"""The modes: what is said before the death, and which end it is.

Each is one entry to be read at a look. A new incident is a new entry.
"""

from __future__ import annotations

from collections.abc import Iterator

from attrs import frozen

from inference_lab.faults.script import (
    Content,
    Data,
    Done,
    Finish,
    Reasoning,
    Role,
    Scene,
    TornContent,
    UnfinishedToolCall,
    UsageIfRequested,
    Word,
    steps,
)
from inference_lab.faults.steps import End, Step


@frozen
class Mode:
    """One way to die.

    ``wire`` says what follows the content frames, ``curl`` what curl makes of it.
    """

    name: str
    script: tuple[Word, ...]
    end: End
    wire: str
    curl: str

    def steps(self, scene: Scene) -> Iterator[Step]:
        """The steps of this death for one request."""
        return steps(self.script, self.end, scene)


# The body OpenRouter documents for an upstream's failure.
_OPENROUTER_ENVELOPE = Data(
    {
        "error": {
            "message": "Provider returned error",
            "code": 502,
            "metadata": {"provider_name": "inference-lab", "raw": "upstream connect error"},
        }
    }
)
# vLLM's error object, as it stood in the stream of the incident this mode is named for.
_VLLM_400 = Data(
    {
        "object": "error",
        "message": "The request could not be continued: the engine rejected it mid-stream.",
        "type": "BadRequestError",
        "param": None,
        "code": 400,
    }
)
# Byte for byte what dynamo's frontend says when it cancels a request.
_DYNAMO_499 = Data(
    {"error": {"code": 499, "message": "CancelledError: ", "type": "request_cancelled"}}
)

_ANSWER: tuple[Word, ...] = (Role(), Content())

_ELEVEN = (
    Mode(
        "cut_between_frames",
        _ANSWER,
        End.FIN,
        wire="FIN on a frame boundary, without the chunked terminator",
        curl="exit 18, transfer closed with outstanding read data remaining",
    ),
    Mode(
        "cut_mid_frame",
        (*_ANSWER, TornContent()),
        End.FIN,
        wire="the first half of the next frame, then FIN; utf8=true cuts inside a character",
        curl="exit 18, a partial data: line",
    ),
    Mode(
        "reset",
        _ANSWER,
        End.RST,
        wire="TCP RST",
        curl="exit 56, connection reset by peer",
    ),
    Mode(
        "stall",
        _ANSWER,
        End.HOLD,
        wire="nothing, until the client gives up",
        curl="exit 28 with --max-time",
    ),
    Mode(
        "error_envelope_200",
        (*_ANSWER, _OPENROUTER_ENVELOPE, Done()),
        End.CLEAN,
        wire="OpenRouter's error envelope as an event, then [DONE]",
        curl="exit 0",
    ),
    Mode(
        "error_400_in_sse",
        (*_ANSWER, _VLLM_400),
        End.CLEAN,
        wire="vLLM's 400 object as an event, no [DONE], then a clean end",
        curl="exit 0",
    ),
    Mode(
        "no_done",
        (*_ANSWER, Finish(), UsageIfRequested()),
        End.CLEAN,
        wire="finish frame, usage frame if requested, no [DONE], then a clean end",
        curl="exit 0",
    ),
    Mode(
        "no_usage",
        (*_ANSWER, Finish(), Done()),
        End.CLEAN,
        wire="finish frame and [DONE]; the usage frame never comes, requested or not",
        curl="exit 0",
    ),
    Mode(
        "cancelled_499",
        (*_ANSWER, _DYNAMO_499),
        End.CLEAN,
        wire="dynamo's cancellation body as an event, then a clean end",
        curl="exit 0",
    ),
    Mode(
        "mid_reasoning",
        (Role(), Reasoning()),
        End.FIN,
        wire="the frames carry reasoning instead of content, then FIN",
        curl="exit 18, the last deltas are reasoning",
    ),
    Mode(
        "mid_tool_call",
        (Role(), UnfinishedToolCall()),
        End.FIN,
        wire="a tool call is opened, its arguments never terminate, then FIN",
        curl="exit 18, a partial tool call",
    ),
)

MODES: dict[str, Mode] = {mode.name: mode for mode in _ELEVEN}
"""All modes by name."""
