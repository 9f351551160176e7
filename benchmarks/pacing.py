"""How near the wall clock a server keeps to its engine: ``python benchmarks/pacing.py``.

A server in a process of its own, and this process reading N streams. What the engine
says of the same requests, sent at the same moments, comes from a plain loop over it:
mean time between tokens, and time to the first one. The server's CPU is that of its
process. Wall time is ``time.time()``, the clock that the server's reactor goes by.
"""

from __future__ import annotations

import argparse
import json
import os
import selectors
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import mean

from attrs import define, field
from rich import box
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from inference_lab.configuration.loader import load, shipped_configs
from inference_lab.engine.engine import Engine
from inference_lab.engine.requests import Handle
from tests.engines import Arrival, run

STREAMS = (1, 16, 64, 256)
MOST_STREAMS = 64
"""There is a target up to here; beyond, this process may be what cannot keep up."""

PROMPTS = (100, 5000, 50_000)
SHORT_PROMPT = 100
"""Tokens of each prompt where the time between tokens is measured."""

SETTLE = 0.2
"""Seconds between two measurements."""


@define
class Client:
    """One stream: when it was asked for, and when its frames came."""

    socket: socket.socket
    request: bytes
    prompt_tokens: int
    max_tokens: int
    sent: float = 0.0
    first: float = 0.0
    last: float = 0.0
    frames: int = 0
    reads: int = 0
    tail: bytes = b""

    def take(self, data: bytes, now: float) -> bool:
        """Count what came; whether that was the end."""
        # Between two frames of a stream there is one blank line, and none in chunk framing.
        frames = data.count(b"data: ")
        if frames and not self.frames:
            self.first = now
        before, self.frames = self.frames, self.frames + frames
        # The last two frames (finish reason, [DONE]) come with the last token.
        if before < self.max_tokens <= self.frames:
            self.last = now
        self.reads += 1
        self.tail = (self.tail + data)[-5:]
        return self.tail == b"0\r\n\r\n"


@define
class Server:
    """The server's process."""

    pid: int
    address: tuple[str, int]
    model: str

    def cpu_seconds(self) -> float:
        """User and system time so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def client(self, prompt_tokens: int, max_tokens: int, salt: int) -> Client:
        """A connection, and a request whose prompt no other has begun with."""
        ids = [salt, *range(1, prompt_tokens)]
        body = json.dumps(
            {"model": self.model, "prompt": ids, "max_tokens": max_tokens, "stream": True}
        )
        head = (
            "POST /v1/completions HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\n\r\n"
        )
        return Client(
            socket.create_connection(self.address),
            (head + body).encode(),
            prompt_tokens,
            max_tokens,
        )


@contextmanager
def serving(config: Path, hardware: str, model: str) -> Iterator[Server]:
    """A server of that one file."""
    words = ["serve", "--config", str(config), "--hardware", hardware, "--port", "0"]
    process = subprocess.Popen(
        [sys.executable, "-m", "inference_lab", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    try:
        ready = process.stdout.readline()
        host, _, port = ready.split()[2].removeprefix("http://").rpartition(":")
        yield Server(process.pid, (host, int(port)), model)
    finally:
        process.terminate()
        process.wait()


def read_all(clients: Sequence[Client]) -> None:
    """Send all requests, and read all streams to their ends."""
    selector = selectors.DefaultSelector()
    for client in clients:
        client.sent = time.time()
        client.socket.sendall(client.request)
        client.socket.setblocking(False)
        selector.register(client.socket, selectors.EVENT_READ, client)
    while selector.get_map():
        for key, _ in selector.select():
            data = key.data.socket.recv(1 << 20)
            now = time.time()
            if key.data.take(data, now) or not data:
                selector.unregister(key.data.socket)
                key.data.socket.close()


def offline(engine: Engine, clients: Sequence[Client]) -> list[Handle]:
    """What the engine alone makes of these requests."""
    begin = min(client.sent for client in clients)
    trace = run(
        engine,
        [Arrival(c.sent - begin, c.prompt_tokens, c.max_tokens) for c in clients],
    )
    return [handle for handle in trace.requests if isinstance(handle, Handle)]


@define
class Report:
    """Rows for people, and whether a target was missed."""

    table: Table = field(init=False)
    missed: int = 0

    def __attrs_post_init__(self) -> None:
        self.table = Table(
            "what",
            "engine",
            "wall",
            "off by",
            "target",
            "CPU us/frame",
            "frames/read",
            box=box.SIMPLE,
        )

    def row(self, what: str, engine: float, wall: float, slack: float | None, *more: str) -> None:
        """Times in seconds; ``slack`` is allowed beside 2 %, None is no target."""
        verdict = "none"
        if slack is not None:
            good = abs(wall - engine) <= 0.02 * engine + slack
            self.missed += not good
            verdict = f"{'met' if good else 'MISSED'}, 2 %"
            verdict += f" + {slack * 1e3:g} ms" if slack else ""
        self.table.add_row(
            what,
            f"{engine * 1e3:.3f} ms",
            f"{wall * 1e3:.3f} ms",
            f"{(wall / engine - 1) * 100:+.2f} %",
            verdict,
            *more,
        )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", type=Path, default=shipped_configs() / "deepseek-v4-flash.toml")
    parser.add_argument("--hardware", default="b200")
    parser.add_argument("--seconds", type=float, default=4.0, help="of each measurement")
    chosen = parser.parse_args()
    (deployment,) = load([chosen.config], chosen.hardware).deployments
    report = Report()
    salt = 0
    with serving(chosen.config, chosen.hardware, deployment.name) as server:
        for streams in STREAMS:
            trial = run(Engine(deployment), [Arrival(0.0, SHORT_PROMPT, 100)] * streams)
            tokens = max(50, int(100 * chosen.seconds / trial.steps[-1][0]))
            clients = [server.client(SHORT_PROMPT, tokens, salt + i) for i in range(streams)]
            salt += streams
            time.sleep(SETTLE)
            before = server.cpu_seconds()
            read_all(clients)
            spent = server.cpu_seconds() - before
            handles = offline(Engine(deployment), clients)
            frames = sum(client.frames for client in clients)
            report.row(
                f"between tokens, {streams} streams",
                mean((h.finished_at - h.first_token_at) / (tokens - 1) for h in handles),
                mean((c.last - c.first) / (tokens - 1) for c in clients),
                0.0 if streams <= MOST_STREAMS else None,
                f"{spent / frames * 1e6:.1f}",
                f"{frames / sum(c.reads for c in clients):.2f}",
            )
        for prompt in PROMPTS:
            measured, told = [], []
            for _ in range(5):
                salt += 1
                clients = [server.client(prompt, 2, salt)]
                time.sleep(SETTLE)
                read_all(clients)
                (handle,) = offline(Engine(deployment), clients)
                measured.append(clients[0].first - clients[0].sent)
                told.append(handle.first_token_at - handle.arrival)
            report.row(f"first token, prompt {prompt}", mean(told), mean(measured), 0.005)
    console = Console(width=110)
    console.print(f"{deployment.name} on {deployment.entry}")
    console.print(report.table)
    raise SystemExit(report.missed > 0)


if __name__ == "__main__":
    main()
