"""A server without a socket: the real HTTP channel on transports in memory."""

from __future__ import annotations

from typing import Any

from twisted.internet.address import IPv4Address
from twisted.internet.error import ConnectionDone, ConnectionLost
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.python.failure import Failure
from twisted.web.resource import IResource
from twisted.web.server import Site

from inference_lab.web.site import LabSite


class MemoryTransport(StringTransport):
    """Remembers how it was closed, and tells the protocol only when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.closings: list[str] = []

    def loseConnection(self) -> None:
        """An orderly close: FIN."""
        self.closings.append("FIN")
        super().loseConnection()

    def abortConnection(self) -> None:
        """An abortive close: RST."""
        self.closings.append("RST")
        self.disconnected = True

    def setTcpNoDelay(self, enabled: bool) -> None:
        """Asked for by the HTTP channel."""


class Connection:
    """One client's connection to ``site``, or to a site of our kind around a resource."""

    def __init__(self, site: IResource | Site, clock: Clock) -> None:
        if not isinstance(site, Site):
            site = LabSite(site, clock)
        self.clock = clock
        self.transport = MemoryTransport()
        self.channel: Any = site.buildProtocol(IPv4Address("TCP", "127.0.0.1", 1))
        self.channel.makeConnection(self.transport)

    def send(self, data: bytes) -> None:
        """Bytes from the client."""
        self.channel.dataReceived(data)

    def ask(self, method: str, path: str, body: bytes = b"", *headers: str) -> None:
        """One HTTP/1.1 request."""
        lines = [f"{method} {path} HTTP/1.1", "Host: lab", f"Content-Length: {len(body)}", *headers]
        self.send("\r\n".join([*lines, "", ""]).encode("latin-1") + body)

    def leave(self, clean: bool = True) -> None:
        """The connection is gone, by either side's doing."""
        self.channel.connectionLost(Failure(ConnectionDone() if clean else ConnectionLost()))

    @property
    def closings(self) -> list[str]:
        """What the server did to the transport: ``FIN``, ``RST``."""
        return self.transport.closings

    @property
    def raw(self) -> bytes:
        """Every byte the server sent."""
        value: bytes = self.transport.value()
        return value

    @property
    def head(self) -> tuple[int, dict[str, str]]:
        """Status code and headers of the first response, names in lower case."""
        status, *lines = self.raw.partition(b"\r\n\r\n")[0].decode("ascii").split("\r\n")
        pairs = (line.split(": ", 1) for line in lines)
        return int(status.split()[1]), {name.lower(): value for name, value in pairs}

    @property
    def text(self) -> bytes:
        """The body of the first response, framing removed."""
        if "transfer-encoding" not in self.head[1]:
            return self.rest
        rest, body = self.rest, b""
        while rest and not rest.startswith(TERMINATOR):
            size, _, rest = rest.partition(b"\r\n")
            body += rest[: int(size, 16)]
            rest = rest[int(size, 16) + 2 :]
        return body

    @property
    def rest(self) -> bytes:
        """What follows the first response's head, framing included."""
        return self.raw.partition(b"\r\n\r\n")[2]


def chunk(data: bytes) -> bytes:
    """``data`` as one HTTP chunk."""
    return b"%x\r\n%b\r\n" % (len(data), data)


TERMINATOR = b"0\r\n\r\n"
"""How a chunked body ends when all is well."""
