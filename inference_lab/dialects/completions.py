"""``POST /v1/completions``: raw text, no role frame, no delta object.

Thinking and tool calls appear as a base model writes them: a ``<think>`` block
and a JSON call in the text itself.
"""

from __future__ import annotations

from typing import Any

import msgspec

from inference_lab.dialects.base import Chunks, Identity


class Completions(Chunks):
    """Speaks `text_completion` objects, as vLLM spells them."""

    object_name = "text_completion"

    def __init__(self, identity: Identity) -> None:
        super().__init__(identity)
        self._opening = ""
        self._thinking = False

    def role(self) -> None:
        """This API has no role frame."""

    def content(self, text: str) -> bytes:
        """A piece of text; the first after some thinking closes the block."""
        if self._thinking:
            self._thinking = False
            self._opening = "</think>"
        return self._text(text)

    def reasoning(self, text: str) -> bytes:
        """A piece of text inside a ``<think>`` block."""
        if not self._thinking:
            self._thinking = True
            self._opening = "<think>"
        return self._text(text)

    def tool_opening(self, name: str) -> None:
        """Kept for the frame of the first arguments: a JSON call has no event of its own."""
        self._opening = '{"name":' + msgspec.json.encode(name).decode() + ',"arguments":'

    def tool_arguments(self, text: str) -> bytes:
        """A piece of the JSON call's arguments."""
        return self._text(text)

    def finish(self, reason: str) -> bytes:
        """Empty text with the finish reason."""
        return self._text("", finish_reason=reason, stop_reason=None)

    def _text(self, text: str, finish_reason: str | None = None, **extra: Any) -> bytes:
        opening, self._opening = self._opening, ""
        choice = {
            "index": 0,
            "text": opening + text,
            "logprobs": None,
            "finish_reason": finish_reason,
        }
        return self._frame([choice | extra])
