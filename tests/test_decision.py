"""The table of precedence."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from inference_lab.decision import Die, Generate, decide
from inference_lab.faults.grammar import Fault, ModelFault

HEADER = Fault("reset", 1)
OWN = Fault("stall", 2)
CHAT_ONLY = ModelFault(OWN, frozenset({"chat"}))
BOTH = ModelFault(OWN, frozenset({"chat", "completions"}))

ENDPOINTS = st.sampled_from(["chat", "completions"])
MODEL_FAULTS = st.sampled_from([None, CHAT_ONLY, BOTH])


class DecisionTests(SynchronousTestCase):
    """Header, the model's own, (echo-directive,) the engine."""

    def test_the_whole_table(self) -> None:
        table: list[tuple[ModelFault | None, str, bool, Die | Generate]] = [
            (None, "chat", True, Generate()),
            (None, "chat", False, Generate()),
            (None, "completions", True, Generate()),
            (None, "completions", False, Generate()),
            (CHAT_ONLY, "chat", True, Die(OWN)),
            (CHAT_ONLY, "chat", False, Generate()),
            (CHAT_ONLY, "completions", True, Generate()),
            (CHAT_ONLY, "completions", False, Generate()),
            (BOTH, "chat", True, Die(OWN)),
            (BOTH, "chat", False, Generate()),
            (BOTH, "completions", True, Die(OWN)),
            (BOTH, "completions", False, Generate()),
        ]
        for model, endpoint, streaming, expected in table:
            self.assertEqual(decide(None, model, endpoint, streaming), expected)

    def test_a_model_s_fault_strikes_chat_by_default(self) -> None:
        own = ModelFault(OWN)
        self.assertEqual(decide(None, own, "chat", True), Die(OWN))
        self.assertEqual(decide(None, own, "completions", True), Generate())

    @given(MODEL_FAULTS, ENDPOINTS)
    def test_the_header_wins_over_everything(self, model: ModelFault | None, endpoint: str) -> None:
        self.assertEqual(decide(HEADER, model, endpoint, True), Die(HEADER))

    @given(MODEL_FAULTS, ENDPOINTS)
    def test_nothing_but_a_header_touches_what_does_not_stream(
        self, model: ModelFault | None, endpoint: str
    ) -> None:
        self.assertEqual(decide(None, model, endpoint, False), Generate())
