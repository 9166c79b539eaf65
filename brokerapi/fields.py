"""The fields and bases of management requests, strict about types and about what they do not know (see
serializers)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rest_framework import serializers

MAX_BIGINT = 2**63 - 1
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
        unknown = {str(name): ["is not a field of this request"] for name in data if name not in self.fields}
        if unknown:
            raise serializers.ValidationError(unknown)
        return super().to_internal_value(data)


class Change(Request):
    """Base of PATCH requests: at least one field."""

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """The fields to change."""
        if not attrs:
            raise serializers.ValidationError({WHOLE: ["names nothing to change"]})
        return attrs
