"""Plans: which attempt dies how.

A list of fault directives, one for each attempt. A header or a model's ``[fault]``
table spells it; whose attempts are counted together is for others to say.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from attrs import frozen

from inference_lab.faults.grammar import (
    ENDPOINTS,
    HEALTHY,
    Fault,
    FaultError,
    ModelFault,
    Modes,
    parse_endpoints,
    parse_header,
    parse_table,
)
from inference_lab.faults.parameters import split

REPEAT = "*"
"""A last item that stands for the one before it, for ever."""

_KEYS = ("plan", "plan_key", "endpoints")


@frozen
class FaultPlan:
    """What each attempt meets; ``repeats`` lets the last item come again and again."""

    items: tuple[Fault, ...]
    repeats: bool = False

    @property
    def is_list(self) -> bool:
        """Whether attempts differ at all, so that somebody has to count them."""
        return len(self.items) > 1 or self.repeats

    def item(self, attempt: int) -> Fault:
        """What attempt ``attempt``, from 1, meets: after the last item, health."""
        if attempt <= len(self.items):
            return self.items[attempt - 1]
        return self.items[-1] if self.repeats else Fault(HEALTHY)


@frozen
class PlanKey:
    """Where a request says whose attempt it is: a ``header``, or a field of its ``body``.

    A dotted field's name is a path.
    """

    place: str
    name: str

    def in_body(self, body: bytes) -> str | None:
        """The field's value in a JSON ``body``: text or a whole number, else None."""
        value = msgspec.json.decode(body)
        for step in self.name.split("."):
            value = value.get(step) if isinstance(value, dict) else None
        if isinstance(value, str) and value:
            return value
        return str(value) if type(value) is int else None


@frozen
class ModelPlan:
    """A model's own plan, the endpoints it strikes, and whose attempts it counts."""

    plan: FaultPlan
    key: PlanKey
    endpoints: frozenset[str] = frozenset(ENDPOINTS)


def parse_plan(value: str, modes: Modes) -> FaultPlan:
    """Read ``<fault>[, <fault>]...[, *]``; commas in quoted values separate nothing.

    :raises FaultError: naming the item that is wrong.
    """
    return _plan(split(value, ","), modes)


def parse_model(table: Mapping[str, Any], modes: Modes) -> ModelFault | ModelPlan:
    """Read a model's ``[fault]`` table, be it one mode or a plan.

    :raises FaultError: naming the key that is wrong, and what is allowed.
    """
    if "plan" not in table:
        if "mode" not in table:
            raise FaultError("give either mode or plan", "mode")
        return parse_table(table, modes)
    if "mode" in table:
        raise FaultError("has both mode and plan; give one of them", "plan")
    for key in table:
        if key not in _KEYS:
            raise FaultError(f"unknown key {key!r} of a plan (known: {', '.join(_KEYS)})", key)
    items = table["plan"]
    if not isinstance(items, list) or not items or not all(isinstance(i, str) for i in items):
        raise FaultError("plan must be a list of directives, such as ['reset', 'none']", "plan")
    for item in items:
        if len(split(item, ",")) > 1:
            raise FaultError(f"{item!r} is several directives; make each a string", "plan")
    return ModelPlan(
        _plan(items, modes),
        _key(table.get("plan_key")),
        parse_endpoints(table.get("endpoints", [*ENDPOINTS])),
    )


def _plan(items: list[str], modes: Modes) -> FaultPlan:
    items = [item.strip(" \t") for item in items]
    repeats = items[-1] == REPEAT
    if repeats:
        items.pop()
        if not items:
            raise FaultError(f"{REPEAT} repeats the item before it, and there is none", "plan")
    faults = []
    for number, item in enumerate(items, 1):
        try:
            if item == REPEAT:
                raise FaultError(f"{REPEAT} must be the last item", "plan")
            faults.append(parse_header(item, modes))
        except FaultError as error:
            if len(items) == 1 and not repeats:
                raise
            raise FaultError(f"item {number}: {error}", error.key) from None
    return FaultPlan(tuple(faults), repeats)


def _key(spelt: Any) -> PlanKey:
    place, _, name = spelt.partition(":") if isinstance(spelt, str) else ("", "", "")
    if place not in ("header", "body") or not name.strip():
        given = "is missing" if spelt is None else f"cannot be {spelt!r}"
        raise FaultError(f'plan_key {given}: it is "header:NAME" or "body:FIELD"', "plan_key")
    return PlanKey(place, name.strip())
