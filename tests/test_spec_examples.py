"""The specification's curl examples, pasted into a shell as they stand.

Only the port is another. All run side by side: one of them waits for ten seconds.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from attrs import frozen

from tests.live import PATIENCE, Exchange, Server, program
from tests.seen import TOKENS

PRELUDE = """
BODY='{"model":"DeepSeek-V4-Flash","stream":true,"stream_options":{"include_usage":true},"messages":[{"role":"user","content":"hello"}],"max_tokens":16}'
URL=http://localhost:8080/v1/chat/completions
RESUME='{"model":"DeepSeek-V4-Flash","prompt":[1,2,3,4],"stream":true,"priority":0,"stream_options":{"include_usage":true},"max_tokens":64}'
"""

EXAMPLES = {
    "1": """
curl -N $URL -H 'content-type: application/json' -H 'x-inference-lab-fault: cut_between_frames;after_chunks=5' -d "$BODY"
""",  # noqa: E501
    "2a": """
curl -N $URL -H 'content-type: application/json' -H 'x-inference-lab-fault: cut_mid_frame' -d "$BODY"
""",  # noqa: E501
    # With od in place of xxd, which not every machine has.
    "2b": """
curl -sN $URL -H 'content-type: application/json' -H 'x-inference-lab-fault: cut_mid_frame;utf8=true' -d "$BODY" | od -A d -t x1 | tail
""",  # noqa: E501
    "3": """
curl -N $URL -H 'content-type: application/json' -H 'x-inference-lab-fault: reset' -d "$BODY"
""",
    "4": """
curl -N --max-time 10 $URL -H 'content-type: application/json' -H 'x-inference-lab-fault: stall' -d "$BODY"
""",  # noqa: E501
    "5": """
curl -N $URL -H 'content-type: application/json' -H 'x-inference-lab-fault: error_envelope_200' -d "$BODY"
""",  # noqa: E501
    "6": """
curl -N $URL -H 'content-type: application/json' -H 'x-inference-lab-fault: error_400_in_sse' -d "$BODY"
""",  # noqa: E501
    "7": """
curl -N $URL -H 'content-type: application/json' -H 'x-inference-lab-fault: no_done' -d "$BODY"
""",
    "8": """
curl -N $URL -H 'content-type: application/json' -H 'x-inference-lab-fault: no_usage' -d "$BODY"
""",
    "9": """
curl -N $URL -H 'content-type: application/json' -H 'x-inference-lab-fault: cancelled_499' -d "$BODY"
""",  # noqa: E501
    "10": """
curl -N $URL -H 'content-type: application/json' -H 'x-inference-lab-fault: mid_reasoning' -d "$BODY"
""",  # noqa: E501
    "11": """
curl -N $URL -H 'content-type: application/json' -H 'x-inference-lab-fault: mid_tool_call;after_chunks=4' -d "$BODY"
""",  # noqa: E501
    "resume": """
curl -N http://localhost:8080/v1/completions -H 'content-type: application/json' \\
  -H 'x-inference-lab-fault: cut_between_frames;after_chunks=2' -d "$RESUME"
""",
}

CUT = "transfer closed with outstanding read data remaining"


@frozen
class Said:
    """What the shell showed: exit code, output, messages."""

    code: int
    out: bytes
    err: str

    @property
    def events(self) -> list[Any]:
        """The payloads of all whole frames, ``[DONE]`` as text."""
        assert self.out.endswith(b"\n\n")
        return Exchange(200, {}, (self.out,), True, "FIN").events

    @property
    def deltas(self) -> list[Any]:
        """What each frame that carries a choice says."""
        return [
            event["choices"][0]["delta"]
            for event in self.events
            if event != "[DONE]" and event.get("choices")
        ]


Shell = dict[str, Said]


@pytest.fixture(scope="module")
def shell(server: Server) -> Iterator[Shell]:
    """What every example said, by its number."""
    program("curl")
    program("od")
    bash = program("bash")
    started = {}
    try:
        for number, example in EXAMPLES.items():
            script = (PRELUDE + example).replace("8080", str(server.address[1]))
            started[number] = subprocess.Popen(
                [bash, "-c", script],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
        said = {}
        for number, process in started.items():
            out, err = process.communicate(timeout=PATIENCE)
            said[number] = Said(process.returncode, out, err.decode())
        yield said
    finally:
        for process in started.values():
            if process.poll() is None:
                process.kill()
                process.communicate()


def contents(deltas: list[Any], count: int) -> None:
    """The role, then ``count`` tokens of the answer, and no more."""
    assert deltas == [
        {"role": "assistant", "content": ""},
        *({"content": token} for token in TOKENS[:count]),
    ]


def test_1_cut_between_frames(shell: Shell) -> None:
    """5 frames then FIN, exit 18."""
    said = shell["1"]
    assert said.code == 18
    assert CUT in said.err
    assert len(said.events) == 1 + 5
    contents(said.deltas, 5)


def test_2a_cut_mid_frame(shell: Shell) -> None:
    """A torn JSON frame."""
    said = shell["2a"]
    assert said.code == 18
    assert CUT in said.err
    *whole, torn = said.out.split(b"\n\n")
    assert len(whole) == 1 + 3
    assert torn.startswith(b'data: {"id":')
    with pytest.raises(msgspec.DecodeError):
        msgspec.json.decode(torn.removeprefix(b"data: "))


def test_2b_cut_inside_a_character(shell: Shell) -> None:
    """The dump ends with the first byte of the é, right after the text of token 3."""
    said = shell["2b"]
    assert said.code == 0  # The pipe's exit code is that of its last program.
    *lines, length = said.out.decode().splitlines()
    dumped = b"".join(bytes.fromhex("".join(line.split()[1:])) for line in lines)
    assert dumped.endswith(b'"content":" delta3.\xc3')
    assert int(length) > len(dumped) > 100


def test_3_reset(shell: Shell) -> None:
    """TCP RST: exit 56, connection reset by peer."""
    said = shell["3"]
    assert said.code == 56
    assert "Connection reset by peer" in said.err
    contents(said.deltas, 3)


def test_4_stall(shell: Shell) -> None:
    """3 frames then silence, until curl gives up."""
    said = shell["4"]
    assert said.code == 28
    assert "timed out after 10" in said.err
    contents(said.deltas, 3)


def test_5_error_envelope_200(shell: Shell) -> None:
    """OpenRouter's envelope, then [DONE]."""
    said = shell["5"]
    assert said.code == 0
    *_, envelope, done = said.events
    assert envelope["error"]["code"] == 502
    assert set(envelope["error"]) == {"message", "code", "metadata"}
    assert done == "[DONE]"
    contents(said.deltas, 3)


def test_6_error_400_in_sse(shell: Shell) -> None:
    """An object like a 400's body inside the stream, and no [DONE]."""
    said = shell["6"]
    assert said.code == 0
    assert (said.events[-1]["object"], said.events[-1]["code"]) == ("error", 400)
    assert "[DONE]" not in said.events
    contents(said.deltas, 3)


def test_7_no_done(shell: Shell) -> None:
    """Finish frame, usage frame, and then an end without [DONE]."""
    said = shell["7"]
    assert said.code == 0
    *_, finish, usage = said.events
    assert finish["choices"][0]["finish_reason"] == "stop"
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 3
    assert "[DONE]" not in said.events


def test_8_no_usage(shell: Shell) -> None:
    """[DONE] arrives, the requested usage does not."""
    said = shell["8"]
    assert said.code == 0
    *_, finish, done = said.events
    assert finish["choices"][0]["finish_reason"] == "stop"
    assert done == "[DONE]"
    assert not any(event.get("usage") for event in said.events[:-1])


def test_9_cancelled_499(shell: Shell) -> None:
    """dynamo's cancellation, byte for byte."""
    said = shell["9"]
    assert said.code == 0
    contents(said.deltas, 3)
    assert said.out.endswith(
        b'\n\ndata: {"error":{"code":499,"message":"CancelledError: ",'
        b'"type":"request_cancelled"}}\n\n'
    )


def test_10_mid_reasoning(shell: Shell) -> None:
    """It dies while it streams reasoning."""
    said = shell["10"]
    assert said.code == 18
    assert CUT in said.err
    assert said.deltas[1:] == [{"reasoning_content": token} for token in TOKENS[:3]]


def test_11_mid_tool_call(shell: Shell) -> None:
    """It dies with a tool call's arguments unterminated: one opening, three fragments."""
    said = shell["11"]
    assert said.code == 18
    assert CUT in said.err
    _, opening, *fragments = [delta.get("tool_calls") for delta in said.deltas]
    assert opening[0]["id"]
    assert opening[0]["function"]["name"]
    arguments = [fragment[0]["function"]["arguments"] for fragment in fragments]
    assert len(arguments) == 3
    assert arguments[0].startswith("{")
    with pytest.raises(msgspec.DecodeError):
        msgspec.json.decode("".join(arguments))


def test_killing_a_resume_leg(shell: Shell) -> None:
    """Exactly 2 text frames, then FIN."""
    said = shell["resume"]
    assert said.code == 18
    assert CUT in said.err
    assert [event["choices"][0]["text"] for event in said.events] == list(TOKENS[:2])
