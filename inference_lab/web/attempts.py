"""Which attempt of whose a request is, and what that attempt meets.

A header's plan counts the attempts of the session that another header names, a
model's plan those of the key that its configuration names. Only a stream that opens
uses an attempt up.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from typing import Any

from attrs import define
from twisted.python.failure import Failure

from inference_lab.faults.grammar import Fault, FaultError, ModelFault
from inference_lab.faults.plans import FaultPlan, ModelPlan, PlanKey, parse_plan
from inference_lab.lab import Lab, Served
from inference_lab.sessions import Sessions
from inference_lab.web.decoding import readable
from inference_lab.web.errors import (
    FAULT_HEADER,
    SESSION_HEADER,
    bad_fault,
    bad_request,
    misplaced_fault,
)

_SESSION = re.compile(r"[!-~](?:[ -~]{0,254}[!-~])?")


@define
class Turn:
    """One request's place among the attempts of its kind.

    ``header`` is the fault it asks for, ``model`` the one its model has for it.
    ``session`` and ``attempt`` (from 1) are for the journal; no ``attempt`` is counted
    for a request that belongs to nobody. ``planned`` says that somebody counts on being
    told what was applied.
    """

    header: Fault | None = None
    model: ModelFault | None = None
    session: str | None = None
    attempt: int | None = None
    planned: bool = False
    _key: Hashable = None
    _sessions: Sessions | None = None

    def take(self) -> None:
        """The request is valid: count it."""
        if self._sessions is not None:
            self._sessions.take(self._key)

    def give_back(self) -> None:
        """It was refused all the same."""
        if self._sessions is not None and self.attempt is not None:
            self._sessions.give_back(self._key, self.attempt)

    def refused(self, failure: Failure) -> Failure:
        """`give_back`, as an errback."""
        self.give_back()
        return failure


def turn_of(
    lab: Lab,
    request: Any,
    endpoint: str,
    body: bytes,
    served: Served,
    plan: FaultPlan | None,
    streaming: bool,
) -> Turn:
    """Say which attempt a request will be; nothing is counted yet.

    ``plan`` is what its header says.

    :raises ApiError: 400 for a session that is none, or is missing.
    """
    session = _session_of(lab, request)
    if plan is not None and plan.is_list and session is None:
        raise misplaced_fault(
            f"lists several faults; say whose attempts they are for in {SESSION_HEADER}",
            lab.modes,
        )
    own = served.fault
    if not streaming:
        return Turn(session=session)
    if plan is None and isinstance(own, ModelPlan):
        key = _key_of(own.key, request, body)
        if key is None or endpoint not in own.endpoints:
            return Turn(session=session)
        counted = ("model", served.deployment.name, key)
        attempt = lab.sessions.upcoming(counted)
        met = ModelFault(own.plan.item(attempt), own.endpoints)
        return Turn(None, met, session or key, attempt, True, counted, lab.sessions)
    model = own if isinstance(own, ModelFault) else None
    if session is None:
        return Turn(None if plan is None else plan.item(1), model)
    attempt = lab.sessions.upcoming(session)
    header = None if plan is None else plan.item(attempt)
    return Turn(header, model, session, attempt, True, session, lab.sessions)


def header_plan(lab: Lab, request: Any, streaming: bool) -> FaultPlan | None:
    """What the fault header says, if there is one.

    :raises ApiError: 400 where it is wrong or cannot be honoured.
    """
    values = request.requestHeaders.getRawHeaders(FAULT_HEADER.encode(), [])
    if not values:
        return None
    modes = lab.modes
    if len(values) > 1:
        raise misplaced_fault(f"is given {len(values)} times; send one", modes)
    try:
        plan = parse_plan(readable(values[0]), modes)
    except FaultError as error:
        raise bad_fault(f"{FAULT_HEADER}: {error}") from None
    if not lab.settings.directives:
        raise misplaced_fault(
            "is honoured only by a server started with --enable-directives", modes
        )
    if not streaming:
        raise misplaced_fault('needs a streaming request: set "stream": true', modes)
    return plan


def _session_of(lab: Lab, request: Any) -> str | None:
    values = request.requestHeaders.getRawHeaders(SESSION_HEADER.encode(), [])
    if not values or not lab.settings.directives:
        return None
    if len(values) > 1:
        problem = f"is given {len(values)} times; send one"
    else:
        session = readable(values[0]).strip(" \t")
        if _SESSION.fullmatch(session):
            return session
        problem = "must be 1 to 256 printable ASCII characters"
    raise bad_request(f"The {SESSION_HEADER} header {problem}.", "invalid_session", SESSION_HEADER)


def _key_of(key: PlanKey, request: Any, body: bytes) -> str | None:
    if key.place == "body":
        return key.in_body(body)
    values = request.requestHeaders.getRawHeaders(key.name.encode(), [])
    return readable(values[0]) if values and values[0] else None
