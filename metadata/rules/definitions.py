"""Definitions: topics, groups and subscriptions as a JSON document with a version.

    {"version": 1,
     "topics": [{"name": "orders", "queues": 4, "retention_days": 7, …}],
     "groups": [{"name": "billing", "mode": "clustering", …}],
     "subscriptions": [{"group": "billing", "topic": "orders", "start": "earliest", …}]}

A missing part is empty. A missing field of an entry has its default, or stays as it is.
Pauses and ids of queues belong to an installation, so they are not part of a document.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from metadata.errors import FieldError, Invalid
from metadata.rules.groups.delivery import parse_tags
from metadata.rules.groups.states import GroupMode, Start
from metadata.rules.setting_types import (
    Choice,
    Headers,
    Kind,
    Setting,
    Tags,
    Text,
    Whole,
    read_settings,
)
from metadata.rules.settings import DELIVERY, GROUP, TOPIC, check_settings
from metadata.rules.topics.names import check_name

VERSION = 1
MAX_ERRORS = 100  # errors in one answer
MAX_QUEUES = 65_536  # of a topic; a setting of the installation may allow fewer
MODES = Choice(dict.fromkeys(GroupMode, ""))
STARTS = Choice(dict.fromkeys(Start, ""))
# ms since 1970, up to the year 9999
START_TIME = Whole(0, 253_402_300_799_999, null="`start` says it")
NAME = Text(100)


class ExistingRule(StrEnum):
    """What an import does about an object that exists with other settings."""

    REFUSE = "refuse"  # it is a conflict, so nothing is imported
    KEEP = "keep"
    CHANGE = "change"  # it gets the settings of the document


class ImportOutcome(StrEnum):
    """What an import does, or did, about an entry of the document."""

    CREATE = "create"
    SAME = "same"  # the object exists with the same settings
    KEEP = "keep"  # the object exists with other settings, which stay
    CHANGE = "change"
    CONFLICT = "conflict"
    UNFINISHED = "unfinished"  # the object is being made or removed


@dataclass(frozen=True)
class Part:
    """A list of the document. `fields` are the fields of its entries that are no settings."""

    kind: str
    fields: Mapping[str, Kind]
    settings: Mapping[str, Setting]
    defaults: Mapping[str, Any] = field(default_factory=dict)


PARTS = {
    "topics": Part(
        "topic", {"name": NAME, "queues": Whole(1, MAX_QUEUES)}, TOPIC, {"queues": 4}
    ),
    "groups": Part(
        "group",
        {"name": NAME, "mode": MODES},
        {name: declared for name, declared in GROUP.items() if name != "stopped"},
        {"mode": GroupMode.CLUSTERING.value},
    ),
    "subscriptions": Part(
        "subscription",
        {"group": NAME, "topic": NAME, "start": STARTS, "start_at_ms": START_TIME},
        DELIVERY,
        {"start": Start.EARLIEST.value, "start_at_ms": None},
    ),
}


@dataclass(frozen=True, slots=True)
class Entry:
    """A topic, group or subscription of a document, at `path`, such as `topics[3]`.

    `fields` are its fields that are no settings; `defaulted` names those that the
    document leaves out.
    """

    kind: str
    path: str
    fields: Mapping[str, Any]
    settings: Mapping[str, Any]
    defaulted: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name of the topic or group; for a subscription `group/topic`."""
        fields = self.fields
        return (
            fields["name"] if "name" in fields else f"{fields['group']}/{fields['topic']}"
        )


def comparison_key(name: str) -> str:
    """Return the form in which names are compared: MariaDB and MySQL ignore case."""
    return name.casefold()


def parse_document(document: Any) -> list[Entry]:
    """Return the entries of a document in the order in which they can be created.

    Raises Invalid with the place of each error.

    >>> [one.name for one in parse_document({"version": 1, "groups": [{"name": "billing"}]})]
    ['billing']
    >>> parse_document({"version": 2})
    Traceback (most recent call last):
    metadata.errors.Invalid: version: is 2; this release reads 1, so export the document ...
    """
    if not isinstance(document, Mapping):
        raise Invalid(f"The document must be a JSON object, not {type(document).__name__}.")
    # Before all else: another version may have other parts.
    if "version" not in document:
        raise Invalid.field(
            "version", f"is missing; documents of an export have it, now {VERSION}"
        )
    version = document["version"]
    # True == 1, so a bool needs a check of its own.
    if version != VERSION or isinstance(version, bool):
        remedy = f"this release reads {VERSION}, so export the document again with this one"
        raise Invalid.field("version", f"is {str(version)[:50]}; {remedy}")
    errors: list[FieldError] = [
        FieldError(
            str(name)[:100],
            f"is not a part of the document; there are version, {', '.join(PARTS)}",
        )
        for name in document
        if name != "version" and name not in PARTS
    ]
    entries: list[Entry] = []
    for name, part in PARTS.items():
        entries += _parse_entries(document.get(name, []), name, part, errors)
    paths: dict[tuple[str, str], str] = {}
    for entry in entries:
        earlier = paths.setdefault((entry.kind, comparison_key(entry.name)), entry.path)
        if earlier != entry.path:
            message = f"{entry.name} stands at {earlier}, too; capitals make no other name"
            errors.append(FieldError(entry.path, message))
    if errors:
        raise invalid_document(errors)
    return entries


def invalid_document(errors: list[FieldError]) -> Invalid:
    listed = errors[:MAX_ERRORS]
    rest = f"; and {len(errors) - MAX_ERRORS} more" if len(errors) > MAX_ERRORS else ""
    return Invalid(
        "; ".join(f"{error.field}: {error.message}" for error in listed) + rest,
        errors=listed,
    )


def _parse_entries(
    items: Any, name: str, part: Part, errors: list[FieldError]
) -> Iterator[Entry]:
    """Yield the valid entries of a part, and add the errors of the others to `errors`."""
    if not isinstance(items, list):
        errors.append(FieldError(name, f"must be a list, not {type(items).__name__}"))
        return
    for number, item in enumerate(items):
        path = f"{name}[{number}]"
        if not isinstance(item, Mapping):
            errors.append(FieldError(path, f"must be an object, not {type(item).__name__}"))
            continue
        fields = {key: item[key] for key in part.fields if key in item}
        fields = {**part.defaults, **fields}
        settings = {key: value for key, value in item.items() if key not in part.fields}
        if problems := list(_find_problems(part, fields, settings)):
            errors += [
                FieldError(f"{path}.{problem.field}", problem.message)
                for problem in problems
            ]
        else:
            defaulted = tuple(key for key in part.defaults if key not in item)
            yield Entry(part.kind, path, fields, settings, defaulted)


def _find_problems(
    part: Part, fields: Mapping[str, Any], settings: Mapping[str, Any]
) -> Iterator[FieldError]:
    """Yield an error for each wrong field or setting of an entry."""
    for key, kind in part.fields.items():
        if key not in fields:
            yield FieldError(key, "is missing")
        elif (problem := kind.problem(fields[key])) is not None:
            yield FieldError(key, problem)
        elif kind is NAME:
            # `group` and `topic` of a subscription name objects of that kind.
            try:
                check_name(part.kind if key == "name" else key, fields[key], field=key)
            except Invalid as error:
                yield from error.errors
    try:
        check_settings(
            # An unknown name is repeated in the error, so it is shortened.
            part.settings,
            {str(key)[:100]: value for key, value in settings.items()},
        )
    except Invalid as error:
        yield from error.errors


def write_settings(settings: Mapping[str, Setting], row: object) -> dict[str, Any]:
    """Return the settings of a row, or of any object with these attributes, as a document
    has them.
    """
    return {
        name: None if value is None else settings[name].kind.written(value)
        for name, value in read_settings(settings, row).items()
    }


def is_same_value(setting: Setting | None, left: Any, right: Any) -> bool:
    # The order of tags and values, and the spelling of a separator, mean nothing.
    if setting is not None and isinstance(setting.kind, Tags):
        return parse_tags(left) == parse_tags(right)
    if setting is not None and isinstance(setting.kind, Headers):
        return {name: {*left[name]} for name in left} == {
            name: {*right[name]} for name in right
        }
    return bool(left == right)
