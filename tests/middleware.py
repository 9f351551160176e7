"""A gateway that resumes: what it does when a stream dies, and five ways to get that wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from attrs import define, field

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
FORMS = {"ids": COMPLETIONS, "text": COMPLETIONS, "continue_final_message": CHAT, "prefix": CHAT}
"""The continuation forms, and where each is sent."""

BUGS = ("forgets the flag", "drops a token", "repeats a token", "restarts", "sums usage twice")
NO_CONTENT = ("reasoning_content", "reasoning", "tool_calls")

Upstream = Callable[[str, dict[str, Any]], bytes]
"""Posts a body to a path and returns all that came, whatever the connection did then."""


@define
class Leg:
    """What complete frames delivered: a piece of text for each id."""

    texts: list[str] = field(factory=list)
    ids: list[int] = field(factory=list)
    prompt_ids: list[int] = field(factory=list)
    finish_reason: str | None = None
    usage: int | None = None
    no_content: bool = False

    def read(self, raw: bytes) -> Leg:
        """Take in a response; an error object is as good as a cut."""
        for frame in raw.split(b"\n\n")[:-1]:
            data = frame.removeprefix(b"data: ")
            event = {} if data == b"[DONE]" else json.loads(data)
            if "error" in event or event.get("object") == "error":
                break
            self.prompt_ids += event.get("prompt_token_ids", ())
            self.usage = (event.get("usage") or {}).get("completion_tokens", self.usage)
            for choice in event.get("choices", ()):
                said = choice.get("delta", choice)
                self.texts.append(said.get("content") or said.get("text") or "")
                self.ids += choice.get("token_ids", ())
                self.prompt_ids += choice.get("prompt_token_ids", ())
                self.no_content |= any(name in said for name in NO_CONTENT)
                self.finish_reason = choice["finish_reason"] or self.finish_reason
        # What completions say instead of other deltas.
        self.no_content |= "".join(self.texts).startswith(("<think>", '{"name":'))
        return self


@define
class Relay:
    """One answer over as many legs as it takes; ``text`` and ``usage`` are what the client has."""

    upstream: Upstream
    path: str
    body: dict[str, Any]
    form: str
    bug: str = ""
    text: str = ""
    usage: int = 0
    finish_reason: str | None = None
    refused: bool = False
    legs: list[bytes] = field(factory=list)
    delivered: Leg = field(factory=Leg)

    def run(self) -> Relay:
        """Resume until something finishes, or until what came must not be spliced."""
        path, body = self.path, {**self.body, "return_token_ids": True}
        while self.finish_reason is None and body["max_tokens"] > 0 and not self.refused:
            self.legs.append(self.upstream(path, body))
            leg = Leg().read(self.legs[-1])
            self.refused = leg.no_content and leg.finish_reason is None
            self._bill(leg)
            path, body = self._next()
        return self

    def _bill(self, leg: Leg) -> None:
        lost = self.bug == "drops a token" and leg.finish_reason is None
        self.text += "".join(leg.texts[:-1] if lost else leg.texts)
        self.usage += len(leg.ids) if leg.usage is None else leg.usage
        if self.bug == "sums usage twice" and leg.usage is not None:
            self.usage += leg.usage
        self.finish_reason = leg.finish_reason
        self.delivered.texts += leg.texts
        self.delivered.ids += leg.ids
        self.delivered.prompt_ids = self.delivered.prompt_ids or leg.prompt_ids

    def _next(self) -> tuple[str, dict[str, Any]]:
        texts, ids = self.delivered.texts, self.delivered.ids
        left = self.body["max_tokens"] - len(ids)
        body = {**self.body, "return_token_ids": True, "max_tokens": left}
        if self.bug == "restarts" or not ids:
            return self.path, body
        if self.bug == "repeats a token":
            texts, ids = texts[:-1], ids[:-1]
        if FORMS[self.form] == COMPLETIONS:
            body.pop("messages", None)
            return COMPLETIONS, body | {"prompt": self._prompt("".join(texts), ids)}
        flags: dict[str, Any] = {"continue_final_message": True, "add_generation_prompt": False}
        turn: dict[str, Any] = {"role": "assistant", "content": "".join(texts)}
        if self.bug == "forgets the flag":
            flags = {}
        elif self.form == "prefix":
            flags, turn = {}, turn | {"prefix": True}
        return CHAT, body | flags | {"messages": [*self.body["messages"], turn]}

    def _prompt(self, text: str, ids: list[int]) -> str | list[int]:
        if self.form == "ids":
            return self.delivered.prompt_ids + ids
        known = {"model": self.body["model"], "tokens": self.delivered.prompt_ids}
        prompt: str = json.loads(self.upstream("/detokenize", known))["prompt"]
        return prompt + text
