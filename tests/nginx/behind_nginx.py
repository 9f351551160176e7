"""docs/behind_nginx.rst against a live nginx, and clients that leave through it.

nginx is no package that pip brings, so these tests are not among those of the default
run: neither pytest nor trial collects a module whose name does not begin with ``test_``.
``.ci/run`` gets nginx and names this file: ``pytest tests/nginx/behind_nginx.py``. Without
nginx on the path they fail.
"""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Iterator

import pytest
from attrs import frozen
from prometheus_client.parser import text_string_to_metric_families

from tests.live import (
    CHAT,
    FAULT,
    PATIENCE,
    RawClient,
    Server,
    ask,
    chat_body,
    request_bytes,
    serve,
)
from tests.nginx.cases import DIRECTIVES
from tests.nginx.proxy import Proxy, behind_nginx
from tests.nginx.table import PAGE, Pair, measure, page, row
from tests.seen import FAULTS


@pytest.fixture(scope="module")
def pairs() -> dict[str, Pair]:
    """Everything, seen once more."""
    return measure()


def rows() -> dict[str, str]:
    """The rows of the page, by their directive."""
    found = re.finditer(r"^   \* - ``(.+?)``(?:\n     - .+)+", PAGE.read_text(), re.MULTILINE)
    return {match[1]: match[0] for match in found}


def test_the_rows() -> None:
    """One for each directive, the eleven modes among them."""
    assert tuple(rows()) == DIRECTIVES
    assert set(FAULTS) <= set(rows())


@pytest.mark.parametrize("directive", DIRECTIVES)
def test_a_row(pairs: dict[str, Pair], directive: str) -> None:
    """The page says what is seen."""
    assert rows()[directive] == row(directive, pairs[directive])


def test_the_page(pairs: dict[str, Pair]) -> None:
    """And so does the rest of it; another patch or version is no reason to fail."""
    written = PAGE.read_text()
    measured_with = re.search(r"nginx \d+\.\d+ and curl \d+\.\d+", written)
    assert measured_with is not None
    assert written == page(pairs, measured_with[0])


# -- leaving -------------------------------------------------------------------


@frozen
class Figures:
    """One scrape: streams that are open, requests in the engine, and how many it aborted."""

    streams: float
    running: float
    aborted: float


def scrape(server: Server) -> Figures:
    """As of now, all models together."""
    sums: dict[str, float] = defaultdict(float)
    for family in text_string_to_metric_families(ask(server, "/metrics").body.decode()):
        for sample in family.samples:
            sums[sample.name + sample.labels.get("finished_reason", "")] += sample.value
    return Figures(
        streams=sums["inference_lab_open_streams"],
        running=sums["vllm:num_requests_running"],
        aborted=sums["vllm:request_success_totalabort"],
    )


def until(server: Server, expected: Figures) -> None:
    """Scrape until it is so."""
    deadline = time.monotonic() + PATIENCE
    while (figures := scrape(server)) != expected:
        assert time.monotonic() < deadline, figures


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A server of its own, so that nobody else's streams are counted."""
    with serve("--hardware", "b200", "--enable-directives") as running:
        yield running


@pytest.fixture(scope="module")
def patient(server: Server) -> Iterator[Proxy]:
    """An nginx that does not end a silent stream by itself."""
    with behind_nginx(server, read_timeout="1h") as running:
        yield running


# What the client has asked for, and what the server then holds for it.
STAYS = {
    "a healthy stream": (request_bytes(CHAT, chat_body(max_tokens=100_000)), 1, 1),
    "an answer in one piece": (
        request_bytes(CHAT, chat_body(max_tokens=100_000, stream=False, stream_options=None)),
        0,
        1,
    ),
    "a stall": (request_bytes(CHAT, chat_body(), {FAULT: "stall;delay_ms=0"}), 1, 0),
    "a stall from the first byte on": (
        request_bytes(CHAT, chat_body(), {FAULT: "slow_headers;wait_ms=3600000"}),
        1,
        0,
    ),
}


@pytest.mark.parametrize("how", ["FIN", "RST"])
@pytest.mark.parametrize("stay", STAYS)
def test_who_leaves_nginx_leaves_the_server(
    server: Server, patient: Proxy, stay: str, how: str
) -> None:
    """The stream is over and the engine's place free, though nginx stays."""
    request, streams, running = STAYS[stay]
    aborted = scrape(server).aborted
    with RawClient(patient.address) as client:
        client.send(request)
        until(server, Figures(streams, running, aborted))
        if how == "RST":
            client.reset()
    until(server, Figures(0, 0, aborted + running))
