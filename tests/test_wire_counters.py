"""What a wire says it sent is what the transport was given, in every mode."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from inference_lab.faults.modes import built_in
from tests.labs import CHAT, COMPLETIONS, Server, request

PATHS = {"chat": CHAT, "completions": COMPLETIONS}


class CounterTests(SynchronousTestCase):
    """Frames, bytes of the body, bytes on the connection, time of the first."""

    def test_every_mode(self) -> None:
        for mode in built_in().values():
            for endpoint in mode.endpoints:
                server = Server(directives=True)
                path = PATHS[endpoint]
                begun = server.clock.seconds()
                header = f"x-inference-lab-fault: {mode.name};keepalive=comment;every_ms=300"
                connection = server.post(path, request(path), header)
                # Some are over within the request: those that pause nowhere.
                wires = list(server.lab.open)
                server.run(6.0)
                for wire in wires:
                    self.assertEqual(wire.sent.wire_bytes, len(connection.raw), mode.name)
                    if connection.raw:
                        assert wire.first_byte_at is not None
                        wait = 5.0 if mode.name == "slow_headers" else 0.0
                        self.assertAlmostEqual(wire.first_byte_at - begun, wait, 2)
                    else:
                        self.assertIsNone(wire.first_byte_at)

    def test_body_and_frames(self) -> None:
        for fault, frames in (
            ("cut_between_frames;after_chunks=3", 4),
            ("cut_between_frames;after_chunks=3;segment=10", 4),
            ("stall;after_chunks=2", 3),
            ("reset_after_done;after_chunks=1", 4),
            ("close_delimited;after_chunks=2", 3),
            ("http_status", 0),
            ("cut_mid_frame;after_chunks=3", 4),
            ("headers_then_eof", 0),
        ):
            server = Server(directives=True)
            connection = server.post(CHAT, request(CHAT), f"x-inference-lab-fault: {fault}")
            wires = list(server.lab.open)
            server.run(1.0)
            for wire in wires:
                self.assertEqual(wire.sent.frames, frames, fault)
                self.assertEqual(wire.sent.body_bytes, len(connection.text), fault)

    def test_a_healthy_stream(self) -> None:
        server = Server(directives=True)
        connection = server.post(CHAT, request(CHAT, max_tokens=4))
        (wire,) = server.lab.open
        server.run(3.0)
        self.assertEqual(wire.sent.wire_bytes, len(connection.raw))
        self.assertEqual(wire.sent.body_bytes, len(connection.text))
        self.assertEqual(wire.sent.frames, connection.text.count(b"\n\n"))
