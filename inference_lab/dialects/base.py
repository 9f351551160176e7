"""The vocabulary every dialect speaks.

Scripts are written in these words (role, content, reasoning, tool call,
finish, usage, done), never in JSON. An API that has no frame for a word says
``None``; a new API is a new class here and no change in any script.
"""

from __future__ import annotations

from typing import Any, Protocol

import msgspec
from attrs import frozen

from inference_lab.dialects.sse import DONE, frame


@frozen
class Identity:
    """What every frame of one stream repeats: its id, its birth (Unix s), its model."""

    id: str
    created: int
    model: str


@frozen
class Usage:
    """Tokens billed for one leg.

    ``cached_tokens`` of the prompt came from the prefix cache; they are spelt
    out only where there are any.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0

    def as_dict(self) -> dict[str, Any]:
        """The ``usage`` object, in the order real servers write it."""
        usage: dict[str, Any] = {
            "prompt_tokens": self.prompt_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "completion_tokens": self.completion_tokens,
        }
        if self.cached_tokens:
            usage["prompt_tokens_details"] = {"cached_tokens": self.cached_tokens}
        return usage


class Dialect(Protocol):
    """One stream's speaker. Each word is one SSE frame's bytes.

    A speaker remembers what it said: an API without a frame for an opening
    (completions) joins it to the payload that follows, in one frame.
    """

    def role(self) -> bytes | None:
        """The opening frame that names who speaks, where the API has one."""

    def content(self, text: str) -> bytes:
        """A piece of the answer."""

    def reasoning(self, text: str) -> bytes:
        """A piece of the thinking before the answer."""

    def tool_opening(self, name: str) -> bytes | None:
        """The announcement of a call to function ``name``, where the API has one."""

    def tool_arguments(self, text: str) -> bytes:
        """A fragment of the open call's arguments."""

    def finish(self, reason: str) -> bytes:
        """The finish reason, with no text."""

    def usage(self, usage: Usage) -> bytes:
        """The separate usage frame with no choices."""

    def done(self) -> bytes:
        """The sentinel."""


class Chunks:
    """What the two OpenAI dialects share: an envelope around one choice."""

    object_name: str

    def __init__(self, identity: Identity) -> None:
        self._identity = identity

    def _frame(self, choices: list[dict[str, Any]], **extra: Any) -> bytes:
        return frame(
            msgspec.json.encode(
                {
                    "id": self._identity.id,
                    "object": self.object_name,
                    "created": self._identity.created,
                    "model": self._identity.model,
                    "choices": choices,
                    **extra,
                }
            )
        )

    def usage(self, usage: Usage) -> bytes:
        """The separate usage frame with no choices."""
        return self._frame([], usage=usage.as_dict())

    def done(self) -> bytes:
        """The sentinel."""
        return DONE
