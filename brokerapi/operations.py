"""The operations of the docs page: fields, a request by curl, and its answer, all made from
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
# What an example shows for a property or parameter of that name; the others show a value of
# their type.
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
# Names by collection, for requests that give one.
NAMES = {
    "topics": "orders",
    "groups": "billing",
    "nodes": "node1",
    "keys": "shop",
    "consumers": "worker-1",
}
USUAL = ("host", "username", "password", "to")  # shown although they may be left out
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
        """Return (method, path, operation) of each, by tag."""
        found = [
            (method, path, item[method])
            for path, item in self.paths.items()
            for method in METHODS
            if method in item
        ]
        return sorted(found, key=lambda one: one[2]["tags"][0])

    def contents(self) -> SafeString:
        """Return the list of links at the top of the page."""
        row = '<li><a href="#{}"><code>{} {}</code></a></li>'
        parts = [
            (
                tag,
                format_html_join(
                    "",
                    row,
                    (
                        (one["operationId"], m.upper(), path.removeprefix(ROOT) or "/")
                        for m, path, one in some
                    ),
                ),
            )
            for tag, some in groupby(self.listed(), key=lambda one: one[2]["tags"][0])
        ]
        return format_html_join("", "<h3>{}</h3><ul>{}</ul>", parts)

    def sections(self) -> SafeString:
        """Return all operations, one after the other."""
        return format_html_join("", "{}", ((self.section(*one),) for one in self.listed()))

    def section(self, method: str, path: str, one: Json) -> SafeString:
        parameters = [
            Line(
                each["name"],
                each.get("required", False),
                self.type_of(each["schema"]),
                each.get("description", ""),
            )
            for each in sorted(
                one.get("parameters", ()), key=lambda each: each["in"] != "path"
            )
        ]
        request, answer = _body(one.get("requestBody", {})), _answer(one)
        return format_html(
            SECTION,
            one["operationId"],
            method.upper(),
            path,
            prose(one.get("description", "")),
            table("Parameters", parameters),
            format_html(
                "{}<h4>Example</h4><pre>{}</pre>",
                table("Request", list(self.fields(request)) if request else []),
                self.curl(method, path, one, request),
            ),
            format_html(
                "{}{}", table("Answer", list(self.fields(answer))), self.shown(answer)
            )
            if answer
            else "",
            try_it.form(method, path, one, samples=SAMPLES, body=self.asked(path, request)),
        )

    def asked(self, path: str, request: Json | None) -> Any:
        """Return the body of a request as examples have it, None without one."""
        if not request:
            return None
        given = self.example(request, required=True)
        if "name" in given:
            given["name"] = NAMES[path.rpartition("/")[2]]
        return given

    def shown(self, answer: Json) -> SafeString:
        """Return an answer as an example shows it."""
        text = json.dumps(self.example(answer), indent=2, ensure_ascii=False)
        return format_html(
            "<details><summary>Example of an answer</summary><pre>{}</pre></details>", text
        )

    def curl(self, method: str, path: str, one: Json, request: Json | None) -> str:
        """Return the command that makes a request, with values in place of names in the
        path.
        """
        asked = []
        for each in one.get("parameters", ()):
            value = SAMPLES.get(each["name"], 17)
            if each["in"] == "path":
                path = path.replace(f"{{{each['name']}}}", str(value))
            elif each.get("required"):
                asked.append(f"{each['name']}={value}")
        verb = "" if method == "get" else f" -X {method.upper()}"
        lines = [f'curl{verb} "$CATMQ_URL{path}{"?" if asked else ""}{"&".join(asked)}"']
        lines.append('  -H "Authorization: Bearer $CATMQ_API_KEY"')
        if request:
            body = json.dumps(self.asked(path, request), ensure_ascii=False)
            lines += ['  -H "Content-Type: application/json"', f"  -d '{body}'"]
        return " \\\n".join(lines)

    def resolved(self, schema: Json) -> Json:
        """Return a schema behind its references, and without the choice of null."""
        if "$ref" in schema:
            return self.resolved(self.components[schema["$ref"].rpartition("/")[2]])
        for choice in ("allOf", "anyOf", "oneOf"):
            some = [one for one in schema.get(choice, ()) if one.get("type") != "null"]
            if some:
                return self.resolved(some[0])
        return schema

    def fields(self, schema: Json, prefix: str = "", depth: int = 1) -> Iterator[Line]:
        """Yield the fields of an object, those of objects within it behind their names."""
        found = self.resolved(schema)
        for name, one in found.get("properties", {}).items():
            yield Line(
                prefix + name,
                name in found.get("required", ()),
                self.type_of(one),
                one.get("description", ""),
            )
            inner, below = self.resolved(one), f"{prefix}{name}."
            if inner.get("type") == "array" and isinstance(inner.get("items"), dict):
                inner, below = self.resolved(inner["items"]), f"{prefix}{name}[]."
            if depth < DEEPEST and inner.get("properties"):
                yield from self.fields(inner, below, depth + 1)

    def type_of(self, schema: Json) -> str:
        """Return a type in words."""
        found = self.resolved(schema)
        kinds = found.get("type", "any")
        kind = (
            next((one for one in kinds if one != "null"), "null")
            if isinstance(kinds, list)
            else kinds
        )
        if found.get("enum") and len(found["enum"]) > MOST_WORDS:
            kind = "an error code"  # below, each with its remedy
        elif found.get("enum"):
            kind = ", ".join(str(one) for one in found["enum"] if one is not None)
        elif kind == "array":
            items = found.get("items")
            kind = (
                f"list of {self.type_of(items)}"
                if isinstance(items, dict) and items
                else "list"
            )
        nullable = "null" in kinds or any(
            one.get("type") == "null"
            for one in (*schema.get("anyOf", ()), *schema.get("oneOf", ()))
        )
        words = {"string": "text", "number": "number", "boolean": "true or false"}
        return words.get(kind, kind) + (" or null" if nullable else "")

    def example(
        self, schema: Json, name: str = "", *, required: bool = False, depth: int = 1
    ) -> Any:
        """Return a value of a schema; `required`: with the fields that must be given, or
        the first.
        """
        found = self.resolved(schema)
        if "example" in found:
            return found["example"]
        if found.get("properties"):
            must = found.get("required", ())
            names = [
                one
                for one in found["properties"]
                if not required or one in must or one in USUAL
            ]
            all_names = sorted(found["properties"], key=lambda one: one not in SAMPLES)
            chosen = names or all_names[:1]
            return {
                one: self.example(
                    found["properties"][one], one, required=required, depth=depth + 1
                )
                for one in chosen
            }
        kinds = found.get("type")
        kind = (
            next((one for one in kinds if one != "null"), None)
            if isinstance(kinds, list)
            else kinds
        )
        if (
            name in SAMPLES
            and _fits(SAMPLES[name], kind)
            and SAMPLES[name] in found.get("enum", SAMPLES.values())
        ):
            return SAMPLES[name]
        if "default" in found or found.get("enum"):
            return found.get("default", (found.get("enum") or [None])[0])
        if kind == "array":
            items = found.get("items")
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


def _fits(value: object, kind: str | None) -> bool:
    kinds: dict[str, type] = {"integer": int, "string": str, "object": dict, "array": list}
    return isinstance(value, kinds.get(str(kind), object))


def _body(part: Json) -> Json | None:
    schema: Json | None = part.get("content", {}).get("application/json", {}).get("schema")
    return schema


def _answer(one: Json) -> Json | None:
    """The schema of the answer to a request that succeeded, None if it has none."""
    return next(
        (
            _body(found)
            for status, found in one["responses"].items()
            if status.startswith("2")
        ),
        None,
    )


def prose(text: str) -> SafeString:
    """Return a text with what stands in backquotes as code."""
    parts = enumerate(text.split("`"))
    return format_html_join(
        "",
        "{}",
        ((format_html("<code>{}</code>", one) if odd % 2 else one,) for odd, one in parts),
    )


def table(heading: str, lines: list[Line]) -> SafeString | str:
    """Return a table of fields, nothing without any."""
    if not lines:
        return ""
    rows = (
        (one.name, " (required)" if one.required else "", one.type, prose(one.text))
        for one in lines
    )
    return format_html(TABLE, heading, format_html_join("", ROW, rows))
