"""`inference_lab.content.documents` and `.schemas`: JSON that conforms to a schema."""

from __future__ import annotations

import json
import time
from typing import Any

import jsonschema  # type: ignore[import-untyped]
from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from inference_lab.content.documents import SchemaError, document, fragments, json_object
from inference_lab.content.schemas import FORMATS

Schema = dict[str, Any]

PATTERNS = {
    "date-time": r"\A\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ\Z",
    "time": r"\A\d\d:\d\d:\d\dZ\Z",
    "date": r"\A\d{4}-\d\d-\d\d\Z",
    "duration": r"\AP\d+DT\d+H\Z",
    "email": r"\A[a-z]+@example\.com\Z",
    "hostname": r"\A[a-z]+\.example\.com\Z",
    "ipv4": r"\A192\.0\.2\.\d{1,3}\Z",
    "ipv6": r"\A2001:db8::[0-9a-f]{1,4}\Z",
    "uuid": r"\A[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-a[0-9a-f]{3}-[0-9a-f]{12}\Z",
}


def conforms(value: object, schema: object) -> None:
    """Raises unless ``value`` conforms, formats included."""
    checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
    jsonschema.Draft202012Validator(schema, format_checker=checker).validate(value)


def some(draw: st.DrawFn, **optional: st.SearchStrategy[Any]) -> Schema:
    return {name: draw(values) for name, values in optional.items() if draw(st.booleans())}


scalars = st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=4)
bounds = st.integers(-1000, 1000) | st.decimals(-100, 100, places=2).map(float)
names = st.sampled_from(["a", "b", "c d", "é", "a/b", "x~y", "$ref"])


@st.composite
def numbers(draw: st.DrawFn) -> Schema:
    schema = some(
        draw,
        multipleOf=st.sampled_from([1, 2, 7, 0.5, 0.25, 0.1, 0.01, 0.3, 2.5]),
        minimum=bounds,
        exclusiveMinimum=bounds,
    )
    # Above all lower bounds, by more than any step.
    low = max(schema.get("minimum", -999), schema.get("exclusiveMinimum", -999))
    for name in ("maximum", "exclusiveMaximum"):
        if draw(st.booleans()):
            schema[name] = low + draw(st.integers(8, 300))
    return {"type": draw(st.sampled_from(["number", "integer"])), **schema}


@st.composite
def objects(draw: st.DrawFn, inner: st.SearchStrategy[Schema]) -> Schema:
    properties = draw(st.dictionaries(names, inner, max_size=4))
    required = (
        draw(st.lists(st.sampled_from(sorted(properties)), unique=True)) if properties else []
    )
    schema = some(draw, title=st.text(max_size=3), additionalProperties=st.booleans())
    return {"type": "object", "properties": properties, "required": required, **schema}


@st.composite
def arrays(draw: st.DrawFn, inner: st.SearchStrategy[Schema]) -> Schema:
    schema = some(draw, minItems=st.integers(0, 4))
    if draw(st.booleans()):
        schema["maxItems"] = schema.get("minItems", 0) + draw(st.integers(0, 3))
    return {"type": "array", "items": draw(inner), **schema}


leaves = st.one_of(
    st.sampled_from([{"type": "string"}, {"type": "boolean"}, {"type": "null"}, {}]),
    st.sampled_from([{"type": ["string", "null"]}, {"type": ["integer", "boolean"]}]),
    st.sampled_from([{"type": "string", "pattern": p} for p in ("^a[0-9]+$", r"^\w{2}-(x|y)$")]),
    st.sampled_from([{"type": "string", "format": name} for name in FORMATS]),
    st.builds(lambda v: {"enum": v}, st.lists(scalars, min_size=1, max_size=4)),
    st.builds(lambda v: {"const": v}, scalars),
    numbers(),
)
schemas = st.recursive(
    leaves,
    lambda inner: st.one_of(
        objects(inner),
        arrays(inner),
        st.builds(lambda v: {"anyOf": v}, st.lists(inner, min_size=1, max_size=3)),
    ),
    max_leaves=12,
)


class ConformingTests(SynchronousTestCase):
    @given(schemas, st.none() | st.integers())
    def test_any_schema(self, schema: Schema, seed: int | None) -> None:
        text = document(schema, seed)
        conforms(json.loads(text), schema)
        self.assertEqual(document(json.loads(json.dumps(schema)), seed), text)
        self.assertEqual("".join(fragments(text)), text)

    @given(schemas, st.integers(0, 9))
    def test_recursion(self, leaf: Schema, seed: int) -> None:
        schema = {
            "$defs": {
                "tree": {
                    "type": "object",
                    "properties": {
                        "value": leaf,
                        "next": {"anyOf": [{"$ref": "#/$defs/tree"}, {"type": "null"}]},
                        "children": {"type": "array", "items": {"$ref": "#/$defs/tree"}},
                        "maybe": {"$ref": "#/$defs/tree", "description": "optional"},
                        "root": {"anyOf": [{"type": "null"}, {"$ref": "#"}]},
                    },
                    "required": ["value", "next", "children", "root"],
                    "additionalProperties": False,
                }
            },
            "$ref": "#/$defs/tree",
        }
        conforms(json.loads(document(schema, seed)), schema)

    def test_seeds_make_documents_differ(self) -> None:
        schema = {"type": "object", "properties": {"s": {"type": "string"}}, "required": ["s"]}
        self.assertLess(5, len({document(schema, seed) for seed in range(20)}))

    def test_formats(self) -> None:
        self.assertEqual(set(PATTERNS), set(FORMATS))
        for name, pattern in PATTERNS.items():
            for seed in range(20):
                text = json.loads(document({"type": "string", "format": name}, seed))
                self.assertRegex(text, pattern)

    def test_narrow_bounds(self) -> None:
        for schema in (
            {"type": "number", "minimum": 0.001, "maximum": 0.0015},
            {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
            {"type": "number", "minimum": 5, "maximum": 5},
            {"type": "integer", "exclusiveMinimum": 4.5, "exclusiveMaximum": 5.5},
            {"type": "integer", "multipleOf": 1.5, "minimum": 4, "maximum": 8},
            {"type": "integer", "maximum": -7},
            {"type": "integer", "minimum": 10**18},
            {"type": "number", "minimum": 1e300},
            {"minimum": 3},
        ):
            for seed in range(5):
                conforms(json.loads(document(schema, seed)), schema)

    def test_numbers_are_small_where_they_may_be(self) -> None:
        for bounds in (
            {},
            {"minimum": -(2**53)},
            {"maximum": 2**53},
            {"minimum": -(2**53), "maximum": 2**53},
        ):
            for seed in range(5):
                found = json.loads(document({"type": "integer", **bounds}, seed))
                self.assertTrue(0 <= found < 100, found)

    def test_annotations_do_not_matter(self) -> None:
        plain = {"type": "string"}
        annotated = {**plain, "title": "T", "default": 5, "nullable": True, "$comment": "c"}
        self.assertEqual(document(annotated), document(plain))

    def test_keywords_imply_their_type(self) -> None:
        self.assertEqual(document({"properties": {}}), "{}")
        self.assertEqual(document({"maxItems": 0}), "[]")
        self.assertEqual(document({"type": "object", "required": ["a"]})[:5], '{"a":')

    def test_pointers(self) -> None:
        schema = {
            "properties": {
                "a/b": {"enum": [1]},
                "c": {"$ref": "#/properties/a~1b"},
                "d": {"anyOf": [{"const": 2}]},
                "e": {"$ref": "#/properties/d/anyOf/0"},
            }
        }
        self.assertEqual(document(schema), '{"a/b":1,"c":1,"d":2,"e":2}')

    def test_lengths_outside_of_strict_mode(self) -> None:
        for low, high in ((0, 0), (3, 3), (40, 41), (1, 2), (0, 5)):
            schema = {"type": "string", "minLength": low, "maxLength": high}
            conforms(json.loads(document(schema, strict=False)), schema)

    def test_json_object(self) -> None:
        self.assertIsInstance(json.loads(json_object(3)), dict)
        self.assertEqual(json_object(3), json_object(3))
        self.assertLess(1, len({json_object(seed) for seed in range(9)}))


class RefusalTests(SynchronousTestCase):
    def refused(self, schema: object, keyword: str, path: str = "#") -> None:
        with self.assertRaises(SchemaError, msg=schema) as caught:
            document(schema)
        self.assertEqual((caught.exception.keyword, caught.exception.path), (keyword, path))
        self.assertIn(repr(keyword), str(caught.exception))
        self.assertNotIn("\n", str(caught.exception))

    def test_unsupported_keywords_are_named_wherever_they_are(self) -> None:
        for keyword in (
            *("allOf", "oneOf", "not", "if", "then", "else", "dependentRequired", "minLength"),
            *("maxLength", "uniqueItems", "prefixItems", "contains", "patternProperties"),
            *("propertyNames", "minProperties", "unevaluatedProperties", "x-mine"),
        ):
            inner = {"type": "string", keyword: 1}
            self.refused(inner, keyword)
            self.refused({"properties": {"a": {"items": inner}}}, keyword, "#/properties/a/items")
            self.refused({"$defs": {"unused": inner}}, keyword, "#/$defs/unused")
            self.refused({"anyOf": [{}, inner]}, keyword, "#/anyOf/1")
            self.refused({"additionalProperties": inner}, keyword, "#/additionalProperties")

    def test_wrong_values(self) -> None:
        for schema, keyword in (
            ({"type": "text"}, "type"),
            ({"type": []}, "type"),
            ({"type": 5}, "type"),
            ({"enum": []}, "enum"),
            ({"enum": 1}, "enum"),
            ({"anyOf": []}, "anyOf"),
            ({"properties": []}, "properties"),
            ({"required": "a"}, "required"),
            ({"items": []}, "items"),
            ({"minItems": -1}, "minItems"),
            ({"minItems": True}, "minItems"),
            ({"multipleOf": 0}, "multipleOf"),
            ({"exclusiveMinimum": True}, "exclusiveMinimum"),
            ({"format": "uri"}, "format"),
            ({"pattern": "(?=a)"}, "pattern"),
            ({"pattern": "a", "format": "date"}, "format"),
            ({"$ref": "#/$defs/none"}, "$ref"),
            ({"$ref": "other.json"}, "$ref"),
            ({"$defs": []}, "$defs"),
            (False, "schema"),
            ([], "schema"),
        ):
            self.refused(schema, keyword)

    def test_what_nothing_conforms_to(self) -> None:
        for schema, keyword in (
            ({"minItems": 2, "maxItems": 1}, "maxItems"),
            ({"minimum": 2, "maximum": 1}, "maximum"),
            ({"type": "integer", "minimum": 0.1, "maximum": 0.9}, "maximum"),
            ({"multipleOf": 7, "minimum": 1, "maximum": 6}, "multipleOf"),
            ({"enum": [1, 2], "const": 3}, "const"),
            ({"type": "string", "enum": [1, True, None]}, "enum"),
            ({"const": 1, "enum": [True]}, "const"),
            ({"required": ["a"], "additionalProperties": False}, "required"),
            ({"$ref": "#"}, "schema"),
            ({"properties": {"a": {"$ref": "#"}}, "required": ["a"]}, "schema"),
            ({"minItems": 1, "items": {"$ref": "#"}}, "schema"),
        ):
            self.refused(schema, keyword)

    def test_what_stands_beside_a_reference_or_a_choice(self) -> None:
        self.refused({"$ref": "#/$defs/a", "$defs": {"a": {}}, "type": "string"}, "type")
        self.refused({"anyOf": [{}], "required": []}, "required")
        self.refused({"enum": [1, 2], "minimum": 2}, "minimum")

    def test_hostile_schemas_end_soon(self) -> None:
        deep: Schema = {}
        for _ in range(900):
            deep = {"type": "array", "minItems": 1, "items": deep}
        doubling: Schema = {"$ref": "#/$defs/0", "$defs": {"60": {}}}
        for index in range(60):
            both = {"minItems": 2, "items": {"$ref": f"#/$defs/{index + 1}"}}
            doubling["$defs"][str(index)] = both
        chain: Schema = {"$ref": "#/$defs/0", "$defs": {"3000": {}}}
        for index in range(3000):
            chain["$defs"][str(index)] = {"$ref": f"#/$defs/{index + 1}"}
        hostile: list[Schema] = [
            deep,
            doubling,
            chain,
            {"minItems": 10**12},
            {"properties": {str(index): {} for index in range(20_000)}},
            {"minItems": 9_000, "items": {"const": "x" * 1000}},
        ]
        for schema in hostile:
            start = time.process_time()
            with self.assertRaises(SchemaError):
                document(schema)
            self.assertLess(time.process_time() - start, 3)
