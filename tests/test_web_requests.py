"""Request bodies: every shape that is right, and a clear refusal for every other."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from inference_lab.content.tokens import PieceTokenizer
from inference_lab.web.decoding import decode
from inference_lab.web.errors import ApiError
from inference_lab.web.prompts import read_prompt
from inference_lab.web.requests import ChatRequest, CompletionRequest, Request

JSON = "application/json"
HI: dict[str, Any] = {"messages": [{"role": "user", "content": "hello"}]}

SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8))
FIELDS = st.sampled_from(
    [
        "model",
        "messages",
        "prompt",
        "stream",
        "stream_options",
        "include_usage",
        "max_tokens",
        "max_completion_tokens",
        "tools",
        "role",
        "content",
        "type",
        "text",
        "tool_calls",
        "other",
    ]
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(FIELDS, inner, max_size=4)
    ),
    max_leaves=12,
)


def chat(**fields: Any) -> ChatRequest:
    return decode(ChatRequest, JSON, json.dumps({"model": "m", **HI, **fields}).encode())


def completion(**fields: Any) -> CompletionRequest:
    asked = decode(CompletionRequest, JSON, json.dumps({"model": "m", **fields}).encode())
    asked.single_prompt()
    return asked


def counted(asked: ChatRequest | CompletionRequest) -> int:
    """Tokens of a request's prompt."""
    return read_prompt(asked, PieceTokenizer()).tokens


class RequestCase(SynchronousTestCase):
    """What a refusal must look like."""

    def refused(self, error: ApiError, status: int, code: str, param: str | None = None) -> None:
        self.assertEqual((error.status, error.code, error.param), (status, code, param))
        self.assertEqual(error.type, "invalid_request_error")
        self.assertEqual(error.message.splitlines(), [error.message])
        self.assertLess(len(error.message), 400)
        if param is not None:
            self.assertTrue(error.message.startswith(param), error.message)

    def body_refused(
        self,
        kind: type[Request],
        body: bytes,
        code: str,
        param: str | None = None,
    ) -> None:
        error = self.assertRaises(ApiError, decode, kind, JSON, body)
        self.refused(error, 400, code, param)

    def answered(self, kind: type[Request], body: bytes) -> Request | None:
        """Decode anything at all: a typed request, or a refusal and nothing else."""
        try:
            asked = decode(kind, JSON, body)
            assert isinstance(asked, ChatRequest | CompletionRequest)
            self.assertGreaterEqual(counted(asked), 0)
            self.assertTrue(asked.limit is None or asked.limit >= 1)
        except ApiError as error:
            self.assertIn(error.code, ("invalid_request", "invalid_json", "invalid_prompt"))
            self.refused(error, 400, error.code, error.param)
            self.assertEqual(json.loads(error.body())["error"]["message"], error.message)
            return None
        return asked


class ChatTests(RequestCase):
    """``POST /v1/chat/completions``."""

    def test_least(self) -> None:
        asked = chat()
        self.assertEqual(asked.model, "m")
        self.assertFalse(asked.stream)
        self.assertFalse(asked.usage_requested)
        self.assertIsNone(asked.limit)
        self.assertEqual(asked.messages[0].content, "hello")

    def test_content(self) -> None:
        contents: list[tuple[Any, str]] = [
            ("hello", "hello"),
            ("", ""),
            (None, ""),
            ([], ""),
            ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "ab"),
            ([{"type": "image_url", "image_url": {"url": "data:x"}}], "<|image_url|>"),
            ([{"type": "text", "text": None}, {"text": "c"}], "c"),
        ]
        for content, text in contents:
            asked = chat(messages=[{"role": "user", "content": content}])
            said = read_prompt(asked, PieceTokenizer()).text
            self.assertEqual(said, f"<|user|>\n{text}<|end|>\n<|assistant|>\n")
        asked = chat(messages=[{"role": "assistant", "tool_calls": [{"id": "call_1"}]}])
        self.assertIn('{"id":"call_1"}', read_prompt(asked, PieceTokenizer()).text)

    def test_unknown_fields_are_ignored(self) -> None:
        asked = chat(
            mood="hot",
            logit_bias=[1],
            stream_options={"include_usage": True, "x": 1},
            messages=[{"role": "user", "content": [{"type": "x", "y": 1}], "age": 5}],
        )
        self.assertTrue(asked.usage_requested)

    def test_null_counts_as_absent(self) -> None:
        asked = chat(
            stream=None,
            stream_options=None,
            max_tokens=None,
            max_completion_tokens=None,
            tools=None,
            messages=[{"role": "user", "content": None, "tool_calls": None}],
        )
        self.assertFalse(asked.stream)
        self.assertFalse(asked.usage_requested)
        self.assertIsNone(asked.limit)
        self.assertFalse(chat(stream_options={"include_usage": None}).usage_requested)

    def test_limits(self) -> None:
        self.assertEqual(chat(max_tokens=16).limit, 16)
        self.assertEqual(chat(max_completion_tokens=7).limit, 7)
        self.assertEqual(chat(max_completion_tokens=7, max_tokens=16).limit, 7)

    def test_stream(self) -> None:
        self.assertTrue(chat(stream=True).stream)
        self.assertFalse(chat(stream=False).stream)
        self.assertTrue(chat(stream_options={"include_usage": True}).usage_requested)
        self.assertFalse(chat(stream_options={}).usage_requested)

    def test_prompt_tokens_grow_with_the_conversation(self) -> None:
        one = counted(chat())
        self.assertGreaterEqual(one, 1)
        two = chat(messages=[*HI["messages"], {"role": "user", "content": "x" * 400}])
        self.assertGreaterEqual(counted(two), one + 100)

    def test_wrong_types_name_the_field(self) -> None:
        wrong: list[tuple[dict[str, Any], str]] = [
            ({"model": 5}, "model"),
            ({"model": None}, "model"),
            ({"model": ["m"]}, "model"),
            ({"messages": None}, "messages"),
            ({"messages": "hello"}, "messages"),
            ({"messages": []}, "messages"),
            ({"messages": {}}, "messages"),
            ({"messages": ["hello"]}, "messages[0]"),
            ({"messages": [{"content": "a"}]}, "messages[0].role"),
            ({"messages": [{"role": 1}]}, "messages[0].role"),
            ({"messages": [*HI["messages"], {"role": None}]}, "messages[1].role"),
            ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
            ({"messages": [{"role": "user", "content": {}}]}, "messages[0].content"),
            ({"messages": [{"role": "user", "content": ["a"]}]}, "messages[0].content[0]"),
            (
                {"messages": [{"role": "user", "content": [{"type": "text", "text": 5}]}]},
                "messages[0].content[0].text",
            ),
            ({"messages": [{"role": "user", "tool_calls": {}}]}, "messages[0].tool_calls"),
            ({"messages": [{"role": "user", "tool_calls": [1]}]}, "messages[0].tool_calls[0]"),
            ({"stream": "true"}, "stream"),
            ({"stream": 1}, "stream"),
            ({"stream_options": True}, "stream_options"),
            ({"stream_options": []}, "stream_options"),
            ({"stream_options": {"include_usage": "yes"}}, "stream_options.include_usage"),
            ({"max_tokens": "16"}, "max_tokens"),
            ({"max_tokens": 1.5}, "max_tokens"),
            ({"max_tokens": True}, "max_tokens"),
            ({"max_tokens": 0}, "max_tokens"),
            ({"max_tokens": -1}, "max_tokens"),
            ({"max_tokens": 2**63}, "max_tokens"),
            ({"max_tokens": 10**400}, "max_tokens"),
            ({"max_completion_tokens": 0}, "max_completion_tokens"),
            ({"max_completion_tokens": []}, "max_completion_tokens"),
            ({"max_completion_tokens": 10**400}, "max_completion_tokens"),
            ({"tools": {}}, "tools"),
            ({"tools": ["f"]}, "tools[0]"),
        ]
        for fields, param in wrong:
            body = json.dumps({"model": "m", **HI, **fields}).encode()
            self.body_refused(ChatRequest, body, "invalid_request", param)

    def test_missing_fields_are_named(self) -> None:
        self.body_refused(ChatRequest, b'{"messages":[]}', "invalid_request", "messages")
        self.body_refused(
            ChatRequest, b'{"messages":[{"role":"user"}]}', "invalid_request", "model"
        )
        self.body_refused(ChatRequest, b'{"model":"m"}', "invalid_request", "messages")


class CompletionTests(RequestCase):
    """``POST /v1/completions``."""

    def test_exactly_one_prompt(self) -> None:
        shapes: list[tuple[Any, str | list[int]]] = [
            ("hello", "hello"),
            ("", ""),
            (["hello"], "hello"),
            ([""], ""),
            ([1, 2, 3, 4], [1, 2, 3, 4]),
            ([5], [5]),
            ([0], [0]),
            ([[1, 2, 3]], [1, 2, 3]),
            ([[7]], [7]),
        ]
        for prompt, single in shapes:
            self.assertEqual(completion(prompt=prompt).single_prompt(), single)

    def test_anything_else_is_an_invalid_prompt(self) -> None:
        shapes: list[Any] = [
            None,
            5,
            1.5,
            True,
            {},
            [],
            [[]],
            ["a", "b"],
            [[1], [2]],
            [1, "a"],
            ["a", 1],
            [1, [2]],
            [[1], 2],
            [["a"]],
            [[[1]]],
            [None],
            [True],
            [1.5],
            [{}],
            [-1],
            [[1, -1]],
        ]
        for prompt in shapes:
            error = self.assertRaises(ApiError, completion, prompt=prompt)
            self.refused(error, 400, "invalid_prompt", "prompt")
        self.refused(self.assertRaises(ApiError, completion), 400, "invalid_prompt", "prompt")

    @given(st.lists(st.integers(0, 200_000), min_size=1, max_size=200))
    def test_ids_are_counted_exactly(self, ids: list[int]) -> None:
        self.assertEqual(counted(completion(prompt=ids)), len(ids))
        self.assertEqual(counted(completion(prompt=[ids])), len(ids))

    @given(st.text())
    def test_text_alone_or_in_an_array_is_the_same(self, prompt: str) -> None:
        alone, inside = completion(prompt=prompt), completion(prompt=[prompt])
        self.assertEqual(alone.single_prompt(), prompt)
        self.assertEqual(alone.single_prompt(), inside.single_prompt())
        self.assertEqual(counted(alone), counted(inside))
        self.assertEqual(counted(alone) > 0, bool(prompt))

    def test_a_resume_leg(self) -> None:
        asked = completion(
            prompt=[1, 2, 3, 4],
            stream=True,
            priority=0,
            stream_options={"include_usage": True},
            max_tokens=64,
        )
        self.assertTrue(asked.stream)
        self.assertTrue(asked.usage_requested)
        self.assertEqual((asked.limit, counted(asked)), (64, 4))

    def test_wrong_types_name_the_field(self) -> None:
        wrong: list[tuple[dict[str, Any], str]] = [
            ({"model": {}}, "model"),
            ({"stream": "no"}, "stream"),
            ({"stream_options": 1}, "stream_options"),
            ({"max_tokens": []}, "max_tokens"),
            ({"max_tokens": 10**400}, "max_tokens"),
        ]
        for fields, param in wrong:
            body = json.dumps({"model": "m", "prompt": "a", **fields}).encode()
            self.body_refused(CompletionRequest, body, "invalid_request", param)


class BodyTests(RequestCase):
    """What is no JSON object at all."""

    KINDS = (ChatRequest, CompletionRequest)

    def test_empty(self) -> None:
        for kind in self.KINDS:
            for body in (b"", b" ", b"\r\n\t "):
                self.body_refused(kind, body, "invalid_json")

    def test_malformed(self) -> None:
        bodies = (
            b"{",
            b"}",
            b"hello",
            b'{"model":"m",}',
            b"{'model':'m'}",
            b'{"model":"m","prompt":"a","messages":[{"role":"user"}]}{}',
            b'{"model":"m","prompt":"a","messages":[{"role":"user"}]} x',
            b'{"model":"m","prompt":"a","messages":[{"role":"user"}],"x":NaN}',
            b'{"model":NaN}',
            b'{"model":',
            b"\x00",
            b"\xef\xbb\xbf{}",
            b"model=m&prompt=a",
        )
        for kind in self.KINDS:
            for body in bodies:
                self.body_refused(kind, body, "invalid_json")

    def test_no_object(self) -> None:
        for kind in self.KINDS:
            for body in (b"[]", b"null", b"5", b'"model"', b"true", b"[{}]"):
                self.body_refused(kind, body, "invalid_request")

    def test_invalid_utf8_wherever_it_stands(self) -> None:
        bodies = (
            b"\xff",
            b'{"model":"\xff","prompt":"a"}',
            b'{"model":"m","prompt":"\xc3"}',
            b'{"model":"m","prompt":"\xed\xa0\x80"}',
            b'{"model":"m","prompt":"a","unknown":"\xff"}',
            b'{"model":"m","prompt":"a","unknown":{"x":["\xc3\x28"]}}',
            b'{"model":"m","prompt":"a","\xff":1}',
            '{"model":"m","prompt":"é"}'.encode("latin-1"),
            '{"model":"m","prompt":"a"}'.encode("utf-16"),
        )
        for body in bodies:
            self.body_refused(CompletionRequest, body, "invalid_json")

    def test_lone_surrogates(self) -> None:
        for body in (
            b'{"model":"m","prompt":"\\ud800"}',
            b'{"model":"m","prompt":["\\udc00"]}',
            b'{"model":"\\ud800x","prompt":"a"}',
        ):
            self.body_refused(CompletionRequest, body, "invalid_json")

    def test_nesting_bombs(self) -> None:
        deep = 200_000
        lists, objects = b"[" * deep, b'{"a":' * deep
        closed = lists + b"]" * deep, objects + b"1" + b"}" * deep
        for bomb in (lists, objects, *closed):
            for kind in self.KINDS:
                self.assertIsNone(self.answered(kind, bomb))
            for field in (b"prompt", b"unknown", b"stream_options", b"model"):
                body = b'{"model":"m","prompt":"a","%b":%b}' % (field, bomb)
                self.assertIsNone(self.answered(CompletionRequest, body))
            for field in (b"messages", b"tools", b"unknown"):
                body = b'{"model":"m","%b":%b}' % (field, bomb)
                self.assertIsNone(self.answered(ChatRequest, body))
            for field in (b"content", b"tool_calls", b"unknown"):
                body = b'{"model":"m","messages":[{"role":"user","%b":%b}]}' % (field, bomb)
                self.assertIsNone(self.answered(ChatRequest, body))

    def test_long_numbers(self) -> None:
        long = b"9" * 100_000
        for field in (b"max_tokens", b"prompt", b"model", b"stream"):
            body = b'{"model":"m","prompt":"a","%b":%b}' % (field, long)
            self.assertIsNone(self.answered(CompletionRequest, body))
        body = b'{"model":"m","prompt":[%b]}' % long
        self.assertIsNone(self.answered(CompletionRequest, body))

    @given(st.binary(max_size=200))
    def test_random_bytes(self, body: bytes) -> None:
        for kind in self.KINDS:
            self.answered(kind, body)

    @given(st.binary(max_size=20), st.integers(0, 60))
    def test_random_bytes_inside_a_good_body(self, noise: bytes, at: int) -> None:
        good = b'{"model":"m","messages":[{"role":"user"}],"prompt":["hello"]}'
        for kind in self.KINDS:
            self.answered(kind, good[:at] + noise + good[at:])

    @given(VALUES)
    @example({"model": "m", "prompt": [1e308 * 10]})
    def test_random_json(self, value: Any) -> None:
        body = json.dumps(value).encode()
        for kind in self.KINDS:
            self.answered(kind, body)

    @given(st.dictionaries(FIELDS, VALUES), FIELDS, VALUES)
    def test_one_field_wrong(self, extra: dict[str, Any], field: str, value: Any) -> None:
        good = {"model": "m", "prompt": "a", **HI, "stream": True, "max_tokens": 4}
        body = json.dumps({**good, field: value}).encode()
        for kind in self.KINDS:
            self.answered(kind, body)
            self.answered(kind, json.dumps({**good, **extra}).encode())


class MediaTypeTests(RequestCase):
    """``Content-Type``."""

    BODY = b'{"model":"m","prompt":"a"}'

    def test_json(self) -> None:
        for media_type in (
            None,
            "application/json",
            "Application/JSON",
            "application/json; charset=utf-8",
            "application/json;charset=UTF-8",
            " application/json ; x=y",
        ):
            self.assertEqual(decode(CompletionRequest, media_type, self.BODY).model, "m")

    def test_other(self) -> None:
        for media_type in (
            "",
            "text/plain",
            "text/json",
            "application/jsonx",
            "application/xml; x=application/json",
            "application/x-www-form-urlencoded",
            "multipart/form-data; boundary=x",
            "x" * 10_000,
            "é",
        ):
            error = self.assertRaises(ApiError, decode, CompletionRequest, media_type, self.BODY)
            self.refused(error, 415, "unsupported_media_type")
            self.assertIn("application/json", error.message)

    @given(st.text(max_size=40))
    def test_anything(self, media_type: str) -> None:
        try:
            decode(CompletionRequest, media_type, self.BODY)
        except ApiError as error:
            self.refused(error, 415, "unsupported_media_type")
        else:
            self.assertTrue(media_type.strip().lower().startswith("application/json"))
