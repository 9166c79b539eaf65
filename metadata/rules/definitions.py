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
from typing import Any

from metadata.errors import FieldError, Invalid
from metadata.rules.groups.delivery import parse_tags
from metadata.rules.setting_types import Choice, Headers, Kind, Setting, Tags, Text, Whole
from metadata.rules.settings import DELIVERY, GROUP, TOPIC, check_settings
from metadata.rules.topics.names import check_name

VERSION = 1
MAX_ERRORS = 100  # errors in one answer
MAX_QUEUES = 65_536  # of a topic; a setting of the installation may allow fewer
MODES = Choice(dict.fromkeys(("clustering", "broadcasting", "share"), ""))
STARTS = Choice(dict.fromkeys(("earliest", "latest"), ""))
# ms since 1970, up to the year 9999
START_TIME = Whole(0, 253_402_300_799_999, null="`start` says it")
NAME = Text(100)


@dataclass(frozen=True)
class Part:
    """A list of the document. `words` are the fields of its entries that are no settings."""

    kind: str
    words: Mapping[str, Kind]
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
        {"mode": "clustering"},
    ),
    "subscriptions": Part(
        "subscription",
        {"group": NAME, "topic": NAME, "start": STARTS, "start_at_ms": START_TIME},
        DELIVERY,
        {"start": "earliest", "start_at_ms": None},
    ),
}


@dataclass(frozen=True, slots=True)
class Entry:
    """A topic, group or subscription of a document, at `place`, such as `topics[3]`.

    `words` are its fields that are no settings; `defaulted` names those that the
    document leaves out.
    """

    kind: str
    place: str
    words: Mapping[str, Any]
    settings: Mapping[str, Any]
    defaulted: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name of the topic or group; for a subscription `group/topic`."""
        return entry_name(self.words)


def entry_name(words: Mapping[str, Any]) -> str:
    """Return the name of an entry with these fields."""
    return str(words["name"]) if "name" in words else f"{words['group']}/{words['topic']}"


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
    _check_version(document)
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
    errors += _find_duplicates(entries)
    if errors:
        raise invalid_document(errors)
    return entries


def invalid_document(errors: list[FieldError]) -> Invalid:
    """Return the error for a document, with its first MAX_ERRORS errors."""
    listed = errors[:MAX_ERRORS]
    rest = f"; and {len(errors) - MAX_ERRORS} more" if len(errors) > MAX_ERRORS else ""
    return Invalid(
        "; ".join(f"{error.field}: {error.message}" for error in listed) + rest,
        errors=listed,
    )


def _check_version(document: Mapping[str, Any]) -> None:
    if "version" not in document:
        raise Invalid.field(
            "version", f"is missing; documents of an export have it, now {VERSION}"
        )
    version = document["version"]
    if version != VERSION or isinstance(version, bool):
        remedy = f"this release reads {VERSION}, so export the document again with this one"
        raise Invalid.field("version", f"is {str(version)[:50]}; {remedy}")


def _parse_entries(
    items: Any, name: str, part: Part, errors: list[FieldError]
) -> Iterator[Entry]:
    """Yield the valid entries of a part, and add the errors of the others to `errors`."""
    if not isinstance(items, list):
        errors.append(FieldError(name, f"must be a list, not {type(items).__name__}"))
        return
    for number, item in enumerate(items):
        place = f"{name}[{number}]"
        if not isinstance(item, Mapping):
            errors.append(
                FieldError(place, f"must be an object, not {type(item).__name__}")
            )
            continue
        words = {
            **part.defaults,
            **{word: item[word] for word in part.words if word in item},
        }
        settings = {word: value for word, value in item.items() if word not in part.words}
        if problems := list(_find_problems(part, words, settings)):
            errors += [
                FieldError(f"{place}.{problem.field}", problem.message)
                for problem in problems
            ]
        else:
            defaulted = tuple(word for word in part.defaults if word not in item)
            yield Entry(part.kind, place, words, settings, defaulted)


def _find_problems(
    part: Part, words: Mapping[str, Any], settings: Mapping[str, Any]
) -> Iterator[FieldError]:
    """Yield an error for each wrong field or setting of an entry."""
    for word, kind in part.words.items():
        if word not in words:
            yield FieldError(word, "is missing")
        elif (problem := kind.problem(words[word])) is not None:
            yield FieldError(word, problem)
        elif kind is NAME:
            try:
                check_name(part.kind if word == "name" else word, words[word], field=word)
            except Invalid as error:
                yield from error.errors
    try:
        check_settings(
            part.settings, {str(word)[:100]: value for word, value in settings.items()}
        )
    except Invalid as error:
        yield from error.errors


def _find_duplicates(entries: list[Entry]) -> Iterator[FieldError]:
    """Yield an error for each entry whose name an earlier entry has."""
    places: dict[tuple[str, str], str] = {}
    for entry in entries:
        earlier = places.setdefault((entry.kind, comparison_key(entry.name)), entry.place)
        if earlier != entry.place:
            message = f"{entry.name} stands at {earlier}, too; capitals make no other name"
            yield FieldError(entry.place, message)


def write_settings(settings: Mapping[str, Setting], row: object) -> dict[str, Any]:
    """Return the settings of a row, or of any object with these attributes, as a document
    has them.
    """
    values = {name: getattr(row, name) for name in settings}
    return {
        name: None if value is None else settings[name].kind.written(value)
        for name, value in values.items()
    }


def is_same_value(setting: Setting | None, left: Any, right: Any) -> bool:
    """Return True if two values of a setting, as a document has them, mean the same."""
    if setting is not None and isinstance(setting.kind, Tags):
        return parse_tags(left) == parse_tags(right)
    if setting is not None and isinstance(setting.kind, Headers):
        return {name: {*left[name]} for name in left} == {
            name: {*right[name]} for name in right
        }
    return bool(left == right)
