"""Does what a client ended up with equal the answer that never died?

The text is compared byte for byte.  Where it differs, the words say what happened, since each names
its position: tokens are missing, come twice or out of order, the answer was started over, or
something stands there that is no part of it.  Text that is not ours is compared as characters.

What is right in the accounts, for legs 1 to n of one answer:

- a leg's last ``usage`` has ``completion_tokens`` equal to the tokens that this leg delivered,
  reasoning included.  (A leg that a stop string ended generated more than it delivered, and may
  report more.)
- a leg's ``prompt_tokens`` are those of leg 1, plus what the legs before it delivered; for leg 1
  itself, those of the golden recording.  Checked where both are known and the cuts lie between
  tokens.
- the sum that a client bills (``usage``) is the golden answer's: its recorded
  ``completion_tokens``, else its tokens.

What cannot be known (usage that never came, tokens of text that is not ours) is not judged.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from attrs import frozen

from inference_lab.content.legs import Leg, is_recording, read_leg
from inference_lab.content.splice_text import Finding, compare
from inference_lab.content.text import TOKEN_PATTERN

__all__ = ["Finding", "Verdict", "plain_text", "stitch", "verify"]

_IDENTICAL: Final = "identical"
_BEGINS: Final = re.compile(TOKEN_PATTERN)


@frozen
class Verdict:
    """What a comparison came to."""

    findings: tuple[Finding, ...]
    """What went wrong, the gravest first; none if nothing did."""
    notes: tuple[str, ...] = ()
    """What is worth knowing and no fault of the splice."""

    @property
    def identical(self) -> bool:
        """Whether nothing went wrong, in text and accounts."""
        return not self.findings

    def as_dict(self) -> dict[str, Any]:
        """The verdict as plain values, for JSON."""
        return {
            "identical": self.identical,
            "findings": [finding.as_dict() for finding in self.findings],
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        lines = [finding.message for finding in self.findings] or [_IDENTICAL]
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])


def verify(
    golden: bytes | str,
    *,
    text: str | None = None,
    legs: Sequence[bytes | str] | None = None,
    usage: int | None = None,
) -> Verdict:
    """Compare what a client has with the golden answer.

    :param golden: the answer that never died: its text, or the recorded response.
    :param text: the text that the client ended up with; or
    :param legs: the recorded responses, in order (see `inference_lab.content.legs`).  Their text is
        what complete frames delivered.
    :param usage: the completion tokens that the client accounts for, all legs together.
    :raises ValueError: unless exactly one of ``text`` and ``legs`` is given.
    """
    if (text is None) == (legs is None):
        raise ValueError("give either a text or the recorded legs to compare")
    whole = read_leg(golden) if is_recording(golden) else Leg(_str(golden), done=True)
    read = [read_leg(leg) for leg in legs or ()]
    found = text if text is not None else "".join(leg.text for leg in read)
    findings = compare(whole.text, found)
    findings += _leg_usage(read) + _prompt_usage(whole, read)
    total, note = _total(whole), None
    if usage is not None and total is None:
        note = "the golden answer's tokens are not known, so the usage is not checked"
    elif usage is not None and usage != total:
        what = f"usage is {usage} completion tokens, and the golden answer has {total}"
        findings.append(_usage_finding(what, usage - (total or 0)))
    notes = [*_notes(whole, read), *([note] if note else [])]
    return Verdict(tuple(findings), tuple(notes))


def stitch(legs: Sequence[bytes | str]) -> str:
    """The text that recorded legs delivered, joined."""
    return "".join(read_leg(leg).text for leg in legs)


def plain_text(data: bytes) -> str:
    """The text of a file.  One line end at its very end is the editor's, not the answer's."""
    text = data.decode("utf-8", "replace")
    return text.removesuffix("\n").removesuffix("\r")


def _str(data: bytes | str) -> str:
    return data if isinstance(data, str) else data.decode("utf-8", "replace")


def _total(whole: Leg) -> int | None:
    return whole.delivered if whole.completion_tokens is None else whole.completion_tokens


def _leg_usage(legs: Sequence[Leg]) -> list[Finding]:
    findings = []
    for number, leg in enumerate(legs, 1):
        delivered, reported = leg.delivered, leg.completion_tokens
        if delivered is None or reported is None or reported == delivered:
            continue
        if leg.stop is not None and reported > delivered:
            continue
        what = f"leg {number} reports {reported} completion tokens, and delivered {delivered}"
        findings.append(_usage_finding(what, reported - delivered))
    return findings


def _prompt_usage(whole: Leg, legs: Sequence[Leg]) -> list[Finding]:
    findings = []
    base, before = whole.prompt_tokens, 0
    for number, leg in enumerate(legs, 1):
        reported = leg.prompt_tokens
        if reported is not None and base is not None and reported != base + before:
            what = f"leg {number} reports {reported} prompt tokens, and was due {base + before}"
            findings.append(_usage_finding(what, reported - base - before))
        if reported is not None and base is None:
            base = reported - before
        if not leg.text and not leg.reasoning and not leg.tool_calls:
            continue
        delivered = leg.delivered
        whole_tokens = _BEGINS.match(leg.text) and leg.text.endswith(".")
        if delivered is None or leg.reasoning or not whole_tokens:
            # What of this the next prompt carries, and as how many tokens, cannot be told.
            break
        before += delivered
    return findings


def _usage_finding(what: str, difference: int) -> Finding:
    much = f"{abs(difference)} too {'many' if difference > 0 else 'few'}"
    return Finding("usage", f"usage wrong: {what}: {much}", difference=difference)


def _notes(whole: Leg, legs: Sequence[Leg]) -> list[str]:
    notes = []
    if not whole.done and whole.finish_reason is None:
        notes.append("the golden recording breaks off itself")
    for number, leg in enumerate(legs, 1):
        if leg.error is not None:
            notes.append(f"leg {number} ended in an error: {leg.error}")
        if leg.tool_calls:
            notes.append(f"leg {number} delivered part of a tool call, which is not compared")
        if leg.reasoning:
            notes.append(f"leg {number} delivered reasoning, which is not compared")
    last = legs[-1].finish_reason if legs else None
    if None not in (last, whole.finish_reason) and last != whole.finish_reason:
        notes.append(
            f"the last leg finished by {last!r}, the golden answer by {whole.finish_reason!r}"
        )
    return notes
