"""A real server in a process of its own, and clients that see what the wire did."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlencode

import msgspec
from attrs import define, field, frozen

MODEL = "DeepSeek-V4-Flash"
FAULT = "x-inference-lab-fault"
SESSION = "x-inference-lab-session"
APPLIED = "x-inference-lab-fault-applied"
CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
REPOSITORY = Path(__file__).parent.parent

READY = re.compile(
    r"inference-lab ready: (?P<url>\S+) models=(?P<models>\S+) "
    r"hardware=(?P<hardware>\S+) directives=(?P<directives>on|off)\n"
)

PATIENCE = 15.0
"""Seconds after which a test gives up on a peer that should have answered at once."""


def program(name: str) -> str:
    """Where ``name`` is; a missing one fails the test with one line."""
    # The scripts of the environment that runs the tests come first.
    here = Path(sys.executable).parent / name
    found = str(here) if here.exists() else shutil.which(name)
    assert found is not None, f"missing program: {name}"
    return found


# -- the server ------------------------------------------------------------


@define
class Server:
    """One running server."""

    process: subprocess.Popen[str]
    log_path: Path
    ready: str
    url: str = field(init=False)
    address: tuple[str, int] = field(init=False)

    def __attrs_post_init__(self) -> None:
        matched = READY.fullmatch(self.ready)
        assert matched is not None, f"not ready: {self.ready!r}\n{self.log()}"
        self.url = matched["url"]
        host, _, port = self.url.partition("://")[2].rpartition(":")
        self.address = (host.strip("[]"), int(port) if port.isdigit() else 0)

    def log(self) -> str:
        """What the server has logged so far."""
        return self.log_path.read_text()

    def open_files(self) -> int:
        """How many file descriptors the process holds."""
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def stop(self, how: signal.Signals = signal.SIGTERM) -> int:
        """End the process and return its exit status."""
        if self.process.poll() is None:
            self.process.send_signal(how)
        return self.process.wait(PATIENCE)


@contextmanager
def serve(*flags: str, command: Sequence[str] = (), cwd: Path | None = None) -> Iterator[Server]:
    """Run ``inference-lab serve`` on a free port until the block ends."""
    words = list(command) or [program("inference-lab"), "serve"]
    if not any(flag in ("--port", "--listen") for flag in flags):
        flags = (*flags, "--port", "0")
    with tempfile.TemporaryDirectory() as folder:
        log_path = Path(folder) / "log"
        with log_path.open("w") as log:
            process = subprocess.Popen(
                [*words, *flags],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=cwd or folder,
            )
        assert process.stdout is not None
        try:
            yield Server(process, log_path, _ready_line(process.stdout))
        finally:
            if process.poll() is None:
                process.terminate()
            process.wait(PATIENCE)
            process.stdout.close()


def _ready_line(out: IO[str]) -> str:
    """The line that says where, among the log lines that some runners put beside it."""
    line = ""
    for line in out:
        if READY.fullmatch(line):
            break
    return line


# -- requests --------------------------------------------------------------


def chat_body(**extra: Any) -> dict[str, Any]:
    """A streaming chat request that asks for usage."""
    return {
        "model": MODEL,
        "stream": True,
        "stream_options": {"include_usage": True},
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": 16,
        **extra,
    }


def completions_body(**extra: Any) -> dict[str, Any]:
    """A resume leg: a streaming completion of four token ids."""
    return {
        "model": MODEL,
        "prompt": [1, 2, 3, 4],
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": 64,
        **extra,
    }


def streaming_body(path: str, **extra: Any) -> dict[str, Any]:
    """A streaming request for ``path``."""
    return chat_body(**extra) if path == CHAT else completions_body(**extra)


def request_bytes(
    path: str,
    body: Any = None,
    headers: Mapping[str, str] | None = None,
    method: str | None = None,
    version: str = "1.1",
) -> bytes:
    """An HTTP request, spelt out. ``body`` is JSON, or bytes as they are."""
    payload = b"" if body is None else body if isinstance(body, bytes) else encode(body)
    head = [f"{method or ('GET' if body is None else 'POST')} {path} HTTP/{version}", "host: lab"]
    fields = {"content-type": "application/json", "content-length": str(len(payload))}
    head += [f"{name}: {value}" for name, value in {**fields, **(headers or {})}.items()]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + payload


def encode(body: Any) -> bytes:
    """``body`` as JSON."""
    return msgspec.json.encode(body)


# -- a raw client ----------------------------------------------------------


@frozen
class Exchange:
    """What one response did on the wire.

    ``chunks`` are the chunks of a chunked body (or the body as one), ``body``
    their sum. ``terminated`` says whether the body was complete by its own
    framing, ``torn`` holds bytes of an incomplete chunk. ``end`` is what the
    connection did then: ``FIN``, ``RST``, ``silence`` or ``reusable``.
    """

    status: int
    headers: dict[str, str]
    chunks: tuple[bytes, ...]
    terminated: bool
    end: str
    torn: bytes = b""

    @property
    def body(self) -> bytes:
        """All whole chunks."""
        return b"".join(self.chunks)

    @property
    def json(self) -> Any:
        """The body, parsed."""
        return msgspec.json.decode(self.body)

    @property
    def frames(self) -> list[bytes]:
        """The server-sent events, blank lines cut off; the last may be torn."""
        return [frame for frame in self.body.split(b"\n\n") if frame]

    @property
    def events(self) -> list[Any]:
        """The parsed ``data:`` payloads, ``[DONE]`` as text."""
        payloads = [frame.removeprefix(b"data: ") for frame in self.frames]
        return ["[DONE]" if p == b"[DONE]" else msgspec.json.decode(p) for p in payloads]


class RawClient:
    """One TCP (or TLS, or UNIX) connection, read byte by byte."""

    def __init__(
        self,
        address: tuple[str, int] | str,
        tls: ssl.SSLContext | None = None,
        receive_buffer: int | None = None,
    ) -> None:
        family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
        self.socket = socket.socket(family, socket.SOCK_STREAM)
        self.socket.settimeout(PATIENCE)
        if receive_buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.connect(address)
        self.tls = None if tls is None else _Tls(self.socket, tls)
        self._buffer = b""

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, *exc: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        """Send ``data``."""
        if self.tls is not None:
            data = self.tls.encrypt(data)
        self.socket.sendall(data)

    def receive(self) -> bytes:
        """The next bytes, empty at a FIN; raises as sockets do."""
        while True:
            data = self.socket.recv(65536)
            if self.tls is None or not data:
                return data
            plain = self.tls.decrypt(data)
            if plain:
                return plain

    def ask(
        self, path: str, body: Any = None, headers: Mapping[str, str] | None = None, **more: Any
    ) -> Exchange:
        """Send a request and read its response to the end."""
        self.send(request_bytes(path, body, headers, **more))
        return self.read()

    def read(self, silence: float | None = None) -> Exchange:
        """Read one response; ``silence`` seconds without a byte end it, too."""
        reader = _Reader(self, silence)
        exchange = reader.response()
        self._buffer = reader.data
        return exchange

    def reset(self) -> None:
        """Leave with a RST."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.socket.close()


class _Tls:
    """TLS beside the socket instead of on it.

    Python's own TLS sockets report a RST as a missing goodbye; below them it shows.
    """

    def __init__(self, socket: socket.socket, context: ssl.SSLContext) -> None:
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.session = context.wrap_bio(self._in, self._out, server_hostname="localhost")
        while True:
            try:
                self.session.do_handshake()
                break
            except ssl.SSLWantReadError:
                socket.sendall(self._out.read())
                self._in.write(socket.recv(65536))
        socket.sendall(self._out.read())

    def encrypt(self, data: bytes) -> bytes:
        self.session.write(data)
        return self._out.read()

    def decrypt(self, data: bytes) -> bytes:
        self._in.write(data)
        plain = b""
        try:
            while piece := self.session.read(65536):
                plain += piece
        except (ssl.SSLWantReadError, ssl.SSLZeroReturnError):
            # Half a record, or the goodbye: the connection itself says what follows.
            pass
        return plain


class _Reader:
    """Reads one response; `data` is what came and has not been used."""

    def __init__(self, client: RawClient, silence: float | None) -> None:
        self.data = client._buffer
        self._receive = client.receive
        client.socket.settimeout(silence or PATIENCE)
        self._silence = silence
        self.end: str | None = None

    def response(self) -> Exchange:
        head = self._until(b"\r\n\r\n")
        assert head is not None, f"no response head, {self.end} after {self.data!r}"
        status_line, *lines = head.decode("latin-1").split("\r\n")
        headers = {}
        for line in lines:
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        status = int(status_line.split(" ", 2)[1])
        if headers.get("transfer-encoding") == "chunked":
            chunks, terminated = self._chunks()
        elif "content-length" in headers:
            body = self._exactly(int(headers["content-length"]))
            chunks, terminated = [body or b""], body is not None
        elif status == 204:
            chunks, terminated = [], True
        else:
            while self._more():
                pass
            chunks, terminated, self.data = [self.data], self.end == "FIN", b""
        torn = b"" if terminated else self.data
        if terminated and self.end is None and headers.get("connection") == "close":
            self._more()
        return Exchange(status, headers, tuple(chunks), terminated, self.end or "reusable", torn)

    def _chunks(self) -> tuple[list[bytes], bool]:
        chunks: list[bytes] = []
        while True:
            size = self._until(b"\r\n")
            if size is None:
                return chunks, False
            length = int(size, 16)
            chunk = self._exactly(length + 2)
            if chunk is None:
                self.data = size + b"\r\n" + self.data
                return chunks, False
            assert chunk.endswith(b"\r\n"), chunk
            if length == 0:
                return chunks, True
            chunks.append(chunk[:-2])

    def _until(self, mark: bytes) -> bytes | None:
        while mark not in self.data:
            if not self._more():
                return None
        found, _, self.data = self.data.partition(mark)
        return found

    def _exactly(self, count: int) -> bytes | None:
        while len(self.data) < count:
            if not self._more():
                return None
        found, self.data = self.data[:count], self.data[count:]
        return found

    def _more(self) -> bool:
        if self.end is not None:
            return False
        try:
            data = self._receive()
        except TimeoutError:
            assert self._silence is not None, f"the server fell silent after {self.data[-200:]!r}"
            self.end = "silence"
        except (ConnectionResetError, BrokenPipeError):
            self.end = "RST"
        else:
            self.data += data
            if not data:
                self.end = "FIN"
        return self.end is None


def ask(
    server: Server,
    path: str,
    body: Any = None,
    headers: Mapping[str, str] | None = None,
    silence: float | None = None,
    **more: Any,
) -> Exchange:
    """One request on a connection of its own."""
    with RawClient(server.address) as client:
        client.send(request_bytes(path, body, headers, **more))
        return client.read(silence)


def journal(server: Server, wait: bool = True, **wanted: object) -> list[dict[str, Any]]:
    """The records that match, complete unless ``wait`` is false."""
    more = {"wait": "ended", "timeout": PATIENCE} if wait else {}
    found = ask(server, f"/lab/journal?{urlencode(wanted | more)}")
    assert found.status == 200, found.body
    assert not found.json["timed_out"], found.json
    records: list[dict[str, Any]] = found.json["records"]
    return records


# -- real curl -------------------------------------------------------------


@frozen
class Curl:
    """What curl printed and how it exited."""

    code: int
    out: bytes
    err: str


def curl(*arguments: str) -> Curl:
    """Run curl."""
    done = subprocess.run(
        [program("curl"), "-sS", "-N", *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=PATIENCE,
        check=False,
    )
    return Curl(done.returncode, done.stdout, done.stderr.decode())


def curl_post(
    server: Server, path: str, body: Any, fault: str | None = None, *arguments: str
) -> Curl:
    """POST JSON with curl."""
    header = ["-H", f"{FAULT}: {fault}"] if fault is not None else []
    return curl(
        *arguments,
        server.url + path,
        "-H",
        "content-type: application/json",
        *header,
        "-d",
        encode(body).decode(),
    )
