"""The parameters that go with any stream, healthy ones too."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from inference_lab.faults.grammar import parse_table
from inference_lab.faults.modes import built_in
from inference_lab.faults.shaping import BOM, KEEPALIVES, shaped
from inference_lab.faults.steps import AwaitToken, End, Head, Hold, Pause, Raw, Send, Step
from tests.labs import CHAT, COMPLETIONS, Server, request
from tests.memory import TERMINATOR, Connection

FRAMES = [b'data: {"a":"x,y","b":[1,2]}\n\n', b": hello\n\n", b"data: [DONE]\n\n"]


def run(steps: list[Step], **values: object) -> list[Step]:
    return list(shaped(iter(steps), {"every_ms": 1000, **values}))  # type: ignore[dict-item]


def sent(steps: list[Step]) -> bytes:
    return b"".join(step.data for step in steps if isinstance(step, Send))


class PureTests(SynchronousTestCase):
    """On plain steps."""

    steps: tuple[Step, ...] = (*map(Send, FRAMES), End.CLEAN)

    def framed(self, framing: str) -> bytes:
        return sent(run(list(self.steps), framing=framing))

    def test_defaults_change_nothing(self) -> None:
        same = run(list(self.steps), framing="lf", segment=0, keepalive="none", end="own")
        self.assertEqual(same, list(self.steps))

    def test_line_ends(self) -> None:
        whole = b"".join(FRAMES)
        self.assertEqual(self.framed("crlf"), whole.replace(b"\n", b"\r\n"))
        self.assertEqual(self.framed("cr"), whole.replace(b"\n", b"\r"))
        self.assertEqual(
            self.framed("mixed"),
            FRAMES[0] + FRAMES[1].replace(b"\n", b"\r\n") + FRAMES[2].replace(b"\n", b"\r"),
        )

    def test_fields(self) -> None:
        self.assertTrue(self.framed("nospace").startswith(b'data:{"a":"x,y"'))
        self.assertIn(b"data:[DONE]", self.framed("nospace"))
        self.assertEqual(self.framed("bom"), BOM + b"".join(FRAMES))
        lines = self.framed("multiline").split(b"\n\n")[0].split(b"\n")
        self.assertEqual(len(lines), 3)
        payload = b"\n".join(line.removeprefix(b"data: ") for line in lines)
        self.assertEqual(json.loads(payload), {"a": "x,y", "b": [1, 2]})

    def test_bytes_that_are_no_text_stay(self) -> None:
        steps: list[Step] = [Send(b"\n\n", opaque=True), Raw(b"\n"), End.FIN]
        self.assertEqual(run(steps, framing="crlf"), steps)

    @given(st.binary(max_size=60), st.integers(1, 20))
    def test_segments(self, data: bytes, size: int) -> None:
        steps = run([Send(data), End.FIN], segment=size)
        pieces = [step for step in steps if isinstance(step, Send)]
        self.assertEqual(b"".join(piece.data for piece in pieces), data)
        self.assertLessEqual(max(len(piece.data) for piece in pieces), size)
        self.assertEqual(sum(piece.frames for piece in pieces), 1)
        self.assertEqual(steps.count(Pause(0)), len(pieces) - 1)

    def test_ends(self) -> None:
        for name, end in (("fin", End.FIN), ("rst", End.RST), ("clean", End.CLEAN)):
            self.assertEqual(run([Send(b"x"), End.HOLD], end=name), [Send(b"x"), end])

    def test_keepalives_run_by_the_clock(self) -> None:
        ping = Send(KEEPALIVES["retry"])
        steps = run([Send(b"a"), Pause(0.7), Send(b"b"), Pause(1.5), End.CLEAN], keepalive="retry")
        pauses = [round(step.seconds, 6) for step in steps if isinstance(step, Pause)]
        self.assertEqual(pauses, [0.7, 0.3, 1.0, 0.2])
        self.assertEqual(steps.count(ping), 2)
        self.assertEqual(run([AwaitToken()], keepalive="retry"), [AwaitToken(ping.data, 1.0)])

    def test_keepalives_wait_for_the_head_and_outlive_a_stall(self) -> None:
        steps = shaped(
            iter([Pause(5.0), Head(), Send(b"a"), End.HOLD]),
            {"keepalive": "comment", "every_ms": 1000},
            own_head=True,
        )
        ping = Send(KEEPALIVES["comment"])
        begun = [next(steps) for _ in range(8)]
        self.assertEqual(
            begun, [Pause(5.0), Head(), Send(b"a"), Hold(), Pause(1.0), ping, Pause(1.0), ping]
        )


class ServedTests(SynchronousTestCase):
    """Through the routes."""

    def ask(self, fault: str | None, path: str = CHAT, seconds: float = 3.0) -> Connection:
        server = Server(directives=True)
        headers = () if fault is None else (f"x-inference-lab-fault: {fault}",)
        connection = server.post(path, request(path, max_tokens=5), *headers)
        server.run(seconds)
        return connection

    def payloads(self, text: bytes) -> list[object]:
        """What a stream says, without what differs from one to the next."""
        events = [event.removeprefix(b"data: ") for event in text.split(b"\n\n") if event]
        choices = [json.loads(event)["choices"] for event in events if event != b"[DONE]"]
        return [*choices, *(event for event in events if event == b"[DONE]")]

    def test_none_is_a_healthy_stream(self) -> None:
        for path in (CHAT, COMPLETIONS):
            healthy = self.payloads(self.ask(None, path).text)
            self.assertEqual(self.payloads(self.ask("none", path).text), healthy)
            crlf = self.ask("none;framing=crlf", path).text
            self.assertEqual(self.payloads(crlf.replace(b"\r\n", b"\n")), healthy)
            self.assertEqual(crlf.count(b"\r\n"), crlf.count(b"\n"))

    def test_a_healthy_stream_can_end_badly(self) -> None:
        connection = self.ask("none;end=fin")
        self.assertTrue(connection.text.endswith(b"data: [DONE]\n\n"))
        self.assertFalse(connection.rest.endswith(TERMINATOR))
        self.assertEqual(connection.closings, ["FIN"])

    def test_segments_of_a_healthy_stream(self) -> None:
        whole = self.payloads(self.ask(None).text)
        connection = self.ask("none;segment=7")
        self.assertEqual(self.payloads(connection.text), whole)
        self.assertTrue(connection.rest.startswith(b"7\r\ndata: {\r\n7\r\n"))

    def test_keepalives_while_the_engine_is_waited_for(self) -> None:
        said = self.ask("none;keepalive=comment;every_ms=1").text
        plain = said.replace(KEEPALIVES["comment"], b"")
        self.assertEqual(self.payloads(plain), self.payloads(self.ask(None).text))
        self.assertGreater(said.count(KEEPALIVES["comment"]), 3)

    def test_the_end_of_a_mode(self) -> None:
        self.assertEqual(self.ask("no_done;end=fin").closings, ["FIN"])
        clean = self.ask("reset;end=clean")
        self.assertTrue(clean.rest.endswith(TERMINATOR))
        self.assertEqual(clean.closings, [])

    def test_the_name_of_thinking(self) -> None:
        for field, names in (
            ("reasoning", {"reasoning"}),
            ("reasoning_content", {"reasoning_content"}),
            ("both", {"reasoning", "reasoning_content"}),
        ):
            text = self.ask(f"mid_reasoning;field={field}").text
            last = json.loads(text.split(b"\n\n")[-2].removeprefix(b"data: "))
            self.assertEqual(set(last["choices"][0]["delta"]), names)

    def test_the_engine_paces_a_death(self) -> None:
        paced = self.ask("cut_between_frames;pace=engine")
        self.assertEqual(paced.closings, ["FIN"])
        plain = self.ask("cut_between_frames")
        self.assertEqual(self.payloads(paced.text), self.payloads(plain.text))
        server = Server(directives=True)
        header = "x-inference-lab-fault: cut_between_frames;pace=engine;delay_ms=0"
        connection = server.post(CHAT, request(CHAT), header)
        # No token of the engine, no frame: only the role is there.
        self.assertEqual(connection.text.count(b"data: "), 1)
        server.run(3.0)
        self.assertEqual(connection.text.count(b"data: "), 4)

    def test_a_chat_mode_is_refused_on_completions(self) -> None:
        connection = self.ask("tool_index", COMPLETIONS)
        self.assertEqual(connection.head[0], 400)
        self.assertIn(b"for chat only", connection.rest)

    def test_a_model_can_be_shaped_by_its_configuration(self) -> None:
        table = {"mode": "none", "framing": "crlf"}
        server = Server(directives=False, fault=parse_table(table, built_in()))
        connection = server.post(CHAT, request(CHAT, max_tokens=5))
        server.run(3.0)
        self.assertTrue(connection.text.endswith(b"data: [DONE]\r\n\r\n"))
        table = {"mode": "finish_abort", "reason": "error"}
        server = Server(directives=False, fault=parse_table(table, built_in()))
        connection = server.post(CHAT, request(CHAT))
        server.run(3.0)
        self.assertIn(b'"finish_reason":"error"', connection.text)
