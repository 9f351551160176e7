"""What sets the two endpoints apart, and who an answer says it is."""

from __future__ import annotations

import hashlib
import time
import uuid

from attrs import frozen

from inference_lab.dialects.base import Identity
from inference_lab.dialects.chat import Chat
from inference_lab.dialects.completions import Completions
from inference_lab.faults.grammar import CHAT, COMPLETIONS, Fault

FAULT_CREATED = 1_700_000_000
"""``created`` (Unix s) of every faulted stream: the same bytes on any day."""


@frozen
class Endpoint:
    """One of the two that generate."""

    name: str
    path: str
    id_prefix: str
    object_name: str
    dialect: type[Chat] | type[Completions]


CHAT_ENDPOINT = Endpoint(CHAT, "/v1/chat/completions", "chatcmpl-", "chat.completion", Chat)
COMPLETIONS_ENDPOINT = Endpoint(
    COMPLETIONS, "/v1/completions", "cmpl-", "text_completion", Completions
)


def fault_identity(endpoint: Endpoint, body: bytes, fault: Fault, model: str) -> Identity:
    """Who a faulted stream says it is: a function of path, raw body and fault alone."""
    digest = hashlib.sha256()
    for part in (endpoint.path.encode(), body, fault.canonical().encode()):
        digest.update(len(part).to_bytes(8, "big") + part)
    return Identity(endpoint.id_prefix + digest.hexdigest()[:32], FAULT_CREATED, model)


def fresh_identity(endpoint: Endpoint, model: str) -> Identity:
    """Who a healthy answer says it is: somebody new, now."""
    return Identity(endpoint.id_prefix + uuid.uuid4().hex, int(time.time()), model)
