"""From a typed request to the prompt it means."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from inference_lab.content.prompt import (
    Prompt,
    Turn,
    chat_prompt,
    ids_prompt,
    join_parts,
    render_chat,
    text_prompt,
)
from inference_lab.content.tokens import Tokenizer
from inference_lab.web.requests import (
    ChatRequest,
    CompletionRequest,
    Message,
    TokenizeRequest,
    Tool,
)


def read_prompt(asked: ChatRequest | CompletionRequest, tokenizer: Tokenizer) -> Prompt:
    """The prompt of ``asked``, counted. Long ones take a while: some 10 MB of text a second."""
    if isinstance(asked, ChatRequest):
        return chat_prompt(
            turns(asked.messages),
            tokenizer,
            asked.seed,
            tools=tools_text(asked.tools),
            add_generation_prompt=asked.add_generation_prompt is not False,
            continue_final_message=bool(asked.continue_final_message),
        )
    prompt = asked.single_prompt()
    if isinstance(prompt, str):
        return text_prompt(prompt, tokenizer, asked.seed)
    return ids_prompt(prompt, tokenizer, asked.seed)


def tokenizable(asked: TokenizeRequest) -> str:
    """The text whose ids are asked for."""
    if asked.messages is None:
        return asked.prompt or ""
    text, _ = render_chat(
        turns(asked.messages),
        tools=tools_text(asked.tools),
        add_generation_prompt=asked.add_generation_prompt is not False,
        continue_final_message=bool(asked.continue_final_message),
    )
    return text


def turns(messages: Sequence[Message]) -> list[Turn]:
    """The messages, reduced to what is counted."""
    return [
        Turn(
            role=message.role,
            content=message_text(message),
            tool_calls=_json(message.tool_calls),
            name=message.name or message.tool_call_id or "",
            reasoning=message.reasoning_content or message.reasoning or "",
            prefix=bool(message.prefix),
        )
        for message in messages
    ]


def message_text(message: Message) -> str:
    """What a message says, its parts joined."""
    if isinstance(message.content, list):
        return join_parts([(part.type or "text", part.text or "") for part in message.content])
    return message.content or ""


def tools_text(tools: Sequence[Tool] | None) -> str:
    """The tools as they stand in the prompt."""
    return _json(tools)


def _json(value: Sequence[object] | None) -> str:
    return msgspec.json.encode(value).decode() if value else ""
