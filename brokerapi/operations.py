"""The operations of the docs page: fields, a curl command and an example answer, all from
the schema.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import groupby
from typing import Any, NamedTuple

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from brokerapi import try_it

Json = dict[str, Any]
METHODS = ("get", "post", "patch", "delete")
ROOT = "/api/v1"
DEEPEST = 4  # of fields within fields
MOST_WORDS = 12  # of a field that a table names; only error codes have more
# Example values of properties and parameters by name. The others show a value of their type.
SAMPLES: Json = {
    "topic": "orders", "group": "billing", "consumer": "c-41", "consumer_id": "c-41",
    "node": "node1",
    "broker": "broker-1", "name": "orders", "queue": 7, "offset": 42, "message_id": "7-42",
    "message": "7-42",
    "key": "customer-7", "tag": "new", "body": '{"item": "tea"}', "headers": {"origin": "shop"},
    "batch_id": "01932c07-8a5e-7000-8000-3f6b1c2d4e5f", "url": "http://broker-1:8000",
    "host": "db1",
    "port": 3306, "username": "catmq", "password": "…", "database": "catmq_node1", "owner": "c-41",
    "code": "invalid", "head": 43, "low": 0, "committed": 42, "next_offset": 43, "engine": "mysql",
    "created_at_ms": 1_790_000_000_000, "stored_at_ms": 1_790_000_000_000,
    "at_ms": 1_790_000_000_000,
    "incarnation": "01932c07-8a5e-7000-8000-3f6b1c2d4e5f", "reset": "17", "to": "earliest",
    "rights": {"produce": ["orders"]}, "owners": "ada", "topics": ["orders"], "confirm": "orders",
}  # fmt: skip
# Example names by collection, for requests that create something.
NAMES = {
    "topics": "orders",
    "groups": "billing",
    "nodes": "node1",
    "keys": "shop",
    "consumers": "worker-1",
}
# Python types of JSON types, to check that a sample fits.
TYPES: dict[str, type] = {"integer": int, "string": str, "object": dict, "array": list}
USUAL = ("host", "username", "password", "to")  # in examples although optional
SECTION = """<section id="{}"><h3><code>{} {}</code></h3><p>{}</p>{}{}{}{}</section>"""
TABLE = "<h4>{}</h4><table><tr><th>name</th><th>type</th><th>meaning</th></tr>{}</table>"
ROW = "<tr><td><code>{}</code>{}</td><td>{}</td><td>{}</td></tr>"


class Line(NamedTuple):
    """A row of a table of fields."""

    name: str
    required: bool
    type: str
    text: str


class Operations:
    """Shows the operations of an OpenAPI schema."""

    def __init__(self, schema: Json) -> None:
        self.paths: Json = schema["paths"]
        self.components: Json = schema["components"]["schemas"]

    def listed(self) -> list[tuple[str, str, Json]]:
        """Return (method, path, operation) of each operation, sorted by tag."""
        operations = [
            (method, path, item[method])
            for path, item in self.paths.items()
            for method in METHODS
            if method in item
        ]
        return sorted(operations, key=lambda entry: entry[2]["tags"][0])

    def contents(self) -> SafeString:
        row = '<li><a href="#{}"><code>{} {}</code></a></li>'
        sections = [
            (
                tag,
                format_html_join(
                    "",
                    row,
                    (
                        (
                            operation["operationId"],
                            m.upper(),
                            path.removeprefix(ROOT) or "/",
                        )
                        for m, path, operation in group
                    ),
                ),
            )
            for tag, group in groupby(
                self.listed(), key=lambda operation: operation[2]["tags"][0]
            )
        ]
        return format_html_join("", "<h3>{}</h3><ul>{}</ul>", sections)

    def sections(self) -> SafeString:
        return format_html_join(
            "", "{}", ((self.section(*operation),) for operation in self.listed())
        )

    def section(self, method: str, path: str, operation: Json) -> SafeString:
        parameters = [
            Line(
                parameter["name"],
                parameter.get("required", False),
                self.type_of(parameter["schema"]),
                parameter.get("description", ""),
            )
            for parameter in sorted(
                operation.get("parameters", ()),
                key=lambda parameter: parameter["in"] != "path",
            )
        ]
        request = _body(operation.get("requestBody", {}))
        successes = (
            _body(response)
            for status, response in operation["responses"].items()
            if status.startswith("2")
        )
        answer = next(successes, None)
        return format_html(
            SECTION,
            operation["operationId"],
            method.upper(),
            path,
            prose(operation.get("description", "")),
            table("Parameters", parameters),
            format_html(
                "{}<h4>Example</h4><pre>{}</pre>",
                table("Request", list(self.fields(request)) if request else []),
                self.curl(method, path, operation, request),
            ),
            format_html(
                "{}{}",
                table("Answer", list(self.fields(answer))),
                self.example_answer(answer),
            )
            if answer
            else "",
            try_it.form(
                method,
                path,
                operation,
                samples=SAMPLES,
                body=self.example_body(path, request),
            ),
        )

    def example_body(self, path: str, request: Json | None) -> Any:
        """Return the body of a request as examples have it, None if the operation takes no
        body.
        """
        if not request:
            return None
        example = self.example(request, required=True)
        if "name" in example:
            example["name"] = NAMES[path.rpartition("/")[2]]
        return example

    def example_answer(self, answer: Json) -> SafeString:
        return format_html(
            "<details><summary>Example of an answer</summary><pre>{}</pre></details>",
            json.dumps(self.example(answer), indent=2, ensure_ascii=False),
        )

    def curl(self, method: str, path: str, operation: Json, request: Json | None) -> str:
        """Return the command that makes a request, with values in place of names in the
        path.
        """
        query = []
        for parameter in operation.get("parameters", ()):
            value = SAMPLES.get(parameter["name"], 17)
            if parameter["in"] == "path":
                path = path.replace(f"{{{parameter['name']}}}", str(value))
            elif parameter.get("required"):
                query.append(f"{parameter['name']}={value}")
        verb = "" if method == "get" else f" -X {method.upper()}"
        lines = [f'curl{verb} "$CATMQ_URL{path}{"?" if query else ""}{"&".join(query)}"']
        lines.append('  -H "Authorization: Bearer $CATMQ_API_KEY"')
        if request:
            body = json.dumps(self.example_body(path, request), ensure_ascii=False)
            lines += ['  -H "Content-Type: application/json"', f"  -d '{body}'"]
        return " \\\n".join(lines)

    def resolved(self, schema: Json) -> Json:
        """Return a schema with its references followed, and without the choice of null."""
        if "$ref" in schema:
            return self.resolved(self.components[schema["$ref"].rpartition("/")[2]])
        for keyword in ("allOf", "anyOf", "oneOf"):
            choices = [
                choice for choice in schema.get(keyword, ()) if choice.get("type") != "null"
            ]
            if choices:
                return self.resolved(choices[0])
        return schema

    def fields(self, schema: Json, prefix: str = "", depth: int = 1) -> Iterator[Line]:
        """Yield the fields of an object, and those of nested objects with their path as
        prefix.
        """
        resolved_schema = self.resolved(schema)
        for name, field_schema in resolved_schema.get("properties", {}).items():
            yield Line(
                prefix + name,
                name in resolved_schema.get("required", ()),
                self.type_of(field_schema),
                field_schema.get("description", ""),
            )
            inner, below = self.resolved(field_schema), f"{prefix}{name}."
            if inner.get("type") == "array" and isinstance(inner.get("items"), dict):
                inner, below = self.resolved(inner["items"]), f"{prefix}{name}[]."
            # Schemas may contain themselves.
            if depth < DEEPEST and inner.get("properties"):
                yield from self.fields(inner, below, depth + 1)

    def type_of(self, schema: Json) -> str:
        """Return the name of a type as readers see it."""
        resolved_schema = self.resolved(schema)
        kinds = resolved_schema.get("type", "any")
        kind = (
            next((choice for choice in kinds if choice != "null"), "null")
            if isinstance(kinds, list)
            else kinds
        )
        if resolved_schema.get("enum") and len(resolved_schema["enum"]) > MOST_WORDS:
            kind = "an error code"  # below, each with its remedy
        elif resolved_schema.get("enum"):
            kind = ", ".join(
                str(choice) for choice in resolved_schema["enum"] if choice is not None
            )
        elif kind == "array":
            items = resolved_schema.get("items")
            kind = (
                f"list of {self.type_of(items)}"
                if isinstance(items, dict) and items
                else "list"
            )
        nullable = "null" in kinds or any(
            choice.get("type") == "null"
            for choice in (*schema.get("anyOf", ()), *schema.get("oneOf", ()))
        )
        names = {"string": "text", "number": "number", "boolean": "true or false"}
        return names.get(kind, kind) + (" or null" if nullable else "")

    def example(
        self, schema: Json, name: str = "", *, required: bool = False, depth: int = 1
    ) -> Any:
        """Return an example value of a schema. With `required`, objects have only the
        fields that must be present, or the first field if none must be.
        """
        resolved_schema = self.resolved(schema)
        if "example" in resolved_schema:
            return resolved_schema["example"]
        if resolved_schema.get("properties"):
            required_fields = resolved_schema.get("required", ())
            names = [
                field
                for field in resolved_schema["properties"]
                if not required or field in required_fields or field in USUAL
            ]
            all_names = sorted(
                resolved_schema["properties"], key=lambda field: field not in SAMPLES
            )
            # A request without required fields shows a single field, so that the example is
            # not empty.
            chosen = names or all_names[:1]
            return {
                field: self.example(
                    resolved_schema["properties"][field],
                    field,
                    required=required,
                    depth=depth + 1,
                )
                for field in chosen
            }
        kinds = resolved_schema.get("type")
        kind = (
            next((field for field in kinds if field != "null"), None)
            if isinstance(kinds, list)
            else kinds
        )
        if (
            name in SAMPLES
            and isinstance(SAMPLES[name], TYPES.get(str(kind), object))
            and SAMPLES[name] in resolved_schema.get("enum", SAMPLES.values())
        ):
            return SAMPLES[name]
        if "default" in resolved_schema or resolved_schema.get("enum"):
            return resolved_schema.get(
                "default", (resolved_schema.get("enum") or [None])[0]
            )
        if kind == "array":
            items = resolved_schema.get("items")
            if not isinstance(items, dict) or not items or depth >= DEEPEST:
                return []
            return [self.example(items, name, required=required, depth=depth + 1)]
        return {
            "integer": 1,
            "number": 1.5,
            "boolean": False,
            "string": "…",
            "object": {},
        }.get(str(kind))


def _body(content: Json) -> Json | None:
    schema: Json | None = (
        content.get("content", {}).get("application/json", {}).get("schema")
    )
    return schema


def prose(text: str) -> SafeString:
    """Return a text as HTML, with text in backquotes as code."""
    parts = enumerate(text.split("`"))
    return format_html_join(
        "",
        "{}",
        (
            (format_html("<code>{}</code>", part) if odd % 2 else part,)
            for odd, part in parts
        ),
    )


def table(heading: str, lines: list[Line]) -> SafeString | str:
    if not lines:
        return ""
    rows = (
        (line.name, " (required)" if line.required else "", line.type, prose(line.text))
        for line in lines
    )
    return format_html(TABLE, heading, format_html_join("", ROW, rows))
