"""The simulated GPU behind a real server: pace, order, limits, and what leavers leave.

Wall time is compared with the engine's from below exactly, for nothing may come before it
is due, and from above generously: how near it comes belongs in a benchmark.
"""

from __future__ import annotations

import json
import select
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from attrs import define, field, frozen
from prometheus_client.parser import text_string_to_metric_families

from inference_lab.content import text
from tests.live import (
    CHAT,
    COMPLETIONS,
    PATIENCE,
    REPOSITORY,
    Exchange,
    RawClient,
    Server,
    ask,
    chat_body,
    completions_body,
    program,
    request_bytes,
    serve,
)

LLAMA = "Llama-3.1-8B-Instruct"

MODEL_FILE = """\
model = "llama-3.1-8b-instruct"

[scheduler]
policy = "fcfs"
max_num_batched_tokens = 8192
max_num_seqs = 256
block_size = 16
enable_chunked_prefill = true
{more}

[hardware.b200]
"""

EARLY = 0.001
"""Seconds by which a clock may be read late on this side."""


def model_file(folder: Path, *more: str, **changes: int) -> str:
    """A deployment of one model on one b200, with other scheduler settings."""
    written = MODEL_FILE.format(more="\n".join(more))
    for key, value in changes.items():
        before = next(line for line in written.splitlines() if line.startswith(f"{key} = "))
        written = written.replace(before, f"{key} = {value}")
    path = folder / "model.toml"
    path.write_text(written)
    return str(path)


@contextmanager
def llama(folder: Path, *flags: str, more: Sequence[str] = (), **changes: int) -> Iterator[Server]:
    """A server of that deployment."""
    with serve("--config", model_file(folder, *more, **changes), *flags) as server:
        yield server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The deployment as it is, at the pace of a real one."""
    with llama(tmp_path_factory.mktemp("models")) as running:
        yield running


def asked(**more: Any) -> dict[str, Any]:
    """A streaming completion of four token ids."""
    return completions_body(**{"model": LLAMA, **more})


def explain(folder: Path, *flags: str) -> dict[str, Any]:
    """What the command says."""
    done = subprocess.run(
        [program("inference-lab"), "explain", "--config", model_file(folder), *flags, "--json"],
        capture_output=True,
        timeout=PATIENCE,
        check=True,
    )
    said: dict[str, Any] = json.loads(done.stdout)
    return said


# -- clients that know the time ------------------------------------------------


@define
class Timed:
    """One stream, read as it comes."""

    server: Server
    body: dict[str, Any]
    sent: float = 0.0
    arrivals: list[tuple[float, int]] = field(factory=list)
    """When bytes came, and how many frames had come by then."""
    data: bytes = b""
    enough: Event = field(factory=Event)

    def read(self) -> Timed:
        """Ask, and read to the end of the stream, or until it is ``enough``."""
        with RawClient(self.server.address) as client:
            self.sent = time.time()
            client.send(request_bytes(COMPLETIONS, self.body))
            frames = 0
            while not (self.data.endswith(b"0\r\n\r\n") or self.enough.is_set()):
                piece = client.receive()
                assert piece, self.data[-200:]
                self.data += piece
                frames += piece.count(b"data: ")
                self.arrivals.append((time.time(), frames))
        return self

    @property
    def seconds(self) -> float:
        """From the request to the last byte."""
        return self.arrivals[-1][0] - self.sent

    @property
    def longest_gap(self) -> float:
        """Between two reads that brought something."""
        times = [at for at, _ in self.arrivals]
        return max(b - a for a, b in pairwise(times))


def at_once(server: Server, bodies: Sequence[dict[str, Any]]) -> list[Timed]:
    """All of them together."""
    with ThreadPoolExecutor(len(bodies)) as pool:
        return list(pool.map(lambda body: Timed(server, body).read(), bodies))


# -- what is scraped -------------------------------------------------------------


@frozen
class Figures:
    """One scrape of ``/metrics``."""

    running: float
    waiting: float
    kv_usage: float
    aborted: float
    finished: float
    cached: float
    streams: float
    refused: int = 0


def scrape(server: Server) -> Figures:
    """As of now."""
    answer = ask(server, "/metrics")
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(answer.body.decode()):
        for sample in family.samples:
            found[sample.name + sample.labels.get("finished_reason", "")] = sample.value
    return Figures(
        running=found["vllm:num_requests_running"],
        waiting=found["vllm:num_requests_waiting"],
        kv_usage=found["vllm:kv_cache_usage_perc"],
        aborted=found["vllm:request_success_totalabort"],
        finished=found["vllm:request_success_totallength"],
        cached=found["vllm:prefix_cache_hits_total"],
        streams=found["inference_lab_open_streams"],
    )


def until(server: Server, condition: Callable[[Figures], bool]) -> Figures:
    """Scrape until it holds."""
    deadline = time.monotonic() + PATIENCE
    while not condition(figures := scrape(server)):
        assert time.monotonic() < deadline, figures
    return figures


# -- leaving -----------------------------------------------------------------------


@pytest.mark.parametrize("stream", [True, False], ids=["streaming", "whole"])
@pytest.mark.parametrize("how", ["FIN", "RST"])
def test_who_leaves_frees_the_gpu(server: Server, stream: bool, how: str) -> None:
    before = scrape(server)
    assert (before.running, before.kv_usage) == (0, 0)
    extra = {} if stream else {"stream_options": None}
    with RawClient(server.address) as client:
        client.send(request_bytes(COMPLETIONS, asked(max_tokens=100_000, stream=stream, **extra)))
        during = until(server, lambda now: now.running == 1 and now.kv_usage > 0)
        assert during.streams == (1 if stream else 0)
        if how == "RST":
            client.reset()
    after = until(server, lambda now: now.running == 0)
    assert (after.kv_usage, after.waiting, after.streams) == (0, 0, 0)
    assert after.aborted == before.aborted + 1
    assert after.finished == before.finished


@pytest.mark.parametrize("stream", [True, False], ids=["streaming", "whole"])
def test_who_leaves_the_queue_is_forgotten(tmp_path: Path, stream: bool) -> None:
    extra = {} if stream else {"stream_options": None}
    with llama(tmp_path, max_num_seqs=1) as server, RawClient(server.address) as first:
        first.send(request_bytes(COMPLETIONS, asked(max_tokens=100_000)))
        until(server, lambda now: now.running == 1)
        with RawClient(server.address) as second:
            second.send(request_bytes(COMPLETIONS, asked(stream=stream, **extra)))
            until(server, lambda now: now.waiting == 1)
        after = until(server, lambda now: now.waiting == 0)
        assert (after.running, after.aborted) == (1, 1)


# -- pace --------------------------------------------------------------------------


def test_a_burst_after_an_idle_time_is_paced(tmp_path: Path) -> None:
    """Five simulated seconds of idleness are not made up for."""
    speed, idle = 10.0, 0.5
    step = explain(tmp_path, "--batch", "1", "--context", "4")["step_seconds"]
    with llama(tmp_path, "--speed", str(speed)) as server, RawClient(server.address) as client:
        assert client.ask(COMPLETIONS, asked(max_tokens=2)).terminated
        assert select.select([client.socket], [], [], idle) == ([], [], []), "nothing comes"
        bodies = [asked(max_tokens=1500, seed=seed) for seed in range(3)]
        for timed in at_once(server, bodies):
            assert timed.seconds >= 1500 * step / speed - EARLY


def test_32_streams_end_in_order_and_in_time(server: Server, tmp_path: Path) -> None:
    lengths = [25 * count for count in range(1, 33)]
    alone = explain(tmp_path, "--batch", "1", "--context", "4")["step_seconds"]
    crowded = explain(tmp_path, "--batch", "32", "--context", "804")["step_seconds"]
    streams = at_once(server, [asked(max_tokens=length) for length in lengths])
    ends = [timed.arrivals[-1][0] for timed in streams]
    assert ends == sorted(ends)
    for length, timed in zip(lengths, streams, strict=True):
        # Its first token comes with its prompt, which costs a step, too.
        assert length * alone - EARLY <= timed.seconds <= 3 * length * crowded + 1.0
        assert timed.data.count(b"data: ") == length + 3


@pytest.mark.parametrize(("speed", "least", "most"), [(10.0, 0.2, 2.0), (0.0, 0.0, 1.5)])
def test_speed(tmp_path: Path, speed: float, least: float, most: float) -> None:
    """1000 tokens of 2.02 ms each, or as fast as they are made."""
    with llama(tmp_path, "--speed", str(speed)) as server:
        timed = Timed(server, asked(max_tokens=1000)).read()
        assert timed.data.count(b"data: ") == 1003
        assert least <= timed.seconds <= most
        whole = ask(
            server, CHAT, chat_body(model=LLAMA, max_tokens=1000, stream=False, stream_options=None)
        )
        assert whole.json["usage"]["completion_tokens"] == 1000


def test_tokens_come_one_by_one(server: Server) -> None:
    """At 2 ms a token a client sees most of them arrive apart."""
    timed = Timed(server, asked(max_tokens=200)).read()
    assert len(timed.arrivals) > 100


def test_a_reader_that_stops_holds_nobody_up(tmp_path: Path) -> None:
    """Neither those who read nor the engine; it gets everything when it reads again."""
    tokens = 20_000
    with (
        llama(tmp_path, "--speed", "0") as server,
        RawClient(server.address, receive_buffer=4096) as stopped,
    ):
        stopped.send(request_bytes(COMPLETIONS, asked(max_tokens=tokens)))
        done = until(server, lambda now: now.finished == 1)
        assert (done.running, done.kv_usage) == (0, 0), "the engine is through with it"
        assert done.streams == 1, "the wire is not: nobody takes 4 MB"
        others = at_once(server, [asked(max_tokens=300) for _ in range(5)])
        assert all(timed.data.count(b"data: ") == 303 for timed in others)
        assert scrape(server).streams == 1
        late = stopped.read()
    assert late.terminated
    events = late.events
    assert "".join(e["choices"][0]["text"] for e in events[:tokens]) == text.answer(0, tokens)
    assert events[-2]["usage"]["completion_tokens"] == tokens


def test_a_stopped_reader_beside_running_ones(server: Server, tmp_path: Path) -> None:
    step = explain(tmp_path, "--batch", "6", "--context", "1500")["step_seconds"]
    with RawClient(server.address, receive_buffer=4096) as stopped:
        stopped.send(request_bytes(COMPLETIONS, asked(max_tokens=100_000)))
        until(server, lambda now: now.running == 1)
        for timed in at_once(server, [asked(max_tokens=400) for _ in range(5)]):
            assert timed.seconds <= 3 * 400 * step + 1.0
    until(server, lambda now: now.running == 0)


# -- limits ------------------------------------------------------------------------


def refusal(answer: Exchange) -> dict[str, Any]:
    """The error of a refusal, and what all of them have in common."""
    assert answer.headers["content-type"] == "application/json"
    error: dict[str, Any] = answer.json["error"]
    return error


@pytest.mark.parametrize("stream", [True, False], ids=["streaming", "whole"])
def test_context_length(tmp_path: Path, stream: bool) -> None:
    extra: dict[str, Any] = (
        {"stream": stream} if stream else {"stream": False, "stream_options": None}
    )
    with llama(tmp_path, "--speed", "0", more=["max_model_len = 200"]) as server:
        for tokens in (200, 5000):
            answer = ask(server, COMPLETIONS, asked(prompt=[7] * tokens, max_tokens=1, **extra))
            error = refusal(answer)
            assert (answer.status, error["code"]) == (400, "context_length_exceeded")
            assert error["type"] == "invalid_request_error"
            assert error["message"] == (
                "This model's maximum context length is 200 tokens. However, your request has "
                f"{tokens} input tokens. Please reduce the length of the input messages."
            )
        answer = ask(server, COMPLETIONS, asked(prompt=[7] * 150, max_tokens=51, **extra))
        error = refusal(answer)
        assert (answer.status, error["code"]) == (400, "context_length_exceeded")
        assert error["message"] == (
            "'max_tokens' or 'max_completion_tokens' is too large: 51. This model's maximum "
            "context length is 200 tokens and your request has 150 input tokens "
            "(51 > 200 - 150)."
        )
        fits = ask(server, COMPLETIONS, asked(prompt=[7] * 150, max_tokens=50, **extra))
        assert fits.status == 200
        assert scrape(server).finished == 1, "the refused ones never reached the engine"


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_without_max_tokens_the_context_is_the_limit(tmp_path: Path, path: str) -> None:
    """It is nearer than where answers end by themselves."""
    with llama(tmp_path, "--speed", "0", more=["max_model_len = 200"]) as server:
        words = "word " * 60
        body = (
            chat_body(model=LLAMA, messages=[{"role": "user", "content": words}])
            if path == CHAT
            else asked(prompt=[7] * 190)
        )
        del body["max_tokens"]
        *_, last, usage, done = ask(server, path, body).events
        assert done == "[DONE]"
        assert last["choices"][0]["finish_reason"] == "length"
        counts = usage["usage"]
        assert counts["prompt_tokens"] + counts["completion_tokens"] == 200
        assert counts["completion_tokens"] > 0


@pytest.mark.parametrize("stream", [True, False], ids=["streaming", "whole"])
def test_what_the_kv_cache_cannot_hold(tmp_path: Path, stream: bool) -> None:
    """Ten blocks of 16 positions."""
    extra: dict[str, Any] = (
        {"stream": stream} if stream else {"stream": False, "stream_options": None}
    )
    small = [f"kv_cache_capacity = {10 * 16 * 131072}"]
    with llama(tmp_path, "--speed", "0", more=small) as server:
        answer = ask(server, COMPLETIONS, asked(prompt=[7] * 100, max_tokens=62, **extra))
        error = refusal(answer)
        assert answer.status == 400
        assert error["type"] == "invalid_request_error"
        assert "needs 11 KV cache blocks and this deployment has 10" in error["message"]
        fits = ask(server, COMPLETIONS, asked(prompt=[7] * 100, max_tokens=61, **extra))
        assert fits.status == 200


def test_a_full_queue(tmp_path: Path) -> None:
    with llama(tmp_path, "--max-queue", "1", max_num_seqs=1) as server:
        with RawClient(server.address) as first, RawClient(server.address) as second:
            first.send(request_bytes(COMPLETIONS, asked(max_tokens=100_000)))
            until(server, lambda now: now.running == 1)
            second.send(request_bytes(COMPLETIONS, asked(max_tokens=100_000)))
            until(server, lambda now: now.waiting == 1)
            for stream in (True, False):
                extra = {} if stream else {"stream_options": None}
                answer = ask(server, COMPLETIONS, asked(stream=stream, **extra))
                assert answer.status == 429
                assert int(answer.headers["retry-after"]) > 0
                error = refusal(answer)
                assert (error["type"], error["code"]) == ("rate_limit_error", "queue_full")
        until(server, lambda now: now.running == now.waiting == 0)
        assert ask(server, COMPLETIONS, asked(max_tokens=3)).status == 200


# -- prefix cache --------------------------------------------------------------------


@pytest.mark.parametrize("stream", [True, False], ids=["streaming", "whole"])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_cached_tokens(server: Server, path: str, stream: bool) -> None:
    """Of a prompt sent twice all full blocks but the last position's are found again."""
    words = " ".join(f"{path}{stream}{number}" for number in range(400))
    body = (
        chat_body(model=LLAMA, messages=[{"role": "user", "content": words}], max_tokens=2)
        if path == CHAT
        else asked(prompt=words, max_tokens=2)
    )
    if not stream:
        body |= {"stream": False, "stream_options": None}
    hits = scrape(server).cached

    def usage() -> dict[str, Any]:
        answer = ask(server, path, body)
        told: dict[str, Any] = (answer.events[-2] if stream else answer.json)["usage"]
        return told

    first, second = usage(), usage()
    assert (first.get("prompt_tokens_details") or {}).get("cached_tokens", 0) == 0
    cached = (first["prompt_tokens"] - 1) // 16 * 16
    assert cached > 400
    assert second["prompt_tokens_details"]["cached_tokens"] == cached
    assert scrape(server).cached == hits + cached


# -- models --------------------------------------------------------------------------


def test_models_tell_their_context(server: Server, tmp_path: Path) -> None:
    (card,) = ask(server, "/v1/models").json["data"]
    assert (card["id"], card["max_model_len"]) == (LLAMA, 131072)
    assert ask(server, f"/v1/models/{LLAMA}").json == card
    with llama(tmp_path, more=["max_model_len = 4096"]) as other:
        (shorter,) = ask(other, "/v1/models").json["data"]
    assert shorter == {**card, "max_model_len": 4096}, "created is the same everywhere"


# -- long prompts ----------------------------------------------------------------


def long_prompt(kind: str) -> dict[str, Any]:
    """A request whose prompt nearly fills a context of a million tokens."""
    numbers = "".join(f"{number:07x} " for number in range(380_000))
    match kind:
        case "ids":
            return completions_body(prompt=[n % 100_000 for n in range(1_000_000)], max_tokens=1)
        case "text":
            return completions_body(prompt=numbers, max_tokens=1)
        case _:
            return chat_body(messages=[{"role": "user", "content": numbers}], max_tokens=1)


@pytest.mark.parametrize("kind", ["ids", "text", "chat"])
def test_a_million_tokens_do_not_stop_the_others(kind: str) -> None:
    """While a prompt of a million tokens is read, counted and named, other streams go on."""
    path = CHAT if kind == "chat" else COMPLETIONS
    long = request_bytes(path, long_prompt(kind))
    config = str(REPOSITORY / "configs" / "deepseek-v4-flash.toml")
    # At this speed its own prefill is short.
    with serve("--config", config, "--speed", "10") as server, ThreadPoolExecutor(1) as pool:
        other = Timed(server, completions_body(max_tokens=1_000_000))
        running = pool.submit(other.read)
        until(server, lambda now: now.running == 1)
        with RawClient(server.address) as client:
            client.send(long)
            answer = client.read()
        assert answer.events[-2]["usage"]["prompt_tokens"] > 990_000
        assert not running.done()
        other.enough.set()
        running.result()
        assert other.longest_gap < 1.0
