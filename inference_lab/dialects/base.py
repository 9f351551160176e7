"""The vocabulary every dialect speaks.

Scripts are written in these words (role, content, reasoning, tool call,
finish, usage, done), never in JSON. An API that has no frame for a word says
``None``; a new API is a new class here and no change in any script.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec
from attrs import evolve, frozen

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

    ``cached_tokens`` of the prompt came from the prefix cache, ``reasoning_tokens``
    of the completion are reasoning; both are spelt out only where there are any.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    reasoning_tokens: int = 0

    def as_dict(self) -> dict[str, Any]:
        """The ``usage`` object, in the order real servers write it."""
        usage: dict[str, Any] = {
            "prompt_tokens": self.prompt_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "completion_tokens": self.completion_tokens,
        }
        if self.cached_tokens:
            usage["prompt_tokens_details"] = {"cached_tokens": self.cached_tokens}
        if self.reasoning_tokens:
            usage["completion_tokens_details"] = {"reasoning_tokens": self.reasoning_tokens}
        return usage


@frozen
class Logprob:
    """A token and the natural logarithm of its probability."""

    token: str
    logprob: float

    @property
    def bytes(self) -> list[int]:
        """The token in UTF-8."""
        return list(self.token.encode("utf-8", "replace"))


@frozen
class Said:
    """The text of one generated token, and what may be told of it.

    ``logprobs`` is the token itself and then the likeliest at its place.
    """

    text: str
    ids: tuple[int, ...] = ()
    logprobs: tuple[Logprob, ...] = ()


@frozen
class Style:
    """What a client asked to see beside the text.

    ``prompt_ids`` are told on the first frame, ``token_ids`` on each one;
    ``top_logprobs`` is how many alternatives a token has, None for no log
    probabilities at all. ``echo`` is the prompt, to be said again before the
    answer. ``prompt_tokens`` lets every frame carry the usage so far.
    ``reasoning_field`` is what the thinking is called.
    """

    prompt_ids: Sequence[int] | None = None
    token_ids: bool = False
    top_logprobs: int | None = None
    echo: str = ""
    prompt_tokens: int | None = None
    reasoning_field: str = "reasoning_content"


PLAIN = Style()
"""Text alone."""


class Dialect(Protocol):
    """One choice's speaker. Each word is one SSE frame's bytes.

    A speaker remembers what it said: an API without a frame for an opening
    (completions) joins it to the payload that follows, in one frame.
    """

    object_name: str

    @property
    def identity(self) -> Identity:
        """What every frame repeats."""

    def chunk(self, members: bytes) -> bytes:
        """A frame of the envelope alone, with ``members`` (JSON, no braces) spelt inside it."""

    def role(self) -> bytes | None:
        """The opening frame that names who speaks, where the API has one."""

    def content(self, said: Said) -> bytes:
        """A piece of the answer."""

    def reasoning(self, said: Said) -> bytes:
        """A piece of the thinking before the answer."""

    def unseen(self, said: Said) -> bytes | None:
        """A token that the client is shown no text of.

        It is counted all the same, and needs a frame if its id or log probability is told.
        """

    def tool_opening(
        self, name: str, call_id: str | None = None, said: Said | None = None
    ) -> bytes | None:
        """The announcement of a call to function ``name``, where the API has one.

        ``said`` is the token that it took, if it took one.
        """

    def tool_arguments(self, said: Said) -> bytes:
        """A fragment of the open call's arguments."""

    def finish(self, reason: str, stop: str | None = None) -> bytes:
        """The finish reason, with no text; ``stop`` is the stop string that was met."""

    def usage(self, usage: Usage) -> bytes:
        """The separate usage frame with no choices."""

    def done(self) -> bytes:
        """The sentinel."""


class Chunks:
    """What the two OpenAI dialects share: an envelope around one choice."""

    object_name: str

    def __init__(self, identity: Identity, style: Style = PLAIN, index: int = 0) -> None:
        self._identity = identity
        self._style = style
        self._index = index
        self._said = 0

    @property
    def identity(self) -> Identity:
        """What every frame repeats."""
        return self._identity

    def chunk(self, members: bytes) -> bytes:
        """The envelope with ``members`` in place of its choices, whatever they spell."""
        whole = self._frame([])
        return whole.replace(b'"choices":[]', members, 1)

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

    def _choice_frame(self, choice: dict[str, Any], said: Said | None, **extra: Any) -> bytes:
        """A frame of this speaker's choice, with whatever its style adds to it."""
        if said is not None:
            self._said += 1
            if self._style.token_ids:
                choice["token_ids"] = said.ids
        if self._style.prompt_tokens is not None:
            extra["usage"] = Usage(self._style.prompt_tokens, self._said).as_dict()
        return self._frame([choice], **extra)

    def unseen(self, said: Said) -> bytes | None:
        """A frame without text if there is anything to tell of the token, else only its count."""
        if self._style.token_ids or said.logprobs:
            return self._blank(evolve(said, text=""))
        self._said += 1
        return None

    def _blank(self, said: Said) -> bytes:
        raise NotImplementedError

    def usage(self, usage: Usage) -> bytes:
        """The separate usage frame with no choices."""
        return self._frame([], usage=usage.as_dict())

    def done(self) -> bytes:
        """The sentinel."""
        return DONE
