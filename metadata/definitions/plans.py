"""The plan of an import: for each entry of a document, what it would do, and what stands in
its way.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from metadata.actors import Actor
from metadata.config import config
from metadata.db import access
from metadata.definitions.existing import all_groups, all_topics, open_queues
from metadata.errors import CatmqError, Code, Conflict, FieldError, Invalid, Unavailable
from metadata.groups import groups, subscription_rows
from metadata.groups.groups import GroupView
from metadata.groups.subscription_rows import SubscriptionView
from metadata.monitoring.mail_domains import check_domains
from metadata.rules.definitions import (
    PARTS,
    Entry,
    comparison_key,
    invalid_document,
    is_same_value,
    parse_document,
    write_settings,
)
from metadata.topics.topic_rows import TopicView

Existing = Literal["refuse", "keep", "change"]
Outcome = Literal["create", "same", "keep", "change", "conflict", "unfinished"]
EXISTING: tuple[Existing, ...] = ("refuse", "keep", "change")
FIXED = ("queues", "mode")  # of what exists, an import changes settings only
SETTINGS = {part.kind: part.settings for part in PARTS.values()}
UNFINISHED = (
    "is being made or removed, or an import was cut off here: repeat this in a minute"
)


@dataclass(frozen=True, slots=True)
class Difference:
    """A field that has another value here than in the document."""

    field: str
    here: Any
    there: Any


@dataclass(frozen=True, slots=True)
class Step:
    """An entry and its outcome; `problem` says why it is a conflict."""

    entry: Entry
    outcome: Outcome
    differences: tuple[Difference, ...] = ()
    problem: str = ""

    @property
    def error(self) -> FieldError:
        return FieldError(
            self.entry.place, f"{self.entry.kind} {self.entry.name} {self.problem}"
        )


@dataclass(frozen=True, slots=True)
class Plan:
    """The steps of an import, in the order in which they can be made."""

    steps: tuple[Step, ...]

    def of(self, *outcomes: Outcome) -> list[Step]:
        return [one for one in self.steps if one.outcome in outcomes]

    def require_clear(self) -> None:
        """Raise Conflict(already_exists) if anything stands in the way, Unavailable if only
        for a moment.
        """
        if found := [one.error for one in self.of("conflict")]:
            named = invalid_document(found)
            raise Conflict(
                f"Nothing was done. {named.detail}",
                code=Code.ALREADY_EXISTS,
                errors=named.errors,
            )
        if unfinished := [one.error for one in self.of("unfinished")]:
            named = invalid_document(unfinished)
            detail = f"Nothing was done. {named.detail}"
            raise Unavailable(detail, errors=named.errors, retry_after_ms=60_000)


@dataclass(slots=True)
class _There:
    """Topics and groups that are there, or that steps before this one make; by `key_of` the
    name.
    """

    topics: dict[str, TopicView] = field(default_factory=dict)
    groups: dict[str, GroupView] = field(default_factory=dict)
    modes: dict[str, str] = field(default_factory=dict)
    names: dict[tuple[str, str], str] = field(default_factory=dict)  # by kind, too

    def __post_init__(self) -> None:
        self.modes = {key: one.mode for key, one in self.groups.items()}
        self.names = {("topic", key): one.name for key, one in self.topics.items()}
        self.names |= {("group", key): one.name for key, one in self.groups.items()}

    def require(self, kind: str, name: str) -> None:
        """Raise Invalid unless a topic or group will be there when an entry needs it."""
        found = self.names.get((kind, comparison_key(name)))
        if found is None:
            raise Invalid.field(
                kind, f"there is no {kind} {name}, nor does the document have it"
            )
        if found != name:
            raise Invalid.field(kind, f"{name} is spelled {found} where it is made")


def plan_import(*, document: Any, actor: Actor, existing: str = "refuse") -> Plan:
    """Compare a document with what is there. Needs the rights that each entry needs to be
    made.

    `existing` is what to do with what is there with other settings: `refuse` takes it for a
    conflict, `keep` leaves it, `change` gives it the settings of the document. Raises
    Invalid, naming places of the document, and Forbidden.
    """
    if existing not in EXISTING:
        raise Invalid.field("existing", f"must be one of {', '.join(EXISTING)}")
    entries = parse_document(document)
    _check(entries, actor)
    there = _There(
        {comparison_key(one.name): one for one in all_topics(actor)},
        {comparison_key(one.name): one for one in all_groups(actor)},
    )
    steps: list[Step] = []
    errors: list[FieldError] = []
    for entry in entries:
        try:
            steps.append(_settled(_step(entry, there), existing))
        except Invalid as error:
            errors += _placed(entry, error)
    if errors:
        raise invalid_document(errors)
    return Plan(tuple(steps))


def _check(entries: list[Entry], actor: Actor) -> None:
    """Raise Forbidden or Invalid for what no installation state makes right."""
    errors: list[FieldError] = []
    for entry in entries:
        try:
            _check_rights(entry, actor)
            check_domains(dict(entry.settings))
            queues = entry.words.get("queues", 1)
            if queues > config.max_topic_queues:
                most = config.max_topic_queues
                raise Invalid.field(
                    "queues", f"is {queues}; at most {most} are allowed here"
                )
        except Invalid as error:
            if not error.errors:
                raise
            errors += _placed(entry, error)
    if errors:
        raise invalid_document(errors)


def _check_rights(entry: Entry, actor: Actor) -> None:
    if entry.kind == "subscription":
        return subscription_rows.require_may_subscribe(
            actor, group=entry.words["group"], topic=entry.words["topic"]
        )
    access.require(actor, "manage", entry.name, what=entry.kind)
    if entry.settings.get("owners"):
        access.require_ownership(actor, entry.name, what=entry.kind)
    return None


def _placed(entry: Entry, error: CatmqError) -> Iterator[FieldError]:
    for one in error.errors or (FieldError("", error.detail),):
        yield FieldError(
            f"{entry.place}.{one.field}" if one.field else entry.place, one.message
        )


def _step(entry: Entry, there: _There) -> Step:
    match entry.kind:
        case "topic":
            return _topic(entry, there)
        case "group":
            return _group(entry, there)
    return _subscription(entry, there)


def _topic(entry: Entry, there: _There) -> Step:
    key = comparison_key(entry.name)
    found = there.topics.get(key)
    there.names["topic", key] = entry.name
    if found is None:
        return Step(entry, "create")
    if found.name == entry.name and found.state != "ready":
        return Step(entry, "unfinished", problem=UNFINISHED)
    return _compared(entry, found.name, {"queues": open_queues(found)}, found)


def _group(entry: Entry, there: _There) -> Step:
    key = comparison_key(entry.name)
    found = there.groups.get(key)
    mode = str(entry.words["mode"] if found is None else found.mode)
    groups.check_fits(mode, entry.settings)
    there.modes.setdefault(key, mode)
    there.names["group", key] = entry.name
    if found is None:
        return Step(entry, "create")
    return _compared(entry, found.name, {"mode": found.mode}, found)


def _subscription(entry: Entry, there: _There) -> Step:
    group, topic = entry.words["group"], entry.words["topic"]
    there.require("group", group)
    there.require("topic", topic)
    subscription_rows.check_start(
        start=entry.words["start"], at_ms=entry.words["start_at_ms"]
    )
    subscription_rows.check_fits(group, there.modes[comparison_key(group)], entry.settings)
    found = _read_by(there.groups.get(comparison_key(group)), comparison_key(topic))
    if found is None:
        problem = subscription_rows.explain_taken_retry_name(group=group, topic=topic)
        return Step(entry, "conflict" if problem else "create", problem=problem)
    if found.state != "ready":
        return Step(entry, "unfinished", problem=UNFINISHED)
    return _compared(entry, f"{found.group}/{found.topic}", {}, found.delivery)


def _read_by(group: GroupView | None, topic: str) -> SubscriptionView | None:
    subscriptions = group.subscriptions if group is not None else ()
    return next((one for one in subscriptions if comparison_key(one.topic) == topic), None)


def _compared(entry: Entry, name: str, words: Mapping[str, Any], row: object) -> Step:
    """Return the step for what is there, by its differences: `change` if there are any."""
    if name != entry.name:
        problem = f"is spelled {name} here, and databases take both for one name"
        return Step(entry, "conflict", problem=problem)
    settings = SETTINGS[entry.kind]
    here = {word: value for word, value in words.items() if word not in entry.defaulted}
    here |= write_settings({name: settings[name] for name in entry.settings}, row)
    wanted = {**entry.words, **entry.settings}
    found = tuple(
        Difference(name, value, wanted[name])
        for name, value in here.items()
        if not is_same_value(settings.get(name), value, wanted[name])
    )
    return Step(entry, "change" if found else "same", found)


def _settled(step: Step, existing: str) -> Step:
    """Return a step as it is with a rule for what exists."""
    if step.outcome != "change" or existing == "keep":
        return (
            Step(step.entry, "keep", step.differences) if step.outcome == "change" else step
        )
    fixed = [one for one in step.differences if one.field in FIXED]
    if existing == "change" and not fixed:
        return step
    named = ", ".join(
        f"{one.field} {_shown(one.here)}, not {_shown(one.there)}"
        for one in fixed or step.differences
    )
    remedy = "import with existing keep or change"
    if existing == "change":
        remedy = "an import changes settings only"
    return Step(step.entry, "conflict", step.differences, f"exists with {named}: {remedy}")


def _shown(value: Any) -> str:
    text = "null" if value is None else str(value)
    return f"{text[:40]}…" if len(text) > 40 else text or "''"
