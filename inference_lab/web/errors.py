"""The OpenAI error shape, and the refusals this server makes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
from attrs import define, field

from inference_lab.engine.requests import ContextTooLong, QueueFull, Refused, TooLargeForKV

FAULT_HEADER = "x-inference-lab-fault"
SESSION_HEADER = "x-inference-lab-session"
APPLIED_HEADER = "x-inference-lab-fault-applied"
RESUME_HEADER = "x-inference-lab-resume"

CONTEXT_LENGTH = "context_length_exceeded"


@define
class ApiError(Exception):
    """A refusal, with everything the client is told.

    ``param`` names what is wrong in the request, ``code`` is a stable string;
    ``headers`` go out with the response.
    """

    status: int
    message: str
    code: str
    type: str = "invalid_request_error"
    param: str | None = None
    headers: Mapping[str, str] = field(factory=dict)

    def body(self) -> bytes:
        """The JSON body."""
        return msgspec.json.encode(
            {
                "error": {
                    "message": self.message,
                    "type": self.type,
                    "param": self.param,
                    "code": self.code,
                }
            }
        )


def bad_request(message: str, code: str = "invalid_request", param: str | None = None) -> ApiError:
    """400."""
    return ApiError(400, message, code, param=param)


def wrong_key(key: bytes) -> ApiError:
    """401: no key, or none of ours. The key is not told back in full."""
    if not key:
        problem = "You didn't provide an API key: send it as `Authorization: Bearer KEY`."
    else:
        problem = f"Incorrect API key provided: {key[:3].decode('ascii', 'replace')}***."
    return ApiError(401, problem, "invalid_api_key", headers={"WWW-Authenticate": "Bearer"})


def bad_fault(message: str) -> ApiError:
    """400 for a fault directive that is wrong; ``message`` lists the valid modes."""
    return ApiError(400, message, "invalid_fault_directive", param=FAULT_HEADER)


def misplaced_fault(problem: str, modes: Iterable[str]) -> ApiError:
    """400 for a fault directive that cannot be honoured on this request."""
    return bad_fault(
        f"The {FAULT_HEADER} header {problem}. Valid modes: {', '.join(sorted(modes))}"
    )


def unknown_model(name: str, known: list[str]) -> ApiError:
    """404, naming the models there are."""
    shown = name if len(name) <= 100 else name[:97] + "..."
    return ApiError(
        404,
        f"The model `{shown}` does not exist. Models served here: {', '.join(known)}.",
        "model_not_found",
        param="model",
    )


def prompt_too_long(prompt_tokens: int, limit: int) -> ApiError:
    """400 in vLLM's words: the prompt alone fills the context."""
    return bad_request(
        f"This model's maximum context length is {limit} tokens. However, your request has "
        f"{prompt_tokens} input tokens. Please reduce the length of the input messages.",
        CONTEXT_LENGTH,
        "messages",
    )


def answer_too_long(prompt_tokens: int, max_tokens: int, limit: int) -> ApiError:
    """400 in vLLM's words: prompt and answer together pass the context."""
    return bad_request(
        f"'max_tokens' or 'max_completion_tokens' is too large: {max_tokens}. This model's "
        f"maximum context length is {limit} tokens and your request has {prompt_tokens} input "
        f"tokens ({max_tokens} > {limit} - {prompt_tokens}).",
        CONTEXT_LENGTH,
        "max_tokens",
    )


def refused_by_engine(refusal: Refused) -> ApiError:
    """What the engine's refusal means to a client."""
    match refusal:
        case QueueFull(limit=limit):
            return ApiError(
                429,
                f"The queue is full: {limit} requests are waiting. Try again later.",
                "queue_full",
                type="rate_limit_error",
                headers={"Retry-After": "1"},
            )
        case TooLargeForKV(needed=needed, total=total):
            return bad_request(
                f"The request needs {needed} KV cache blocks and this deployment has {total}: "
                "shorten the prompt or lower max_tokens.",
                CONTEXT_LENGTH,
            )
        case ContextTooLong(prompt_tokens=tokens, limit=limit):
            return prompt_too_long(tokens, limit)
    return bad_request(str(refusal))


def unknown_path(path: str) -> ApiError:
    """404."""
    shown = path if len(path) <= 100 else path[:97] + "..."
    return ApiError(404, f"Unknown path {shown}.", "not_found")


def wrong_method(method: str, path: str, allowed: list[str]) -> ApiError:
    """405 with ``Allow``."""
    allow = ", ".join(allowed)
    return ApiError(
        405,
        f"Method {method[:20]} is not allowed on {path[:100]}. Allowed: {allow}.",
        "method_not_allowed",
        headers={"Allow": allow},
    )


def server_error() -> ApiError:
    """500: a defect of ours; its traceback is in the log, not in the answer."""
    return ApiError(500, "Internal server error.", "internal_error", type="server_error")
