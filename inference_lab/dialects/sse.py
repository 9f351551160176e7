"""Server-sent events: how one frame is spelt in bytes."""

from __future__ import annotations


def frame(data: bytes) -> bytes:
    """One event: ``data: `` + the payload + the blank line that ends it."""
    return b"data: " + data + b"\n\n"


DONE = frame(b"[DONE]")
"""The sentinel that ends a healthy OpenAI stream."""
