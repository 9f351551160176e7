"""The frames of both dialects, byte for byte."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from inference_lab.dialects import sse
from inference_lab.dialects.base import Identity, Said, Usage
from inference_lab.dialects.chat import Chat
from inference_lab.dialects.completions import Completions

IDENTITY = Identity("chatcmpl-00112233445566778899aabbccddeeff", 1_700_000_000, "DeepSeek-V4-Flash")
CHAT_HEAD = (
    b'data: {"id":"chatcmpl-00112233445566778899aabbccddeeff",'
    b'"object":"chat.completion.chunk","created":1700000000,"model":"DeepSeek-V4-Flash",'
)
TEXT_HEAD = CHAT_HEAD.replace(b"chat.completion.chunk", b"text_completion")


def payload(frame: bytes) -> Any:
    return json.loads(frame.removeprefix(b"data: "))


class SseTests(SynchronousTestCase):
    """An event in bytes."""

    def test_frame(self) -> None:
        self.assertEqual(sse.frame(b"{}"), b"data: {}\n\n")

    def test_done(self) -> None:
        self.assertEqual(sse.DONE, b"data: [DONE]\n\n")


class ChatTests(SynchronousTestCase):
    """``chat.completion.chunk``."""

    def setUp(self) -> None:
        self.chat = Chat(IDENTITY)

    def check(self, frame: bytes, rest: bytes) -> None:
        self.assertEqual(frame, CHAT_HEAD + rest + b"}\n\n")

    def test_role(self) -> None:
        self.check(
            self.chat.role(),
            b'"choices":[{"index":0,"delta":{"role":"assistant","content":""},'
            b'"logprobs":null,"finish_reason":null}]',
        )

    def test_content(self) -> None:
        self.check(
            self.chat.content(Said(" birch1.")),
            b'"choices":[{"index":0,"delta":{"content":" birch1."},'
            b'"logprobs":null,"finish_reason":null}]',
        )

    def test_reasoning(self) -> None:
        self.check(
            self.chat.reasoning(Said("amber0.")),
            b'"choices":[{"index":0,"delta":{"reasoning_content":"amber0."},'
            b'"logprobs":null,"finish_reason":null}]',
        )

    def test_tool_call(self) -> None:
        self.check(
            self.chat.tool_opening("lookup"),
            b'"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,'
            b'"id":"call_001122334455667788990","type":"function",'
            b'"function":{"name":"lookup","arguments":""}}]},'
            b'"logprobs":null,"finish_reason":null}]',
        )
        self.check(
            self.chat.tool_arguments(Said('{"query":"')),
            b'"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,'
            b'"function":{"arguments":"{\\"query\\":\\""}}]},'
            b'"logprobs":null,"finish_reason":null}]',
        )

    def test_a_second_tool_call_has_its_own_index_and_id(self) -> None:
        def call(frame: bytes) -> Any:
            return payload(frame)["choices"][0]["delta"]["tool_calls"][0]

        first, second = (call(self.chat.tool_opening(name)) for name in ("a", "b"))
        self.assertEqual((first["index"], second["index"]), (0, 1))
        self.assertNotEqual(first["id"], second["id"])
        self.assertEqual(call(self.chat.tool_arguments(Said("{}")))["index"], 1)

    def test_finish(self) -> None:
        for reason in (b"stop", b"length"):
            self.check(
                self.chat.finish(reason.decode()),
                b'"choices":[{"index":0,"delta":{},"logprobs":null,'
                b'"finish_reason":"%b","stop_reason":null}]' % reason,
            )

    def test_usage(self) -> None:
        self.check(
            self.chat.usage(Usage(5, 3)),
            b'"choices":[],"usage":{"prompt_tokens":5,"total_tokens":8,"completion_tokens":3}',
        )

    def test_done(self) -> None:
        self.assertEqual(self.chat.done(), b"data: [DONE]\n\n")


class CompletionsTests(SynchronousTestCase):
    """``text_completion``."""

    def setUp(self) -> None:
        self.speaker = Completions(IDENTITY)

    def check(self, frame: bytes, text: bytes) -> None:
        self.assertEqual(
            frame,
            TEXT_HEAD
            + b'"choices":[{"index":0,"text":"%b","logprobs":null,"finish_reason":null}]}\n\n'
            % text,
        )

    def test_no_role(self) -> None:
        speaker: Any = self.speaker
        self.assertIsNone(speaker.role())

    def test_content(self) -> None:
        self.check(self.speaker.content(Said("amber0.")), b"amber0.")
        self.check(self.speaker.content(Said(" birch1.")), b" birch1.")

    def test_reasoning_opens_a_block_once(self) -> None:
        self.check(self.speaker.reasoning(Said("amber0.")), b"<think>amber0.")
        self.check(self.speaker.reasoning(Said(" birch1.")), b" birch1.")

    def test_content_closes_the_block_once(self) -> None:
        self.speaker.reasoning(Said("a"))
        self.check(self.speaker.content(Said("b")), b"</think>b")
        self.check(self.speaker.content(Said("c")), b"c")

    def test_tool_call_shares_a_frame_with_its_first_arguments(self) -> None:
        speaker: Any = self.speaker
        self.assertIsNone(speaker.tool_opening('look"up'))
        self.check(
            self.speaker.tool_arguments(Said('{"q')),
            b'{\\"name\\":\\"look\\\\\\"up\\",\\"arguments\\":{\\"q',
        )
        self.check(self.speaker.tool_arguments(Said("x")), b"x")

    def test_finish(self) -> None:
        self.assertEqual(
            self.speaker.finish("length"),
            TEXT_HEAD + b'"choices":[{"index":0,"text":"","logprobs":null,'
            b'"finish_reason":"length","stop_reason":null}]}\n\n',
        )

    def test_usage(self) -> None:
        self.assertEqual(
            self.speaker.usage(Usage(4, 64)),
            TEXT_HEAD + b'"choices":[],"usage":{"prompt_tokens":4,"total_tokens":68,'
            b'"completion_tokens":64}}\n\n',
        )

    def test_done(self) -> None:
        self.assertEqual(self.speaker.done(), b"data: [DONE]\n\n")


class AnyTextTests(SynchronousTestCase):
    """Whatever is said, a frame is one event that reads back."""

    @given(st.text(), st.text())
    def test_reads_back(self, text: str, model: str) -> None:
        identity = Identity("id-1", 1, model)
        chat, completions = Chat(identity), Completions(identity)
        frames = [
            (chat.content(Said(text)), ["delta", "content"]),
            (chat.reasoning(Said(text)), ["delta", "reasoning_content"]),
            (completions.content(Said(text)), ["text"]),
        ]
        for frame, where in frames:
            self.assertTrue(frame.startswith(b"data: {"))
            # One blank line, at the end: an event is never cut in two by its text.
            self.assertEqual(frame.index(b"\n"), len(frame) - 2)
            self.assertNotIn(b"\r", frame)
            found = payload(frame)
            self.assertEqual(found["model"], model)
            value = found["choices"][0]
            for key in where:
                value = value[key]
            self.assertEqual(value, text)

    @given(st.integers(0, 10**12), st.integers(0, 10**12))
    def test_usage_adds_up(self, prompt: int, completion: int) -> None:
        usage = payload(Chat(IDENTITY).usage(Usage(prompt, completion)))["usage"]
        self.assertEqual(
            usage,
            {
                "prompt_tokens": prompt,
                "completion_tokens": completion,
                "total_tokens": prompt + completion,
            },
        )
