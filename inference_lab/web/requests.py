"""Request bodies as typed values. Everything a client can get wrong is a 400 that names it."""

from __future__ import annotations

import re
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct

from inference_lab.web.errors import ApiError, bad_request

MAX_BODY_BYTES = 32 * 1024 * 1024
"""A larger body is a 413."""


TokenLimit = Annotated[int, Meta(ge=1, le=2**63 - 1)]


MAX_TOKEN_ID = 2**63 - 1

Priority = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]


class StreamOptions(Struct, frozen=True):
    """``stream_options``."""

    include_usage: bool | None = None


class Part(Struct, frozen=True):
    """One element of a part-array ``content``."""

    type: str | None = None
    text: str | None = None


class Message(Struct, frozen=True):
    """One chat turn. ``content`` may be text, parts, null or absent."""

    role: str
    content: str | list[Part] | None = None
    tool_calls: list[dict[str, Any]] | None = None


class Request(Struct, frozen=True, kw_only=True):
    """What both endpoints take. Unknown fields are ignored, null counts as absent."""

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    priority: Priority | None = None
    max_tokens: TokenLimit | None = None

    @property
    def usage_requested(self) -> bool:
        """Whether the stream ends with a usage frame."""
        return bool(self.stream_options and self.stream_options.include_usage)


class ChatRequest(Request, frozen=True, kw_only=True):
    """``POST /v1/chat/completions``."""

    messages: Annotated[list[Message], Meta(min_length=1)]
    max_completion_tokens: TokenLimit | None = None
    tools: list[dict[str, Any]] | None = None

    @property
    def limit(self) -> int | None:
        """The most tokens the answer may have."""
        return self.max_completion_tokens or self.max_tokens


class CompletionRequest(Request, frozen=True, kw_only=True):
    """``POST /v1/completions``. Exactly one prompt: text, or token ids."""

    prompt: str | list[str | int | list[int]]

    @property
    def limit(self) -> int | None:
        """The most tokens the answer may have."""
        return self.max_tokens

    def single_prompt(self) -> str | list[int]:
        """The one prompt, out of whatever array it stands in.

        :raises ApiError: 400 ``invalid_prompt``.
        """
        prompt = self.prompt
        if isinstance(prompt, list) and len(prompt) == 1 and not isinstance(prompt[0], int):
            prompt = prompt[0]  # type: ignore[assignment]
        if isinstance(prompt, str):
            return prompt
        ids = [item for item in prompt if isinstance(item, int)]
        if not ids or len(ids) != len(prompt):
            raise _invalid_prompt()
        if min(ids) < 0 or max(ids) > MAX_TOKEN_ID:
            raise bad_request(
                f"prompt: token ids go from 0 to {MAX_TOKEN_ID}.", "invalid_prompt", "prompt"
            )
        return ids


Body = TypeVar("Body", bound=Request)


def decode(kind: type[Body], content_type: str | None, body: bytes) -> Body:
    """Read ``body`` as a ``kind``.

    :raises ApiError: 415 for another media type, else 400 naming the field.
    """
    _check_media_type(content_type)
    if not body.strip():
        raise bad_request("The request body is empty; send a JSON object.", "invalid_json")
    try:
        if not body.isascii():
            # The decoder skips what it does not need, valid or not.
            body.decode()
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise _wrong_field(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise bad_request(f"The request body is not valid JSON: {error}.", "invalid_json") from None
    except RecursionError:
        raise bad_request("The request body is nested too deeply.", "invalid_json") from None


def _check_media_type(content_type: str | None) -> None:
    if content_type is None:
        return
    media_type = content_type.partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise ApiError(
            415,
            f"Unsupported media type {media_type[:80]!r}; send application/json.",
            "unsupported_media_type",
        )


_AT = re.compile(r" - at `\$\.?(.*)`$")
_MISSING = re.compile(r"missing required field `(\w+)`")


def _wrong_field(message: str) -> ApiError:
    where = _AT.search(message)
    path = where.group(1) if where else ""
    problem = _AT.sub("", message)
    missing = _MISSING.search(problem)
    if missing:
        path = f"{path}.{missing.group(1)}" if path else missing.group(1)
        if path == "prompt":
            return _invalid_prompt()
        return bad_request(f"{path}: this field is required.", param=path)
    if not path:
        return bad_request(f"The request body must be a JSON object: {problem}.")
    if path.partition("[")[0] == "prompt":
        return _invalid_prompt()
    return bad_request(f"{path}: {problem}.", param=path)


def _invalid_prompt() -> ApiError:
    return bad_request(
        "prompt must be exactly one prompt: a string, [string], an array of token ids, "
        "or [[token ids]].",
        "invalid_prompt",
        "prompt",
    )
