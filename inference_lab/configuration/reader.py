"""A TOML table to a struct of the schema, with errors an operator can act on.

msgspec says whether a value fits its type. What is wrong otherwise is said here: which
table, which key, what would be right.
"""

from __future__ import annotations

import json
import math
from functools import cache
from typing import Any, TypeVar, get_type_hints

import msgspec
from msgspec import inspect

from inference_lab.configuration.errors import Place, did_you_mean

T = TypeVar("T", bound=msgspec.Struct)

# TOML's own bound for whole numbers.
LARGEST = 2**63 - 1


def read(kind: type[T], table: object, place: Place) -> T:
    """Build a ``kind`` from a parsed TOML table.

    :raises ConfigError: for an unknown, missing or unsuitable key.
    """
    result = _value(kind, table, place)
    assert isinstance(result, kind)
    return result


def check_part(kind: type[msgspec.Struct], table: dict[str, object], place: Place) -> None:
    """Check the keys that ``table`` has; others may be missing.

    :raises ConfigError: for an unknown or unsuitable key.
    """
    info = _type_info(kind)
    assert isinstance(info, inspect.StructType)
    _fields(info, table, place)


def _value(hint: Any, value: object, place: Place) -> object:
    info, extra = _info(hint)
    match info:
        case inspect.StructType():
            return _struct(info, value, place)
        case inspect.UnionType(types=types):
            structs = [each for each in types if isinstance(each, inspect.StructType)]
            if len(structs) > 1:
                return _tagged(structs, value, place)
            if structs:
                return _struct(structs[0], value, place)
        case inspect.VarTupleType(item_type=item, min_length=least):
            if not isinstance(value, list) or len(value) < (least or 0):
                raise _unsuitable(info, value, place)
            return tuple(_value(item, each, place / i) for i, each in enumerate(value))
        case inspect.DictType(value_type=item, min_length=least) if isinstance(
            item, inspect.StructType
        ):
            if not isinstance(value, dict) or len(value) < (least or 0):
                raise _unsuitable(info, value, place)
            return {key: _struct(item, each, place / key) for key, each in value.items()}
    if extra.get("integral") and isinstance(value, float) and value.is_integer():
        value = int(value)
    return _scalar(hint, info, value, place)


def _scalar(hint: Any, info: inspect.Type, value: object, place: Place) -> object:
    try:
        result: object = msgspec.convert(value, hint)
    except (msgspec.ValidationError, OverflowError):
        raise _unsuitable(info, value, place) from None
    if isinstance(result, float) and not math.isfinite(result):
        raise _unsuitable(info, value, place)
    if type(result) is int and result > LARGEST:
        raise place.error(f"expected a whole number <= {LARGEST}, got {_shown(value)}")
    return result


def _struct(info: inspect.StructType, value: object, place: Place) -> object:
    if not isinstance(value, dict):
        raise _unsuitable(info, value, place)
    given = _fields(info, value, place)
    for field in info.fields:
        if field.required and field.encode_name not in given:
            expected = _expected(field.type)
            raise (place / field.encode_name).error(f"missing, expected {expected}")
    return info.cls(**given)


def _fields(info: inspect.StructType, table: dict[str, object], place: Place) -> dict[str, object]:
    """The keyword arguments that ``table`` gives."""
    hints = _hints(info.cls)
    known = [info.tag_field, *hints] if info.tag_field else list(hints)
    for key in table:
        if key not in known:
            hint = did_you_mean(key, known)
            raise (place / key).error(f"unknown key{hint or ';'} allowed are {', '.join(known)}")
    return {
        key: _value(hint, table[key], place / key) for key, hint in hints.items() if key in table
    }


def _tagged(kinds: list[inspect.StructType], value: object, place: Place) -> object:
    if not isinstance(value, dict):
        raise _unsuitable(kinds[0], value, place)
    field = str(kinds[0].tag_field)
    tags = {str(kind.tag): kind for kind in kinds}
    allowed = f"expected one of {', '.join(tags)}"
    if field not in value:
        raise (place / field).error(f"missing, {allowed}")
    tag = value[field]
    if not isinstance(tag, str) or tag not in tags:
        raise (place / field).error(f"{allowed}, got {_shown(tag)}")
    return _struct(tags[tag], value, place)


def _info(hint: Any) -> tuple[inspect.Type, dict[str, Any]]:
    info = hint if isinstance(hint, inspect.Type) else _type_info(hint)
    if isinstance(info, inspect.Metadata):
        return info.type, info.extra or {}
    return info, {}


@cache
def _type_info(hint: Any) -> inspect.Type:
    return inspect.type_info(hint)


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


def _unsuitable(info: inspect.Type, value: object, place: Place) -> Exception:
    return place.error(f"expected {_expected(info)}, got {_shown(value)}")


def _expected(info: inspect.Type) -> str:
    match info:
        case inspect.Metadata(type=inner):
            return _expected(inner)
        case inspect.BoolType():
            return "true or false"
        case inspect.IntType():
            return f"a whole number{_bounds(info)}"
        case inspect.FloatType():
            return f"a number{_bounds(info)}"
        case inspect.StrType():
            return "a non-empty string" if info.min_length else "a string"
        case inspect.LiteralType(values=values):
            return f"one of {', '.join(map(str, values))}"
        case inspect.VarTupleType():
            return "an array of at least one table" if info.min_length else "an array of tables"
        case inspect.DictType(min_length=least) if least:
            return "a table with at least one entry"
        case inspect.UnionType(types=types):
            rest = [each for each in types if not isinstance(each, inspect.NoneType)]
            return " or ".join(dict.fromkeys(map(_expected, rest)))
    return "a table"


def _bounds(info: inspect.IntType | inspect.FloatType) -> str:
    bounds = ((">", info.gt), (">=", info.ge), ("<", info.lt), ("<=", info.le))
    said = [f"{sign} {bound}" for sign, bound in bounds if bound is not None]
    return f" {' and '.join(said)}" if said else ""


def _shown(value: object) -> str:
    match value:
        case bool() | str():
            text = json.dumps(value, ensure_ascii=False)
        case dict():
            return "a table" if value else "an empty table"
        case list():
            return "an array" if value else "an empty array"
        case int() if abs(value) > LARGEST:
            return f"a whole number of {value.bit_length()} bits"
        case _:
            text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
