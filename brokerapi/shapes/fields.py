"""Fields and bases of management requests and answers: checked, filled and documented by
DRF serializers.

A request refuses fields that it does not know and values of another type: DRF alone would
ignore the first, turn "4" into 4 and cut the blanks off a name. An answer takes its fields
from a view of the layers below, whose types say what they are. The settings of a noun stand
in neither: their declaration has them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from itertools import islice
from types import NoneType
from typing import Any, ClassVar, get_args, get_type_hints

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from brokerapi.http import formats
from metadata.db.paging import Page
from metadata.rules import setting_types
from metadata.rules.setting_types import Setting

MAX_BIGINT = 2**63 - 1
MOST_NAMED = 20  # unknown fields that are named
MOST_NAME_CHARS = 100
# values in a request, nested ones included: to check each costs more than to read it
MOST_PARTS = 10_000
WHOLE = "non_field_errors"  # the framework's name for the object itself


class Text(serializers.CharField):
    """A string, kept as it was sent; how long it may be the layer below knows."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"trim_whitespace": False, "allow_blank": True, **options})

    def to_internal_value(self, data: Any) -> str:
        if not isinstance(data, str):
            raise serializers.ValidationError(
                f"must be a string, not {type(data).__name__}"
            )
        return super().to_internal_value(data)


class Number(serializers.IntegerField):
    """An integer; neither text nor a fraction."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"min_value": 0, "max_value": MAX_BIGINT, **options})

    def to_internal_value(self, data: Any) -> int:
        if not isinstance(data, int) or isinstance(data, bool):
            raise serializers.ValidationError(
                f"must be an integer, not {type(data).__name__}"
            )
        return super().to_internal_value(data)


class Count(Number):
    """The length of a list of the view."""

    def to_representation(self, value: Any) -> int:
        return len(value)


class Flag(serializers.BooleanField):
    """true or false; not "yes"."""

    def to_internal_value(self, data: Any) -> bool:
        if not isinstance(data, bool):
            raise serializers.ValidationError(
                f"must be true or false, not {type(data).__name__}"
            )
        return data


class Tags(Text):
    """A tag filter: tags in the view, a text outside."""

    def to_representation(self, value: Iterable[str]) -> str:
        return setting_types.Tags.separator.join(value)


@extend_schema_field(
    {
        "type": "object",
        "additionalProperties": {"type": "array", "items": {"type": "string"}},
        "example": {"region": ["eu", "us"]},
    }
)
class HeaderFilter(serializers.DictField):
    """A header filter: pairs in the view, an object of lists outside."""

    def __init__(self, **options: Any) -> None:
        super().__init__(child=texts(), **options)

    def to_representation(self, value: Any) -> dict[str, list[str]]:
        return {name: list(values) for name, values in value}


def texts(**options: Any) -> serializers.ListField:
    """Return a field for a list of strings."""
    return serializers.ListField(child=Text(), **options)


def numbers(**options: Any) -> serializers.ListField:
    """Return a field for a list of integers."""
    return serializers.ListField(child=Number(), **options)


def _field(one: Setting, **options: Any) -> Any:
    kind = one.kind
    empty = (
        kind.null
        and f"{'null' if isinstance(kind, setting_types.Whole) else 'empty'}: {kind.null}"
    )
    options["help_text"] = " ".join(filter(None, (one.help, empty))) or None
    match kind:
        case setting_types.Whole():
            return Number(**options, **({"allow_null": True} if kind.null else {}))
        case setting_types.Choice():
            return serializers.ChoiceField(choices=[*kind.words], **options)
        case setting_types.Flag():
            return Flag(**options)
        case setting_types.Numbers():
            return numbers(**options)
        case setting_types.Tags():
            return Tags(**options)
        case setting_types.Headers():
            return HeaderFilter(**options)
    return Text(**options)


def _of_type(hint: Any) -> Any:
    """Return the field of a view's attribute, by its type."""
    kinds = get_args(hint) or (hint,)
    options = {"allow_null": True} if NoneType in kinds else {}
    return {int: Number, str: Text, bool: Flag}[kinds[0]](**options)


class Shape(serializers.Serializer[Any]):
    """Base of requests and answers: its own fields, and those of the declared `settings`."""

    settings: ClassVar[Mapping[str, Setting]] = {}
    settings_required: ClassVar[bool] = False

    def get_fields(self) -> dict[str, Any]:
        made = {
            name: _field(one, required=self.settings_required, **self.place(name))
            for name, one in self.settings.items()
        }
        return {**made, **super().get_fields()}

    def place(self, setting: str) -> dict[str, str]:
        """Return options that say where a setting stands in the view, if not at its own
        name.
        """
        return {}


class Request(Shape):
    """Base of requests: an object without unknown fields; a large one says how many values
    it may have.
    """

    most_parts: ClassVar[int] = MOST_PARTS

    def to_internal_value(self, data: Any) -> Any:
        if not isinstance(data, Mapping):
            raise serializers.ValidationError(
                {WHOLE: [f"must be an object, not {type(data).__name__}"]}
            )
        unknown = (str(name)[:MOST_NAME_CHARS] for name in data if name not in self.fields)
        if named := list(islice(unknown, MOST_NAMED)):
            raise serializers.ValidationError(
                {name: ["is not a field of this request"] for name in named}
            )
        if _has_more_parts(data, self.most_parts):
            raise serializers.ValidationError(
                {WHOLE: [f"has more than {self.most_parts} values"]}
            )
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
        if not attrs:
            raise serializers.ValidationError({WHOLE: ["names nothing to change"]})
        return attrs


class _With:
    """A view with more attributes, which go before its own."""

    def __init__(self, view: object, more: dict[str, Any]) -> None:
        self.__dict__.update(more)
        self.__view = view

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__view, name)


class Answer(Shape):
    """Base of answers: each field is the attribute of that name of a view, or of its
    `source`.

    `shown` names attributes of `view` of which their types say enough; others are declared
    as fields.
    """

    view: ClassVar[type] = object
    shown: ClassVar[str] = ""

    def get_fields(self) -> dict[str, Any]:
        hints = get_type_hints(self.view) if self.shown else {}
        return {
            **{name: _of_type(hints[name]) for name in self.shown.split()},
            **super().get_fields(),
        }

    @classmethod
    def from_view(cls, view: object, **more: Any) -> dict[str, Any]:
        """Return the answer for a view, with `more` values that it does not have."""
        made: dict[str, Any] = _filler(cls).to_representation(
            _With(view, more) if more else view
        )
        return made

    @classmethod
    def page(cls, plural: str, found: Page[Any]) -> dict[str, Any]:
        """Return a page of a list: {"topics": [...], "next": the name to ask after, or
        null}.
        """
        return {plural: [cls.from_view(one) for one in found.items], "next": found.next}


@cache
def _filler(answer: type[Answer]) -> Answer:
    return answer()  # to make one copies all its fields; to fill it changes nothing in it


class FromTo(Answer):
    """Base of moves, `from` here `to` there; a subclass names where its view has them."""

    sources: ClassVar[tuple[str, str]] = ("from_offset", "to_offset")
    field: ClassVar[tuple[type[Any], dict[str, Any]]] = (Number, {})

    def get_fields(self) -> dict[str, Any]:
        """Return the fields by name; `from` is a word of Python and cannot stand among the
        others.
        """
        made, options = self.field
        moved = {
            name: made(source=source, **options)
            for name, source in zip(("from", "to"), self.sources, strict=True)
        }
        return {**super().get_fields(), **moved}


def body_field(body: bytes, kind: formats.Format) -> tuple[str, str | bytes]:
    """Return the name and value of a body's field: bytes in MessagePack; in JSON text, or
    base64.
    """
    if kind.name == formats.MSGPACK.name:
        return "body_bytes", body
    try:
        return "body", body.decode()
    except UnicodeDecodeError:
        return "body_base64", body
