"""From the bytes of a body to a typed request, or to a refusal that names the field."""

from __future__ import annotations

import re
from typing import Any, Protocol, TypeVar

import msgspec

from inference_lab.web.errors import ApiError, bad_request
from inference_lab.web.requests import invalid_prompt

MAX_BODY_BYTES = 32 * 1024 * 1024
"""A larger body is a 413."""


class Checked(Protocol):
    """A request type that knows which of its values do not go together."""

    def check(self) -> None:
        """Refuse them."""


Body = TypeVar("Body", bound=Checked)


def decode(kind: type[Body], content_type: str | None, body: bytes) -> Body:
    """Read ``body`` as a ``kind``.

    :raises ApiError: 415 for another media type, else 400 naming the field.
    """
    _check_media_type(content_type)
    if not body.strip():
        raise bad_request("The request body is empty; send a JSON object.", "invalid_json")
    try:
        if not body.isascii():
            # The decoder skips what it does not need, valid or not.
            body.decode()
        asked = msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise _wrong_field(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise bad_request(f"The request body is not valid JSON: {error}.", "invalid_json") from None
    except RecursionError:
        raise bad_request("The request body is nested too deeply.", "invalid_json") from None
    asked.check()
    return asked


def body_of(request: Any) -> bytes:
    """The bytes of a request's body.

    :raises ApiError: 413 if there were too many.
    """
    if request.content.overflowed:
        raise ApiError(
            413,
            f"The request body is larger than {MAX_BODY_BYTES} bytes.",
            "request_too_large",
        )
    body: bytes = request.content.getvalue()
    return body


def media_type_of(request: Any) -> str | None:
    """What a request says its body is."""
    value = request.getHeader(b"content-type")
    return None if value is None else readable(value)


def readable(header: bytes) -> str:
    """A header's value as text. Bytes that are none become a character no header allows."""
    return header.decode("utf-8", "replace")


def _check_media_type(content_type: str | None) -> None:
    if content_type is None:
        return
    media_type = content_type.partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise ApiError(
            415,
            f"Unsupported media type {media_type[:80]!r}; send application/json.",
            "unsupported_media_type",
        )


_AT = re.compile(r" - at `\$\.?(.*)`$")
_MISSING = re.compile(r"missing required field `(\w+)`")


def _wrong_field(message: str) -> ApiError:
    where = _AT.search(message)
    path = where.group(1) if where else ""
    problem = _AT.sub("", message)
    missing = _MISSING.search(problem)
    if missing:
        path = f"{path}.{missing.group(1)}" if path else missing.group(1)
        if path == "prompt":
            return invalid_prompt()
        return bad_request(f"{path}: this field is required.", param=path)
    if not path:
        return bad_request(f"The request body must be a JSON object: {problem}.")
    if path.partition("[")[0] == "prompt":
        return invalid_prompt()
    return bad_request(f"{path}: {problem}.", param=path)
