"""The client's types of answers follow from the schema of the API."""

from __future__ import annotations

import json
import typing

import pytest

from brokerapi import client_types, docs
from catmq_client.admin import shapes

COMPONENTS = json.loads(docs.schema("json", packed=False))["components"]["schemas"]


@pytest.mark.parametrize(("component", "name"), client_types.TYPES.items())
def test_a_type_has_the_fields_of_its_component(component: str, name: str) -> None:
    shape = getattr(shapes, name)
    assert typing.is_typeddict(shape)
    assert [*shape.__annotations__] == [*COMPONENTS[component]["properties"]]
    later = client_types.LATER_FIELDS.get(component, ())
    assert shape.__optional_keys__ == set(later)


def test_a_written_type_has_nullable_fields_lists_enums_and_other_types() -> None:
    components = {
        **{name: {"properties": {}} for name in client_types.TYPES},
        "QueueAnswer": {
            "description": "A queue.",
            "properties": {
                "low": {"type": ["integer", "null"], "description": "first offset"},
                "state": {"$ref": "#/components/schemas/State"},
                "unread": {"type": "array", "items": {"$ref": "#/c/UnreadAnswer"}},
                "by_name": {"type": "object", "additionalProperties": {"type": "number"}},
                "other": {"oneOf": [{"$ref": "#/c/Unknown"}, {"type": "null"}]},
            },
        },
        "State": {"type": "string", "enum": ["open", "closed"]},
        "Unknown": {"type": "object"},
    }
    text = client_types.module(components)
    written: dict[str, typing.Any] = {}
    exec(text, written)
    unread: typing.Any = written["Unread"]
    assert typing.get_type_hints(written["QueueRow"], written) == {
        "low": int | None,
        "state": typing.Literal["open", "closed"],
        "unread": list[unread],
        "by_name": dict[str, float],
        "other": dict[str, typing.Any] | None,
    }
    assert "# A queue.\nQueueRow" in text and "# first offset\n" in text
    # `Unread` is defined before the type that names it.
    assert text.index("Unread = TypedDict") < text.index("QueueRow = TypedDict")
