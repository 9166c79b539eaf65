"""Definitions: topics, groups and subscriptions as a plain JSON document of a version.

    {"version": 1,
     "topics": [{"name": "orders", "queues": 4, "retention_days": 7, …}],
     "groups": [{"name": "billing", "mode": "clustering", …}],
     "subscriptions": [{"group": "billing", "topic": "orders", "start": "earliest", …}]}

A part that is missing is empty. What is missing in an entry has its default, or stays as it
is. Pauses and ids of queues belong to one installation, so they are no part of it.
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
MOST_ERRORS = 100  # that are named at once
MOST_QUEUES = 65_536  # of a topic; a setting of the installation allows fewer
MODES = Choice(dict.fromkeys(("clustering", "broadcasting", "share"), ""))
STARTS = Choice(dict.fromkeys(("earliest", "latest"), ""))
# ms since 1970, to the year 9999
START_TIME = Whole(0, 253_402_300_799_999, null="`start` says it")
NAME = Text(100)


@dataclass(frozen=True)
class Part:
    """A list of the document: `words` are the fields of its entries beside settings, with
    those left out.
    """

    kind: str
    words: Mapping[str, Kind]
    settings: Mapping[str, Setting]
    defaults: Mapping[str, Any] = field(default_factory=dict)


PARTS = {
    "topics": Part(
        "topic", {"name": NAME, "queues": Whole(1, MOST_QUEUES)}, TOPIC, {"queues": 4}
    ),
    "groups": Part(
        "group",
        {"name": NAME, "mode": MODES},
        {name: one for name, one in GROUP.items() if name != "stopped"},
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
    """A topic, group or subscription of a document; `place` is where it stands, such as
    `topics[3]`.

    `defaulted`: those of its words that the document leaves out.
    """

    kind: str
    place: str
    words: Mapping[str, Any]
    settings: Mapping[str, Any]
    defaulted: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name, of a subscription `group/topic`."""
        return entry_name(self.words)


def entry_name(words: Mapping[str, Any]) -> str:
    return str(words["name"]) if "name" in words else f"{words['group']}/{words['topic']}"


def comparison_key(name: str) -> str:
    """Return the form in which names are compared: MariaDB and MySQL take Orders and orders
    for one name.
    """
    return name.casefold()


def parse_document(document: Any) -> list[Entry]:
    """Return the entries of a document in the order in which they can be made. Raises
    Invalid, naming places.

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
        entries += _entries(document.get(name, []), name, part, errors)
    errors += _repeated(entries)
    if errors:
        raise invalid_document(errors)
    return entries


def invalid_document(errors: list[FieldError]) -> Invalid:
    """Return the error for places of a document; it names the first of them."""
    named = errors[:MOST_ERRORS]
    more = f"; and {len(errors) - MOST_ERRORS} more" if len(errors) > MOST_ERRORS else ""
    return Invalid(
        "; ".join(f"{one.field}: {one.message}" for one in named) + more, errors=named
    )


def _check_version(document: Mapping[str, Any]) -> None:
    if "version" not in document:
        raise Invalid.field(
            "version", f"is missing; documents of an export have it, now {VERSION}"
        )
    given = document["version"]
    if given != VERSION or isinstance(given, bool):
        remedy = f"this release reads {VERSION}, so export the document again with this one"
        raise Invalid.field("version", f"is {str(given)[:50]}; {remedy}")


def _entries(
    listed: Any, name: str, part: Part, errors: list[FieldError]
) -> Iterator[Entry]:
    if not isinstance(listed, list):
        errors.append(FieldError(name, f"must be a list, not {type(listed).__name__}"))
        return
    for number, given in enumerate(listed):
        place = f"{name}[{number}]"
        if not isinstance(given, Mapping):
            errors.append(
                FieldError(place, f"must be an object, not {type(given).__name__}")
            )
            continue
        words = {
            **part.defaults,
            **{word: given[word] for word in part.words if word in given},
        }
        settings = {word: value for word, value in given.items() if word not in part.words}
        if found := list(_problems(part, words, settings)):
            errors += [FieldError(f"{place}.{one.field}", one.message) for one in found]
        else:
            defaulted = tuple(word for word in part.defaults if word not in given)
            yield Entry(part.kind, place, words, settings, defaulted)


def _problems(
    part: Part, words: Mapping[str, Any], settings: Mapping[str, Any]
) -> Iterator[FieldError]:
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


def _repeated(entries: list[Entry]) -> Iterator[FieldError]:
    places: dict[tuple[str, str], str] = {}
    for one in entries:
        earlier = places.setdefault((one.kind, comparison_key(one.name)), one.place)
        if earlier != one.place:
            said = f"{one.name} stands at {earlier}, too; capitals make no other name"
            yield FieldError(one.place, said)


def write_settings(settings: Mapping[str, Setting], row: object) -> dict[str, Any]:
    """Return the settings of a row, or of anything that has them, as a document writes
    them.
    """
    return {name: _written(one.kind, getattr(row, name)) for name, one in settings.items()}


def _written(kind: Kind, value: Any) -> Any:
    return None if value is None else kind.written(value)


def is_same_value(setting: Setting | None, one: Any, other: Any) -> bool:
    """Return True if two written values mean the same."""
    if setting is not None and isinstance(setting.kind, Tags):
        return parse_tags(one) == parse_tags(other)
    if setting is not None and isinstance(setting.kind, Headers):
        return {name: {*one[name]} for name in one} == {
            name: {*other[name]} for name in other
        }
    return bool(one == other)
