"""A real nginx in front of a server: a plain streaming proxy in a process of its own."""

from __future__ import annotations

import re
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from attrs import frozen

from tests.live import PATIENCE, Server, program

CONFIGURATION = """\
daemon off;
pid nginx.pid;
error_log stderr;
worker_processes auto;
events {}

http {
    access_log off;
    server_tokens off;
    client_body_temp_path client_body;
    proxy_temp_path proxy;
    fastcgi_temp_path fastcgi;
    uwsgi_temp_path uwsgi;
    scgi_temp_path scgi;

    server {
        listen NGINX;

        location / {
            proxy_pass http://LAB;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_buffering off;
            proxy_next_upstream off;
            proxy_read_timeout 2s;
        }
    }
}
"""
"""All of it, but for the two addresses."""


@frozen
class Proxy:
    """One running nginx."""

    url: str
    address: tuple[str, int]


@contextmanager
def behind_nginx(server: Server, read_timeout: str = "2s") -> Iterator[Proxy]:
    """Run nginx in front of ``server`` until the block ends."""
    # nginx takes over sockets that already listen, as it does when it is upgraded:
    # nobody can take the port in between, and a client that comes early just waits.
    with (
        tempfile.TemporaryDirectory() as folder,
        (Path(folder) / "log").open("w+") as log,
        socket.create_server(("127.0.0.1", 0), backlog=511) as listener,
    ):
        listener.setblocking(False)
        host, port = listener.getsockname()
        written = CONFIGURATION.replace("NGINX", f"{host}:{port}")
        written = written.replace("LAB", server.url.removeprefix("http://"))
        written = written.replace("read_timeout 2s", f"read_timeout {read_timeout}")
        (Path(folder) / "nginx.conf").write_text(written)
        process = subprocess.Popen(
            [program("nginx"), "-p", folder, "-c", "nginx.conf", "-e", "stderr"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=log,
            env={"NGINX": f"{listener.fileno()};"},
            pass_fds=[listener.fileno()],
        )
        listener.close()
        try:
            yield Proxy(f"http://{host}:{port}", (host, port))
        finally:
            ended = process.poll()
            process.terminate()
            process.wait(PATIENCE)
            log.seek(0)
            assert ended is None, f"nginx ended by itself:\n{log.read()}"


def version() -> str:
    """Major and minor number, such as ``1.22``; patches do not change what is seen here."""
    said = subprocess.run(
        [program("nginx"), "-v"], capture_output=True, text=True, timeout=PATIENCE, check=True
    ).stderr
    found = re.search(r"nginx/(\d+\.\d+)", said)
    assert found is not None, said
    return found[1]
