"""Every mode of the catalogue on a real socket: its bytes, its end, and curl's exit code."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from attrs import frozen

from inference_lab.faults.modes import SPECIFIED, built_in, load_modes
from inference_lab.render import ENDPOINTS, render, request_body
from tests.live import (
    FAULT,
    MODEL,
    SESSION,
    Curl,
    RawClient,
    Server,
    curl,
    journal,
    request_bytes,
    serve,
)

SILENCE = 1.0
"""Seconds without a byte after which a stream counts as held."""


@frozen
class Fate:
    """How a directive ends: on the connection, and for curl."""

    directive: str
    end: str
    curl: int


# What is sent: `reusable` is a clean end on a connection that lives on.
FATES = (
    Fate("clean_eof", "reusable", 0),
    Fate("clean_eof;after=role", "reusable", 0),
    Fate("clean_eof;after=reasoning", "reusable", 0),
    Fate("clean_eof;after=tool_call", "reusable", 0),
    Fate("done_no_finish", "reusable", 0),
    Fate("finish_abort", "reusable", 0),
    Fate("finish_abort;reason=insufficient_system_resource", "reusable", 0),
    Fate('finish_abort;reason="a, b; c"', "reusable", 0),
    Fate("stall_keepalive;every_ms=50", "alive", 28),
    Fate("stall_keepalive;every_ms=50;kind=empty_delta", "alive", 28),
    Fate("stall_keepalive;every_ms=50;kind=ping", "alive", 28),
    Fate("slow_drip;every_ms=50", "reusable", 0),
    Fate("finish_hold", "silence", 28),
    Fate("done_hold", "silence", 28),
    *(
        Fate(f"{mode};dialect={dialect};done={done}", "reusable", 0)
        for mode in ("error_frame", "first_frame_error")
        for dialect in built_in()[mode].parameters["dialect"].allowed
        for done in ("true", "false")
    ),
    Fate("tool_truncated_finish", "reusable", 0),
    Fate("tool_name_only", "reusable", 0),
    Fate("tool_name_only;how=fin", "FIN", 18),
    Fate("tool_name_only;how=rst", "RST", 56),
    Fate("tool_index;kind=missing", "reusable", 0),
    Fate("tool_index;kind=duplicate", "reusable", 0),
    Fate("tool_index;kind=interleaved", "reusable", 0),
    Fate("tool_index;kind=resent", "reusable", 0),
    Fate("malformed_then_continue", "reusable", 0),
    Fate("double_done", "reusable", 0),
    Fate("data_after_done", "reusable", 0),
    Fate("duplicate_frame", "reusable", 0),
    Fate("content_after_finish", "reusable", 0),
    Fate("usage_every_chunk", "reusable", 0),
    Fate("choices_null", "reusable", 0),
    Fate("choices_null;kind=missing", "reusable", 0),
    Fate("azure_filter_chunks", "reusable", 0),
    Fate("id_unstable", "reusable", 0),
    Fate("cut_inside_chunk", "FIN", 18),
    Fate("cut_inside_chunk;at=20", "FIN", 18),
    Fate("cut_inside_chunk;at=line", "FIN", 18),
    Fate("cut_inside_chunk;at=chunk_header", "FIN", 18),
    Fate("close_delimited", "FIN", 0),
    Fate("content_length_long", "FIN", 18),
    Fate("content_length_short", "FIN", 0),
    Fate("missing_final_crlf", "FIN", 18),
    Fate("reset_after_done", "RST", 0),
    Fate("headers_then_eof", "FIN", 18),
    Fate("close_before_headers", "FIN", 52),
    Fate("close_before_headers;how=rst", "RST", 56),
    Fate("slow_headers;wait_ms=50", "reusable", 0),
    Fate("slow_first_byte;wait_ms=50", "reusable", 0),
    Fate("empty_200", "reusable", 0),
    Fate("empty_200;kind=done", "reusable", 0),
    Fate("empty_200;kind=role", "reusable", 0),
    Fate("html_200", "reusable", 0),
    Fate("json_200", "reusable", 0),
    Fate("json_200;kind=error", "reusable", 0),
    Fate("json_200;kind=mislabelled", "reusable", 0),
    Fate("http_status", "reusable", 0),
    Fate("http_status;status=429;retry_after=1.5;dialect=vllm", "reusable", 0),
    Fate('http_status;retry_after="Wed, 21 Oct 2026 07:28:00 GMT"', "reusable", 0),
    Fate("http_status;retry_after=soon;dialect=html", "reusable", 0),
    Fate("gzip_truncated", "reusable", 0),
    Fate("lone_surrogate", "reusable", 0),
    Fate("invalid_utf8", "reusable", 0),
    Fate("nan_json", "reusable", 0),
)


def mode_of(fate: Fate) -> str:
    return fate.directive.partition(";")[0]


CASES = [
    pytest.param(fate, endpoint, id=f"{endpoint} {fate.directive}")
    for fate in FATES
    for endpoint in built_in()[mode_of(fate)].endpoints
]


def test_every_mode_has_a_fate() -> None:
    """A mode that is added gets its line above."""
    modes = {mode_of(fate) for fate in FATES}
    assert modes | set(SPECIFIED) | {"none"} == set(built_in())
    assert not modes & set(SPECIFIED)


@pytest.fixture(scope="module")
def mine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Path]]:
    """A server with a user's own modes."""
    folder = tmp_path_factory.mktemp("modes")
    for name, text in OWN.items():
        (folder / f"{name}.toml").write_text(text)
    with serve("--enable-directives", "--modes", str(folder)) as server:
        yield server, folder


OWN = {
    "interim": """
wire = "early hints, a head of its own with a header twice, trailers"
curl = "exit 0"
script = [
  { do = "head", status = 103, reason = "Early Hints", headers = [["link", "</a>"]] },
  { do = "head", reason = "Fine", headers = [["x-two", "1"], ["x-two", "2"]], exact = true },
  "role",
  { do = "content", count = "$after_chunks" },
  { do = "trailers", fields = [["x-why", "because"]] },
]
""",
    "raw_head": """
wire = "a head that no server should send, a pause, and a chunk in two writes"
curl = "exit 18"
script = [
  "no_head",
  { do = "raw", framed = false, text = "HTTP/1.1 200\\r\\ntransfer-encoding: chunked\\r\\n" },
  { do = "pause", ms = 20 },
  { do = "raw", framed = false, hex = "0d0a350d0a6865" },
  { do = "pause", ms = "$wait" },
  { do = "raw", framed = false, base64 = "bGxvDQo=" },
  { do = "end", how = "fin" },
]
[parameters.wait]
type = "u32"
default = 20
""",
}


Talk = Future[tuple[bytes, str]]


def talk(
    server: Server, endpoint: str, directive: str, session: str | None = None
) -> tuple[bytes, str]:
    """Every byte of one answer, and what the connection did then."""
    body = request_body(endpoint, MODEL)
    headers = {FAULT: directive} | ({} if session is None else {SESSION: session})
    received, end = b"", "alive"
    with RawClient(server.address) as client:
        client.send(request_bytes(ENDPOINTS[endpoint].path, body, headers))
        client.socket.settimeout(SILENCE)
        try:
            for _ in range(60):
                data = client.receive()
                received += data
                if not data:
                    end = "FIN"
                    break
        except TimeoutError:
            end = "silence"
        except ConnectionResetError:
            end = "RST"
        if end == "silence":
            client.socket.settimeout(SILENCE)
            end = after_silence(client)
    return received, end


def after_silence(client: RawClient) -> str:
    """Whether the connection takes another request."""
    client.send(request_bytes("/health"))
    try:
        return "reusable" if client.receive().startswith(b"HTTP/1.1 200 OK") else "FIN"
    except TimeoutError:
        return "silence"


def masked(wire: bytes) -> bytes:
    """Without what differs from one request to the next."""
    ours = rb"(?mi)^(date|x-request-id|x-inference-lab-fault-applied): .*\r\n"
    return re.sub(ours, b"", wire)


JOURNALLED = {
    "reusable": "clean",
    "FIN": "fin",
    "RST": "rst",
    "silence": "held",
    "alive": "held",
}
"""How the journal calls an end."""


def body_of(wire: bytes) -> bytes:
    """The body of a response as far as it came, read by its head and nothing else."""
    head, _, rest = wire.partition(b"\r\n\r\n")
    if b"transfer-encoding: chunked" not in head.lower():
        return rest
    body = b""
    while b"\r\n" in rest:
        size, _, rest = rest.partition(b"\r\n")
        body += rest[: int(size, 16)]
        rest = rest[int(size, 16) + 2 :]
    return body


@pytest.fixture(scope="module")
def talks(mine: tuple[Server, Path]) -> Iterator[Mapping[tuple[str, str], Talk]]:
    """Every case, side by side: most of their time is silence."""
    with ThreadPoolExecutor(16) as pool:
        yield {
            (endpoint, fate.directive): pool.submit(
                talk, mine[0], endpoint, fate.directive, session_of(endpoint, fate.directive)
            )
            for fate in FATES
            for endpoint in built_in()[mode_of(fate)].endpoints
        }


def session_of(endpoint: str, directive: str) -> str:
    """A session for one case."""
    return f"{endpoint} {directive}"


@pytest.mark.parametrize(("fate", "endpoint"), CASES)
def test_on_the_wire(
    mine: tuple[Server, Path], talks: Mapping[tuple[str, str], Talk], fate: Fate, endpoint: str
) -> None:
    """The bytes are those that `modes render` prints; then the end."""
    server, folder = mine
    wire, end = talks[endpoint, fate.directive].result()
    rendered = render(fate.directive, endpoint, load_modes([folder]), MODEL)
    assert end == fate.end
    if end == "alive":
        assert masked(rendered.wire).startswith(masked(wire))
        assert wire.count(b"\n\n") > 5
    else:
        assert masked(wire) == masked(rendered.wire)
    (record,) = journal(server, session=session_of(endpoint, fate.directive))
    assert record["end"] == JOURNALLED[end]
    assert record["wire_bytes"] == len(wire)
    assert record["left_after_bytes"] == (len(wire) if record["end"] == "held" else None)
    assert record["body_bytes"] == len(body := body_of(wire))
    if mode_of(fate) != "gzip_truncated":
        assert record["frames"] == body.count(b"\n\n")


def run_curl(server: Server, fate: Fate) -> Curl:
    """Real curl with one directive."""
    endpoint = built_in()[mode_of(fate)].endpoints[0]
    return curl(
        *(["--max-time", "1"] if fate.curl == 28 else []),
        server.url + ENDPOINTS[endpoint].path,
        *("-H", "content-type: application/json", "-H", f"{FAULT}: {fate.directive}"),
        *("-d", request_body(endpoint, MODEL).decode()),
    )


@pytest.fixture(scope="module")
def curls(mine: tuple[Server, Path]) -> Iterator[Mapping[str, Future[Curl]]]:
    """Every directive, a few at a time."""
    with ThreadPoolExecutor(4) as pool:
        yield {fate.directive: pool.submit(run_curl, mine[0], fate) for fate in FATES}


@pytest.mark.parametrize("fate", FATES, ids=lambda fate: fate.directive)
def test_curl(curls: Mapping[str, Future[Curl]], fate: Fate) -> None:
    """Real curl exits as the table says."""
    said = curls[fate.directive].result()
    assert said.code == fate.curl, said.err


def test_own_modes_on_the_wire(mine: tuple[Server, Path]) -> None:
    """Heads, interim heads, trailers and chunks that only the script spells."""
    server, folder = mine
    wire, end = talk(server, "chat", "interim;after_chunks=1")
    assert wire.startswith(
        b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n"
        b"HTTP/1.1 200 Fine\r\nx-two: 1\r\nx-two: 2\r\ntransfer-encoding: chunked\r\n\r\n"
    )
    assert wire.endswith(b"0\r\nx-why: because\r\n\r\n")
    assert end == "reusable"
    wire, end = talk(server, "chat", "raw_head;wait=10")
    assert wire == b"HTTP/1.1 200\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n"
    assert end == "FIN"
    for name in OWN:
        directive = f"{name};after_chunks=1"
        rendered = render(directive, "chat", load_modes([folder]), MODEL).wire
        assert rendered == talk(server, "chat", directive)[0]


def test_own_modes_are_listed_in_refusals(mine: tuple[Server, Path]) -> None:
    """The modes of that server, not of the product."""
    wire, _ = talk(mine[0], "chat", "nonesuch")
    assert b"interim" in wire
    assert b"raw_head" in wire
    assert b"error_frame" in wire
