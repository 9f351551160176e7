"""`inference_lab.content.patterns`: strings that match a regular expression."""

from __future__ import annotations

import re
import time
import warnings

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from inference_lab.content.draws import Draws
from inference_lab.content.patterns import PatternError, match_for

atoms = st.sampled_from(
    [
        *"a-_ é/.}]",
        *(r"\.", r"\d", r"\w", r"\s", r"\D", r"\W", r"\S", r"\/", r"\x41"),
        *("[a-z]", "[^a-y]", "[A-Z0-9_]", r"[\d.]", r"[^\w-]", "[-a]", "[a-]", "[é-ü]"),
    ]
)
quantifiers = st.sampled_from(["", "", "?", "*", "+", "{2}", "{1,3}", "{2,}", "{0,2}?", "+?"])
pieces = st.recursive(
    st.builds("{}{}".format, atoms, quantifiers),
    lambda inner: (
        st.lists(inner, max_size=3).map("".join)
        | st.builds("(?:{}|{})".format, inner, inner)
        | st.builds("({}){}".format, inner, quantifiers)
    ),
    max_leaves=8,
)
patterns = st.builds(
    "{}{}{}".format, st.sampled_from(["", "^"]), pieces, st.sampled_from(["", "$"])
)


class MatchTests(SynchronousTestCase):
    @given(patterns, st.integers(0, 5))
    def test_what_is_written_matches(self, pattern: str, seed: int) -> None:
        text = match_for(pattern, Draws(seed))
        self.assertRegex(text, re.compile(pattern))
        self.assertEqual(text, match_for(pattern, Draws(seed)))

    def test_patterns_from_practice(self) -> None:
        for pattern in (
            "^@[a-zA-Z0-9_]+$",
            r"^\d{3}-\d{2}-\d{4}$",
            r"^\+?[1-9]\d{1,14}$",
            r"^[A-Z]{2,3}\d{4}(-[a-z]+)*$",
            r"^#(?:[0-9a-fA-F]{3}){1,2}$",
            r"^(red|green|blue)$|^none$",
            r"^https?://[^\s/]+\.(com|org)/?$",
            r"^\{.*\}$",
            r"^a{x}$",
            "",
        ):
            for seed in range(5):
                self.assertRegex(match_for(pattern, Draws(seed)), re.compile(pattern))

    def test_draws_decide(self) -> None:
        self.assertLess(1, len({match_for("^[a-z]{8}$", Draws(seed)) for seed in range(9)}))

    def test_what_is_not_honoured_is_named(self) -> None:
        for pattern, part in {
            "(?=a)": "(?=a",
            "(?<name>a)": "(?<n",
            r"(a)\1": r"\1",
            r"\bword\b": r"\b",
            r"\p{L}": r"\p",
            "a^b": "^",
            "(a$)": "$",
            "a**": "quantifier",
            "*a": "*",
            "a{,5}": "{",
            "a{3,2}": "bounds",
            "[z-a]": "range",
            "[": "early",
            "[]": "no character",
            "[^]": "no character",
            r"[^\s\S]": "no character",
            "(a": "(",
            "a)": ")",
            "\\": "early",
            r"\x4": r"\x4",
            r"\ud800": "surrogates",
            "a{9999}": "4096",
            "(a{99}){99}": "4096",
            "((){999}){999}": "repetitions",
            "(" * 99 + ")" * 99: "deep",
        }.items():
            with self.assertRaises(PatternError, msg=pattern) as caught:
                match_for(pattern, Draws(0))
            self.assertIn(part, str(caught.exception), pattern)

    @given(st.text("ab^$\\.*+?()[]{}|-,019dwux:=", max_size=25))
    def test_any_pattern_matches_or_is_refused(self, pattern: str) -> None:
        try:
            text = match_for(pattern, Draws(0))
        except PatternError:
            return
        with warnings.catch_warnings():
            # "[[" may come to mean something else in a later Python.
            warnings.simplefilter("ignore", FutureWarning)
            self.assertRegex(text, re.compile(pattern))

    def test_hostile_patterns_end_soon(self) -> None:
        for pattern in ("a" * 10**6, "(a?){999}" * 400, "((a*){99}){99}", "(((){99}){99}){99}"):
            start = time.process_time()
            with self.assertRaises(PatternError):
                match_for(pattern, Draws(0))
            self.assertLess(time.process_time() - start, 3)
