"""``POST /v1/chat/completions``: a role frame, then deltas."""

from __future__ import annotations

from typing import Any

from inference_lab.dialects.base import PLAIN, Chunks, Identity, Logprob, Said, Style


class Chat(Chunks):
    """Speaks `chat.completion.chunk` objects, as vLLM spells them."""

    object_name = "chat.completion.chunk"

    def __init__(self, identity: Identity, style: Style = PLAIN, index: int = 0) -> None:
        super().__init__(identity, style, index)
        self._calls = 0

    def role(self) -> bytes:
        """The role frame, with empty content."""
        extra: dict[str, Any] = {}
        if self._style.prompt_ids is not None:
            extra["prompt_token_ids"] = self._style.prompt_ids
        return self._delta({"role": "assistant", "content": ""}, None, **extra)

    def content(self, said: Said) -> bytes:
        """A ``content`` delta."""
        return self._delta({"content": said.text}, said)

    def reasoning(self, said: Said) -> bytes:
        """A delta of reasoning."""
        field = self._style.reasoning_field
        names = ("reasoning_content", "reasoning") if field == "both" else (field,)
        return self._delta(dict.fromkeys(names, said.text), said)

    def tool_opening(
        self, name: str, call_id: str | None = None, said: Said | None = None
    ) -> bytes:
        """The delta that gives the call's id and name, and no arguments yet."""
        index = self._calls
        self._calls += 1
        if call_id is None:
            call_id = f"call_{self._identity.id.rpartition('-')[2][:20]}{index}"
        function = {"name": name, "arguments": ""}
        call = {"index": index, "id": call_id, "type": "function", "function": function}
        return self._delta({"tool_calls": [call]}, said)

    def tool_arguments(self, said: Said) -> bytes:
        """An ``arguments`` fragment of the call opened last."""
        call = {"index": self._calls - 1, "function": {"arguments": said.text}}
        return self._delta({"tool_calls": [call]}, said)

    def finish(self, reason: str, stop: str | None = None) -> bytes:
        """An empty delta with the finish reason."""
        return self._choice_frame(self._choice({}, None, reason) | {"stop_reason": stop}, None)

    def _blank(self, said: Said) -> bytes:
        return self._delta({}, said)

    def _delta(self, delta: dict[str, Any], said: Said | None, **extra: Any) -> bytes:
        return self._choice_frame(self._choice(delta, said, None), said, **extra)

    def _choice(
        self, delta: dict[str, Any], said: Said | None, finish_reason: str | None
    ) -> dict[str, Any]:
        return {
            "index": self._index,
            "delta": delta,
            "logprobs": chat_logprobs([said]) if said is not None and said.logprobs else None,
            "finish_reason": finish_reason,
        }


def chat_logprobs(spoken: list[Said]) -> dict[str, Any]:
    """The ``logprobs`` object of a chat choice: one entry a token."""

    def entry(one: Logprob) -> dict[str, Any]:
        return {"token": one.token, "logprob": one.logprob, "bytes": one.bytes}

    return {
        "content": [
            entry(said.logprobs[0]) | {"top_logprobs": [entry(one) for one in said.logprobs[1:]]}
            for said in spoken
        ]
    }
