"""Fields and bases of the shapes of management requests and answers, which are DRF serializers.

Serializers check requests and report all wrong fields at once, build answers, and describe
both in the schema. Sends, pulls, commits and queries use the faster msgspec structs instead,
whose bases in shapes/base.py are also called Request and Answer.

A *view* in this module is a dataclass or struct of the layers below that holds what an answer
shows. It has nothing to do with Django's views. A view whose fields are just those of the
answer is a struct and needs no serializer (metadata.rules.wire).

A request refuses unknown fields and values of another type: DRF alone would ignore unknown
fields, turn "4" into 4 and strip strings. An answer reads its fields from a view and takes
their types from the view's annotations. Settings are declared once, in metadata.rules.settings,
for requests and answers alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from functools import cache
from itertools import islice
from types import NoneType
from typing import Any, ClassVar, get_args, get_type_hints

from drf_spectacular.utils import extend_schema_field
from msgspec import Struct
from rest_framework import serializers

from brokerapi.http import formats
from metadata.db.paging import Page
from metadata.rules import setting_types
from metadata.rules.setting_types import Setting
from metadata.rules.wire import MAX_BIGINT

# An error names at most this many unknown fields, each cut to this length.
MOST_NAMED = 20
MOST_NAME_CHARS = 100
# Values in a request, including nested values: checking them costs more than reading them.
MOST_PARTS = 10_000
WHOLE = "non_field_errors"  # the framework's name for the object itself


def choice_of(
    members: Iterable[StrEnum], default: StrEnum | None = None, **options: Any
) -> serializers.ChoiceField:
    """Return a field that accepts the values of members of an enum."""
    if default is not None:
        options["default"] = default.value
    return serializers.ChoiceField(choices=[member.value for member in members], **options)


class Text(serializers.CharField):
    """A string, kept as it was sent. The layer below limits its length."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"trim_whitespace": False, "allow_blank": True, **options})

    def to_internal_value(self, data: Any) -> str:
        if not isinstance(data, str):
            raise serializers.ValidationError(
                f"must be a string, not {type(data).__name__}"
            )
        return super().to_internal_value(data)


class Number(serializers.IntegerField):
    """An integer; neither a string nor a fraction."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"min_value": 0, "max_value": MAX_BIGINT, **options})

    def to_internal_value(self, data: Any) -> int:
        if not isinstance(data, int) or isinstance(data, bool):
            raise serializers.ValidationError(
                f"must be an integer, not {type(data).__name__}"
            )
        return super().to_internal_value(data)


class Count(Number):
    """The length of a list in the view."""

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
    """A tag filter: a list of tags in the view, a string in the API."""

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
    """A header filter: pairs in the view, an object of lists in the API."""

    def __init__(self, **options: Any) -> None:
        super().__init__(child=texts(), **options)

    def to_representation(self, value: Any) -> dict[str, list[str]]:
        return {name: list(values) for name, values in value}


def texts(**options: Any) -> serializers.ListField:
    return serializers.ListField(child=Text(), **options)


def numbers(**options: Any) -> serializers.ListField:
    return serializers.ListField(child=Number(), **options)


class View(serializers.Field[Any, Any, Any, Any]):
    """A view of the layers below that is a struct: it is the answer as it is."""

    def __init__(self, struct: type[Struct], **options: Any) -> None:
        super().__init__(**options)
        self.struct = struct

    def to_representation(self, value: Any) -> Any:
        return value


def views(struct: type[Struct], **options: Any) -> serializers.ListField:
    return serializers.ListField(child=View(struct), **options)


def _setting_field(setting: Setting, **options: Any) -> Any:
    kind = setting.kind
    meaning_of_null = (
        kind.null
        and f"{'null' if isinstance(kind, setting_types.Whole) else 'empty'}: {kind.null}"
    )
    options["help_text"] = " ".join(filter(None, (setting.help, meaning_of_null))) or None
    match kind:
        case setting_types.Whole():
            return Number(**options, **({"allow_null": True} if kind.null else {}))
        case setting_types.Choice():
            return serializers.ChoiceField(choices=[*kind.meanings], **options)
        case setting_types.Flag():
            return Flag(**options)
        case setting_types.Numbers():
            return numbers(**options)
        case setting_types.Tags():
            return Tags(**options)
        case setting_types.Headers():
            return HeaderFilter(**options)
    return Text(**options)


def _typed_field(hint: Any) -> Any:
    kinds = get_args(hint) or (hint,)
    options = {"allow_null": True} if NoneType in kinds else {}
    return {int: Number, str: Text, bool: Flag}[kinds[0]](**options)


class Shape(serializers.Serializer[Any]):
    """Base of requests and answers. It has the fields that the class declares, and a field for
    each entry of `settings`.
    """

    settings: ClassVar[Mapping[str, Setting]] = {}
    settings_required: ClassVar[bool] = False

    def get_fields(self) -> dict[str, Any]:
        setting_fields = {
            name: _setting_field(
                setting, required=self.settings_required, **self.source_options(name)
            )
            for name, setting in self.settings.items()
        }
        return {**setting_fields, **super().get_fields()}

    def source_options(self, setting: str) -> dict[str, str]:
        """Return {"source": …} if the view's attribute for a setting does not have the setting's
        name, else no options.
        """
        return {}


class Request(Shape):
    """Base of requests: an object without unknown fields, and with at most `most_parts`
    values.
    """

    most_parts: ClassVar[int] = MOST_PARTS

    def to_internal_value(self, data: Any) -> Any:
        if not isinstance(data, Mapping):
            raise serializers.ValidationError(
                {WHOLE: [f"must be an object, not {type(data).__name__}"]}
            )
        # The keys come from the client: many or long keys must not make a large error.
        unknown = (str(name)[:MOST_NAME_CHARS] for name in data if name not in self.fields)
        if names := list(islice(unknown, MOST_NAMED)):
            raise serializers.ValidationError(
                {name: ["is not a field of this request"] for name in names}
            )
        if _has_more_parts(data, self.most_parts):
            raise serializers.ValidationError(
                {WHOLE: [f"has more than {self.most_parts} values"]}
            )
        return super().to_internal_value(data)


def _has_more_parts(data: Any, most: int) -> bool:
    """Return True if `data` contains more than `most` values, including nested values."""
    # A stack instead of recursion: the nesting of a body is as deep as the client likes.
    stack, count = [data], 0
    while stack:
        value = stack.pop()
        if isinstance(value, Mapping | list):
            count += len(value)
            if count > most:
                return True
            stack += value.values() if isinstance(value, Mapping) else value
    return False


class Change(Request):
    """Base of PATCH requests: at least one field must be present."""

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if not attrs:
            raise serializers.ValidationError({WHOLE: ["names nothing to change"]})
        return attrs


class _ExtendedView:
    """A view with additional attributes, which take precedence over the view's own."""

    def __init__(self, view: object, attributes: dict[str, Any]) -> None:
        self.__dict__.update(attributes)
        self.__view = view

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__view, name)


class Answer(Shape):
    """Base of answers. A field shows the view's attribute of the same name, or the one that
    its `source` names.

    `view_fields` names attributes of the class `view` that become fields of their annotated
    types. Other fields are declared.
    """

    view: ClassVar[type] = object
    view_fields: ClassVar[str] = ""

    def get_fields(self) -> dict[str, Any]:
        hints = get_type_hints(self.view) if self.view_fields else {}
        return {
            **{name: _typed_field(hints[name]) for name in self.view_fields.split()},
            **super().get_fields(),
        }

    @classmethod
    def from_view(cls, view: object, **more: Any) -> dict[str, Any]:
        """Return the answer for a view, with `more` values that the view lacks."""
        answer: dict[str, Any] = _serializer(cls).to_representation(
            _ExtendedView(view, more) if more else view
        )
        return answer

    @classmethod
    def listed(cls, plural: str, views: Iterable[object]) -> dict[str, Any]:
        """Return the answer for a whole list: {"brokers": [...]}."""
        return {plural: [cls.from_view(view) for view in views]}

    @classmethod
    def page(cls, plural: str, page: Page[Any]) -> dict[str, Any]:
        """Return the answer for a page of a list: {"topics": [...], "next": name to
        continue after, or null}.
        """
        return {**cls.listed(plural, page.items), "next": page.next}


@cache
def _serializer(answer: type[Answer]) -> Answer:
    # Cached: creating a serializer copies all its fields. Building an answer changes nothing
    # in it.
    return answer()


def body_field(body: bytes, kind: formats.Format) -> tuple[str, str | bytes]:
    """Return the name and value of the field for a message's body: `body_bytes` in
    MessagePack; in JSON `body` for text, `body_base64` otherwise.
    """
    if kind.name == formats.MSGPACK.name:
        return "body_bytes", body
    try:
        return "body", body.decode()
    except UnicodeDecodeError:
        return "body_base64", body
