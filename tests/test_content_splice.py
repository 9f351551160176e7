"""`inference_lab.content.splice`: is what a client has the answer that never died?"""

from __future__ import annotations

import json
import time
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from inference_lab.content.splice import Verdict, plain_text, stitch, verify
from inference_lab.content.text import answer, rotation, token

seeds = st.none() | st.integers(0, 40)


def frame(**chunk: Any) -> bytes:
    return b"data: " + json.dumps(chunk, ensure_ascii=False).encode() + b"\n\n"


def usage(prompt: int, completion: int) -> dict[str, Any]:
    return {"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": completion}}


def chat(
    *pieces: str, finish: str | None = None, used: tuple[int, int] | None = None, done: bool = False
) -> bytes:
    body = frame(choices=[{"index": 0, "delta": {"role": "assistant", "content": ""}}])
    for piece in pieces:
        body += frame(choices=[{"index": 0, "delta": {"content": piece}, "finish_reason": None}])
    if finish:
        body += frame(choices=[{"index": 0, "delta": {}, "finish_reason": finish}])
    if used:
        body += frame(**usage(*used))
    return body + b"data: [DONE]\n\n" * done


def completion(*pieces: str) -> bytes:
    return b"".join(frame(choices=[{"index": 0, "text": piece}]) for piece in pieces)


def tokens(start: int, stop: int, r: int = 0) -> list[str]:
    return [token(i, r) for i in range(start, stop)]


def kinds(verdict: Verdict) -> list[str]:
    return [finding.kind for finding in verdict.findings]


def spans(verdict: Verdict, kind: str) -> tuple[tuple[int, int], ...]:
    return next(finding.spans for finding in verdict.findings if finding.kind == kind)


class TextTests(SynchronousTestCase):
    GOLDEN = answer(0, 10)

    @given(st.text(), st.integers(0, 50), seeds)
    def test_identical(self, text: str, count: int, seed: int | None) -> None:
        for golden in (text, answer(0, count, rotation(seed))):
            verdict = verify(golden, text=golden)
            self.assertTrue(verdict.identical)
            self.assertEqual(str(verdict), "identical")

    @given(st.text(), st.text())
    def test_any_difference_is_seen(self, golden: str, text: str) -> None:
        self.assertEqual(verify(golden, text=text).identical, golden == text)

    @given(st.integers(2, 30), seeds, st.data())
    def test_any_change_of_one_character_is_seen(
        self, count: int, seed: int | None, data: st.DataObject
    ) -> None:
        golden = answer(0, count, rotation(seed))
        at = data.draw(st.integers(0, len(golden) - 1))
        put = data.draw(st.sampled_from(["", "x", " ", ".", "0", golden[at] * 2]))
        text = golden[:at] + put + golden[at + 1 :]
        self.assertEqual(verify(golden, text=text).identical, golden == text)

    @given(st.integers(2, 40), seeds, st.data())
    def test_missing(self, count: int, seed: int | None, data: st.DataObject) -> None:
        r = rotation(seed)
        first = data.draw(st.integers(0, count - 1))
        last = data.draw(st.integers(first, count - 1))
        verdict = verify(answer(0, count, r), text=answer(0, first, r) + answer(last + 1, count, r))
        self.assertEqual(kinds(verdict), ["missing"])
        self.assertEqual(spans(verdict, "missing"), ((first, last),))

    @given(st.integers(3, 40), seeds, st.data())
    def test_repeated(self, count: int, seed: int | None, data: st.DataObject) -> None:
        r = rotation(seed)
        first = data.draw(st.integers(1, count - 1))
        last = data.draw(st.integers(first, count - 1))
        text = answer(0, last + 1, r) + answer(first, count, r)
        verdict = verify(answer(0, count, r), text=text)
        self.assertEqual(kinds(verdict), ["repeated"])
        self.assertEqual(spans(verdict, "repeated"), ((first, last),))

    @given(st.integers(3, 40), seeds, st.data())
    def test_restarted(self, count: int, seed: int | None, data: st.DataObject) -> None:
        r = rotation(seed)
        k = data.draw(st.integers(1, count))
        again = data.draw(st.integers(1, count))
        verdict = verify(answer(0, count, r), text=answer(0, k, r) + answer(0, again, r))
        self.assertEqual(kinds(verdict)[0], "restarted")
        self.assertEqual(spans(verdict, "restarted"), ((0, again - 1),))
        left = max(k, again)
        self.assertEqual(kinds(verdict)[1:], ["missing"] * (left < count))
        if left < count:
            self.assertEqual(spans(verdict, "missing"), ((left, count - 1),))

    def test_reordered(self) -> None:
        text = answer(0, 3) + answer(5, 8) + answer(3, 5) + answer(8, 10)
        verdict = verify(self.GOLDEN, text=text)
        self.assertEqual(kinds(verdict), ["reordered"])
        self.assertEqual(spans(verdict, "reordered"), ((3, 4),))

    def test_foreign(self) -> None:
        text = answer(0, 3) + "Sure! Here is the rest:" + answer(3, 10)
        verdict = verify(self.GOLDEN, text=text)
        self.assertEqual(kinds(verdict), ["foreign"])
        at = len(answer(0, 3))
        self.assertEqual(spans(verdict, "foreign"), ((at, at + 22),))
        self.assertIn("'Sure! Here", str(verdict))

    def test_another_seed(self) -> None:
        verdict = verify(self.GOLDEN, text=answer(0, 3) + answer(3, 10, 4))
        self.assertEqual(kinds(verdict), ["missing", "foreign"])
        self.assertIn("another seed", str(verdict))

    def test_beyond(self) -> None:
        verdict = verify(self.GOLDEN, text=answer(0, 12))
        self.assertEqual(kinds(verdict), ["beyond"])
        end = len(self.GOLDEN)
        self.assertEqual(spans(verdict, "beyond"), ((end, len(answer(0, 12)) - 1),))

    def test_an_answer_cut_by_a_stop_string(self) -> None:
        golden = answer(0, 5) + " fjo"
        self.assertTrue(verify(golden, text=golden).identical)
        self.assertEqual(kinds(verify(golden, text=answer(0, 5))), ["missing"])
        self.assertEqual(kinds(verify(golden, text=answer(0, 7))), ["beyond"])
        self.assertEqual(kinds(verify(golden, text=answer(0, 3) + " ebony4. fjo")), ["missing"])

    def test_a_text_that_breaks_off_in_a_word(self) -> None:
        verdict = verify(self.GOLDEN, text=answer(0, 5) + " fjo")
        self.assertEqual(kinds(verdict), ["missing"])
        self.assertEqual(spans(verdict, "missing"), ((5, 9),))

    def test_content_after_a_reasoning_phase(self) -> None:
        verdict = verify(answer(7, 12), text=answer(7, 9) + answer(10, 12))
        self.assertEqual(spans(verdict, "missing"), ((9, 9),))

    def test_text_that_is_not_ours(self) -> None:
        golden = "To be, or not to be, that is the question."
        for text, kind, span in (
            (golden.replace(" that", ""), "missing", (21, 25)),
            (golden[:20] + golden, "restarted", (20, 61)),
            (golden[:20] + golden[14:], "repeated", (20, 25)),
            (golden.replace("not", "NOT"), "foreign", (10, 12)),
            (golden + " Or?", "beyond", (42, 45)),
        ):
            verdict = verify(golden, text=text)
            self.assertEqual(kinds(verdict)[0], kind, text)
            if kind != "restarted":
                self.assertEqual(spans(verdict, kind), (span,), text)
            self.assertEqual(verdict.findings[0].unit, "character")

    def test_as_values(self) -> None:
        verdict = verify(self.GOLDEN, text=answer(0, 3) + answer(4, 10), usage=9)
        missing, wrong = verdict.as_dict()["findings"]
        self.assertEqual(json.loads(json.dumps(verdict.as_dict())), verdict.as_dict())
        self.assertFalse(verdict.as_dict()["identical"])
        self.assertEqual(
            (missing["kind"], missing["unit"], missing["spans"]), ("missing", "token", [[3, 3]])
        )
        self.assertEqual((wrong["kind"], wrong["difference"]), ("usage", -1))

    def test_one_line_for_each_finding(self) -> None:
        text = "x\n" + answer(3, 9) + answer(3, 5) + "\n" + answer(0, 1) + answer(0, 2, 9)
        verdict = verify(self.GOLDEN, text=text)
        self.assertEqual(len(str(verdict).splitlines()), len(verdict.findings))
        self.assertEqual(kinds(verdict), ["repeated", "reordered", "missing", "foreign"])

    def test_large_texts_take_seconds_at_most(self) -> None:
        golden = answer(0, 100_000)
        texts = [answer(0, 50_000) * 2, "x" * 10**6, "amber0." * 10**5, golden[::-1]]
        for text in texts:
            for whole in (golden, "y" * 10**6):
                start = time.process_time()
                self.assertFalse(verify(whole, text=text).identical)
                self.assertLess(time.process_time() - start, 3)


class LegTests(SynchronousTestCase):
    @given(st.lists(st.integers(0, 9), min_size=1, max_size=5), seeds, st.data())
    def test_legs_that_line_up(
        self, cuts: list[int], seed: int | None, data: st.DataObject
    ) -> None:
        r, start, legs = rotation(seed), 0, []
        for cut in cuts:
            pieces = tokens(start, start + cut, r)
            make = data.draw(st.sampled_from([chat, completion]))
            due = make(token(start + cut, r))
            torn = due.rpartition(b"data: ")[2][: data.draw(st.integers(0, 40))]
            # Never delivered: the next leg says it.
            legs.append(make(*pieces) + (b"data: " + torn if torn else b""))
            start += cut
        verdict = verify(answer(0, start, r), legs=legs)
        self.assertEqual(str(verdict), "identical")

    def test_torn_inside_a_character(self) -> None:
        whole = chat("caf", "é")
        for end in range(len(chat("caf")), len(whole)):
            self.assertEqual(stitch([whole[:end], chat("é")]), "café")
        self.assertEqual(stitch([whole, chat("!")]), "café!")

    def test_recordings_of_every_kind(self) -> None:
        body = chat("amber0.", " birch1.", finish="stop", used=(3, 2), done=True)
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
        message = {"choices": [{"message": {"content": "amber0. birch1."}}], "usage": None}
        for leg in (
            body,
            body.decode(),
            head + body,
            body.replace(b"\n", b"\r\n"),
            b": ping\n\n" + body.replace(b"data: ", b"event: x\ndata: "),
            b"\n\n".join(b"5c\r\n" + part for part in body.split(b"\n\n")),
            completion("amber0.", " birch1."),
            json.dumps(message).encode(),
            body + b"data: {broken\n\ndata: [1]\n\ndata: 5\n\n\xff\xfe",
            frame(choices=[{"index": 1, "delta": {"content": "no"}}]) + body,
            frame(choices=None) + frame(choices=[{"index": 0, "delta": None}]) + body,
        ):
            self.assertEqual(stitch([leg]), "amber0. birch1.")
            self.assertEqual(str(verify("amber0. birch1.", legs=[leg])), "identical")
            self.assertTrue(verify(leg, text="amber0. birch1.").identical)

    @given(st.binary() | st.text())
    def test_anything_can_be_read(self, leg: bytes | str) -> None:
        stitch([leg, b"data: " + leg.encode("utf-8", "replace") if isinstance(leg, str) else leg])

    def test_a_middleware_that_forgot_the_flag(self) -> None:
        legs = [chat(*tokens(0, 4)), chat(*tokens(0, 6), finish="length", done=True)]
        verdict = verify(answer(0, 10), legs=legs)
        self.assertEqual(kinds(verdict), ["restarted", "missing"])
        self.assertIn("after token 3", str(verdict))

    def test_either_a_text_or_legs(self) -> None:
        for given_ in ({}, {"text": "", "legs": []}):
            with self.assertRaises(ValueError):
                verify("", **given_)  # type: ignore[arg-type]

    def test_notes_are_no_findings(self) -> None:
        reasoning = frame(choices=[{"index": 0, "delta": {"reasoning_content": "amber0."}}])
        call = frame(choices=[{"index": 0, "delta": {"tool_calls": [{"index": 0}]}}])
        error = frame(error={"message": "upstream", "code": 502})
        legs = [reasoning, call, error, chat("amber0.", finish="stop")]
        verdict = verify(chat("amber0.", finish="length"), legs=legs)
        self.assertTrue(verdict.identical)
        self.assertEqual(len(verdict.notes), 4)
        self.assertIn("leg 3 ended in an error: upstream", str(verdict))

    def test_a_file_of_text(self) -> None:
        self.assertEqual(plain_text(b"amber0.\r\n"), "amber0.")
        self.assertEqual(plain_text(b"amber0.\n\n"), "amber0.\n")
        self.assertEqual(plain_text("é".encode()), "é")


class UsageTests(SynchronousTestCase):
    def differences(self, verdict: Verdict) -> list[int | None]:
        self.assertEqual(set(kinds(verdict)) - {"usage"}, set())
        return [finding.difference for finding in verdict.findings]

    @given(st.integers(1, 30), st.data())
    def test_exact_accounts(self, count: int, data: st.DataObject) -> None:
        k = data.draw(st.integers(1, count))
        golden = chat(*tokens(0, count), finish="length", used=(7, count), done=True)
        legs = [
            chat(*tokens(0, k)),
            chat(*tokens(k, count), finish="length", used=(7 + k, count - k), done=True),
        ]
        self.assertEqual(self.differences(verify(golden, legs=legs, usage=count)), [])
        self.assertEqual(self.differences(verify(golden, legs=legs, usage=count + k)), [k])

    def test_a_leg_that_miscounts(self) -> None:
        legs = [chat(*tokens(0, 3), used=(5, 4)), chat(*tokens(3, 6), used=(7, 2))]
        verdict = verify(answer(0, 6), legs=legs)
        self.assertEqual(self.differences(verdict), [1, -1, -1])
        self.assertIn("leg 2 reports 7 prompt tokens, and was due 8: 1 too few", str(verdict))

    def test_the_first_legs_prompt_is_the_golden_one(self) -> None:
        golden = chat(*tokens(0, 2), used=(9, 2))
        self.assertEqual(
            self.differences(verify(golden, legs=[chat(*tokens(0, 2), used=(8, 2))])), [-1]
        )

    def test_ids_count(self) -> None:
        def ids(start: int, stop: int) -> bytes:
            head = frame(prompt_token_ids=[1] * (5 + start), choices=[])
            return head + b"".join(
                frame(choices=[{"index": 0, "delta": {"content": token(i)}, "token_ids": [i]}])
                for i in range(start, stop)
            )

        legs = [ids(0, 3), ids(3, 6) + frame(**usage(8, 3))]
        self.assertEqual(self.differences(verify(ids(0, 6), legs=legs, usage=6)), [])
        legs = [ids(0, 3), ids(3, 6) + frame(**usage(9, 4))]
        self.assertEqual(self.differences(verify(ids(0, 6), legs=legs)), [1, 1])

    def test_a_stop_string_hides_tokens(self) -> None:
        end = frame(choices=[{"delta": {}, "finish_reason": "stop", "stop_reason": "delta"}])
        leg = chat(*tokens(0, 3)) + end + frame(**usage(2, 4))
        self.assertEqual(self.differences(verify(answer(0, 3), legs=[leg])), [])
        self.assertEqual(self.differences(verify(leg, text=answer(0, 3), usage=4)), [])

    def test_reasoning_counts(self) -> None:
        reasoning = [frame(choices=[{"delta": {"reasoning": piece}}]) for piece in tokens(0, 4)]
        leg = b"".join(reasoning) + chat(*tokens(4, 6), used=(3, 6))
        self.assertEqual(self.differences(verify(answer(4, 6), legs=[leg])), [])

    def test_a_partial_word_is_a_token_of_both_its_legs(self) -> None:
        legs = [chat("amber0.", " bir", used=(1, 2)), chat("ch1.", " cedar2.", used=(4, 2))]
        self.assertEqual(self.differences(verify(answer(0, 3), legs=legs, usage=3)), [])

    def test_what_is_not_known_is_not_judged(self) -> None:
        verdict = verify("Hello there.", legs=[chat("Hello there.", used=(9, 9))], usage=5)
        self.assertEqual(self.differences(verdict), [])
        self.assertEqual(len(verdict.notes), 1)
