"""Deaths through TLS and over a UNIX socket."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from tests.live import (
    CHAT,
    COMPLETIONS,
    FAULT,
    Exchange,
    RawClient,
    Server,
    ask,
    curl,
    encode,
    request_bytes,
    serve,
    streaming_body,
)


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    """A certificate authority of this test run."""
    return trustme.CA()


@pytest.fixture(scope="module")
def tls_server(authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The server behind TLS."""
    folder = tmp_path_factory.mktemp("tls")
    certificate = authority.issue_cert("localhost", "127.0.0.1")
    key, chain = folder / "key.pem", folder / "chain.pem"
    certificate.private_key_pem.write_to_path(str(key))
    certificate.cert_chain_pems[0].write_to_path(str(chain))
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    endpoint = f"ssl:0:interface=127.0.0.1:privateKey={key}:certKey={chain}"
    with serve("--hardware", "b200", "--enable-directives", "--listen", endpoint) as running:
        yield running


def ask_tls(
    server: Server, authority: trustme.CA, path: str, fault: str, silence: float | None = None
) -> Exchange:
    """One request over TLS."""
    context = ssl.create_default_context()
    authority.configure_trust(context)
    context.set_alpn_protocols(["h2", "http/1.1"])
    with RawClient(server.address, tls=context) as client:
        assert client.tls is not None
        assert client.tls.session.selected_alpn_protocol() == "http/1.1"
        client.send(request_bytes(path, streaming_body(path), {FAULT: fault}))
        return client.read(silence)


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize(
    ("fault", "end"),
    [
        ("cut_between_frames", "FIN"),
        ("cut_mid_frame", "FIN"),
        ("cut_mid_frame;utf8=true", "FIN"),
        ("reset", "RST"),
        ("reset;after_chunks=0", "RST"),
        ("reset;delay_ms=0;after_chunks=2000", "RST"),
        ("stall", "silence"),
        ("no_done", "reusable"),
        ("cancelled_499", "reusable"),
        ("mid_tool_call", "FIN"),
    ],
)
def test_through_tls(
    server: Server, tls_server: Server, authority: trustme.CA, path: str, fault: str, end: str
) -> None:
    """The same bytes and the same end as over plain TCP."""
    silence = 0.4 if end == "silence" else None
    died = ask_tls(tls_server, authority, path, fault, silence)
    assert died.end == end
    assert died.chunks == ask(server, path, streaming_body(path), {FAULT: fault}, silence).chunks


def test_the_ready_line_says_https(tls_server: Server) -> None:
    """The address printed is the one to connect to."""
    assert tls_server.url.startswith("https://127.0.0.1:")


@pytest.mark.parametrize(("fault", "code"), [("reset", 56), ("no_usage", 0)])
def test_curl_through_tls(
    tls_server: Server, authority: trustme.CA, tmp_path: Path, fault: str, code: int
) -> None:
    """curl tells a RST from a clean end through TLS, too."""
    trusted = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(trusted))
    said = curl(
        "--cacert", str(trusted), tls_server.url + CHAT,
        "-H", "content-type: application/json", "-H", f"{FAULT}: {fault}",
        "-d", encode(streaming_body(CHAT)).decode(),
    )  # fmt: skip
    assert said.code == code, said.err


def test_a_unix_socket_has_no_reset(server: Server, tmp_path: Path) -> None:
    """`reset` degrades to a plain close there, with a warning in the log."""
    path = str(tmp_path / "lab.sock")
    with serve("--hardware", "b200", "--enable-directives", "--listen", f"unix:{path}") as running:
        assert running.url == f"unix:{path}"
        with RawClient(path) as client:
            died = client.ask(CHAT, streaming_body(CHAT), {FAULT: "reset"})
        assert (died.end, died.terminated) == ("FIN", False)
        assert died.chunks == ask(server, CHAT, streaming_body(CHAT), {FAULT: "reset"}).chunks
        assert "No TCP socket here to reset" in running.log()
        with RawClient(path) as client:
            healthy = client.ask(CHAT, streaming_body(CHAT))
        assert healthy.terminated
        assert running.stop() == 0
    assert not Path(path).exists()
