"""The error shape, and every refusal as a client sees it, over the whole server in memory."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from inference_lab.faults.modes import MODES
from inference_lab.web import site
from inference_lab.web.errors import (
    ApiError,
    bad_fault,
    bad_request,
    server_error,
    unknown_model,
    unknown_path,
    wrong_method,
)
from tests.labs import CHAT, COMPLETIONS, MODEL, Server, request
from tests.memory import Connection

HEADER = "x-inference-lab-fault"


class ShapeTests(SynchronousTestCase):
    """What an `ApiError` says."""

    def test_body(self) -> None:
        error = ApiError(418, "No.", "teapot", param="pot")
        self.assertEqual(
            error.body(),
            b'{"error":{"message":"No.","type":"invalid_request_error",'
            b'"param":"pot","code":"teapot"}}',
        )

    def test_refusals(self) -> None:
        table: list[tuple[ApiError, int, str, str, str | None]] = [
            (bad_request("x"), 400, "invalid_request_error", "invalid_request", None),
            (bad_request("x", "c", "p"), 400, "invalid_request_error", "c", "p"),
            (bad_fault("x"), 400, "invalid_request_error", "invalid_fault_directive", HEADER),
            (unknown_model("x", []), 404, "invalid_request_error", "model_not_found", "model"),
            (unknown_path("/x"), 404, "invalid_request_error", "not_found", None),
            (
                wrong_method("PUT", "/", []),
                405,
                "invalid_request_error",
                "method_not_allowed",
                None,
            ),
            (server_error(), 500, "server_error", "internal_error", None),
        ]
        for error, status, kind, code, param in table:
            body = json.loads(error.body())["error"]
            self.assertEqual(error.status, status)
            self.assertEqual((body["type"], body["code"], body["param"]), (kind, code, param))
            self.assertIsInstance(body["code"], str)

    def test_unknown_model_names_the_known(self) -> None:
        error = unknown_model("gpt", ["a", "b"])
        self.assertEqual(error.message, "The model `gpt` does not exist. Models served here: a, b.")

    def test_wrong_method_says_what_is_allowed(self) -> None:
        error = wrong_method("PUT", "/health", ["GET", "OPTIONS"])
        self.assertEqual(dict(error.headers), {"Allow": "GET, OPTIONS"})
        self.assertIn("GET, OPTIONS", error.message)

    @given(st.text(), st.text())
    def test_a_client_s_words_are_kept_short(self, name: str, path: str) -> None:
        long = 1000
        for error in (
            unknown_model(name * long, ["a"]),
            unknown_path(path * long),
            wrong_method(name * long, path * long, ["GET"]),
        ):
            self.assertLess(len(error.message), 300)
            self.assertEqual(json.loads(error.body())["error"]["message"], error.message)


class RefusalCase(SynchronousTestCase):
    """A server, and what it refuses."""

    def setUp(self) -> None:
        self.server = Server()

    def refused(
        self, connection: Connection, status: int, code: str, param: str | None, *named: str
    ) -> str:
        """Check everything a refusal has; returns its message."""
        found, headers = connection.head
        body = connection.rest
        error = json.loads(body)["error"]
        self.assertEqual((found, error["code"], error["param"]), (status, code, param), error)
        self.assertEqual(set(error), {"message", "type", "param", "code"})
        self.assertEqual(error["type"], "invalid_request_error")
        self.assertEqual(headers["content-type"], "application/json")
        self.assertEqual(headers["content-length"], str(len(body)))
        self.assertEqual(headers["access-control-allow-origin"], "*")
        self.assertNotIn("transfer-encoding", headers)
        message: str = error["message"]
        for name in named:
            self.assertIn(name, message)
        self.assertEqual(self.server.lab.open, set())
        return message


class RouteTests(RefusalCase):
    """Paths and methods."""

    def test_unknown_paths(self) -> None:
        for path in ("/", "/v1", "/v1/embeddings", "/v1/chat", "/health/x", "/v1/completions/x"):
            for method in ("GET", "POST"):
                self.refused(self.server.ask(method, path), 404, "not_found", None, path)

    def test_wrong_methods(self) -> None:
        table = [
            ("GET", CHAT, "POST"),
            ("DELETE", COMPLETIONS, "POST"),
            ("POST", "/health", "GET"),
            ("PUT", "/v1/models", "GET"),
            ("PATCH", f"/v1/models/{MODEL}", "GET"),
        ]
        for method, path, allowed in table:
            connection = self.server.ask(method, path)
            self.refused(connection, 405, "method_not_allowed", None, method, path, allowed)
            allow = {name.strip() for name in connection.head[1]["allow"].split(",")}
            self.assertLessEqual({allowed, "OPTIONS"}, allow)
            self.assertNotIn(method, allow)

    def test_odd_paths(self) -> None:
        for path in ("/%ff", "/v1/models/%ff", "/\x80", "/v1/%c3%28"):
            found, _ = self.server.ask("GET", path).head
            self.assertIn(found, (400, 404))
        self.assertEqual(self.flushLoggedErrors(), [])

    def test_the_connection_lives_on(self) -> None:
        connection = self.server.ask("GET", "/nothing")
        connection.ask("GET", "/health")
        self.assertTrue(connection.raw.endswith(b'{"status":"ok"}'))
        self.assertEqual(connection.closings, [])


class BodyTests(RefusalCase):
    """Bodies, on both endpoints."""

    def test_media_type(self) -> None:
        for path in (CHAT, COMPLETIONS):
            connection = self.server.ask("POST", path, b"{}", "Content-Type: text/plain")
            self.refused(connection, 415, "unsupported_media_type", None, "application/json")

    def test_media_type_of_odd_bytes(self) -> None:
        connection = self.server.ask("POST", CHAT, b"{}", "Content-Type: \xff\xfe")
        self.refused(connection, 415, "unsupported_media_type", None)

    def test_malformed(self) -> None:
        for path in (CHAT, COMPLETIONS):
            for body in (b"", b"{", b"\xff", b'{"x":' + b"[" * 100_000, b'{"x":"\xff"}'):
                self.refused(self.server.ask("POST", path, body), 400, "invalid_json", None)

    def test_wrong_field(self) -> None:
        connection = self.server.post(CHAT, request(CHAT, max_tokens="many"))
        self.refused(connection, 400, "invalid_request", "max_tokens")

    def test_too_large(self) -> None:
        self.patch(site, "MAX_BODY_BYTES", 1000)
        for path in (CHAT, COMPLETIONS):
            body = request(path, x="x" * 2000)
            self.refused(self.server.post(path, body), 413, "request_too_large", None)
            fits = self.server.post(path, request(path, x="x" * 500))
            self.assertEqual(fits.head[0], 200)
            fits.leave()

    def test_too_large_in_chunks(self) -> None:
        self.patch(site, "MAX_BODY_BYTES", 1000)
        connection = self.server.connect()
        connection.send(
            f"POST {CHAT} HTTP/1.1\r\nHost: lab\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
        )
        for _ in range(20):
            connection.send(b"64\r\n" + b" " * 100 + b"\r\n")
        self.assertEqual(connection.raw, b"", "the refusal waits for the whole request")
        connection.send(b"0\r\n\r\n")
        self.refused(connection, 413, "request_too_large", None)

    def test_unknown_model(self) -> None:
        for path in (CHAT, COMPLETIONS):
            for stream in (True, False):
                connection = self.server.post(path, request(path, stream, model="gpt"))
                message = self.refused(connection, 404, "model_not_found", "model", "gpt", MODEL)
                self.assertIn("modèle-é", message)
        self.refused(self.server.ask("GET", "/v1/models/gpt"), 404, "model_not_found", "model")


class FaultHeaderTests(RefusalCase):
    """``x-inference-lab-fault`` where it cannot be honoured."""

    def bad(self, connection: Connection, *named: str) -> None:
        self.refused(connection, 400, "invalid_fault_directive", HEADER, *named)

    def test_malformed(self) -> None:
        for path in (CHAT, COMPLETIONS):
            for value, part in (
                ("explode", "explode"),
                ("", "mode"),
                ("reset;after_chunks=-1", "after_chunks=-1"),
                ("reset;speed=3", "speed"),
                ("reset;utf8=true", "utf8"),
                ("reset;delay_ms=1;delay_ms=1", "delay_ms"),
            ):
                connection = self.server.post(path, request(path), f"{HEADER}: {value}")
                self.bad(connection, part, *sorted(MODES))

    def test_odd_bytes(self) -> None:
        for value in ("\xff", "reset;after_chunks=\xb2", "reset;\xff=1"):
            connection = self.server.post(CHAT, request(CHAT), f"{HEADER}: {value}")
            self.bad(connection, *sorted(MODES))

    def test_twice(self) -> None:
        both = (f"{HEADER}: reset", f"{HEADER.title()}: reset")
        self.bad(self.server.post(CHAT, request(CHAT), *both), "2 times", *sorted(MODES))

    def test_without_the_flag(self) -> None:
        self.server = Server(directives=False)
        for path in (CHAT, COMPLETIONS):
            connection = self.server.post(path, request(path), f"{HEADER}: reset")
            self.bad(connection, "--enable-directives", *sorted(MODES))

    def test_not_streaming(self) -> None:
        for path in (CHAT, COMPLETIONS):
            for stream in (False, None):
                body = request(path) | {"stream": stream}
                self.bad(self.server.post(path, body, f"{HEADER}: reset"), "stream")

    def test_elsewhere(self) -> None:
        for method, path in (
            ("GET", "/v1/models"),
            ("GET", f"/v1/models/{MODEL}"),
            ("GET", CHAT),
            ("POST", "/v1/embeddings"),
            ("DELETE", COMPLETIONS),
        ):
            connection = self.server.ask(method, path, b"", f"{HEADER}: reset")
            self.bad(connection, *sorted(MODES))

    def test_not_of_the_api(self) -> None:
        connection = self.server.ask("GET", "/health", b"", f"{HEADER}: reset")
        self.assertEqual(connection.head[0], 200)

    def test_order_of_refusals(self) -> None:
        """Body, fault, model."""
        bad_body: dict[str, Any] = {"model": "gpt", "stream": True, "max_tokens": 0}
        for path in (CHAT, COMPLETIONS):
            body = request(path) | bad_body
            connection = self.server.post(path, body, f"{HEADER}: explode")
            self.refused(connection, 400, "invalid_request", "max_tokens")
            connection = self.server.post(path, request(path, model="x"), f"{HEADER}: explode")
            self.bad(connection)
            connection = self.server.post(path, request(path, model="x"), f"{HEADER}: reset")
            self.refused(connection, 404, "model_not_found", "model")

    def test_an_invalid_prompt_comes_before_the_fault(self) -> None:
        body = request(COMPLETIONS, prompt=["a", "b"])
        connection = self.server.post(COMPLETIONS, body, f"{HEADER}: explode")
        self.refused(connection, 400, "invalid_prompt", "prompt")


class DefectTests(RefusalCase):
    """A defect of ours is a 500 without a traceback."""

    def test_500(self) -> None:
        def broken(*args: object) -> None:
            raise ZeroDivisionError("secret")

        self.patch(type(self.server.lab.models[MODEL].backend), "submit", broken)
        connection = self.server.post(CHAT, request(CHAT))
        status, headers = connection.head
        self.assertEqual(status, 500)
        self.assertEqual(headers["content-type"], "application/json")
        self.assertEqual(json.loads(connection.rest)["error"]["type"], "server_error")
        self.assertNotIn(b"secret", connection.raw)
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)
