"""``POST /v1/completions``: raw text, no role frame, no delta object.

Thinking and tool calls appear as a base model writes them: a ``<think>`` block
and a JSON call in the text itself.
"""

from __future__ import annotations

from typing import Any

import msgspec

from inference_lab.dialects.base import PLAIN, Chunks, Identity, Said, Style


class Completions(Chunks):
    """Speaks `text_completion` objects, as vLLM spells them."""

    object_name = "text_completion"

    def __init__(self, identity: Identity, style: Style = PLAIN, index: int = 0) -> None:
        super().__init__(identity, style, index)
        self._opening = style.echo
        self._thinking = False
        self._first = True
        self._offset = 0

    def role(self) -> None:
        """This API has no role frame."""

    def content(self, said: Said) -> bytes:
        """A piece of text; the first after some thinking closes the block."""
        if self._thinking:
            self._thinking = False
            self._opening += "</think>"
        return self._text(said)

    def reasoning(self, said: Said) -> bytes:
        """A piece of text inside a ``<think>`` block."""
        if not self._thinking:
            self._thinking = True
            self._opening += "<think>"
        return self._text(said)

    def tool_opening(self, name: str, call_id: str | None = None, said: Said | None = None) -> None:
        """Kept for the frame of the first arguments: a JSON call has no event of its own."""
        self._opening += '{"name":' + msgspec.json.encode(name).decode() + ',"arguments":'

    def tool_arguments(self, said: Said) -> bytes:
        """A piece of the JSON call's arguments."""
        return self._text(said)

    def finish(self, reason: str, stop: str | None = None) -> bytes:
        """Empty text with the finish reason."""
        opening, self._opening = self._opening, ""
        return self._choice_frame(self._choice(opening, None, reason) | {"stop_reason": stop}, None)

    def _blank(self, said: Said) -> bytes:
        return self._text(said)

    def _text(self, said: Said) -> bytes:
        opening, self._opening = self._opening, ""
        self._offset += len(opening)
        choice = self._choice(opening + said.text, said, None)
        self._offset += len(said.text)
        return self._choice_frame(choice, said)

    def _choice(self, text: str, said: Said | None, finish_reason: str | None) -> dict[str, Any]:
        logprobs = None
        if said is not None and said.logprobs:
            logprobs = completions_logprobs([said], self._offset)
        choice: dict[str, Any] = {
            "index": self._index,
            "text": text,
            "logprobs": logprobs,
            "finish_reason": finish_reason,
        }
        if self._first and self._style.prompt_ids is not None:
            choice["prompt_token_ids"] = self._style.prompt_ids
        self._first = False
        return choice


def completions_logprobs(spoken: list[Said], offset: int) -> dict[str, Any]:
    """The ``logprobs`` object of a completion, whose text begins at character ``offset``."""
    offsets = []
    for said in spoken:
        offsets.append(offset)
        offset += len(said.text)
    return {
        "text_offset": offsets,
        "token_logprobs": [said.logprobs[0].logprob for said in spoken],
        "tokens": [said.logprobs[0].token for said in spoken],
        "top_logprobs": [
            {one.token: one.logprob for one in said.logprobs[1:] or said.logprobs}
            for said in spoken
        ],
    }
