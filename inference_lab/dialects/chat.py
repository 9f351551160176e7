"""``POST /v1/chat/completions``: a role frame, then deltas."""

from __future__ import annotations

from typing import Any

from inference_lab.dialects.base import Chunks, Identity


class Chat(Chunks):
    """Speaks `chat.completion.chunk` objects, as vLLM spells them."""

    object_name = "chat.completion.chunk"

    def __init__(self, identity: Identity) -> None:
        super().__init__(identity)
        self._calls = 0

    def role(self) -> bytes:
        """The role frame, with empty content."""
        return self._delta({"role": "assistant", "content": ""})

    def content(self, text: str) -> bytes:
        """A ``content`` delta."""
        return self._delta({"content": text})

    def reasoning(self, text: str) -> bytes:
        """A ``reasoning_content`` delta."""
        return self._delta({"reasoning_content": text})

    def tool_opening(self, name: str) -> bytes:
        """The delta that gives the call's id and name, and no arguments yet."""
        index = self._calls
        self._calls += 1
        call_id = f"call_{self._identity.id.rpartition('-')[2][:20]}{index}"
        function = {"name": name, "arguments": ""}
        call = {"index": index, "id": call_id, "type": "function", "function": function}
        return self._delta({"tool_calls": [call]})

    def tool_arguments(self, text: str) -> bytes:
        """An ``arguments`` fragment of the call opened last."""
        call = {"index": self._calls - 1, "function": {"arguments": text}}
        return self._delta({"tool_calls": [call]})

    def finish(self, reason: str) -> bytes:
        """An empty delta with the finish reason."""
        return self._delta({}, finish_reason=reason, stop_reason=None)

    def _delta(
        self, delta: dict[str, Any], finish_reason: str | None = None, **extra: Any
    ) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return self._frame([choice | extra])
