"""Request bodies as typed values. Everything a client can get wrong is a 400 that names it.

Unknown fields are ignored; null counts as absent. Ranges of single values stand in
the types; what relates several values is checked by each request's ``check``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from inference_lab.content.prompt import BOTH_FLAGS
from inference_lab.web.errors import ApiError, bad_request

MAX_TOKEN_ID = 2**63 - 1

TokenLimit = Annotated[int, Meta(ge=1, le=2**63 - 1)]
Integer = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Share = Annotated[float, Meta(gt=0, le=1)]
StopString = Annotated[str, Meta(min_length=1, max_length=1000)]
StopList = Annotated[list[StopString], Meta(max_length=16)]
"""The OpenAI API takes 4. Each is looked for in an answer that may have a million tokens."""

MOST_LOGPROBS = 20
"""Alternatives a client may ask for, as in the OpenAI API and in vLLM."""

MOST_CHOICES = 128
"""Choices of one request, as in the OpenAI API."""


class StreamOptions(Struct, frozen=True):
    """``stream_options``."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class Part(Struct, frozen=True):
    """One element of a part-array ``content``."""

    type: str | None = None
    text: str | None = None


class Message(Struct, frozen=True):
    """One chat turn. ``content`` may be text, parts, null or absent."""

    role: str
    content: str | list[Part] | None = None
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    prefix: bool | None = None


class Function(Struct, frozen=True):
    """A function that the model may call; ``parameters`` is a JSON schema."""

    name: Annotated[str, Meta(min_length=1)]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Struct, frozen=True):
    """One tool."""

    function: Function
    type: Literal["function"] = "function"


class NamedFunction(Struct, frozen=True):
    """The function of a `NamedTool`."""

    name: str


class NamedTool(Struct, frozen=True):
    """A ``tool_choice`` that names the function to call."""

    function: NamedFunction
    type: Literal["function"] = "function"


class JsonSchema(Struct, frozen=True):
    """The schema of a structured output."""

    name: str | None = None
    description: str | None = None
    schema: dict[str, Any] | bool | None = None
    strict: bool | None = None


class ResponseFormat(Struct, frozen=True):
    """``response_format``."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class Request(Struct, frozen=True, kw_only=True):
    """What both endpoints take."""

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: TokenLimit | None = None
    min_tokens: Count | None = None
    ignore_eos: bool | None = None
    stop: StopString | StopList | None = None
    n: Annotated[int, Meta(ge=1, le=MOST_CHOICES)] | None = None
    seed: Integer | None = None
    priority: Integer | None = None
    user: str | None = None
    response_format: ResponseFormat | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Share | None = None
    top_k: Annotated[int, Meta(ge=-1)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Meta(gt=0)] | None = None

    @property
    def limit(self) -> int | None:
        """The most tokens the answer may have."""
        return self.max_tokens

    @property
    def choices(self) -> int:
        """How many answers are wanted."""
        return self.n or 1

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings."""
        stop = self.stop or ()
        return (stop,) if isinstance(stop, str) else tuple(stop)

    @property
    def top_logprobs_wanted(self) -> int | None:
        """Alternatives to each token, None for no log probabilities."""
        return None

    @property
    def usage_requested(self) -> bool:
        """Whether the stream ends with a usage frame."""
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def usage_on_every_frame(self) -> bool:
        """Whether each frame carries the usage so far."""
        options = self.stream_options
        return bool(options and options.include_usage and options.continuous_usage_stats)

    def check(self) -> None:
        """Refuse values that do not go together.

        :raises ApiError: 400, naming one of them.
        """
        if self.min_tokens and self.limit is not None and self.min_tokens > self.limit:
            raise bad_request(
                f"min_tokens must be at most max_tokens={self.limit}, got {self.min_tokens}.",
                param="min_tokens",
            )
        wanted = self.response_format
        if wanted is None or wanted.type != "json_schema":
            return
        if wanted.json_schema is None or wanted.json_schema.schema is None:
            field = "response_format.json_schema.schema"
            raise bad_request(
                f"{field}: this field is required for the type json_schema.", param=field
            )


def check_flags(
    messages: Sequence[Message],
    add_generation_prompt: bool | None,
    continue_final_message: bool | None,
) -> None:
    """Refuse to continue a turn and to open one at once, in vLLM's words.

    :raises ApiError: 400.
    """
    last = messages[-1]
    by_prefix = bool(last.prefix) and last.role == "assistant"
    if continue_final_message and add_generation_prompt is not False and not by_prefix:
        raise bad_request(BOTH_FLAGS, param="continue_final_message")


class ChatRequest(Request, frozen=True, kw_only=True):
    """``POST /v1/chat/completions``."""

    messages: Annotated[list[Message], Meta(min_length=1)]
    max_completion_tokens: TokenLimit | None = None
    tools: list[Tool] | None = None
    tool_choice: str | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=MOST_LOGPROBS)] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None
    include_reasoning: bool | None = None

    @property
    def limit(self) -> int | None:
        """The most tokens the answer may have."""
        return self.max_completion_tokens or self.max_tokens

    @property
    def top_logprobs_wanted(self) -> int | None:
        """Alternatives to each token, None for no log probabilities."""
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def forced_tool(self) -> Function | None:
        """The function that has to be called, if one has."""
        if isinstance(self.tool_choice, NamedTool):
            name = self.tool_choice.function.name
            return next(tool.function for tool in self.tools or () if tool.function.name == name)
        if self.tool_choice == "required" and self.tools:
            return self.tools[0].function
        return None

    def check(self) -> None:
        """Refuse values that do not go together.

        :raises ApiError: 400, naming one of them.
        """
        super().check()
        check_flags(self.messages, self.add_generation_prompt, self.continue_final_message)
        if self.top_logprobs and not self.logprobs:
            raise bad_request(
                "when using `top_logprobs`, `logprobs` must be set to true.", param="top_logprobs"
            )
        for problem in self._tool_problems():
            raise bad_request(problem, param="tool_choice")

    def _tool_problems(self) -> Iterator[str]:
        choice = self.tool_choice
        if choice is None:
            return
        names = [tool.function.name for tool in self.tools or ()]
        if isinstance(choice, str) and choice not in ("none", "auto", "required"):
            yield (
                f"tool_choice: {choice[:40]!r} is not valid; allowed: none, auto, required, or "
                '{"type": "function", "function": {"name": ...}}.'
            )
        if not names and choice not in ("none", "auto"):
            yield "When using `tool_choice`, `tools` must be set."
        if isinstance(choice, NamedTool) and choice.function.name not in names:
            yield (
                f"tool_choice: the function {choice.function.name[:80]!r} is not among the tools: "
                f"{', '.join(names)}."
            )


class CompletionRequest(Request, frozen=True, kw_only=True):
    """``POST /v1/completions``. Exactly one prompt: text, or token ids."""

    prompt: str | list[str | int | list[int]]
    echo: bool | None = None
    logprobs: Annotated[int, Meta(ge=0, le=MOST_LOGPROBS)] | None = None

    @property
    def top_logprobs_wanted(self) -> int | None:
        """Alternatives to each token, None for no log probabilities."""
        return self.logprobs

    def check(self) -> None:
        """Refuse values that do not go together.

        :raises ApiError: 400, naming one of them.
        """
        super().check()
        self.single_prompt()

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
            raise invalid_prompt()
        check_ids(ids, "prompt", "invalid_prompt")
        return ids


class TokenizeRequest(Struct, frozen=True, kw_only=True):
    """``POST /tokenize``: a text, or a chat."""

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[Message], Meta(min_length=1)] | None = None
    tools: list[Tool] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    return_token_strs: bool | None = None

    def check(self) -> None:
        """Refuse a request with neither text nor chat, or with both.

        :raises ApiError: 400.
        """
        if (self.prompt is None) == (self.messages is None):
            raise bad_request("Send exactly one of prompt and messages.", param="prompt")
        if self.messages is not None:
            check_flags(self.messages, self.add_generation_prompt, self.continue_final_message)


class DetokenizeRequest(Struct, frozen=True, kw_only=True):
    """``POST /detokenize``."""

    tokens: list[int]
    model: str | None = None

    def check(self) -> None:
        """Refuse ids that no tokenizer has.

        :raises ApiError: 400.
        """
        check_ids(self.tokens, "tokens", "invalid_request")


def check_ids(ids: list[int], field: str, code: str) -> None:
    """Refuse ids outside of 0 to `MAX_TOKEN_ID`.

    :raises ApiError: 400.
    """
    if ids and (min(ids) < 0 or max(ids) > MAX_TOKEN_ID):
        raise bad_request(f"{field}: token ids go from 0 to {MAX_TOKEN_ID}.", code, field)


def invalid_prompt() -> ApiError:
    """400 for anything but one prompt."""
    return bad_request(
        "prompt must be exactly one prompt: a string, [string], an array of token ids, "
        "or [[token ids]].",
        "invalid_prompt",
        "prompt",
    )
