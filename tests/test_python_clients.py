"""What people build on: openai-python's helpers, LangChain and LiteLLM, against a real server."""

from __future__ import annotations

import asyncio
import operator
from collections.abc import Iterator
from functools import reduce
from typing import Any

import openai
import pytest
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

from inference_lab.content.splice import verify
from tests.live import FAULT, MODEL, serve
from tests.seen import TOKENS

HELLO: Any = [{"role": "user", "content": "hello"}]


class Place(BaseModel):
    """A place to look up."""

    city: str
    days: list[int]
    note: str | None


class Trip(BaseModel):
    """Nested, by reference."""

    stops: list[Place]
    by: str


TOOL = openai.pydantic_function_tool(Place)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A server without pacing, which asks for a key."""
    flags = ("--hardware", "b200", "--enable-directives", "--speed", "0", "--api-key", "sk-lab")
    with serve(*flags) as running:
        yield f"{running.url}/v1"


# -- openai-python -----------------------------------------------------------


@pytest.fixture
def client(url: str) -> Iterator[openai.OpenAI]:
    """The blocking client."""
    with openai.OpenAI(base_url=url, api_key="sk-lab", max_retries=0) as made:
        yield made


def test_openai_key(url: str) -> None:
    """Another key is its AuthenticationError."""
    with (
        openai.OpenAI(base_url=url, api_key="sk-other", max_retries=0) as stranger,
        pytest.raises(openai.AuthenticationError) as caught,
    ):
        stranger.chat.completions.create(model=MODEL, messages=HELLO)
    assert caught.value.code == "invalid_api_key"


@pytest.mark.parametrize("schema", [Place, Trip])
def test_openai_parse(client: openai.OpenAI, schema: type[BaseModel]) -> None:
    """Structured output is parsed into the caller's own class, streamed or not."""
    asked: Any = {"model": MODEL, "messages": HELLO, "response_format": schema, "seed": 5}
    parsed = client.chat.completions.parse(**asked).choices[0].message.parsed
    assert isinstance(parsed, schema)
    with client.chat.completions.stream(**asked) as stream:
        events = list(stream)
        assert stream.get_final_completion().choices[0].message.parsed == parsed
    deltas = [event.delta for event in events if event.type == "content.delta"]
    assert len(deltas) > 5
    assert schema.model_validate_json("".join(deltas)) == parsed


def test_openai_tools(client: openai.OpenAI) -> None:
    """A forced call has arguments of the function's own class, streamed or not."""
    asked: Any = {"model": MODEL, "messages": HELLO, "tools": [TOOL], "tool_choice": "required"}
    calls = client.chat.completions.parse(**asked).choices[0].message.tool_calls
    assert calls is not None
    (whole,) = calls
    assert isinstance(whole.function.parsed_arguments, Place)
    with client.chat.completions.stream(**asked) as stream:
        kinds = [event.type for event in stream]
        streamed = stream.get_final_completion().choices[0].message.tool_calls
    assert streamed is not None
    assert streamed[0].model_dump() == whole.model_dump() | {"index": 0}
    assert kinds.count("tool_calls.function.arguments.delta") > 5
    assert kinds.count("tool_calls.function.arguments.done") == 1


def test_openai_stream_helper(client: openai.OpenAI) -> None:
    """The helper gathers text, usage and log probabilities."""
    with client.chat.completions.stream(
        model=MODEL,
        messages=HELLO,
        logprobs=True,
        top_logprobs=2,
        stop=TOKENS[5],
        stream_options={"include_usage": True},
    ) as stream:
        final = stream.until_done().get_final_completion()
    (choice,) = final.choices
    assert choice.message.content == "".join(TOKENS[:5])
    assert choice.finish_reason == "stop"
    assert final.usage is not None
    assert final.usage.completion_tokens == 6
    assert choice.logprobs is not None
    assert choice.logprobs.content is not None
    assert [entry.token for entry in choice.logprobs.content[:5]] == list(TOKENS[:5])


def test_openai_directive(client: openai.OpenAI) -> None:
    """A message scripts the answer, calls included."""
    script = '<<respond:{"tool_calls":[{"name":"f","arguments":{"a":1}},{"name":"g"}]}>>'
    asked: Any = {"model": MODEL, "messages": [{"role": "user", "content": script}]}
    message = client.chat.completions.create(**asked).choices[0].message
    assert message.content is None
    assert message.tool_calls is not None
    calls = [call.function for call in message.tool_calls if call.type == "function"]
    assert [(call.name, call.arguments) for call in calls] == [("f", '{"a":1}'), ("g", "{}")]
    with client.chat.completions.stream(**asked) as stream:
        gathered = stream.until_done().get_final_completion().choices[0].message.tool_calls
    assert gathered is not None
    assert [call.id for call in gathered] == [call.id for call in message.tool_calls]


def test_openai_refusal(client: openai.OpenAI) -> None:
    """What is refused is the BadRequestError, which names the parameter."""
    bad: list[tuple[str, Any]] = [("temperature", -1), ("n", 0), ("top_logprobs", 50)]
    for name, value in bad:
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(model=MODEL, messages=HELLO, **{name: value})
        assert caught.value.param == name


def test_openai_async(url: str) -> None:
    """Chat, completions, tools, structured output and the helper of the asyncio client."""

    async def run() -> None:
        async with openai.AsyncOpenAI(base_url=url, api_key="sk-lab", max_retries=0) as client:
            chats = client.chat.completions
            whole = await chats.create(model=MODEL, messages=HELLO, max_tokens=4, n=2)
            assert [each.message.content for each in whole.choices] == ["".join(TOKENS[:4])] * 2
            text = await client.completions.create(
                model=MODEL, prompt="Hi. ", echo=True, max_tokens=2
            )
            assert text.choices[0].text == "Hi. " + "".join(TOKENS[:2])
            parsed = await chats.parse(model=MODEL, messages=HELLO, response_format=Trip)
            assert isinstance(parsed.choices[0].message.parsed, Trip)
            called = await chats.parse(
                model=MODEL,
                messages=HELLO,
                tools=[TOOL],
                tool_choice={"type": "function", "function": {"name": "Place"}},
            )
            calls = called.choices[0].message.tool_calls
            assert calls is not None
            assert isinstance(calls[0].function.parsed_arguments, Place)
            async with chats.stream(model=MODEL, messages=HELLO, stop="cedar2.") as stream:
                final = await stream.get_final_completion()
            assert final.choices[0].message.content == "amber0. birch1. "

    asyncio.run(run())


# -- LangChain ---------------------------------------------------------------


def chat_model(url: str, **fields: Any) -> Any:
    """LangChain's client; its own retries would hide what happened."""
    return ChatOpenAI(model=MODEL, base_url=url, api_key="sk-lab", max_retries=0, **fields)


def test_langchain(url: str) -> None:
    """Text and accounts, streamed or not, sync and async."""
    model = chat_model(url, max_tokens=6, stream_usage=True)
    whole = model.invoke("hello")
    streamed = reduce(operator.add, model.stream("hello"))
    awaited = asyncio.run(model.ainvoke("hello"))
    for message in (whole, streamed, awaited):
        assert message.content == "".join(TOKENS[:6])
        assert message.usage_metadata["output_tokens"] == 6
        assert message.response_metadata["finish_reason"] == "length"
    assert streamed.usage_metadata["input_tokens"] == whole.usage_metadata["input_tokens"]


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_langchain_structured(url: str, method: str) -> None:
    """An object of the caller's class, either way it is asked for."""
    found = chat_model(url).with_structured_output(Trip, method=method).invoke("hello")
    assert isinstance(found, Trip)


def test_langchain_tools(url: str) -> None:
    """A call, the same in one piece and in fragments."""
    bound = chat_model(url).bind_tools([Place], tool_choice="any")
    (whole,) = bound.invoke("hello").tool_calls
    (streamed,) = reduce(operator.add, bound.stream("hello")).tool_calls
    assert whole == streamed
    assert Place.model_validate(whole["args"])


def test_langchain_death(url: str) -> None:
    """What came before the death is handed out; then it raises."""
    model = chat_model(url, default_headers={FAULT: "reset;after_chunks=3"})
    text = ""
    with pytest.raises(openai.APIConnectionError):
        for message in model.stream("hello"):
            text += message.content
    assert text == "".join(TOKENS[:3])


# -- LiteLLM as a library ------------------------------------------------------


@pytest.fixture
def litellm(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The library, which would fetch its price list from the net as it is imported."""
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    import litellm

    monkeypatch.setattr(litellm, "suppress_debug_info", True)
    return litellm


def lite(url: str, **fields: Any) -> dict[str, Any]:
    """The arguments of a completion."""
    return {
        "model": f"openai/{MODEL}",
        "api_base": url,
        "api_key": "sk-lab",
        "messages": HELLO,
        "max_retries": 0,
        "num_retries": 0,
        **fields,
    }


def test_litellm(url: str, litellm: Any) -> None:
    """Text and accounts, streamed or not."""
    whole = litellm.completion(**lite(url, max_tokens=5))
    assert whole.choices[0].message.content == "".join(TOKENS[:5])
    assert whole.usage.completion_tokens == 5
    options = {"include_usage": True}
    chunks = list(
        litellm.completion(**lite(url, max_tokens=5, stream=True, stream_options=options))
    )
    texts = [each.choices[0].delta.content for each in chunks if each.choices]
    assert "".join(filter(None, texts)) == "".join(TOKENS[:5])
    assert chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens
    assert chunks[-1].usage.completion_tokens == 5


def test_litellm_tools_and_documents(url: str, litellm: Any) -> None:
    """A call and a document that conform."""
    answer = litellm.completion(**lite(url, tools=[TOOL], tool_choice="required"))
    (call,) = answer.choices[0].message.tool_calls
    assert Place.model_validate_json(call.function.arguments)
    answer = litellm.completion(**lite(url, response_format=Trip))
    assert Trip.model_validate_json(answer.choices[0].message.content)


def test_litellm_prefix(url: str, litellm: Any) -> None:
    """The prefix turn, with which its own fallback resumes, goes on where the text ends."""
    turn = {"role": "assistant", "content": "".join(TOKENS[:3]), "prefix": True}
    answer = litellm.completion(**lite(url, messages=[*HELLO, turn], max_tokens=4))
    assert answer.choices[0].message.content == "".join(TOKENS[3:7])


@pytest.mark.parametrize("fault", ["reset", "cut_between_frames", "error_envelope_200"])
def test_litellm_death(url: str, litellm: Any, fault: str) -> None:
    """What came before the death is handed out; then it says that a fallback would be due."""
    text = ""
    with pytest.raises(litellm.exceptions.MidStreamFallbackError) as caught:
        for chunk in litellm.completion(**lite(url, stream=True, extra_headers={FAULT: fault})):
            text += chunk.choices[0].delta.content or ""
    assert text == caught.value.generated_content == "".join(TOKENS[:3])


@pytest.mark.filterwarnings("ignore:Accessing the 'model_:DeprecationWarning")
@pytest.mark.parametrize("fault", ["reset", "cut_mid_frame", "error_envelope_200"])
def test_litellm_router_resumes(url: str, litellm: Any, fault: str) -> None:
    """A resume middleware out of the wild: its continuation is the answer that never died."""

    def deployment(name: str, **params: Any) -> dict[str, Any]:
        return {
            "model_name": name,
            "litellm_params": {**lite(url), **params},
            "model_info": {"supports_assistant_prefill": True},
        }

    router = litellm.Router(
        model_list=[
            deployment("dies", extra_headers={FAULT: f"{fault};after_chunks=5"}),
            deployment("lives"),
        ],
        fallbacks=[{"dies": ["lives"]}],
        num_retries=0,
        enable_mid_stream_fallback_continuation=True,
    )

    async def text(model: str) -> str:
        stream = await router.acompletion(model=model, messages=HELLO, stream=True)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    found = verify(asyncio.run(text("lives")), text=asyncio.run(text("dies")))
    assert found.identical, str(found)
