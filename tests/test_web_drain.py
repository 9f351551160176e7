"""Real sockets, turned by hand: no reactor runs, so nothing happens between two lines."""

from __future__ import annotations

import fcntl
import select
import socket
import struct
import sys
from typing import Any

from klein import Klein
from klein.resource import KleinResource
from twisted.internet import tcp
from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred
from twisted.internet.protocol import Protocol
from twisted.internet.testing import StringTransport
from twisted.protocols.policies import ProtocolWrapper, WrappingFactory
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from inference_lab.faults.player import Player
from inference_lab.faults.steps import End, Send, Step
from inference_lab.web import drain
from inference_lab.web.site import LabSite
from inference_lab.web.wire import Wire
from tests.memory import chunk
from tests.turns import TurningClock

KIB = 1024


class HandTurnedReactor(TurningClock):
    """Remembers which descriptors want to write; `flush` lets them."""

    def __init__(self) -> None:
        super().__init__()
        self.writers: set[Any] = set()

    def addWriter(self, writer: Any) -> None:
        self.writers.add(writer)

    def removeWriter(self, writer: Any) -> None:
        self.writers.discard(writer)

    def addReader(self, reader: Any) -> None:
        """Tests call ``dataReceived`` themselves."""

    def removeReader(self, reader: Any) -> None:
        """See `addReader`."""

    def flush(self) -> None:
        """One turn of writing, as an event loop would do it."""
        for writer in tuple(self.writers):
            if select.select([], [writer.fileno()], [], 0)[1]:
                why = writer.doWrite()
                if why is not None:
                    self.writers.discard(writer)
                    writer.connectionLost(Failure(why))


class SocketCase(SynchronousTestCase):
    """One TCP connection, the near end a Twisted transport."""

    def setUp(self) -> None:
        self.reactor = HandTurnedReactor()

    def connect(self, family: str = "tcp", receive_buffer: int | None = None) -> Any:
        if family == "unix":
            near, self.far = socket.socketpair(socket.AF_UNIX)
        else:
            with socket.socket() as listener:
                if receive_buffer is not None:
                    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
                listener.bind(("127.0.0.1", 0))
                listener.listen()
                near = socket.create_connection(listener.getsockname())
                self.far, _ = listener.accept()
        self.addCleanup(near.close)
        self.addCleanup(self.far.close)
        near.setblocking(False)
        self.far.settimeout(10.0)
        reactor: Any = self.reactor
        protocol: Any = Protocol()
        no_port: Any = None
        return tcp.Server(near, protocol, ("127.0.0.1", 1), no_port, 0, reactor)

    def receive(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = self.far.recv(size - len(data))
            if not piece:
                break
            data += piece
        return data


class UnsentTests(SocketCase):
    """Twisted's buffers and the kernel's, added up."""

    def test_counts_what_twisted_holds(self) -> None:
        transport = self.connect()
        self.assertEqual(drain.unsent(transport), 0)
        transport.write(b"x" * 100)
        transport.writeSequence([b"y" * 20, b"z" * 3])
        self.assertEqual(drain.unsent(transport), 123)

    def test_counts_what_the_kernel_holds_until_it_is_acknowledged(self) -> None:
        transport = self.connect(receive_buffer=4 * KIB)
        size = 8 * KIB * KIB
        transport.write(b"x" * size)
        self.reactor.flush()
        buffered = len(transport.dataBuffer) - transport.offset + transport._tempDataLen
        self.assertGreater(buffered, 0)
        left = drain.unsent(transport)
        assert left is not None
        self.assertGreater(left, buffered, "the kernel's queue counts too")
        self.assertLessEqual(left, size)
        read = 0
        while left:
            self.reactor.flush()
            if select.select([self.far], [], [], 0)[0]:
                read += len(self.far.recv(KIB * KIB))
            before, left = left, drain.unsent(transport)
            assert left is not None
            self.assertLessEqual(left, before, "nobody adds to it")
        # All of it is with the peer, in its hands or in its kernel's.
        self.assertEqual(read + len(self.receive(size - read)), size)

    def test_nobody_can_tell(self) -> None:
        self.assertIsNone(drain.unsent(None))
        self.assertIsNone(drain.unsent(StringTransport()))
        transport = self.connect()
        transport.socket.close()
        self.assertIsNone(drain.unsent(transport))

    def test_on_a_platform_without_the_question(self) -> None:
        transport = self.connect()
        self.patch(sys, "platform", "darwin")
        self.assertIsNone(drain.unsent(transport))

    def test_a_kernel_that_refuses(self) -> None:
        def refuse(*args: object) -> bytes:
            raise OSError("no such ioctl")

        transport = self.connect()
        self.patch(fcntl, "ioctl", refuse)
        self.assertIsNone(drain.unsent(transport))


class DescriptorTests(SocketCase):
    """What lies below a stack of wrappers."""

    def wrapped(self, transport: Any) -> ProtocolWrapper:
        """As TLS wraps: attributes it lacks are asked of what is below."""
        nobody: Any = None
        wrapper = ProtocolWrapper(WrappingFactory(nobody), nobody)
        wrapper.transport = transport
        return wrapper

    def test_below_wrappers(self) -> None:
        transport = self.connect()
        stack = self.wrapped(self.wrapped(transport))
        self.assertIs(drain.file_descriptor(stack), transport)
        transport.write(b"abc")
        self.assertEqual(drain.unsent(stack), 3)
        self.assertTrue(drain.can_reset(stack))

    def test_none(self) -> None:
        memory = StringTransport()
        self.assertIsNone(drain.file_descriptor(memory))
        self.assertIsNone(drain.file_descriptor(self.wrapped(memory)))
        self.assertFalse(drain.can_reset(self.wrapped(memory)))

    def test_who_can_reset(self) -> None:
        self.assertTrue(drain.can_reset(self.connect()))
        self.assertFalse(drain.can_reset(self.connect("unix")))
        self.assertFalse(drain.can_reset(StringTransport()))
        self.assertFalse(drain.can_reset(None))


class Theatre:
    """One route that plays ``steps``."""

    app = Klein()

    def __init__(self, reactor: HandTurnedReactor, steps: tuple[Step, ...]) -> None:
        self.reactor = reactor
        self.steps = steps

    @app.route("/", methods=["GET"])
    def stream(self, request: Any) -> Deferred[None]:
        # The clock here turns far faster than the kernel acknowledges.
        wire = Wire(request, self.reactor, drain_timeout=1e9)
        wire.open()
        wire.play(Player(iter(self.steps), wire, self.reactor))
        return wire.gone


class DeathTests(SocketCase):
    """The whole wire on a real socket: every byte, then the end it was told."""

    def play(self, *steps: Step, receive_buffer: int | None = None) -> Any:
        transport = self.connect(receive_buffer=receive_buffer)
        site = LabSite(KleinResource(Theatre(self.reactor, steps).app), self.reactor)
        channel: Any = site.buildProtocol(IPv4Address("TCP", "127.0.0.1", 1))
        transport.protocol = channel
        channel.makeConnection(transport)
        channel.dataReceived(b"GET / HTTP/1.1\r\nHost: lab\r\n\r\n")
        return transport

    def until_dead(self, piece: int = 64 * KIB) -> tuple[bytes, BaseException | None]:
        """What a reader that takes ``piece`` bytes a turn gets, and how it ends."""
        data = bytearray()
        while True:
            self.reactor.flush()
            self.reactor.turn(0.005)
            if select.select([self.far], [], [], 0)[0]:
                try:
                    read = self.far.recv(piece)
                except ConnectionResetError as error:
                    return bytes(data), error
                if not read:
                    return bytes(data), None
                data += read

    def body(self, data: bytes) -> bytes:
        return data.partition(b"\r\n\r\n")[2]

    def test_fin(self) -> None:
        self.play(Send(b"one"), End.FIN)
        data, error = self.until_dead()
        self.assertEqual(self.body(data), chunk(b"one"))
        self.assertIsNone(error)

    def test_rst(self) -> None:
        self.play(Send(b"one"), End.RST)
        data, error = self.until_dead()
        self.assertEqual(self.body(data), chunk(b"one"))
        self.assertIsInstance(error, ConnectionResetError)

    def test_a_mebibyte_to_a_slow_reader(self) -> None:
        frame = bytes(range(256)) * 64
        for end in (End.FIN, End.RST):
            self.play(*[Send(frame)] * 64, end, receive_buffer=4 * KIB)
            data, error = self.until_dead(piece=3 * KIB)
            # 64 KiB are joined to a write, so the chunks are fewer than the sends.
            self.assertEqual(self.body(data), chunk(frame * 4) * 16)
            self.assertEqual(error is not None, end is End.RST)

    def test_a_reader_that_never_reads_holds_up_the_death(self) -> None:
        transport = self.play(*[Send(b"x" * 64 * KIB)] * 128, End.RST, receive_buffer=4 * KIB)
        for _ in range(200):
            self.reactor.flush()
            self.reactor.turn(60.0)
        self.assertTrue(transport.connected)
        self.assertEqual(
            transport.socket.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, 8),
            struct.pack("ii", 0, 0),
        )
        data, error = self.until_dead(piece=KIB * KIB)
        self.assertEqual(len(self.body(data)), 128 * len(chunk(b"x" * 64 * KIB)))
        self.assertIsInstance(error, ConnectionResetError)
