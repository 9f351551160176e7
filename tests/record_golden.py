"""Writes tests/data/golden_modes.json: every byte of the eleven modes, as the server sends them.

Run it only to add cases: what is in the file is a promise to users.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.labs import CHAT, COMPLETIONS, Server, request

GOLDEN = Path(__file__).parent / "data" / "golden_modes.json"

FAULTS = (
    "cut_between_frames",
    "cut_mid_frame",
    "cut_mid_frame;utf8=true",
    "reset",
    "stall",
    "error_envelope_200",
    "error_400_in_sse",
    "no_done",
    "no_usage",
    "cancelled_499",
    "mid_reasoning",
    "mid_tool_call",
)
COUNTS = (0, 1, 3)


def record() -> dict[str, Any]:
    """Head (without its date), body with framing, and closings of every case, by its name."""
    cases: dict[str, Any] = {}
    server = Server(directives=True)
    for fault in FAULTS:
        for path in (CHAT, COMPLETIONS):
            for count in COUNTS:
                for usage in (False, True):
                    options: dict[str, Any] = (
                        {"stream_options": {"include_usage": True}} if usage else {}
                    )
                    header = f"x-inference-lab-fault: {fault};after_chunks={count}"
                    connection = server.post(path, request(path, **options), header)
                    server.run(0.5)
                    status, headers = connection.head
                    for name in ("date", "server", "x-request-id"):
                        headers.pop(name)
                    cases[f"{fault} {path} after_chunks={count} usage={usage}"] = {
                        "status": status,
                        "headers": headers,
                        "rest": connection.rest.decode("latin-1"),
                        "closings": connection.closings,
                    }
    return cases


if __name__ == "__main__":
    GOLDEN.parent.mkdir(exist_ok=True)
    GOLDEN.write_text(json.dumps(record(), indent=1) + "\n")
