"""The fields and bases of management requests, strict about types and about what they do not know (see
serializers)."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any

from rest_framework import serializers

MAX_BIGINT = 2**63 - 1
MOST_NAMED = 20  # unknown fields that are named
MOST_NAME_CHARS = 100
MOST_PARTS = 10_000  # values in a request, nested ones included: to check each costs more than to read it
WHOLE = "non_field_errors"  # the framework's name for the object itself


class Text(serializers.CharField):
    """A string, kept as it was sent; how long it may be the layer below knows."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"trim_whitespace": False, "allow_blank": True, **options})

    def to_internal_value(self, data: Any) -> str:
        """The string itself."""
        if not isinstance(data, str):
            raise serializers.ValidationError(f"must be a string, not {type(data).__name__}")
        return super().to_internal_value(data)


class Number(serializers.IntegerField):
    """An integer; neither text nor a fraction."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"min_value": 0, "max_value": MAX_BIGINT, **options})

    def to_internal_value(self, data: Any) -> int:
        """The integer itself."""
        if not isinstance(data, int) or isinstance(data, bool):
            raise serializers.ValidationError(f"must be an integer, not {type(data).__name__}")
        return super().to_internal_value(data)


class Flag(serializers.BooleanField):
    """true or false; not "yes"."""

    def to_internal_value(self, data: Any) -> bool:
        """The flag itself."""
        if not isinstance(data, bool):
            raise serializers.ValidationError(f"must be true or false, not {type(data).__name__}")
        return data


class Request(serializers.Serializer[Any]):
    """Base of requests: an object without unknown fields."""

    def to_internal_value(self, data: Any) -> Any:
        """The checked fields."""
        if not isinstance(data, Mapping):
            raise serializers.ValidationError({WHOLE: [f"must be an object, not {type(data).__name__}"]})
        unknown = (str(name)[:MOST_NAME_CHARS] for name in data if name not in self.fields)
        if named := list(islice(unknown, MOST_NAMED)):
            raise serializers.ValidationError({name: ["is not a field of this request"] for name in named})
        if _has_more_parts(data, MOST_PARTS):
            raise serializers.ValidationError({WHOLE: [f"has more than {MOST_PARTS} values"]})
        return super().to_internal_value(data)


def _has_more_parts(data: Any, most: int) -> bool:
    """Return True if a value holds more than so many others."""
    waiting, seen = [data], 0
    while waiting:
        one = waiting.pop()
        if isinstance(one, Mapping | list):
            seen += len(one)
            if seen > most:
                return True
            waiting += one.values() if isinstance(one, Mapping) else one
    return False


class Change(Request):
    """Base of PATCH requests: at least one field."""

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """The fields to change."""
        if not attrs:
            raise serializers.ValidationError({WHOLE: ["names nothing to change"]})
        return attrs
