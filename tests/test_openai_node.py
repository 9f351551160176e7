"""The official client for Node and the AI SDK: what they make of a healthy stream and each death.

All cases run side by side in one Node process, once; each test looks at its own reports.
"""

from __future__ import annotations

from typing import Any

import jsonschema  # type: ignore[import-untyped]
import msgspec
import pytest
from attrs import evolve, frozen

from tests.live import (
    CHAT,
    COMPLETIONS,
    FAULT,
    MODEL,
    REPOSITORY,
    Server,
    chat_body,
    streaming_body,
)
from tests.node_clients import Case, Clients, Error, Report
from tests.seen import FAULTS, TOKENS, Seen, gather, promised

PATHS = {"chat": CHAT, "completions": COMPLETIONS}


@frozen
class Thrown:
    """An error: its class and message, its code, and the code of its first cause."""

    error: str
    message: str
    code: int | None = None
    cause: str | None = None


# openai-node lets the errors of Node's fetch through as they are.
CUT = Thrown("TypeError", "terminated", cause="UND_ERR_SOCKET")

# None: the client throws nothing.
OPENAI: dict[str, Thrown | None] = {
    "cut_between_frames": CUT,
    "cut_mid_frame": CUT,
    "cut_mid_frame;utf8=true": CUT,
    "reset": Thrown("TypeError", "terminated", cause="ECONNRESET"),
    "stall": None,
    "error_envelope_200": Thrown("APIError", "Provider returned error", code=502),
    "error_400_in_sse": None,
    "no_done": None,
    "no_usage": None,
    "cancelled_499": Thrown("APIError", "CancelledError: ", code=499),
    "mid_reasoning": CUT,
    "mid_tool_call": CUT,
}

AI_CUT = Thrown("APICallError", "Failed to process successful response", cause="UND_ERR_SOCKET")

# What ends the AI SDK's full stream: an error that its iteration throws, or one of its parts.
AI: dict[str, Thrown | None] = {
    "cut_between_frames": AI_CUT,
    "cut_mid_frame": AI_CUT,
    "cut_mid_frame;utf8=true": AI_CUT,
    "reset": Thrown("APICallError", "Failed to process successful response", cause="ECONNRESET"),
    "stall": None,
    "error_envelope_200": Thrown("StreamProviderError", "Provider returned error", code=502),
    "error_400_in_sse": Thrown("TypeValidationError", "Type validation failed"),
    "no_done": None,
    "no_usage": None,
    "cancelled_499": Thrown("StreamProviderError", "CancelledError: ", code=499),
    "mid_reasoning": AI_CUT,
    "mid_tool_call": AI_CUT,
}

HEALTHY = {
    (client, call): Case(client, call, streaming_body(path, max_tokens=8))
    for client in ("openai", "ai")
    for call, path in PATHS.items()
}
DEATHS = {
    (client, call, fault): Case(client, call, streaming_body(path), fault)
    for client in ("openai", "ai")
    for call, path in PATHS.items()
    for fault in FAULTS
}
PLACE = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOLS = [{"type": "function", "function": {"name": "lookup", "parameters": PLACE}}]
SCHEMA = {"name": "place", "strict": True, "schema": PLACE}
CALLING = {
    client: Case(client, "chat", chat_body(max_tokens=64, tools=TOOLS, tool_choice="required"))
    for client in ("openai", "ai")
}
DOCUMENTS = {
    client: Case(
        client,
        "chat",
        chat_body(max_tokens=64, response_format={"type": "json_schema", "json_schema": SCHEMA}),
    )
    for client in ("openai", "ai")
}
WHOLE = {
    call: Case(
        "openai", call, streaming_body(path, max_tokens=8, stream=False, stream_options=None)
    )
    for call, path in PATHS.items()
}
MODELS = Case("openai", "models")
UNKNOWN_MODEL = {
    client: Case(client, "chat", chat_body(model="nonesuch")) for client in ("openai", "ai")
}
REFUSED = {client: Case(client, "chat", chat_body(), "nonesuch") for client in ("openai", "ai")}

Reports = dict[int, Report]


@pytest.fixture(scope="module")
def reports(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Reports:
    """Every case's report, by the identity of the case."""
    clients = Clients.install(tmp_path_factory.mktemp("node"))
    groups = (
        *(HEALTHY, DEATHS, CALLING, DOCUMENTS, WHOLE, UNKNOWN_MODEL, REFUSED),
        {"models": MODELS},
    )
    cases: list[Case] = [case for group in groups for case in group.values()]
    return dict(zip(map(id, cases), clients.report(server, cases), strict=True))


def test_the_lock_file_names_no_host() -> None:
    """Packages come from whatever registry the machine is set up for, and are checked by hash."""
    lock = (REPOSITORY / "tests" / "node" / "package-lock.json").read_text()
    assert "://" not in lock
    assert lock.count('"integrity": "sha512-') == lock.count('"node_modules/')


# -- openai ----------------------------------------------------------------


@pytest.mark.parametrize("call", PATHS)
def test_healthy_stream(reports: Reports, call: str) -> None:
    """Every token, the finish reason and the usage come; joined, they are the whole answer."""
    streamed = reports[id(HEALTHY["openai", call])]
    assert streamed.error is None
    seen = gather(streamed.items)
    assert seen == Seen(TOKENS[:8], finish_reason="length", counted=8)

    (answer,) = reports[id(WHOLE[call])].items
    (choice,) = answer["choices"]
    said = choice["message"]["content"] if call == "chat" else choice["text"]
    assert said == "".join(seen.text)
    assert choice["finish_reason"] == "length"
    assert answer["usage"] == streamed.items[-1]["usage"]


@pytest.mark.parametrize("call", PATHS)
@pytest.mark.parametrize("fault", FAULTS)
def test_death(reports: Reports, call: str, fault: str) -> None:
    """Every promised token is handed out; then comes the error of that death, or an end."""
    died = reports[id(DEATHS["openai", call, fault])]
    seen = gather(died.items)
    assert evolve(seen, strays=()) == promised(PATHS[call], fault)
    check_thrown(died.error, OPENAI[fault])
    # The client's time limit ends with the headers: a stall is left to the caller, and when the
    # caller aborts, the loop ends as if the answer were over. Only the finish reason is missing.
    assert died.gave_up is (fault == "stall")
    if fault == "error_400_in_sse":
        # A payload without `error` is handed out as if it were a chunk.
        (stray,) = seen.strays
        assert (stray["object"], stray["code"], stray["type"]) == ("error", 400, "BadRequestError")
    else:
        assert seen.strays == ()


def check_thrown(error: Error | None, expected: Thrown | None) -> None:
    """Class, message, code and first cause are those expected."""
    if expected is None:
        assert error is None
        return
    assert error is not None
    assert error.classes[0] == expected.error
    assert error.message.startswith(expected.message)
    assert error.code == expected.code
    assert (error.cause and error.innermost.code) == expected.cause


def check_structured(call: Seen, document: Seen) -> None:
    """A call in fragments, and a document, both of the schema."""
    name, *fragments = call.call
    assert name == "lookup"
    assert len(fragments) > 3
    jsonschema.validate(msgspec.json.decode("".join(fragments)), PLACE)
    jsonschema.validate(msgspec.json.decode("".join(document.text)), PLACE)
    assert document.finish_reason == "stop"


def test_tools_and_documents(reports: Reports) -> None:
    """What the caller forces, in the fragments that the server sent."""
    called, written = reports[id(CALLING["openai"])], reports[id(DOCUMENTS["openai"])]
    assert (called.error, written.error) == (None, None)
    call = gather(called.items)
    assert call.finish_reason == "tool_calls"
    assert call.counted == len(call.call)
    document = gather(written.items)
    assert document.counted == len(document.text)
    check_structured(call, document)


def test_unknown_model(reports: Reports) -> None:
    """A 404 is the client's NotFoundError."""
    error = reports[id(UNKNOWN_MODEL["openai"])].error
    assert error is not None
    assert error.classes[:2] == ["NotFoundError", "APIError"]
    assert (error.status, error.code) == (404, "model_not_found")
    assert MODEL in error.message


def test_refused_directive(reports: Reports) -> None:
    """A bad header is the BadRequestError."""
    error = reports[id(REFUSED["openai"])].error
    assert error is not None
    assert error.classes[:2] == ["BadRequestError", "APIError"]
    assert (error.status, error.code) == (400, "invalid_fault_directive")
    assert (error.param, error.type) == (FAULT, "invalid_request_error")


def test_models(reports: Reports, server: Server) -> None:
    """The client lists the models that the server announced."""
    announced = server.ready.partition("models=")[2].split()[0].split(",")
    listed = [model["id"] for model in reports[id(MODELS)].items]
    assert sorted(listed) == sorted(announced)


# -- the AI SDK ------------------------------------------------------------


def gather_parts(parts: list[dict[str, Any]]) -> Seen:
    """Fold the parts of a full stream; ``strays`` are the errors among them."""
    text: list[str] = []
    reasoning: list[str] = []
    call: list[str] = []
    finish_reason = counted = None
    strays = []
    for part in parts:
        match part["type"]:
            case "text-delta":
                text.append(part["text"])
            case "reasoning-delta":
                reasoning.append(part["text"])
            case "tool-input-start":
                call.append(part["toolName"])
            case "tool-input-delta":
                call.append(part["delta"])
            case "error":
                strays.append(part["error"])
            case "finish":
                finish_reason = part["finishReason"]
                counted = part["totalUsage"].get("outputTokens")
    return Seen(tuple(text), tuple(reasoning), tuple(call), finish_reason, counted, tuple(strays))


@pytest.mark.parametrize("call", PATHS)
def test_ai_sdk_healthy_stream(reports: Reports, call: str) -> None:
    """Every token, the finish reason and the usage come."""
    streamed = reports[id(HEALTHY["ai", call])]
    assert streamed.error is None
    assert gather_parts(streamed.items) == Seen(TOKENS[:8], finish_reason="length", counted=8)


def test_ai_sdk_tools_and_documents(reports: Reports) -> None:
    """What the caller forces; the SDK checks it against the schema itself."""
    called, written = reports[id(CALLING["ai"])], reports[id(DOCUMENTS["ai"])]
    assert (called.error, written.error) == (None, None)
    call, document = gather_parts(called.items), gather_parts(written.items)
    assert (call.strays, document.strays) == ((), ())
    check_structured(call, document)
    (parsed,) = [part for part in called.items if part["type"] == "tool-call"]
    assert parsed["input"] == msgspec.json.decode("".join(call.call[1:]))
    assert call.finish_reason == "tool-calls"


@pytest.mark.parametrize("call", PATHS)
@pytest.mark.parametrize("fault", FAULTS)
def test_ai_sdk_death(reports: Reports, call: str, fault: str) -> None:
    """Every promised token is handed out; then comes the error of that death, or an end."""
    died = reports[id(DEATHS["ai", call, fault])]
    seen = gather_parts(died.items)
    in_stream = fault in ("error_envelope_200", "error_400_in_sse", "cancelled_499")
    expected = promised(PATHS[call], fault)
    if in_stream:
        # The stream goes on to its end, and says itself that it is a bad one.
        expected = evolve(expected, finish_reason="error")
        (error,) = [msgspec.convert(stray, Error) for stray in seen.strays]
        assert died.error is None
        check_thrown(error, AI[fault])
    else:
        assert seen.strays == ()
        check_thrown(died.error, AI[fault])
    assert evolve(seen, strays=()) == expected
    # A caller who aborts is told so by a part of its own.
    assert died.gave_up is (fault == "stall")
    assert (died.items[-1]["type"] == "abort") is (fault == "stall")


def test_ai_sdk_refusals(reports: Reports) -> None:
    """A refusal is an error part with its status and the server's message."""
    for cases, status, says in ((UNKNOWN_MODEL, 404, MODEL), (REFUSED, 400, FAULT)):
        refused = reports[id(cases["ai"])]
        (error,) = [msgspec.convert(stray, Error) for stray in gather_parts(refused.items).strays]
        assert error.classes[0] == "APICallError"
        assert error.status == status
        assert says in error.message
