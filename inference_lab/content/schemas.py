"""JSON schemas, as far as OpenAI's strict structured outputs read them.

Keywords: ``type`` (one, or a list), ``enum``, ``const``, ``anyOf``, ``$ref`` and ``$defs``
(``definitions`` too) with recursion; ``properties``, ``required``, ``additionalProperties``;
``items``, ``minItems``, ``maxItems``; ``minimum``, ``maximum``, ``exclusiveMinimum``,
``exclusiveMaximum``, ``multipleOf``; ``pattern`` and ``format``.  Annotations constrain nothing and
are skipped: ``title``, ``description``, ``default``, ``examples``, ``deprecated``, ``$schema``,
``$id``, ``$comment``, and ``nullable``, which openai-node writes for zod.  Any other keyword is
refused by name, wherever in the schema it stands.

Strict mode also demands that every property be required and none be additional.  That is not
checked: a schema without it has conforming documents all the same, and tools without ``strict``
are sent that way.  For these, ``strict=False`` reads ``minLength`` and ``maxLength``, too.

Source: "Supported schemas" in OpenAI's guide to structured outputs.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Final
from urllib.parse import unquote

import msgspec
from attrs import define, field

__all__ = ["FORMATS", "Node", "SchemaError", "read_schema"]

FORMATS: Final = (
    "date-time",
    "time",
    "date",
    "duration",
    "email",
    "hostname",
    "ipv4",
    "ipv6",
    "uuid",
)
"""The formats of strings that strict mode knows."""

MOST_NODES: Final = 10_000
MOST_LEVELS: Final = 64

_ANNOTATIONS: Final = frozenset(
    {
        *("title", "description", "default", "examples", "deprecated"),
        *("$schema", "$id", "$comment", "nullable"),
    }
)
# Which type a keyword speaks of, for a schema that does not name one.
_TYPE_OF: Final = {
    "properties": "object",
    "required": "object",
    "additionalProperties": "object",
    "items": "array",
    "minItems": "array",
    "maxItems": "array",
    "minimum": "number",
    "maximum": "number",
    "exclusiveMinimum": "number",
    "exclusiveMaximum": "number",
    "multipleOf": "number",
    "pattern": "string",
    "format": "string",
    "minLength": "string",
    "maxLength": "string",
}
_TYPES: Final = ("string", "number", "integer", "boolean", "null", "array", "object")
_ANYTHING: Final[dict[str, Any]] = {}
_LENGTHS: Final = frozenset(("minLength", "maxLength"))

_Size = Annotated[int, msgspec.Meta(ge=0)]
_Number = int | float


class SchemaError(ValueError):
    """A schema that is not honoured.

    :ivar keyword: the keyword at fault, or ``schema`` for the whole.
    :ivar path: where its schema stands, as a JSON pointer: ``#/properties/name``.
    """

    def __init__(self, keyword: str, path: str, problem: str) -> None:
        super().__init__(f"{keyword!r} at {path}: {problem}")
        self.keyword = keyword
        self.path = path


class Keywords(msgspec.Struct, rename={"ref": "$ref"}):
    """The keywords of one schema, of the right types."""

    type: str | list[str] | msgspec.UnsetType = msgspec.UNSET
    enum: Annotated[list[Any], msgspec.Meta(min_length=1)] | msgspec.UnsetType = msgspec.UNSET
    const: Any = msgspec.UNSET
    anyOf: Annotated[list[Any], msgspec.Meta(min_length=1)] | msgspec.UnsetType = msgspec.UNSET
    ref: str | msgspec.UnsetType = msgspec.UNSET
    properties: dict[str, Any] = {}
    required: list[str] = []
    additionalProperties: bool | dict[str, Any] = True
    items: bool | dict[str, Any] = True
    minItems: _Size = 0
    maxItems: _Size | None = None
    minimum: _Number | None = None
    maximum: _Number | None = None
    exclusiveMinimum: _Number | None = None
    exclusiveMaximum: _Number | None = None
    multipleOf: _Number | None = None
    pattern: str | None = None
    format: str | None = None
    minLength: _Size = 0
    maxLength: _Size | None = None


_KNOWN: Final = frozenset(field.encode_name for field in msgspec.structs.fields(Keywords))


@define(eq=False)
class Node:
    """One schema, read: exactly one of ``values``, ``options`` and ``types`` is not empty."""

    path: str
    keywords: Keywords
    values: tuple[Any, ...] = ()
    """The values to choose from (``enum``, ``const``)."""
    options: tuple[Node, ...] = ()
    """The schemas to choose from (``anyOf``; one for ``$ref``)."""
    types: tuple[str, ...] = ()
    """The types to choose from."""
    properties: dict[str, Node] = field(factory=dict)
    """The schemas of an object's properties: those declared, and those only required."""
    items: Node | None = None
    """The schema of an array's items."""
    height: float = math.inf
    """The levels of its lowest document; infinite for a schema that has none."""

    def type_height(self, type: str) -> float:
        """`height`, for a value of one of the ``types``."""
        if type == "object":
            required = self.keywords.required
            return 1 + max((self.properties[name].height for name in required), default=0)
        if type == "array" and self.items is not None:
            return 1 + (self.items.height if self.keywords.minItems else 0)
        return 1

    def find_height(self) -> float:
        """`height`, from the heights that those below it have now."""
        if self.values:
            return 1
        heights = [1 + option.height for option in self.options]
        return min(heights + [self.type_height(type) for type in self.types])


def read_schema(schema: object, *, strict: bool = True) -> Node:
    """Read a schema that was decoded from JSON.

    :raises SchemaError: for an unsupported keyword, a wrong value, a schema of more than 10,000
        parts, or one that no document of up to 64 levels conforms to.
    """
    return _Reader(schema, strict).read()


class _Reader:
    """Reads part after part, without recursion: schemas come from anywhere."""

    def __init__(self, schema: object, strict: bool) -> None:
        self._schema = schema
        self._strict = strict
        self._nodes: list[Node] = []
        # By identity: a $ref shares the node of its target.
        self._known: dict[int, Node] = {}
        self._unread: list[tuple[Node, dict[str, Any]]] = []

    def read(self) -> Node:
        root = self._node(self._schema, "#")
        while self._unread:
            self._fill(*self._unread.pop())
        # Each round settles the heights up to its number.
        for _ in range(MOST_LEVELS):
            changed = False
            for node in reversed(self._nodes):
                height = node.find_height()
                changed |= height < node.height
                node.height = min(height, node.height)
            if not changed:
                break
        if root.height > MOST_LEVELS:
            raise SchemaError("schema", "#", "no document of a reasonable depth conforms to it")
        return root

    def _node(self, schema: object, path: str) -> Node:
        if schema is True:
            schema = _ANYTHING
        if not isinstance(schema, dict):
            raise SchemaError("schema", path, "a schema is an object (or true)")
        if id(schema) in self._known:
            return self._known[id(schema)]
        if len(self._nodes) >= MOST_NODES:
            raise SchemaError("schema", path, f"it has more than {MOST_NODES} parts")
        node = Node(path, self._keywords(schema, path))
        self._nodes.append(node)
        self._known[id(schema)] = node
        self._unread.append((node, schema))
        return node

    def _keywords(self, schema: dict[str, Any], path: str) -> Keywords:
        for keyword in schema:
            if keyword in _ANNOTATIONS or keyword in ("$defs", "definitions"):
                continue
            if keyword not in _KNOWN or (self._strict and keyword in _LENGTHS):
                raise SchemaError(keyword, path, "this keyword is not supported")
        try:
            return msgspec.convert(schema, Keywords)
        except msgspec.ValidationError as error:
            problem, _, where = str(error).partition(" - at `$.")
            keyword = where.rstrip("`").partition("[")[0]
            raise SchemaError(keyword, path, problem) from None

    def _fill(self, node: Node, schema: dict[str, Any]) -> None:
        path, keywords = node.path, node.keywords
        for name in ("$defs", "definitions"):
            if not isinstance(schema.get(name, {}), dict):
                raise SchemaError(name, path, "this is an object of schemas")
            for key, value in schema.get(name, {}).items():
                self._node(value, _join(path, name, key))
        if not isinstance(keywords.ref, msgspec.UnsetType):
            self._alone("$ref", schema, path)
            node.options = (self._target(keywords.ref, path),)
        elif not isinstance(keywords.anyOf, msgspec.UnsetType):
            self._alone("anyOf", schema, path)
            node.options = tuple(
                self._node(option, _join(path, "anyOf", str(index)))
                for index, option in enumerate(schema["anyOf"])
            )
        elif "enum" in schema or "const" in schema:
            keyword = "enum" if "enum" in schema else "const"
            self._alone(keyword, schema, path, "type", "enum", "const")
            node.values = self._values(keywords, self._types(keywords, schema, path), path)
        else:
            node.types = self._types(keywords, schema, path)
            self._fill_types(node, schema)

    def _fill_types(self, node: Node, schema: dict[str, Any]) -> None:
        path, keywords = node.path, node.keywords
        if keywords.maxItems is not None and keywords.maxItems < keywords.minItems:
            raise SchemaError("maxItems", path, "it is less than minItems")
        if keywords.maxLength is not None and keywords.maxLength < keywords.minLength:
            raise SchemaError("maxLength", path, "it is less than minLength")
        if keywords.multipleOf is not None and keywords.multipleOf <= 0:
            raise SchemaError("multipleOf", path, "it is not more than 0")
        if keywords.format is not None and keywords.format not in FORMATS:
            raise SchemaError(
                "format", path, f"{keywords.format!r} is not supported; use {', '.join(FORMATS)}"
            )
        # What was converted is a copy; the schemas have to keep their identity.
        node.properties = {
            name: self._node(value, _join(path, "properties", name))
            for name, value in schema.get("properties", {}).items()
        }
        extra = schema.get("additionalProperties", True)
        other = None
        if extra is not False:
            other = self._node(extra, _join(path, "additionalProperties"))
        for name in keywords.required:
            if name not in node.properties:
                if other is None:
                    raise SchemaError("required", path, f"{name!r} is not among the properties")
                node.properties[name] = other
        node.items = self._node(schema.get("items", True), _join(path, "items"))

    def _types(self, keywords: Keywords, schema: dict[str, Any], path: str) -> tuple[str, ...]:
        if isinstance(keywords.type, msgspec.UnsetType):
            # Without a type, a keyword only speaks of values of its own; one of them will do.
            return next(
                ((_TYPE_OF[keyword],) for keyword in schema if keyword in _TYPE_OF), ("string",)
            )
        named = [keywords.type] if isinstance(keywords.type, str) else keywords.type
        for type in named:
            if type not in _TYPES:
                raise SchemaError("type", path, f"{type!r} is none of {', '.join(_TYPES)}")
        if not named:
            raise SchemaError("type", path, "an empty list")
        return tuple(named)

    def _values(self, keywords: Keywords, types: tuple[str, ...], path: str) -> tuple[Any, ...]:
        constant = keywords.const
        listed = [constant] if isinstance(keywords.enum, msgspec.UnsetType) else keywords.enum
        values = tuple(
            value
            for value in listed
            if (constant is msgspec.UNSET or _same(value, constant))
            and (keywords.type is msgspec.UNSET or any(_is(value, type) for type in types))
        )
        if not values:
            keyword = "const" if constant is not msgspec.UNSET else "enum"
            raise SchemaError(keyword, path, "no value satisfies the keywords beside it")
        return values

    def _alone(self, keyword: str, schema: dict[str, Any], path: str, *company: str) -> None:
        for other in schema:
            if other in _KNOWN and other != keyword and other not in company:
                raise SchemaError(other, path, f"it is not supported beside {keyword}")

    def _target(self, ref: str, path: str) -> Node:
        found: Any = self._schema
        keys = unquote(ref).split("/")
        for key in keys[1:]:
            key = key.replace("~1", "/").replace("~0", "~")
            if isinstance(found, dict):
                found = found.get(key)
            elif isinstance(found, list) and key.isdecimal() and int(key) < len(found):
                found = found[int(key)]
            else:
                found = None
        if keys[0] != "#" or not isinstance(found, dict):
            raise SchemaError("$ref", path, f"{ref!r} leads to no schema in this document")
        return self._node(found, ref)


def _join(path: str, *keys: str) -> str:
    return "/".join((path, *(key.replace("~", "~0").replace("/", "~1") for key in keys)))


def _is(value: object, type: str) -> bool:
    match value:
        case None:
            return type == "null"
        case bool():
            return type == "boolean"
        case int():
            return type in ("integer", "number")
        case float():
            return type == "number" or (type == "integer" and value.is_integer())
        case str():
            return type == "string"
        case list():
            return type == "array"
    return type == "object"


def _same(one: object, other: object) -> bool:
    """Equality as JSON has it: true is not 1."""
    return one == other and isinstance(one, bool) == isinstance(other, bool)
