"""The whole server in memory: what is answered, healthy or dying, and what is left behind."""

from __future__ import annotations

import json
import re
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from inference_lab.content.prompt import Prompt
from inference_lab.faults.grammar import Fault, ModelFault
from inference_lab.pacing.backend import Job, Listener
from inference_lab.web import exchange
from inference_lab.web.prompts import read_prompt
from tests.fixed_rate import FixedRate
from tests.labs import CHAT, COMPLETIONS, MODEL, Server, request
from tests.memory import TERMINATOR, Connection, chunk

PATHS = (CHAT, COMPLETIONS)
HEADER = "x-inference-lab-fault"
WORDS = ("amber0.", " birch1.", " cedar2.", " delta3.", " ebony4.", " fjord5.", " grove6.")
FIN_MODES = ("cut_between_frames", "mid_reasoning", "mid_tool_call", "cut_mid_frame", "reset")
CLEAN_MODES = ("error_envelope_200", "error_400_in_sse", "no_done", "no_usage", "cancelled_499")


def events(connection: Connection) -> list[Any]:
    """The data of every whole event, parsed where it is JSON."""
    *whole, rest = connection.text.split(b"\n\n")
    assert not rest, rest
    datas = [event.removeprefix(b"data: ").decode() for event in whole]
    return [data if data == "[DONE]" else json.loads(data) for data in datas]


def said(event: Any) -> str:
    """The text of one content frame."""
    choice = event["choices"][0]
    text: str = choice["delta"].get("content", "") if "delta" in choice else choice["text"]
    return text


class ApiCase(SynchronousTestCase):
    """A server that is clean when the test is over."""

    def setUp(self) -> None:
        self.server = Server()

    def left(self, connection: Connection) -> None:
        """After a client left, nothing of its is there."""
        connection.leave()
        self.assertEqual(self.server.lab.open, set())
        self.assertEqual(self.server.clock.getDelayedCalls(), [])
        self.assertEqual(self.flushLoggedErrors(), [])


class SmallRouteTests(ApiCase):
    """Health, models, CORS."""

    def test_health(self) -> None:
        connection = self.server.ask("GET", "/health")
        self.assertEqual(connection.head[0], 200)
        self.assertEqual(connection.head[1]["content-length"], "15")
        self.assertEqual(connection.rest, b'{"status":"ok"}')

    def test_models(self) -> None:
        listed = json.loads(self.server.ask("GET", "/v1/models").rest)
        self.assertEqual(listed["object"], "list")
        self.assertEqual([card["id"] for card in listed["data"]], [MODEL, "modèle-é"])
        card = listed["data"][0]
        self.assertEqual((card["object"], card["max_model_len"]), ("model", 4096))
        for name in (MODEL, "lab-one"):
            self.assertEqual(json.loads(self.server.ask("GET", f"/v1/models/{name}").rest), card)

    def test_every_answer_is_open_to_browsers(self) -> None:
        for connection in (
            self.server.ask("GET", "/health"),
            self.server.ask("GET", "/nothing"),
            self.server.post(CHAT, request(CHAT)),
            self.server.post(CHAT, request(CHAT), f"{HEADER}: stall"),
        ):
            headers = connection.head[1]
            self.assertEqual(headers["access-control-allow-origin"], "*")
            self.assertIn("x-inference-lab-", headers["access-control-expose-headers"])
            connection.leave()

    def test_preflight(self) -> None:
        for asked in ("x-inference-lab-fault, x-stainless-os", "x-\xff"):
            connection = self.server.ask(
                "OPTIONS",
                CHAT,
                b"",
                "Origin: http://browser",
                "Access-Control-Request-Method: POST",
                f"Access-Control-Request-Headers: {asked}",
            )
            self.assertIn(b" 204 ", connection.raw.partition(b"\r\n")[0])
            head = connection.raw.lower()
            self.assertIn(b"access-control-allow-origin: *", head)
            self.assertIn(asked.encode("latin-1"), head)
            for name in (b"post", b"content-type", b"authorization", b"x-inference-lab-fault"):
                self.assertIn(name, head)
        self.assertEqual(self.flushLoggedErrors(), [])


class HealthyStreamTests(ApiCase):
    """Without a trigger."""

    def stream(self, path: str, **fields: Any) -> list[Any]:
        connection = self.server.post(path, request(path, **fields))
        self.server.run(3.0)
        self.assertTrue(connection.rest.endswith(TERMINATOR))
        self.assertEqual(connection.closings, [])
        found = events(connection)
        self.left(connection)
        return found

    def test_frames(self) -> None:
        for path in PATHS:
            found = self.stream(path, max_tokens=3, stream_options={"include_usage": True})
            if path == CHAT:
                role = found.pop(0)["choices"][0]
                self.assertEqual(role["delta"], {"role": "assistant", "content": ""})
            *content, finish, usage, done = found
            self.assertEqual([said(event) for event in content], list(WORDS[:3]))
            self.assertEqual({e["choices"][0]["finish_reason"] for e in content}, {None})
            self.assertEqual(finish["choices"][0]["finish_reason"], "length")
            self.assertEqual(said(finish), "")
            self.assertEqual(usage["choices"], [])
            self.assertEqual(usage["usage"]["completion_tokens"], 3)
            self.assertEqual(done, "[DONE]")
            self.assertEqual(len({event["id"] for event in found[:-1]}), 1)
            self.assertEqual({event["model"] for event in found[:-1]}, {MODEL})

    def test_usage_only_if_asked_for(self) -> None:
        for path in PATHS:
            found = self.stream(path, max_tokens=2)
            self.assertTrue(all(event["choices"] for event in found[:-1]))
            self.assertTrue(all("usage" not in event for event in found[:-1]))

    def test_an_id_prompt_is_counted(self) -> None:
        found = self.stream(
            COMPLETIONS, prompt=[9] * 77, max_tokens=1, stream_options={"include_usage": True}
        )
        self.assertEqual(
            found[-2]["usage"], {"prompt_tokens": 77, "completion_tokens": 1, "total_tokens": 78}
        )

    def test_length_without_a_limit(self) -> None:
        *_, finish, _ = chat = self.stream(CHAT)
        self.assertEqual(len(chat), 1 + 8 + 2)
        self.assertEqual(finish["choices"][0]["finish_reason"], "stop")
        *_, finish, _ = text = self.stream(COMPLETIONS)
        self.assertEqual(len(text), 16 + 2)
        self.assertEqual(finish["choices"][0]["finish_reason"], "length")

    def test_a_token_a_frame_as_it_comes(self) -> None:
        connection = self.server.post(COMPLETIONS, request(COMPLETIONS, max_tokens=3))
        for count in range(3):
            self.assertEqual(connection.text.count(b"data: "), count)
            self.server.run(0.010)
        self.assertTrue(connection.text.endswith(b"data: [DONE]\n\n"))
        self.left(connection)

    def test_keep_alive(self) -> None:
        connection = self.server.connect()
        for _ in range(3):
            body = json.dumps(request(CHAT, max_tokens=1)).encode()
            connection.ask("POST", CHAT, body)
            self.server.run(0.1)
        self.assertEqual(connection.raw.count(TERMINATOR), 3)
        self.assertEqual(connection.raw.count(b"data: [DONE]"), 3)
        self.left(connection)

    def test_a_client_that_leaves(self) -> None:
        for path in PATHS:
            for stream in (True, False):
                connection = self.server.post(path, request(path, stream, max_tokens=1000))
                self.server.run(0.05)
                self.left(connection)


class WholeAnswerTests(ApiCase):
    """Not streamed."""

    def answer(self, path: str, **fields: Any) -> Any:
        connection = self.server.post(path, request(path, stream=False, **fields))
        self.server.run(3.0)
        status, headers = connection.head
        self.assertEqual(status, 200)
        self.assertEqual(headers["content-type"], "application/json")
        self.assertEqual(headers["content-length"], str(len(connection.rest)))
        answer = json.loads(connection.rest)
        self.left(connection)
        return answer

    def test_text_equals_the_joined_deltas(self) -> None:
        for path in PATHS:
            answer = self.answer(path, max_tokens=7)
            (choice,) = answer["choices"]
            text = choice["message"]["content"] if path == CHAT else choice["text"]
            self.assertEqual(text, "".join(WORDS))
            self.assertEqual(choice["finish_reason"], "length")
            self.assertEqual(answer["usage"]["completion_tokens"], 7)
            connection = self.server.post(path, request(path, max_tokens=7))
            self.server.run(1.0)
            frames = [event for event in events(connection)[:-1] if event["choices"]]
            self.assertEqual("".join(map(said, frames)), text)
            connection.leave()

    def test_objects(self) -> None:
        chat, text = self.answer(CHAT), self.answer(COMPLETIONS)
        self.assertEqual((chat["object"], text["object"]), ("chat.completion", "text_completion"))
        self.assertTrue(chat["id"].startswith("chatcmpl-"))
        self.assertTrue(text["id"].startswith("cmpl-"))
        self.assertEqual(chat["choices"][0]["message"]["role"], "assistant")
        self.assertEqual(chat["choices"][0]["finish_reason"], "stop")


class FaultTests(ApiCase):
    """Dying on demand, over the whole server."""

    def die(self, path: str, directive: str, **fields: Any) -> Connection:
        connection = self.server.post(path, request(path, **fields), f"{HEADER}: {directive}")
        self.server.run(0.2)
        return connection

    def test_ends(self) -> None:
        for path in PATHS:
            for count in (0, 1, 2, 3, 7):
                for mode in (*FIN_MODES, *CLEAN_MODES, "stall"):
                    connection = self.die(path, f"{mode};after_chunks={count}")
                    self.assertEqual(connection.head[0], 200)
                    clean = mode in CLEAN_MODES
                    self.assertEqual(connection.rest.endswith(TERMINATOR), clean, mode)
                    # There is no socket here, so a reset is a plain close too.
                    self.assertEqual(connection.closings, ["FIN"] * (mode in FIN_MODES), mode)
                    frames = connection.text.count(b"data: ")
                    extra = {"error_envelope_200": 2, "no_usage": 2, "cut_mid_frame": 1}
                    more = extra.get(mode, int(clean))
                    self.assertEqual(frames, count + more + (path == CHAT), mode)
                    self.left(connection)

    def test_a_frame_is_a_chunk(self) -> None:
        connection = self.die(CHAT, "cut_between_frames;after_chunks=2")
        frames = re.findall(rb"data: [^\n]+\n\n", connection.text)
        self.assertEqual(len(frames), 3)
        self.assertEqual(connection.rest, b"".join(map(chunk, frames)))
        self.left(connection)

    def test_a_torn_frame_is_a_whole_chunk(self) -> None:
        for directive in ("cut_mid_frame", "cut_mid_frame;utf8=true"):
            connection = self.die(CHAT, directive)
            *whole, torn = connection.text.split(b"\n\n")
            pieces = [frame + b"\n\n" for frame in whole] + [torn]
            self.assertEqual(connection.rest, b"".join(map(chunk, pieces)))
            self.left(connection)

    def test_content_words(self) -> None:
        for path in PATHS:
            connection = self.die(path, "cut_between_frames;after_chunks=5")
            found = events(connection)[1 if path == CHAT else 0 :]
            self.assertEqual([said(event) for event in found], list(WORDS[:5]))
            self.left(connection)

    def test_limits_do_not_matter(self) -> None:
        for path in PATHS:
            connection = self.die(
                path,
                "no_done;after_chunks=5",
                max_tokens=1,
                stop=["amber0."],
                stream_options={"include_usage": True},
            )
            *_, finish, usage = events(connection)
            self.assertEqual(finish["choices"][0]["finish_reason"], "stop")
            self.assertEqual(usage["usage"]["completion_tokens"], 5)
            if path == COMPLETIONS:
                self.assertEqual(usage["usage"]["prompt_tokens"], 4)
            self.left(connection)

    def test_paced_by_delay_ms(self) -> None:
        connection = self.server.post(
            COMPLETIONS, request(COMPLETIONS), f"{HEADER}: stall;after_chunks=4;delay_ms=50"
        )
        for count in (1, 2, 3, 4):
            self.assertEqual(connection.text.count(b"data: "), count)
            self.server.run(0.050)
        self.left(connection)

    def test_abrupt_modes_keep_the_grace(self) -> None:
        for mode in FIN_MODES:
            connection = self.server.post(
                COMPLETIONS,
                request(COMPLETIONS),
                f"{HEADER}: {mode};after_chunks=0;delay_ms=0",
            )
            self.server.run(0.020)
            self.assertEqual(connection.closings, [], mode)
            self.server.run(0.010)
            self.assertEqual(connection.closings, ["FIN"], mode)
            self.left(connection)

    def test_the_same_trigger_gives_the_same_bytes(self) -> None:
        for path in PATHS:
            for mode in (*FIN_MODES, *CLEAN_MODES):
                first = self.die(path, mode)
                self.server = Server()
                self.server.clock.turn(12345.678)
                second = self.die(path, mode)
                self.assertEqual(first.rest, second.rest)
                self.assertIn(b'"created":1700000000', first.rest)

    def test_the_id_depends_on_path_body_and_fault_alone(self) -> None:
        def identity(path: str, body: bytes, directive: str, *headers: str) -> str:
            headers = (*headers, f"{HEADER}: {directive}")
            connection = self.server.ask("POST", path, body, *headers)
            self.server.run(0.1)
            found = events(connection)[0]["id"]
            connection.leave()
            assert isinstance(found, str)
            return found

        body = json.dumps({**request(CHAT), "prompt": "a"}).encode()
        same = identity(CHAT, body, "no_done")
        for equal in (
            "no_done;after_chunks=3",
            " no_done ; delay_ms = 010;;",
            "no_done;utf8=false",
        ):
            self.assertEqual(
                identity(CHAT, body, equal, "x-request-id: 7", "authorization: x"), same
            )
        others = [
            identity(COMPLETIONS, body, "no_done"),
            identity(CHAT, body + b" ", "no_done"),
            identity(CHAT, body, "no_usage"),
            identity(CHAT, body, "no_done;after_chunks=4"),
            identity(CHAT, body, "no_done;delay_ms=11"),
        ]
        suffixes = {value.partition("-")[2] for value in [same, *others]}
        self.assertEqual(len(suffixes), 6)

    def test_the_largest_parameters_bother_nobody(self) -> None:
        greedy = self.server.post(
            CHAT, request(CHAT), f"{HEADER}: no_done;after_chunks={2**32 - 1};delay_ms=0"
        )
        patient = self.server.post(
            CHAT, request(CHAT), f"{HEADER}: no_done;after_chunks=1;delay_ms={2**64 - 1}"
        )
        healthy = self.server.post(CHAT, request(CHAT, max_tokens=5))
        self.server.run(0.1)
        self.assertTrue(healthy.rest.endswith(TERMINATOR))
        self.assertEqual(patient.text.count(b"data: "), 1)
        self.assertLess(greedy.text.count(b"data: "), 200)
        for connection in (greedy, patient, healthy):
            connection.leave()
        self.assertEqual(self.server.clock.getDelayedCalls(), [])

    def test_leaving_in_the_middle(self) -> None:
        for path in PATHS:
            for mode in (*FIN_MODES, *CLEAN_MODES, "stall"):
                for wait in (0.0, 0.015, 0.040):
                    connection = self.server.post(
                        path, request(path), f"{HEADER}: {mode};after_chunks=3"
                    )
                    self.server.run(wait)
                    self.left(connection)

    def test_the_engine_hears_nothing(self) -> None:
        def never(*args: object) -> None:
            raise AssertionError("the engine was asked")

        self.patch(type(self.server.lab.models[MODEL].backend), "submit", never)
        connection = self.die(CHAT, "no_done")
        self.assertTrue(connection.rest.endswith(TERMINATOR))
        self.left(connection)

    @given(st.integers(0, 12), st.sampled_from(PATHS), st.sampled_from([*FIN_MODES, *CLEAN_MODES]))
    def test_never_more_and_never_less_than_promised(
        self, count: int, path: str, mode: str
    ) -> None:
        connection = self.die(path, f"{mode};after_chunks={count};delay_ms=1")
        longer = self.die(path, f"{mode};after_chunks={count + 1};delay_ms=1")
        frames = [c.text.count(b"data: ") for c in (connection, longer)]
        self.assertEqual(frames[1], frames[0] + 1)
        longer.leave()
        self.left(connection)


class ModelFaultTests(ApiCase):
    """A model that dies by itself, whoever asks."""

    def ends_clean(self, path: str, *headers: str) -> bool:
        connection = self.server.post(path, request(path), *headers)
        self.server.run(1.0)
        clean = connection.rest.endswith(b"data: [DONE]\n\n\r\n" + TERMINATOR)
        self.assertEqual(connection.closings, [] if clean else ["FIN"])
        self.left(connection)
        return clean

    def test_streaming_chat_only_and_without_the_flag(self) -> None:
        self.server = Server(directives=False, fault=ModelFault(Fault("cut_between_frames", 1)))
        self.assertFalse(self.ends_clean(CHAT))
        self.assertTrue(self.ends_clean(COMPLETIONS))
        connection = self.server.post(CHAT, request(CHAT, stream=False))
        self.server.run(1.0)
        self.assertEqual(connection.head[0], 200)
        self.assertEqual(len(json.loads(connection.rest)["choices"]), 1)

    def test_widened(self) -> None:
        both = frozenset({"chat", "completions"})
        self.server = Server(fault=ModelFault(Fault("cut_between_frames", 1), both))
        self.assertFalse(self.ends_clean(CHAT))
        self.assertFalse(self.ends_clean(COMPLETIONS))

    def test_a_header_wins(self) -> None:
        self.server = Server(fault=ModelFault(Fault("cut_between_frames", 1)))
        self.assertTrue(self.ends_clean(CHAT, f"{HEADER}: no_usage"))

    def test_an_alias_dies_alike_under_its_model_s_name(self) -> None:
        self.server = Server(fault=ModelFault(Fault("cut_between_frames", 1)))
        connection = self.server.post(CHAT, request(CHAT, model="lab-one"))
        self.server.run(1.0)
        self.assertEqual({event["model"] for event in events(connection)}, {MODEL})
        self.assertEqual(connection.closings, ["FIN"])

    def test_other_models_live(self) -> None:
        self.server = Server(fault=ModelFault(Fault("cut_between_frames", 1)))
        connection = self.server.post(CHAT, request(CHAT, model="modèle-é"))
        self.server.run(1.0)
        self.assertTrue(connection.rest.endswith(TERMINATOR))


class ReadingTests(ApiCase):
    """A request came when it came, not when it was understood."""

    def test_the_engine_hears_when_the_request_came(self) -> None:
        jobs: list[Job] = []

        def slowly(*arguments: Any) -> Prompt:
            self.server.clock.advance(0.05)
            return read_prompt(*arguments)

        def submit(backend: FixedRate, job: Job, listener: Listener) -> Any:
            jobs.append(job)
            return taken(backend, job, listener)

        taken = FixedRate.submit
        self.patch(FixedRate, "submit", submit)
        self.patch(exchange, "read_prompt", slowly)
        for path in PATHS:
            for stream in (True, False):
                now = self.server.clock.seconds()
                self.server.post(path, request(path, stream, max_tokens=2))
                self.assertEqual(jobs[-1].asked_at, now)
                self.assertEqual(self.server.clock.seconds(), now + 0.05)
        self.server.run(0.1)


class ShutdownTests(ApiCase):
    """Every open stream can be cut."""

    def test_cut(self) -> None:
        connections = [
            self.server.post(CHAT, request(CHAT, max_tokens=1000)),
            self.server.post(CHAT, request(CHAT), f"{HEADER}: stall"),
            self.server.post(CHAT, request(CHAT), f"{HEADER}: reset;delay_ms=9999"),
        ]
        self.server.run(0.1)
        self.assertEqual(len(self.server.lab.open), 3)
        for wire in tuple(self.server.lab.open):
            wire.cut()
        self.assertEqual(self.server.lab.open, set())
        for connection in connections:
            self.assertEqual(connection.closings, ["FIN"])
            self.assertFalse(connection.rest.endswith(TERMINATOR))
            connection.leave()
        self.assertEqual(self.server.clock.getDelayedCalls(), [])
