"""From a typed request to the prompt it means."""

from __future__ import annotations

import msgspec

from inference_lab.content.prompt import (
    Prompt,
    Turn,
    chat_prompt,
    ids_prompt,
    join_parts,
    text_prompt,
)
from inference_lab.content.tokens import Tokenizer
from inference_lab.web.requests import ChatRequest, CompletionRequest, Message


def read_prompt(asked: ChatRequest | CompletionRequest, tokenizer: Tokenizer) -> Prompt:
    """The prompt of ``asked``, counted. Long ones take a while: some 10 MB of text a second."""
    if isinstance(asked, ChatRequest):
        tools = msgspec.json.encode(asked.tools).decode() if asked.tools else ""
        return chat_prompt([_turn(m) for m in asked.messages], tokenizer, tools=tools)
    prompt = asked.single_prompt()
    if isinstance(prompt, str):
        return text_prompt(prompt, tokenizer)
    return ids_prompt(prompt, tokenizer)


def _turn(message: Message) -> Turn:
    calls = msgspec.json.encode(message.tool_calls).decode() if message.tool_calls else ""
    if isinstance(message.content, list):
        content = join_parts([(part.type or "text", part.text) for part in message.content])
    else:
        content = message.content or ""
    return Turn(message.role, content, calls)
