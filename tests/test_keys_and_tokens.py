"""Keys, request ids, and the routes of the tokenizer, over the whole server in memory."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from inference_lab.content.text import token_id
from tests.answers import LabCase, gather
from tests.labs import CHAT, COMPLETIONS, MODEL, Server, request

FAULT = "x-inference-lab-fault: nonsense"
KEYS = ("sk-one", "sk-two")


class KeyTests(LabCase):
    def setUp(self) -> None:
        self.server = Server(api_keys=KEYS)

    def status(
        self, *headers: str, method: str = "POST", path: str = CHAT, body: Any = None
    ) -> int:
        data = json.dumps(request(path, max_tokens=1) if body is None else body).encode()
        connection = self.server.ask(method, path, data, *headers)
        self.server.run(0.1)
        connection.leave()
        self.raw = connection
        return connection.head[0]

    def test_each_key_opens(self) -> None:
        for key in KEYS:
            for scheme in ("Bearer", "bearer"):
                for path in (CHAT, COMPLETIONS):
                    self.assertEqual(self.status(f"Authorization: {scheme} {key}", path=path), 200)

    def test_others_do_not(self) -> None:
        for headers in (
            (),
            ("Authorization: Bearer sk-three",),
            ("Authorization: Bearer",),
            ("Authorization: Basic sk-one",),
            ("Authorization: sk-one",),
            ("Authorization: Bearer sk-on\xe9",),
        ):
            self.assertEqual(self.status(*headers), 401, headers)
            error = json.loads(self.raw.text)["error"]
            self.assertEqual(set(error), {"message", "type", "param", "code"})
            self.assertEqual((error["code"], error["param"]), ("invalid_api_key", None))
            self.assertEqual(error["type"], "invalid_request_error")
            self.assertNotIn("sk-three", error["message"])
            self.assertEqual(self.raw.head[1]["www-authenticate"], "Bearer")

    def test_before_every_other_refusal(self) -> None:
        self.assertEqual(self.status(body="nonsense"), 401)
        self.assertEqual(self.status(FAULT), 401)
        self.assertEqual(self.status("Content-Type: text/plain"), 401)
        self.assertEqual(self.status(path="/v1/nothing", body={}), 401)
        self.assertEqual(self.status(FAULT, method="GET", path="/v1/models", body={}), 401)
        self.assertEqual(self.status(method="DELETE"), 401)
        self.assertEqual(self.status(body={"model": "nobody", "messages": []}), 401)
        # With a key they are told what is wrong.
        key = "Authorization: Bearer sk-one"
        self.assertEqual(self.status(key, body="nonsense"), 400)
        self.assertEqual(self.status(key, FAULT), 400)
        self.assertEqual(self.status(key, path="/v1/nothing", body={}), 404)

    def test_what_is_open(self) -> None:
        self.assertEqual(self.status(method="OPTIONS"), 204)
        for path in ("/health", "/metrics"):
            self.assertEqual(self.status(method="GET", path=path, body={}), 200)


class RequestIdTests(LabCase):
    def test_echoed_or_made(self) -> None:
        for path in (CHAT, COMPLETIONS):
            for stream in (True, False):
                body = request(path, stream, max_tokens=1)
                named = self.post(path, body, None, "X-Request-Id: mine-7")
                self.assertEqual(named.head[1]["x-request-id"], "mine-7")
                made = [self.post(path, body).head[1]["x-request-id"] for _ in range(2)]
                self.assertEqual(len({*made, ""}), 3)

    def test_on_refusals_and_deaths(self) -> None:
        refused = self.server.ask("POST", "/v1/nothing", b"", "X-Request-Id: mine")
        self.assertEqual(refused.head[1]["x-request-id"], "mine")
        died = self.post(CHAT, request(CHAT), "reset", "X-Request-Id: mine")
        self.assertEqual(died.head[1]["x-request-id"], "mine")


class TokenizerTests(LabCase):
    """``/tokenize`` and ``/detokenize``."""

    def call(self, path: str, **body: Any) -> Any:
        return gather(self.post(path, body)).events[0]

    @given(st.text(st.characters(exclude_categories=["Cs"]), max_size=30))
    def test_round_trip(self, text: str) -> None:
        found = self.call("/tokenize", model=MODEL, prompt=text)
        self.assertEqual(found["count"], len(found["tokens"]))
        self.assertEqual(found["max_model_len"], 4096)
        self.assertTrue(all(id < 1_000_000 for id in found["tokens"]))
        back = self.call("/detokenize", model=MODEL, tokens=found["tokens"])
        self.assertEqual(back, {"prompt": text})

    def test_our_words(self) -> None:
        found = self.call("/tokenize", prompt="amber0. birch1.", return_token_strs=True)
        self.assertEqual(found["tokens"], [token_id(0), token_id(1)])
        self.assertEqual(found["token_strs"], ["amber0.", " birch1."])

    def test_a_chat_is_the_prompt_that_is_billed(self) -> None:
        turns = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "amber0."}]
        for fields in (
            {},
            {"add_generation_prompt": False},
            {"add_generation_prompt": False, "continue_final_message": True},
            {"tools": [{"type": "function", "function": {"name": "f"}}]},
        ):
            found = self.call("/tokenize", messages=turns, **fields)
            whole = self.ask(CHAT, stream=False, messages=turns, return_token_ids=True, **fields)
            self.assertEqual(found["tokens"], whole.events[0]["prompt_token_ids"])
            self.assertEqual(found["count"], whole.usage["prompt_tokens"])

    def test_refused(self) -> None:
        hello = [{"role": "user", "content": "Hi"}]
        for path, body, param in (
            ("/tokenize", {}, "prompt"),
            ("/tokenize", {"prompt": "a", "messages": hello}, "prompt"),
            ("/tokenize", {"messages": []}, "messages"),
            ("/tokenize", {"prompt": 5}, None),
            ("/tokenize", {"model": "nobody", "prompt": "a"}, "model"),
            ("/detokenize", {}, "tokens"),
            ("/detokenize", {"tokens": [-1]}, "tokens"),
            ("/detokenize", {"tokens": "a"}, "tokens"),
        ):
            found = gather(self.post(path, body))
            self.assertEqual(found.status, 404 if param == "model" else 400)
            if param is not None:
                self.assertEqual(found.error["param"], param)
        error = gather(
            self.post("/tokenize", {"messages": hello, "continue_final_message": True})
        ).error
        self.assertTrue(error["message"].startswith("Cannot set both `continue_final_message`"))
