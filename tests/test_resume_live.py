"""A resuming gateway against the real server: whatever kills whichever leg, the answer is the same.

And where the gateway has a bug, or must not splice, that is seen.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from attrs import define, field

from inference_lab.content.splice import verify
from tests.live import FAULT, MODEL, Server, ask, program, serve
from tests.middleware import BUGS, CHAT, COMPLETIONS, FORMS, Relay

UNFINISHED = (
    "cut_between_frames",
    "cut_mid_frame",
    "cut_mid_frame;utf8=true",
    "reset",
    "stall",
    "error_envelope_200",
    "error_400_in_sse",
    "cancelled_499",
)
FINISHED = ("no_done", "no_usage")
NO_CONTENT = ("mid_reasoning", "mid_tool_call")

# Whoever asks for a completion gets one: it cannot be continued as a chat.
WAYS = [(CHAT, form) for form in FORMS] + [(COMPLETIONS, "ids"), (COMPLETIONS, "text")]
every_way = pytest.mark.parametrize(("path", "form"), WAYS)

TOKENS = 24
SILENCE = 0.15


@pytest.fixture(scope="module")
def fast() -> Iterator[Server]:
    """A server whose healthy legs take no time."""
    with serve("--hardware", "b200", "--enable-directives", "--speed", "0") as running:
        yield running


@define
class Upstream:
    """The server, which kills the legs by ``faults`` in their order, and no more after these."""

    server: Server
    faults: list[str] = field(factory=list)
    resumed_at: list[str] = field(factory=list)

    def __call__(self, path: str, body: dict[str, Any]) -> bytes:
        generates = path in (CHAT, COMPLETIONS)
        headers = {FAULT: self.faults.pop(0) + ";delay_ms=1"} if generates and self.faults else {}
        stalls = "stall" in headers.get(FAULT, "")
        answer = ask(self.server, path, body, headers, silence=SILENCE if stalls else None)
        assert answer.status == 200, answer.body
        if generates:
            self.resumed_at.append(answer.headers["x-inference-lab-resume"])
        return answer.body


def request(path: str, **fields: Any) -> dict[str, Any]:
    """What the client asks of the gateway."""
    words = "Say something long."
    prompt = {"messages": [{"role": "user", "content": words}]} if path == CHAT else None
    return {
        "model": MODEL,
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": TOKENS,
        **(prompt or {"prompt": words}),
        **fields,
    }


def golden(server: Server, path: str, **fields: Any) -> bytes:
    """The recording of the answer that never died."""
    return ask(server, path, request(path, **fields)).body


def check(relay: Relay, whole: bytes) -> None:
    """Text, recorded legs and accounts are those of the answer that never died."""
    for found in (
        verify(whole, text=relay.text, usage=relay.usage),
        verify(whole, legs=relay.legs, usage=relay.usage),
    ):
        assert found.identical, str(found)
    assert relay.finish_reason == "length"


@every_way
@pytest.mark.parametrize("fault", UNFINISHED)
@pytest.mark.parametrize("after", [0, 1, 7])
def test_one_death(fast: Server, path: str, form: str, fault: str, after: int) -> None:
    """The second leg goes on where the first one died."""
    upstream = Upstream(fast, [f"{fault};after_chunks={after}"])
    relay = Relay(upstream, path, request(path), form).run()
    check(relay, golden(fast, path))
    assert upstream.resumed_at == ["none", str(after) if after else "none"]


@pytest.mark.parametrize("second", UNFINISHED)
@pytest.mark.parametrize("first", UNFINISHED)
def test_the_third_leg_lines_up(fast: Server, first: str, second: str) -> None:
    """Any mode kills the first leg, any mode the second, in one of the ways each."""
    path, form = WAYS[(UNFINISHED.index(first) + UNFINISHED.index(second)) % len(WAYS)]
    upstream = Upstream(fast, [f"{first};after_chunks=4", f"{second};after_chunks=5"])
    relay = Relay(upstream, path, request(path, seed=7), form).run()
    check(relay, golden(fast, path, seed=7))
    assert upstream.resumed_at == ["none", "4", "9"]


@every_way
def test_ten_legs(fast: Server, path: str, form: str) -> None:
    """A leg for each couple of tokens."""
    faults = [f"cut_between_frames;after_chunks={1 + n % 3}" for n in range(9)]
    relay = Relay(Upstream(fast, faults), path, request(path), form).run()
    check(relay, golden(fast, path))
    assert len(relay.legs) == 10


@every_way
@pytest.mark.parametrize("fault", FINISHED)
def test_what_is_missing_at_the_end_is_no_death(
    fast: Server, path: str, form: str, fault: str
) -> None:
    """Without [DONE], or without usage, the text is whole: nothing is resumed."""
    relay = Relay(
        Upstream(fast, [f"{fault};after_chunks={TOKENS}"]), path, request(path), form
    ).run()
    found = verify(golden(fast, path), text=relay.text, usage=relay.usage)
    assert found.identical, str(found)
    assert len(relay.legs) == 1


@every_way
@pytest.mark.parametrize("fault", FINISHED)
def test_what_is_missing_at_the_end_of_a_second_leg(
    fast: Server, path: str, form: str, fault: str
) -> None:
    """As before, after a resume."""
    faults = ["reset;after_chunks=5", f"{fault};after_chunks={TOKENS - 5}"]
    relay = Relay(Upstream(fast, faults), path, request(path), form).run()
    found = verify(golden(fast, path), legs=relay.legs, usage=relay.usage)
    assert found.identical, str(found)
    assert len(relay.legs) == 2


@every_way
@pytest.mark.parametrize("fault", NO_CONTENT)
@pytest.mark.parametrize("leg", [1, 2])
def test_refuses_to_splice(fast: Server, path: str, form: str, fault: str, leg: int) -> None:
    """Thinking or a call that broke off cannot be continued as text."""
    faults = ["reset;after_chunks=4"] * (leg - 1) + [f"{fault};after_chunks=3"]
    relay = Relay(Upstream(fast, faults), path, request(path), form).run()
    assert relay.refused
    assert len(relay.legs) == leg
    assert not verify(golden(fast, path), text=relay.text).identical


KINDS = dict(zip(BUGS, ("restarted", "missing", "repeated", "restarted", "usage"), strict=True))
# Only a chat has a flag that can be forgotten.
MISTAKES = [
    (path, form, bug)
    for path, form in WAYS
    for bug in BUGS
    if bug != "forgets the flag" or FORMS[form] == CHAT
]


@pytest.mark.parametrize(("path", "form", "bug"), MISTAKES)
def test_a_planted_bug_is_caught(
    fast: Server, path: str, form: str, bug: str, tmp_path: Path
) -> None:
    """Each by its name; and the command says what the function says."""
    relay = Relay(Upstream(fast, ["reset;after_chunks=6"]), path, request(path), form, bug).run()
    whole = golden(fast, path)
    found = verify(whole, text=relay.text, usage=relay.usage)
    assert found.findings[0].kind == KINDS[bug], str(found)
    # A token that the gateway lost on its way to the client is in the recorded legs.
    by_legs = verify(whole, legs=relay.legs, usage=relay.usage)
    assert by_legs.identical is (bug == "drops a token")
    assert run_command(tmp_path, whole, relay.legs, relay.usage) == (not by_legs.identical)


def run_command(folder: Path, whole: bytes, legs: Sequence[bytes], usage: int) -> int:
    """The exit code of ``verify-splice`` for recorded legs."""
    (folder / "golden").write_bytes(whole)
    flags = []
    for number, leg in enumerate(legs):
        (folder / f"leg{number}").write_bytes(leg)
        flags += ["--leg", f"leg{number}"]
    command = [program("inference-lab"), "verify-splice", "--golden", "golden", *flags]
    done = subprocess.run([*command, "--usage", str(usage)], cwd=folder, check=False, timeout=30)
    return done.returncode
