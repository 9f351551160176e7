"""Every mode's frames and end, in both dialects, spelt out here once more by hand."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from typing import Any

from attrs import define
from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from inference_lab.dialects.base import Identity, Said, Usage
from inference_lab.dialects.chat import Chat
from inference_lab.dialects.completions import Completions
from inference_lab.faults.grammar import Fault
from inference_lab.faults.modes import MODES
from inference_lab.faults.script import Scene
from inference_lab.faults.steps import End, Pause, Send, Step

COUNTS = (0, 1, 2, 3, 7)
IDENTITY = Identity("chatcmpl-0123456789abcdef0123456789abcdef", 1_700_000_000, "lab-1")
PROMPT_TOKENS = 11

ENDS = {
    "cut_between_frames": End.FIN,
    "cut_mid_frame": End.FIN,
    "reset": End.RST,
    "stall": End.HOLD,
    "error_envelope_200": End.CLEAN,
    "error_400_in_sse": End.CLEAN,
    "no_done": End.CLEAN,
    "no_usage": End.CLEAN,
    "cancelled_499": End.CLEAN,
    "mid_reasoning": End.FIN,
    "mid_tool_call": End.FIN,
}
DONE = b"data: [DONE]\n\n"


def token(index: int) -> str:
    return f" tok{index}." if index else "tok0."


@define
class Played:
    """What one mode did: the pieces sent, the pauses between, the end."""

    pieces: list[bytes]
    pauses: list[float]
    end: Step
    kinds: str

    def events(self) -> list[Any]:
        """The pieces' JSON; each must be one whole event."""
        return [event(piece) for piece in self.pieces]


def event(piece: bytes) -> Any:
    assert piece.startswith(b"data: ") and piece.endswith(b"\n\n"), piece
    payload = piece[len(b"data: ") : -2]
    assert b"\n" not in payload
    return payload.decode() if payload == b"[DONE]" else json.loads(payload)


def scene(
    dialect: type[Chat] | type[Completions],
    fault: Fault,
    usage_requested: bool,
    identity: Identity = IDENTITY,
) -> Scene:
    return Scene(
        dialect=dialect(identity),
        fault=fault,
        token=lambda index: Said(token(index)),
        usage=Usage(PROMPT_TOKENS, fault.after_chunks),
        usage_requested=usage_requested,
    )


def steps(
    dialect: type[Chat] | type[Completions], fault: Fault, usage_requested: bool = False
) -> Iterator[Step]:
    return MODES[fault.mode].steps(scene(dialect, fault, usage_requested))


def play(
    dialect: type[Chat] | type[Completions],
    fault: Fault,
    usage_requested: bool = False,
    identity: Identity = IDENTITY,
) -> Played:
    *body, last = MODES[fault.mode].steps(scene(dialect, fault, usage_requested, identity))
    return Played(
        [step.data for step in body if isinstance(step, Send)],
        [step.seconds for step in body if isinstance(step, Pause)],
        last,
        "".join("s" if isinstance(step, Send) else "p" for step in body),
    )


def chat_delta(delta: dict[str, Any], **choice: Any) -> dict[str, Any]:
    """A chat chunk, as the test expects it."""
    return {
        "id": IDENTITY.id,
        "object": "chat.completion.chunk",
        "created": 1_700_000_000,
        "model": "lab-1",
        "choices": [
            {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None, **choice}
        ],
    }


def text_chunk(text: str, **choice: Any) -> dict[str, Any]:
    """A completion chunk, as the test expects it."""
    return {
        "id": IDENTITY.id,
        "object": "text_completion",
        "created": 1_700_000_000,
        "model": "lab-1",
        "choices": [{"index": 0, "text": text, "logprobs": None, "finish_reason": None, **choice}],
    }


ROLE = chat_delta({"role": "assistant", "content": ""})
STOPPED = {"finish_reason": "stop", "stop_reason": None}


def chat_answer(count: int) -> list[Any]:
    return [ROLE, *(chat_delta({"content": token(i)}) for i in range(count))]


def text_answer(count: int) -> list[Any]:
    return [text_chunk(token(i)) for i in range(count)]


def usage_event(kind: str, count: int) -> dict[str, Any]:
    return {
        "id": IDENTITY.id,
        "object": kind,
        "created": 1_700_000_000,
        "model": "lab-1",
        "choices": [],
        "usage": {
            "prompt_tokens": PROMPT_TOKENS,
            "completion_tokens": count,
            "total_tokens": PROMPT_TOKENS + count,
        },
    }


class EveryModeTests(SynchronousTestCase):
    """What holds for all of them."""

    def test_ends(self) -> None:
        self.assertEqual(set(ENDS), set(MODES))
        for mode, end in ENDS.items():
            for dialect in (Chat, Completions):
                for count in COUNTS:
                    self.assertIs(play(dialect, Fault(mode, count)).end, end, mode)

    def test_delay_between_any_two_frames_and_nowhere_else(self) -> None:
        for mode in ENDS:
            for dialect in (Chat, Completions):
                for count in COUNTS:
                    for usage_requested in (True, False):
                        played = play(dialect, Fault(mode, count, delay_ms=1234), usage_requested)
                        frames = len(played.pieces)
                        self.assertEqual(played.kinds, "p".join("s" * frames), mode)
                        self.assertEqual(played.pauses, [1.234] * max(0, frames - 1))

    def test_no_delay_still_yields_between_frames(self) -> None:
        for mode in ENDS:
            played = play(Chat, Fault(mode, 3, delay_ms=0))
            self.assertEqual(played.pauses, [0.0] * (len(played.pieces) - 1))

    def test_answer_comes_first(self) -> None:
        """Role frame (not counted) and N content frames, in all but the two special modes."""
        for mode in set(ENDS) - {"mid_reasoning", "mid_tool_call"}:
            for count in COUNTS:
                chat = play(Chat, Fault(mode, count)).pieces[: count + 1]
                self.assertEqual([event(piece) for piece in chat], chat_answer(count), mode)
                text = play(Completions, Fault(mode, count)).pieces[:count]
                self.assertEqual([event(piece) for piece in text], text_answer(count), mode)

    @given(
        st.sampled_from(sorted(ENDS)),
        st.integers(0, 20),
        st.integers(0, 2**64 - 1),
        st.booleans(),
        st.sampled_from([Chat, Completions]),
    )
    def test_same_trigger_same_steps(
        self,
        mode: str,
        count: int,
        delay: int,
        usage_requested: bool,
        dialect: type[Chat] | type[Completions],
    ) -> None:
        fault = Fault(mode, count, delay)
        self.assertEqual(
            list(steps(dialect, fault, usage_requested)),
            list(steps(dialect, fault, usage_requested)),
        )

    def test_largest_count_is_lazy(self) -> None:
        for mode in ENDS:
            for dialect in (Chat, Completions):
                some = list(islice(steps(dialect, Fault(mode, 2**32 - 1)), 101))
                self.assertEqual(sum(isinstance(step, Send) for step in some), 51, mode)

    def test_largest_delay_is_exact_enough(self) -> None:
        played = play(Chat, Fault("reset", 1, delay_ms=2**64 - 1))
        self.assertEqual(played.pauses, [18446744073709551.615])


class CutTests(SynchronousTestCase):
    """`cut_between_frames`, `reset` and `stall` say the answer and no more."""

    def test_nothing_after_the_answer(self) -> None:
        for mode in ("cut_between_frames", "reset", "stall"):
            for usage_requested in (True, False):
                for count in COUNTS:
                    fault = Fault(mode, count)
                    self.assertEqual(
                        play(Chat, fault, usage_requested).events(), chat_answer(count)
                    )
                    self.assertEqual(
                        play(Completions, fault, usage_requested).events(), text_answer(count)
                    )


class CutMidFrameTests(SynchronousTestCase):
    """The next frame, torn."""

    def test_torn_at_half(self) -> None:
        """A run of one more frame tells what the torn one would have been."""
        for dialect in (Chat, Completions):
            for count in COUNTS:
                *whole, torn = play(dialect, Fault("cut_mid_frame", count)).pieces
                *same, following = play(dialect, Fault("stall", count + 1)).pieces
                self.assertEqual(whole, same)
                self.assertEqual(torn, following[: len(following) // 2])
                self.assertRaises(ValueError, json.loads, torn.removeprefix(b"data: "))

    def test_torn_at_half_byte_exact(self) -> None:
        *_, torn = play(Completions, Fault("cut_mid_frame", 0)).pieces
        whole = (
            b'data: {"id":"chatcmpl-0123456789abcdef0123456789abcdef","object":"text_completion",'
            b'"created":1700000000,"model":"lab-1","choices":[{"index":0,"text":"tok0.",'
            b'"logprobs":null,"finish_reason":null}]}\n\n'
        )
        self.assertEqual(torn, whole[: len(whole) // 2])

    def check_utf8(self, dialect: type[Chat] | type[Completions], model: str, count: int) -> None:
        identity = Identity(IDENTITY.id, 1_700_000_000, model)
        fault = Fault("cut_mid_frame", count, utf8=True)
        *whole, torn = play(dialect, fault, identity=identity).pieces
        for piece in whole:
            piece.decode("utf-8")
        field = b'"content":"' if dialect is Chat else b'"text":"'
        # One byte of two, and it stands in the delta's text, after the token due next.
        self.assertTrue(torn.endswith(field + token(count).encode() + b"\xc3"), torn)
        error = self.assertRaises(UnicodeDecodeError, torn.decode, "utf-8")
        self.assertEqual((error.start, error.reason), (len(torn) - 1, "unexpected end of data"))
        # What the missing byte completes is an é, and a frame that would have parsed.
        rest = b'\xa9"' + (b"}" if dialect is Chat else b"")
        completed = torn.removeprefix(b"data: ") + rest + b"}]}"
        parsed = json.loads(completed)
        self.assertEqual(parsed["model"], model)

    def test_cut_one_byte_into_the_character(self) -> None:
        for dialect in (Chat, Completions):
            for count in COUNTS:
                self.check_utf8(dialect, "lab-1", count)

    def test_names_with_the_same_character(self) -> None:
        for dialect in (Chat, Completions):
            for model in ("é", "modèle-éé", "caf\u00e9 \u00e9", "e\u0301"):
                self.check_utf8(dialect, model, 2)

    @given(st.text(min_size=1), st.integers(0, 5), st.sampled_from([Chat, Completions]))
    def test_any_name(
        self, model: str, count: int, dialect: type[Chat] | type[Completions]
    ) -> None:
        self.check_utf8(dialect, model, count)

    def test_utf8_false_is_the_half(self) -> None:
        self.assertEqual(
            play(Chat, Fault("cut_mid_frame", 2, utf8=False)).pieces,
            play(Chat, Fault("cut_mid_frame", 2)).pieces,
        )


class ErrorBodyTests(SynchronousTestCase):
    """What is said instead of an answer's end."""

    def last(self, mode: str, extra: int) -> list[bytes]:
        """The pieces after the answer, the same whatever came before it."""
        seen = []
        for usage_requested in (True, False):
            for count in COUNTS:
                fault = Fault(mode, count)
                chat = play(Chat, fault, usage_requested).pieces
                text = play(Completions, fault, usage_requested).pieces
                self.assertEqual((len(chat), len(text)), (1 + count + extra, count + extra))
                seen += [chat[-extra:], text[-extra:]]
        for one in seen:
            self.assertEqual(one, seen[0])
        return seen[0]

    def test_cancelled_499_is_byte_exact(self) -> None:
        self.assertEqual(
            self.last("cancelled_499", 1),
            [
                b'data: {"error":{"code":499,"message":"CancelledError: ",'
                b'"type":"request_cancelled"}}\n\n'
            ],
        )

    def test_error_envelope_200(self) -> None:
        envelope, done = self.last("error_envelope_200", 2)
        self.assertEqual(done, DONE)
        error = event(envelope)["error"]
        self.assertEqual(set(event(envelope)), {"error"})
        self.assertEqual(error["code"], 502)
        self.assertIsInstance(error["message"], str)
        self.assertIsInstance(error["metadata"], dict)
        self.assertEqual(list(error), ["message", "code", "metadata"])
        self.assertTrue(error["message"])

    def test_error_400_in_sse(self) -> None:
        (piece,) = self.last("error_400_in_sse", 1)
        error = event(piece)
        self.assertEqual((error["object"], error["code"]), ("error", 400))
        self.assertTrue(piece.startswith(b'data: {"object":"error",'))
        self.assertTrue(piece.endswith(b'"code":400}\n\n'))
        self.assertTrue(error["message"])


class UsageTests(SynchronousTestCase):
    """`no_done` and `no_usage`: a finish, and then not what a client counts on."""

    def test_no_done(self) -> None:
        for count in COUNTS:
            fault = Fault("no_done", count)
            finish = chat_delta({}, **STOPPED)
            self.assertEqual(play(Chat, fault, False).events(), [*chat_answer(count), finish])
            self.assertEqual(
                play(Chat, fault, True).events(),
                [*chat_answer(count), finish, usage_event("chat.completion.chunk", count)],
            )
            finish = text_chunk("", **STOPPED)
            self.assertEqual(
                play(Completions, fault, False).events(), [*text_answer(count), finish]
            )
            self.assertEqual(
                play(Completions, fault, True).events(),
                [*text_answer(count), finish, usage_event("text_completion", count)],
            )

    def test_no_usage(self) -> None:
        for usage_requested in (True, False):
            for count in COUNTS:
                fault = Fault("no_usage", count)
                self.assertEqual(
                    play(Chat, fault, usage_requested).events(),
                    [*chat_answer(count), chat_delta({}, **STOPPED), "[DONE]"],
                )
                self.assertEqual(
                    play(Completions, fault, usage_requested).events(),
                    [*text_answer(count), text_chunk("", **STOPPED), "[DONE]"],
                )


class MidReasoningTests(SynchronousTestCase):
    """Thinking without an end."""

    def test_chat(self) -> None:
        for count in COUNTS:
            thoughts = [chat_delta({"reasoning_content": token(i)}) for i in range(count)]
            self.assertEqual(
                play(Chat, Fault("mid_reasoning", count), True).events(), [ROLE, *thoughts]
            )

    def test_completions(self) -> None:
        self.assertEqual(play(Completions, Fault("mid_reasoning", 0)).events(), [])
        for count in COUNTS[1:]:
            self.assertEqual(
                play(Completions, Fault("mid_reasoning", count), True).events(),
                [
                    text_chunk("<think>tok0."),
                    *(text_chunk(token(i)) for i in range(1, count)),
                ],
            )


class MidToolCallTests(SynchronousTestCase):
    """A call whose arguments never terminate."""

    def arguments(self, text: str) -> None:
        """``text`` is the beginning of a JSON object, and not the end of one."""
        self.assertTrue(text.startswith("{"))
        self.assertRaises(ValueError, json.loads, text)
        # Closing the string and the object is all that is missing.
        self.assertEqual(list(json.loads(text + '"}')), ["query"])

    def test_chat(self) -> None:
        for count in COUNTS:
            role, *calls = play(Chat, Fault("mid_tool_call", count), True).events()
            self.assertEqual(role, ROLE)
            self.assertEqual(len(calls), count)
            for frame in calls:
                (choice,) = frame["choices"]
                self.assertEqual(set(choice["delta"]), {"tool_calls"})
                self.assertIsNone(choice["finish_reason"])
            pieces = [frame["choices"][0]["delta"]["tool_calls"] for frame in calls]
            if count:
                ((opening,), *rest) = pieces
                self.assertEqual(
                    opening,
                    {
                        "index": 0,
                        "id": "call_0123456789abcdef01230",
                        "type": "function",
                        "function": {"name": "lookup", "arguments": ""},
                    },
                )
                for (fragment,) in rest:
                    self.assertEqual(set(fragment), {"index", "function"})
                    self.assertEqual(fragment["index"], 0)
                    self.assertEqual(set(fragment["function"]), {"arguments"})
                    self.assertTrue(fragment["function"]["arguments"])
                if rest:
                    self.arguments("".join(f["function"]["arguments"] for (f,) in rest))

    def test_completions(self) -> None:
        self.assertEqual(play(Completions, Fault("mid_tool_call", 0)).events(), [])
        for count in COUNTS[1:]:
            events = play(Completions, Fault("mid_tool_call", count), True).events()
            texts = [frame["choices"][0]["text"] for frame in events]
            self.assertEqual(events, [text_chunk(text) for text in texts])
            self.assertEqual(len(texts), count)
            opening = '{"name":"lookup","arguments":'
            # The opening shares frame 1 with the first payload.
            self.assertTrue(texts[0].startswith(opening))
            self.assertIn("tok0.", texts[0])
            self.assertEqual(texts[1:], [token(i) for i in range(1, count)])
            whole = "".join(texts)
            self.assertRaises(ValueError, json.loads, whole)
            self.arguments(whole.removeprefix(opening))
            self.assertEqual(json.loads(whole + '"}}')["name"], "lookup")
