"""Check a plain (not editable) install from the outside.

Run as ``python plain_install.py BIN``, with the folder of the environment's
programs, from any directory but the checkout. Uses the standard library only.
"""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

REQUEST = {
    "model": "DeepSeek-V4-Flash",
    "stream": True,
    "messages": [{"role": "user", "content": "hello"}],
}
RUNNERS = [
    ["inference-lab", "serve"],
    ["twistd", "-n", "--pidfile=", "inference-lab"],
    ["twist", "inference-lab"],
]
FLAGS = ["--hardware", "b200", "--port", "0", "--enable-directives"]
READY = re.compile(r"inference-lab ready: http://127\.0\.0\.1:(\d+) models=\S+ hardware=b200")


def check(programs: Path, runner: list[str], folder: str) -> None:
    """Start a runner in ``folder`` and see a stream cut on a frame boundary."""
    name, *words = runner
    server = subprocess.Popen(
        [str(programs / name), *words, *FLAGS],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert server.stdout is not None
        ready = next(filter(None, map(READY.search, server.stdout)), None)
        assert ready is not None, f"{name} did not get ready"
        response = post(int(ready[1]), "cut_between_frames;after_chunks=2")
        assert response.count(b"data: ") == 3, response
        assert not response.endswith(b"0\r\n\r\n"), response
    finally:
        server.terminate()
        server.wait(10)


def post(port: int, fault: str) -> bytes:
    """All bytes of one faulted response."""
    body = json.dumps(REQUEST).encode()
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nhost: lab\r\ncontent-type: application/json\r\n"
        f"x-inference-lab-fault: {fault}\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
        client.sendall(head.encode() + body)
        response = b""
        while piece := client.recv(65536):
            response += piece
    return response


def main(programs: Path) -> None:
    """Every runner, from a folder that has nothing to do with the checkout."""
    with tempfile.TemporaryDirectory() as folder:
        for runner in RUNNERS:
            check(programs, runner, folder)
            print(f"{' '.join(runner)}: serves and dies as promised")


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
