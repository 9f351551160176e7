"""What is sent through nginx: the eleven modes, deaths of the catalogue, and a user's own."""

from __future__ import annotations

from pathlib import Path

from tests.seen import FAULTS

CATALOGUE = (
    "clean_eof",
    "close_delimited",
    "close_delimited;end=rst",
    "content_length_long",
    "content_length_short",
    "cut_inside_chunk",
    "cut_inside_chunk;at=chunk_header",
    "missing_final_crlf",
    "reset;after_chunks=2000;delay_ms=0",
    "reset_after_done",
    "headers_then_eof",
    "close_before_headers",
    "close_before_headers;how=rst",
    "slow_headers;wait_ms=200",
    "slow_headers;wait_ms=60000",
    "slow_first_byte;wait_ms=60000",
    "stall_keepalive;every_ms=100",
    "finish_hold",
    "done_hold",
    "double_done",
    "data_after_done",
    "invalid_utf8",
    "gzip_truncated",
    "empty_200",
    "html_200",
    "http_status;status=429;retry_after=7",
    "http_status;status=503;retry_after=soon",
)

MODES = Path(__file__).parent / "modes"
"""A user's own modes, for ``--modes``: heads and framing that no mode of the catalogue has."""

OWN = tuple(sorted(path.stem for path in MODES.glob("*.toml")))

DIRECTIVES = (*FAULTS, *CATALOGUE, *OWN)
