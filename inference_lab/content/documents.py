"""JSON documents that conform to a schema: structured outputs and the arguments of tool calls.

A document is a function of the schema and the request's seed, so all legs and all processes write
the same one.  It stays small: beyond a few levels or a few hundred values only what is required is
written, by the shortest way there is, which also ends every recursion.

`fragments` cuts a document into tokens, one for each piece.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from fractions import Fraction
from typing import Any, Final

from inference_lab.content.directives import fragments
from inference_lab.content.draws import Draws
from inference_lab.content.patterns import PatternError, match_for
from inference_lab.content.schemas import Node, SchemaError, read_schema
from inference_lab.content.text import WORDS

__all__ = ["SchemaError", "document", "fragments", "json_object"]

_LEVELS: Final = 4
_PLENTY: Final = 200
_MOST_VALUES: Final = 10_000
_MOST_CHARACTERS: Final = 1_000_000


def document(schema: object, seed: int | None = None, *, strict: bool = True) -> str:
    """The text of a document that conforms to ``schema``, as compact JSON.

    :param schema: as decoded from JSON; what is supported of it says
        `inference_lab.content.schemas`.
    :param seed: the request's seed.
    :raises SchemaError: for a schema that is not supported, or whose document would have more
        than 10,000 values or a million characters.
    """
    root = read_schema(schema, strict=strict)
    value = _Writer(Draws("document", seed)).value(root, 0)
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def json_object(seed: int | None = None) -> str:
    """The text of a small object, for a request that asks for JSON of any shape."""
    draws = Draws("object", seed)
    return json.dumps(
        {
            "word": draws.choice(WORDS),
            "count": draws.between(0, 99),
            "words": [draws.choice(WORDS)],
        },
        separators=(",", ":"),
    )


class _Writer:
    """One document in the making."""

    def __init__(self, draws: Draws) -> None:
        self._draws = draws
        self._values = 0
        self._characters = 0

    def value(self, node: Node, level: int) -> Any:
        self._values += 1
        if self._values > _MOST_VALUES:
            problem = f"the document would have more than {_MOST_VALUES} values"
            raise SchemaError("schema", node.path, problem)
        if node.values:
            return self._counted(self._draws.choice(node.values), node)
        lean = level >= _LEVELS or self._values > _PLENTY
        if node.options:
            if lean:
                return self.value(min(node.options, key=lambda option: option.height), level)
            possible = [option for option in node.options if option.height < math.inf]
            return self.value(self._draws.choice(possible), level)
        if lean:
            type = min(node.types, key=node.type_height)
        else:
            type = self._draws.choice([t for t in node.types if node.type_height(t) < math.inf])
        match type:
            case "object":
                return self._object(node, level, lean)
            case "array":
                return self._array(node, level, lean)
            case "string":
                return self._counted(_string(node, self._draws), node)
            case "number" | "integer":
                return _number(node, type == "integer", self._draws)
            case "boolean":
                return self._draws.between(0, 1) == 1
        return None

    def _counted(self, value: Any, node: Node) -> Any:
        self._characters += len(value if isinstance(value, str) else json.dumps(value))
        if self._characters > _MOST_CHARACTERS:
            problem = f"the document would have more than {_MOST_CHARACTERS} characters"
            raise SchemaError("schema", node.path, problem)
        return value

    def _object(self, node: Node, level: int, lean: bool) -> dict[str, Any]:
        required = set(node.keywords.required)
        return {
            name: self.value(inner, level + 1)
            for name, inner in node.properties.items()
            if name in required or (not lean and inner.height < math.inf)
        }

    def _array(self, node: Node, level: int, lean: bool) -> list[Any]:
        count = node.keywords.minItems
        items = node.items
        assert items is not None  # as in every node that has types
        if not lean and items.height < math.inf:
            most = node.keywords.maxItems
            high = count + 2 if most is None else min(count + 2, most)
            count = self._draws.between(max(count, min(1, high)), high)
        return [self.value(items, level + 1) for _ in range(count)]


def _string(node: Node, draws: Draws) -> str:
    keywords = node.keywords
    if keywords.pattern is not None:
        for other, given in (("format", keywords.format), *_lengths(node)):
            if given:
                raise SchemaError(other, node.path, "it is not supported beside pattern")
        try:
            return match_for(keywords.pattern, draws)
        except PatternError as error:
            raise SchemaError("pattern", node.path, str(error)) from None
    if keywords.format is not None:
        for other, given in _lengths(node):
            if given:
                raise SchemaError(other, node.path, "it is not supported beside format")
        return _formatted(keywords.format, draws)
    text = " ".join(draws.choice(WORDS) for _ in range(draws.between(1, 3)))
    if keywords.minLength > _MOST_CHARACTERS:
        raise SchemaError("minLength", node.path, f"more than {_MOST_CHARACTERS} characters")
    text += draws.choice(WORDS) * -(-max(0, keywords.minLength - len(text)) // 3)
    return text[: keywords.maxLength]


def _lengths(node: Node) -> tuple[tuple[str, bool], ...]:
    keywords = node.keywords
    return ("minLength", keywords.minLength > 0), ("maxLength", keywords.maxLength is not None)


def _formatted(format: str, draws: Draws) -> str:
    def two(low: int, high: int) -> str:
        return f"{draws.between(low, high):02}"

    date = f"20{two(0, 38)}-{two(1, 12)}-{two(1, 28)}"
    time = f"{two(0, 23)}:{two(0, 59)}:{two(0, 59)}Z"
    word = draws.choice(WORDS)
    match format:
        case "date-time":
            return f"{date}T{time}"
        case "date":
            return date
        case "time":
            return time
        case "duration":
            return f"P{draws.between(1, 30)}DT{draws.between(1, 23)}H"
        # Names and addresses are of those kept for documentation (RFC 2606, 5737, 3849).
        case "email":
            return f"{word}@example.com"
        case "hostname":
            return f"{word}.example.com"
        case "ipv4":
            return f"192.0.2.{draws.between(1, 254)}"
        case "ipv6":
            return f"2001:db8::{draws.between(1, 0xFFFF):x}"
    bits = [f"{draws.between(0, 0xFFFF):04x}" for _ in range(8)]
    # A UUID of version 4, as RFC 9562 lays it out.
    bits[3] = "4" + bits[3][1:]
    bits[4] = "a" + bits[4][1:]
    return "{}{}-{}-{}-{}-{}{}{}".format(*bits)


def _number(node: Node, whole: bool, draws: Draws) -> int | float:
    """A number within its bounds, small if they allow it."""
    keywords = node.keywords
    low = _bound(keywords.minimum, keywords.exclusiveMinimum, 1)
    high = _bound(keywords.maximum, keywords.exclusiveMaximum, -1)
    for step in _steps(keywords.multipleOf, whole):
        # In steps from 0: the first and the last that are allowed.
        first = None if low is None else math.ceil(low[0] / step)
        last = None if high is None else math.floor(high[0] / step)
        if first is not None and low is not None and low[1] and first * step == low[0]:
            first += 1
        if last is not None and high is not None and high[1] and last * step == high[0]:
            last -= 1
        if first is not None and last is not None and first > last:
            continue
        # The 100 steps from 0 on, or those nearest to it.
        low_end = max(0, first or 0) if last is None or last >= 0 else last - 99
        first = low_end if first is None else max(first, low_end)
        last = first + 99 if last is None else min(last, first + 99)
        start = draws.between(first, last)
        for k in (*range(start, last + 1), *range(first, start)):
            number = _spell(k * step)
            if number is not None and _fits(number, node, whole):
                return number
    keyword = next(
        name
        for name in ("multipleOf", "exclusiveMaximum", "maximum", "exclusiveMinimum", "minimum")
        if getattr(keywords, name) is not None
    )
    raise SchemaError(keyword, node.path, "no number satisfies it and the keywords beside it")


def _bound(
    inclusive: float | None, exclusive: float | None, sign: int
) -> tuple[Fraction, bool] | None:
    """The tighter bound, and whether it is exclusive; ``sign`` is 1 for a lower one."""
    bounds = [
        (_exact(value), open)
        for value, open in ((inclusive, False), (exclusive, True))
        if value is not None
    ]
    return max(bounds, key=lambda bound: (sign * bound[0], bound[1]), default=None)


def _steps(multiple: float | None, whole: bool) -> Iterator[Fraction]:
    if multiple is not None:
        step = _exact(multiple)
        # The multiples of a fraction that are whole numbers are those of its numerator.
        yield Fraction(step.numerator) if whole else step
        return
    yield Fraction(1)
    if not whole:
        for exponent in range(1, 18):
            yield Fraction(1, 10**exponent)


def _exact(number: float) -> Fraction:
    """The number as it was spelt: 0.1 is a tenth."""
    return Fraction(repr(number))


def _spell(number: Fraction) -> int | float | None:
    if number.denominator == 1:
        return number.numerator
    try:
        return float(number)
    except OverflowError:
        return None


def _fits(number: int | float, node: Node, whole: bool) -> bool:
    """Whether a validator that calculates in floating point would agree."""
    keywords = node.keywords
    if whole and not isinstance(number, int):
        return False
    if keywords.minimum is not None and number < keywords.minimum:
        return False
    if keywords.maximum is not None and number > keywords.maximum:
        return False
    if keywords.exclusiveMinimum is not None and number <= keywords.exclusiveMinimum:
        return False
    if keywords.exclusiveMaximum is not None and number >= keywords.exclusiveMaximum:
        return False
    if keywords.multipleOf is None:
        return True
    try:
        return float(number / keywords.multipleOf).is_integer()
    except OverflowError:
        return False
