"""The fault directive's grammar, header and table, as properties."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from inference_lab.faults.grammar import Fault, FaultError, ModelFault, parse_header, parse_table
from inference_lab.faults.modes import MODES

# Spelt out here, so that a mode lost or renamed in the product is noticed.
ELEVEN = (
    "cancelled_499",
    "cut_between_frames",
    "cut_mid_frame",
    "error_400_in_sse",
    "error_envelope_200",
    "mid_reasoning",
    "mid_tool_call",
    "no_done",
    "no_usage",
    "reset",
    "stall",
)
VALID = "Valid modes: " + ", ".join(ELEVEN)
U32 = 4_294_967_295
U64 = 18_446_744_073_709_551_615

BLANKS = st.text(alphabet=" \t", max_size=3)
MODE_NAMES = st.sampled_from(ELEVEN)


@st.composite
def faults(draw: st.DrawFn) -> Fault:
    mode = draw(MODE_NAMES)
    return Fault(
        mode,
        after_chunks=draw(st.integers(0, U32)),
        delay_ms=draw(st.integers(0, U64)),
        utf8=draw(st.booleans()) if mode == "cut_mid_frame" else False,
    )


@st.composite
def spelt(draw: st.DrawFn) -> tuple[Fault, str]:
    """A fault and one of the many ways to spell it."""
    fault = draw(faults())
    parts = [
        f"after_chunks{draw(BLANKS)}={draw(BLANKS)}{fault.after_chunks}",
        f"delay_ms{draw(BLANKS)}={draw(BLANKS)}{fault.delay_ms}",
    ]
    if fault.utf8 or draw(st.booleans()):
        parts.append(f"utf8{draw(BLANKS)}={draw(BLANKS)}{'true' if fault.utf8 else 'false'}")
    text = ""
    for part in [fault.mode, *draw(st.permutations(parts))]:
        empty = ";".join(draw(st.lists(BLANKS, max_size=2)))
        text += f"{empty};{draw(BLANKS)}{part}{draw(BLANKS)};"
    return fault, text


def read(text: str) -> Fault:
    return parse_header(text, set(MODES))


class Case(SynchronousTestCase):
    """What a refusal must look like."""

    def refused(self, text: str, *named: str) -> FaultError:
        error = self.assertRaises(FaultError, read, text)
        return self.checked(error, *named)

    def checked(self, error: FaultError, *named: str) -> FaultError:
        message = str(error)
        self.assertEqual(message.splitlines(), [message], "a refusal is one line")
        for name in named:
            self.assertIn(name, message)
        return error


class HeaderTests(Case):
    """``x-inference-lab-fault``."""

    def test_the_eleven_modes(self) -> None:
        self.assertEqual(sorted(MODES), list(ELEVEN))
        for mode in ELEVEN:
            self.assertEqual(read(mode), Fault(mode))

    def test_defaults(self) -> None:
        fault = read("reset")
        self.assertEqual((fault.after_chunks, fault.delay_ms, fault.utf8), (3, 10, False))

    @given(faults())
    def test_canonical_parses_back(self, fault: Fault) -> None:
        self.assertEqual(read(fault.canonical()), fault)

    @given(faults(), faults())
    def test_canonical_is_unique(self, one: Fault, other: Fault) -> None:
        self.assertEqual(one == other, one.canonical() == other.canonical())

    @given(spelt())
    def test_blanks_empty_parts_and_order_do_not_matter(self, case: tuple[Fault, str]) -> None:
        fault, text = case
        self.assertEqual(read(text), fault)

    @given(MODE_NAMES, st.integers(0, U32), st.integers(0, 40))
    def test_leading_zeros_are_digits_too(self, mode: str, count: int, zeros: int) -> None:
        self.assertEqual(
            read(f"{mode};after_chunks={'0' * zeros}{count}"), Fault(mode, after_chunks=count)
        )

    def test_edges_of_the_ranges(self) -> None:
        self.assertEqual(read(f"reset;after_chunks={U32}").after_chunks, U32)
        self.assertEqual(read(f"reset;delay_ms={U64}").delay_ms, U64)
        self.refused(f"reset;after_chunks={U32 + 1}", "after_chunks", "u32", str(U32), VALID)
        self.refused(f"reset;delay_ms={U64 + 1}", "delay_ms", "u64", str(U64), VALID)

    @given(
        st.sampled_from([("after_chunks", U32), ("delay_ms", U64)]),
        st.integers(1, 10**60),
    )
    def test_beyond_the_ranges(self, key: tuple[str, int], beyond: int) -> None:
        name, limit = key
        self.refused(f"reset;{name}={limit + beyond}", name, VALID)

    def test_a_number_of_a_million_digits(self) -> None:
        error = self.refused("reset;after_chunks=" + "9" * 1_000_000, "after_chunks", VALID)
        self.assertLess(len(str(error)), 600)

    def test_digits_are_ascii_and_nothing_else(self) -> None:
        wrong = (
            "+3",
            "-3",
            "-0",
            "1_0",
            "1e3",
            "0x3",
            "3.0",
            "3 4",
            "3,",
            "three",
            "\u0663",  # ARABIC-INDIC DIGIT THREE
            "\uff13",  # FULLWIDTH DIGIT THREE
            "\u00b2",  # SUPERSCRIPT TWO
            "3\u00a0",  # NO-BREAK SPACE is no blank
            "3\n",
            '"3"',
            "",
            "   ",
        )
        for key in ("after_chunks", "delay_ms"):
            for text in wrong:
                self.refused(f"reset;{key}={text}", key, VALID)

    @given(
        st.sampled_from(["after_chunks", "delay_ms"]),
        st.text(st.characters(categories=["Nd", "Nl", "No"], exclude_characters="0123456789"))
        .filter(bool)
        .map(lambda text: f"1{text}"),
    )
    def test_no_other_script_counts(self, key: str, number: str) -> None:
        self.refused(f"reset;{key}={number}", key, VALID)

    def test_truth_is_lower_case(self) -> None:
        self.assertTrue(read("cut_mid_frame;utf8=true").utf8)
        self.assertFalse(read("cut_mid_frame;utf8=false").utf8)
        for text in ("True", "TRUE", "False", "1", "0", "yes", "", '"true"', "truely"):
            self.refused(f"cut_mid_frame;utf8={text}", "utf8", "true or false", VALID)

    def test_utf8_goes_with_cut_mid_frame_only(self) -> None:
        for mode in ELEVEN:
            self.assertFalse(read(f"{mode};utf8=false").utf8)
            if mode != "cut_mid_frame":
                self.refused(f"{mode};utf8=true", "utf8", "cut_mid_frame", mode, VALID)

    @given(
        MODE_NAMES,
        st.sampled_from([("after_chunks", "3"), ("delay_ms", "0"), ("utf8", "false")]),
        st.lists(st.sampled_from(["", " "]), max_size=2),
    )
    def test_a_key_twice(self, mode: str, setting: tuple[str, str], between: list[str]) -> None:
        key, value = setting
        once = f"{key}={value}"
        self.refused(";".join([mode, once, *between, once]), key, "twice", VALID)

    def test_a_part_without_a_value(self) -> None:
        for key in ("after_chunks", "delay_ms", "utf8"):
            self.refused(f"cut_mid_frame;{key}", key, VALID)

    def test_no_mode(self) -> None:
        for text in ("", " ", ";", " ; ;\t"):
            self.assertEqual(self.refused(text, "no mode", VALID).key, "mode")
        self.refused("after_chunks=3", "after_chunks=3", VALID)

    @given(st.text(max_size=200).filter(lambda text: ";" not in text))
    def test_unknown_mode(self, text: str) -> None:
        name = text.strip(" \t")
        if name in ELEVEN or not name:
            return
        error = self.refused(text, "unknown mode", VALID)
        self.assertLess(len(str(error)), 600)

    def test_names_are_case_sensitive(self) -> None:
        for mode in ELEVEN:
            self.refused(mode.upper(), "unknown mode", mode.upper(), VALID)
            self.refused(mode.replace("_", "-").title(), "unknown mode", VALID)
        self.refused("reset;After_Chunks=3", "After_Chunks", VALID)

    @given(
        st.text(max_size=200).filter(
            lambda text: (
                ";" not in text
                and text.partition("=")[0].strip(" \t") not in ("after_chunks", "delay_ms", "utf8")
                and bool(text.strip(" \t"))
            )
        )
    )
    def test_unknown_key(self, text: str) -> None:
        self.refused(f"reset;{text}", "unknown parameter", "after_chunks, delay_ms, utf8", VALID)

    @given(
        st.one_of(
            st.text(),
            st.lists(
                st.sampled_from([*ELEVEN, "after_chunks", "delay_ms", "utf8", "=", ";", "1", " "]),
            ).map("".join),
        )
    )
    def test_anything_at_all_parses_or_is_refused(self, text: str) -> None:
        try:
            fault = read(text)
        except FaultError as error:
            self.checked(error, VALID)
        else:
            self.assertIn(fault.mode, ELEVEN)
            self.assertEqual(read(fault.canonical()), fault)


class TableTests(Case):
    """A model's ``[fault]``."""

    def table_refused(self, table: dict[str, Any], *named: str) -> FaultError:
        error = self.assertRaises(FaultError, parse_table, table, set(MODES))
        return self.checked(error, *named)

    @given(faults())
    def test_says_what_the_header_says(self, fault: Fault) -> None:
        table = {
            "mode": fault.mode,
            "after_chunks": fault.after_chunks,
            "delay_ms": fault.delay_ms,
            "utf8": fault.utf8,
        }
        self.assertEqual(parse_table(table, set(MODES)), ModelFault(fault, frozenset({"chat"})))
        self.assertEqual(parse_table(table, set(MODES)).fault, read(fault.canonical()))

    def test_defaults(self) -> None:
        for mode in ELEVEN:
            found = parse_table({"mode": mode}, set(MODES))
            self.assertEqual(found.fault, Fault(mode, after_chunks=3, delay_ms=10, utf8=False))
            self.assertEqual(found.endpoints, {"chat"})

    def test_the_table_is_left_as_it_was(self) -> None:
        table = {"mode": "reset", "endpoints": ["chat"]}
        parse_table(table, set(MODES))
        self.assertEqual(table, {"mode": "reset", "endpoints": ["chat"]})

    def test_endpoints(self) -> None:
        both = parse_table({"mode": "reset", "endpoints": ["chat", "completions"]}, set(MODES))
        self.assertEqual(both.endpoints, {"chat", "completions"})
        one = parse_table({"mode": "reset", "endpoints": ["completions"]}, set(MODES))
        self.assertEqual(one.endpoints, {"completions"})
        for wrong in ("chat", [], ["Chat"], ["embeddings"], [1], [["chat"]], None, {"chat": True}):
            error = self.table_refused(
                {"mode": "reset", "endpoints": wrong}, "endpoints", "chat", "completions"
            )
            self.assertEqual(error.key, "endpoints")

    def test_mode(self) -> None:
        self.assertEqual(self.table_refused({}, "mode", VALID).key, "mode")
        for wrong in ("", "Reset", "reset;after_chunks=3", 1, None, ["reset"], True):
            self.assertEqual(self.table_refused({"mode": wrong}, "mode", VALID).key, "mode")

    def test_unknown_key(self) -> None:
        self.table_refused(
            {"mode": "reset", "after_chunk": 1},
            "'after_chunk'",
            "mode, endpoints, after_chunks, delay_ms, utf8",
        )

    def test_numbers(self) -> None:
        edges: tuple[tuple[str, int, str], ...] = (
            ("after_chunks", U32, "u32"),
            ("delay_ms", U64, "u64"),
        )
        for key, limit, kind in edges:
            for right in (0, 1, limit):
                fault = parse_table({"mode": "reset", key: right}, set(MODES)).fault
                self.assertEqual(getattr(fault, key), right)
            for wrong in (-1, limit + 1, 3.0, "3", True, False, None, [3]):
                error = self.table_refused({"mode": "reset", key: wrong}, key, kind, str(limit))
                self.assertEqual(error.key, key)

    def test_truth(self) -> None:
        for wrong in (1, 0, "true", None):
            error = self.table_refused(
                {"mode": "cut_mid_frame", "utf8": wrong}, "utf8", "true or false"
            )
            self.assertEqual(error.key, "utf8")

    def test_utf8_goes_with_cut_mid_frame_only(self) -> None:
        for mode in set(ELEVEN) - {"cut_mid_frame"}:
            self.assertEqual(
                self.table_refused({"mode": mode, "utf8": True}, "utf8", "cut_mid_frame").key,
                "utf8",
            )

    @given(
        st.dictionaries(
            st.sampled_from(["mode", "after_chunks", "delay_ms", "utf8", "endpoints", "x"]),
            st.one_of(
                MODE_NAMES,
                st.text(max_size=5),
                st.integers(),
                st.booleans(),
                st.floats(),
                st.none(),
                st.lists(st.sampled_from(["chat", "completions", "x"])),
                st.dictionaries(st.text(max_size=2), st.integers(), max_size=1),
            ),
        )
    )
    def test_anything_at_all_parses_or_is_refused(self, table: dict[str, Any]) -> None:
        try:
            found = parse_table(table, set(MODES))
        except FaultError as error:
            self.assertIn(error.key, [None, "x", *table, "mode"])
            self.checked(error)
        else:
            self.assertEqual(found.fault.mode, table["mode"])
            self.assertEqual(read(found.fault.canonical()), found.fault)
