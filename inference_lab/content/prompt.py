"""What a request says to the model: the prompt that is counted, and where its answer begins.

A chat becomes text by one fixed template, in the manner of the ChatML ones that most models
ship::

    <|system|>
    {the tools, as JSON}<|end|>
    <|user|>
    Hello<|end|>
    <|assistant|>

A turn that is to be continued is left open: the prompt ends with its text.  The opening of an
answer's turn is spelt alike in both cases, so the prompt of a first leg, the answer's ids appended
to it, and the chat continued with the same text are one and the same prompt.

Only a turn that the request asked to continue is searched for an answer.  A trailing assistant turn
without a flag is closed, as vLLM closes it, whatever it says.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from attrs import frozen

from inference_lab.content.resume import (
    Resume,
    resume_ids,
    resume_text,
    strip_ids,
    strip_text,
)
from inference_lab.content.tokens import Tokenizer

__all__ = [
    "BOTH_FLAGS",
    "Prompt",
    "Turn",
    "chat_prompt",
    "ids_prompt",
    "join_parts",
    "render_chat",
    "text_prompt",
]

BOTH_FLAGS: Final = "Cannot set both `continue_final_message` and `add_generation_prompt` to True."
"""vLLM's words for a request with both flags."""

_END: Final = "<|end|>\n"


@frozen
class Turn:
    """One message of a chat, reduced to what is counted."""

    role: str
    content: str = ""
    """The text; parts joined by `join_parts`, nothing for null."""
    tool_calls: str = ""
    """The JSON of an assistant's calls, or nothing."""
    name: str = ""
    """The speaker's name or a tool result's call id, or nothing."""
    reasoning: str = ""
    """The thinking that an assistant's message carries, or nothing."""
    prefix: bool = False
    """DeepSeek's and Mistral's flag: go on with this turn.  Counts on a last assistant turn."""


@frozen
class Prompt:
    """A prompt in text, and what was read in it."""

    text: str
    tokens: int
    """How many ids it has: ``usage.prompt_tokens``."""
    resume: Resume | None
    """Where the answer goes on, or None for one that starts at token 0."""
    key: str
    """The prompt without any part of the answer: the same on every leg of one answer."""
    given_ids: tuple[int, ...] | None = None
    """The ids that the request sent, if it sent ids."""

    def ids(self, tokenizer: Tokenizer) -> list[int]:
        """The prompt's ids: as sent, else by ``tokenizer``."""
        return tokenizer.encode(self.text) if self.given_ids is None else list(self.given_ids)

    @property
    def header(self) -> str:
        """The value of ``x-inference-lab-resume``."""
        return "none" if self.resume is None else str(self.resume.position)


def join_parts(parts: Sequence[tuple[str, str | None]]) -> str:
    """The text of a message in parts, each ``(type, text)``.

    Parts are joined without a separator; one that is no text (an image, say) stands as
    ``<|image_url|>``.
    """
    return "".join(
        text if text is not None and kind in ("text", "refusal") else f"<|{kind}|>"
        for kind, text in parts
    )


def render_chat(
    turns: Sequence[Turn],
    *,
    tools: str = "",
    add_generation_prompt: bool = True,
    continue_final_message: bool = False,
) -> tuple[str, str | None]:
    """The prompt of a chat, and the text of the turn it leaves open (None if it leaves none).

    :param tools: the JSON of the request's tools, or nothing.
    :param add_generation_prompt: open an assistant's turn at the end.
    :param continue_final_message: leave the last turn open instead.  A last assistant turn with
        ``prefix`` is left open without it.
    :raises ValueError: `BOTH_FLAGS`, if both flags are set and no ``prefix`` decides.
    """
    last = turns[-1] if turns else None
    by_prefix = last is not None and last.prefix and last.role == "assistant"
    if continue_final_message and add_generation_prompt and not by_prefix:
        raise ValueError(BOTH_FLAGS)
    parts = [f"<|system|>\n{tools}{_END}"] if tools else []
    for turn in turns:
        # The text comes last within its turn, so that an open turn ends with it.
        name = f" {turn.name}" if turn.name else ""
        thinking = f"<think>{turn.reasoning}</think>" if turn.reasoning else ""
        calls = f"<|tool_calls|>{turn.tool_calls}\n" if turn.tool_calls else ""
        parts += [f"<|{turn.role}{name}|>\n{thinking}{calls}{turn.content}", _END]
    if last is not None and (by_prefix or continue_final_message):
        parts.pop()
        return "".join(parts), last.content
    if add_generation_prompt:
        parts.append("<|assistant|>\n")
    return "".join(parts), None


def chat_prompt(
    turns: Sequence[Turn],
    tokenizer: Tokenizer,
    seed: int | None = None,
    *,
    tools: str = "",
    add_generation_prompt: bool = True,
    continue_final_message: bool = False,
) -> Prompt:
    """The prompt of a chat request; parameters and errors as in `render_chat`."""
    text, open_turn = render_chat(
        turns,
        tools=tools,
        add_generation_prompt=add_generation_prompt,
        continue_final_message=continue_final_message,
    )
    tokens = tokenizer.count(text)
    if open_turn is None:
        return Prompt(text, tokens, None, text)
    found = resume_text(open_turn, seed, opening=True)
    kept = strip_text(open_turn, seed, opening=True)
    return Prompt(text, tokens, found, text[: len(text) - len(open_turn)] + kept)


def text_prompt(text: str, tokenizer: Tokenizer, seed: int | None = None) -> Prompt:
    """The prompt of a completion request that sent text."""
    found = resume_text(text, seed)
    return Prompt(text, tokenizer.count(text), found, strip_text(text, seed))


def ids_prompt(ids: Sequence[int], tokenizer: Tokenizer, seed: int | None = None) -> Prompt:
    """The prompt of a completion request that sent ids: exactly ``len(ids)`` tokens."""
    given = tuple(ids)
    found = resume_ids(given, tokenizer, seed)
    text = tokenizer.decode(given)
    key = tokenizer.decode(strip_ids(given, tokenizer, seed)) if found else text
    return Prompt(text, len(given), found, key, given)
