"""What is still on its way to the peer: asked of Twisted's buffer, then of the kernel's.

A socket that is aborted forgets what either still holds, so a death at an
exact byte must wait until both are empty, which for the kernel means
acknowledged by the peer.
"""

from __future__ import annotations

import fcntl
import socket
import struct
import sys
from typing import Any

from twisted.internet import tcp
from twisted.internet.abstract import FileDescriptor
from twisted.internet.interfaces import IListeningPort
from twisted.python.failure import Failure

# Linux's name for TIOCOUTQ on a socket: bytes written and not yet acknowledged.
_SIOCOUTQ = 0x5411


def file_descriptor(transport: Any) -> FileDescriptor | None:
    """The socket's transport below any TLS layers; ``None`` where there is no socket.

    Attribute probing would lie: TLS wrappers proxy everything.
    """
    while transport is not None and not isinstance(transport, FileDescriptor):
        transport = getattr(transport, "transport", None)
    return transport


class _Accountable(tcp.Server):
    """A connection that remembers what it had not delivered when it was lost."""

    lost = 0

    def connectionLost(self, reason: Failure) -> None:
        """The last moment at which the kernel can be asked."""
        self.lost = unsent(self) or 0
        super().connectionLost(reason)


def keep_account(port: IListeningPort) -> None:
    """Let the TCP connections that ``port`` accepts answer `lost`."""
    if isinstance(port, tcp.Port) and port.transport is tcp.Server:
        port.transport = _Accountable


def lost(transport: Any) -> int:
    """Bytes that never reached the peer of a connection that is gone; 0 where nobody knows."""
    return getattr(file_descriptor(transport), "lost", 0)


def can_reset(transport: Any) -> bool:
    """Whether the connection is TCP, the only transport that has a RST."""
    descriptor = file_descriptor(transport)
    handle = getattr(descriptor, "socket", None)
    return isinstance(handle, socket.socket) and handle.family in (
        socket.AF_INET,
        socket.AF_INET6,
    )


def close(transport: Any) -> None:
    """Send a FIN once the buffer is empty, whatever a TLS layer above still waits for."""
    descriptor = file_descriptor(transport)
    if descriptor is not None:
        descriptor.loseConnection()


def unsent(transport: Any) -> int | None:
    """Bytes that have not reached the peer; ``None`` where nobody can tell.

    Twisted offers no public count of its own buffer, so this reads the one
    `FileDescriptor` keeps.
    """
    descriptor = file_descriptor(transport)
    handle = getattr(descriptor, "socket", None)
    if descriptor is None or not isinstance(handle, socket.socket) or handle.fileno() < 0:
        return None
    buffered: int = len(descriptor.dataBuffer) - descriptor.offset + descriptor._tempDataLen
    queued = _kernel_queue(handle)
    return None if queued is None else buffered + queued


def _kernel_queue(handle: socket.socket) -> int | None:
    if not sys.platform.startswith("linux"):
        return None
    try:
        answer = fcntl.ioctl(handle.fileno(), _SIOCOUTQ, b"\0" * 4)
    except OSError:
        return None
    return int(struct.unpack("i", answer)[0])
