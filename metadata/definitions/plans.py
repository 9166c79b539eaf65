"""The plan of an import: the effect of each entry of a document, and the conflicts with
existing objects.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from msgspec import Meta, Struct

from metadata.actors import Actor
from metadata.config import config
from metadata.db import access
from metadata.definitions.existing import all_groups, all_topics, open_queues
from metadata.errors import CatmqError, Code, Conflict, FieldError, Invalid, Unavailable
from metadata.groups import groups, subscription_rows
from metadata.groups.groups import GroupView
from metadata.monitoring.mail_domains import check_domains
from metadata.rules.definitions import (
    PARTS,
    Entry,
    ExistingRule,
    ImportOutcome,
    comparison_key,
    invalid_document,
    is_same_value,
    parse_document,
    write_settings,
)
from metadata.rules.groups.states import SubscriptionState
from metadata.rules.rights import Right
from metadata.rules.topics.states import TopicState
from metadata.topics.topic_rows import TopicView

FIXED = ("queues", "mode")  # an import never changes these of existing objects
SETTINGS = {definition.kind: definition.settings for definition in PARTS.values()}
UNFINISHED = (
    "is being made or removed, or an import was cut off here: repeat this in a minute"
)


class Difference(Struct, frozen=True):
    """A field that has another value in the document."""

    field: str
    here: Annotated[Any, Meta(description="value in this installation")]
    there: Annotated[Any, Meta(description="value in the document")]


class Step(Struct, frozen=True):
    """An entry and its outcome. `problem` is the reason of a conflict, else ''."""

    entry: Entry
    outcome: ImportOutcome
    differences: tuple[Difference, ...] = ()
    problem: str = ""

    @property
    def error(self) -> FieldError:
        return FieldError(
            self.entry.path, f"{self.entry.kind} {self.entry.name} {self.problem}"
        )


class Plan(Struct, frozen=True):
    """The steps of an import, in the order in which they can be executed."""

    steps: tuple[Step, ...]

    def steps_with(self, *outcomes: ImportOutcome) -> list[Step]:
        return [step for step in self.steps if step.outcome in outcomes]

    def require_clear(self) -> None:
        """Raise Conflict(already_exists) if the plan has conflicts, Unavailable if it has
        objects that are just being created or deleted.
        """
        # Conflicts first, because they remain when the import is repeated.
        if conflicts := [step.error for step in self.steps_with(ImportOutcome.CONFLICT)]:
            error = invalid_document(conflicts)
            raise Conflict(
                f"Nothing was done. {error.detail}",
                code=Code.ALREADY_EXISTS,
                errors=error.errors,
            )
        if unfinished := [step.error for step in self.steps_with(ImportOutcome.UNFINISHED)]:
            error = invalid_document(unfinished)
            detail = f"Nothing was done. {error.detail}"
            raise Unavailable(detail, errors=error.errors, retry_after_ms=60_000)


@dataclass(slots=True)
class _Objects:
    """Topics and groups that exist, or that earlier steps create.

    Keys are comparison_key() of a name, because databases treat some spellings as the same name.
    """

    topics: dict[str, TopicView] = field(default_factory=dict)
    groups: dict[str, GroupView] = field(default_factory=dict)
    modes: dict[str, str] = field(default_factory=dict)
    names: dict[tuple[str, str], str] = field(default_factory=dict)  # by kind, too

    def __post_init__(self) -> None:
        self.modes = {key: group.mode for key, group in self.groups.items()}
        self.names = {("topic", key): topic.name for key, topic in self.topics.items()}
        self.names |= {("group", key): group.name for key, group in self.groups.items()}

    def require(self, kind: str, name: str) -> None:
        """Raise Invalid unless a topic or group will exist when an entry needs it."""
        spelling = self.names.get((kind, comparison_key(name)))
        if spelling is None:
            raise Invalid.field(
                kind, f"there is no {kind} {name}, nor does the document have it"
            )
        if spelling != name:
            raise Invalid.field(kind, f"{name} is spelled {spelling} where it is made")


def plan_import(
    *, document: Any, actor: Actor, existing: str = ExistingRule.REFUSE
) -> Plan:
    """Compare a document with the existing objects. Needs the rights to create each entry.

    `existing` decides about objects that exist with other settings: `refuse` makes them
    conflicts, `keep` leaves them as they are, `change` gives them the settings of the
    document. Raises Forbidden, and Invalid with places in the document.
    """
    if existing not in list(ExistingRule):
        raise Invalid.field("existing", f"must be one of {', '.join(ExistingRule)}")
    entries = parse_document(document)
    # Before existing objects are read, so that a conflict cannot hide a missing right.
    _check_entries(entries, actor)
    objects = _Objects(
        {comparison_key(topic.name): topic for topic in all_topics(actor)},
        {comparison_key(group.name): group for group in all_groups(actor)},
    )
    # All errors are collected, so that a user can mend the document in a single pass.
    steps: list[Step] = []
    errors: list[FieldError] = []
    for entry in entries:
        try:
            steps.append(_plan_entry(entry, objects, existing))
        except Invalid as error:
            errors += _field_errors(entry, error)
    if errors:
        raise invalid_document(errors)
    return Plan(tuple(steps))


def _check_entries(entries: list[Entry], actor: Actor) -> None:
    """Raise Forbidden or Invalid for errors that do not depend on existing objects."""
    errors: list[FieldError] = []
    for entry in entries:
        try:
            if entry.kind == "subscription":
                subscription_rows.require_may_subscribe(
                    actor, group=entry.fields["group"], topic=entry.fields["topic"]
                )
            else:
                access.require(actor, Right.MANAGE, entry.name, what=entry.kind)
                if entry.settings.get("owners"):
                    access.require_ownership(actor, entry.name, what=entry.kind)
            check_domains(dict(entry.settings))
            queues = entry.fields.get("queues", 1)
            if queues > config.max_topic_queues:
                limit = config.max_topic_queues
                raise Invalid.field(
                    "queues", f"is {queues}; at most {limit} are allowed here"
                )
        except Invalid as error:
            # Without a field it has no place in the document.
            if not error.errors:
                raise
            errors += _field_errors(entry, error)
    if errors:
        raise invalid_document(errors)


def _field_errors(entry: Entry, error: CatmqError) -> Iterator[FieldError]:
    for field_error in error.errors or (FieldError("", error.detail),):
        yield FieldError(
            f"{entry.path}.{field_error.field}" if field_error.field else entry.path,
            field_error.message,
        )


def _plan_entry(entry: Entry, objects: _Objects, rule: str) -> Step:
    """Return the step for an entry. A topic or group counts as existing for later entries.

    `rule` decides about existing objects (see plan_import). Raises Invalid.
    """
    match entry.kind:
        case "topic":
            key = comparison_key(entry.name)
            topic = objects.topics.get(key)
            # Even if it is a conflict: its subscriptions need no second error.
            objects.names["topic", key] = entry.name
            if topic is None:
                return Step(entry, ImportOutcome.CREATE)
            if topic.name == entry.name and topic.state != TopicState.READY:
                return Step(entry, ImportOutcome.UNFINISHED, problem=UNFINISHED)
            return _compare(
                entry, topic.name, {"queues": open_queues(topic)}, topic, rule=rule
            )
        case "group":
            key = comparison_key(entry.name)
            group = objects.groups.get(key)
            # The mode of an existing group stays, so the settings must fit that mode.
            mode = str(entry.fields["mode"] if group is None else group.mode)
            groups.check_fits(mode, entry.settings)
            objects.modes.setdefault(key, mode)
            objects.names["group", key] = entry.name
            if group is None:
                return Step(entry, ImportOutcome.CREATE)
            return _compare(entry, group.name, {"mode": group.mode}, group, rule=rule)
    group_name, topic_name = entry.fields["group"], entry.fields["topic"]
    objects.require("group", group_name)
    objects.require("topic", topic_name)
    subscription_rows.check_start(
        start=entry.fields["start"], at_ms=entry.fields["start_at_ms"]
    )
    key = comparison_key(group_name)
    subscription_rows.check_fits(group_name, objects.modes[key], entry.settings)
    group = objects.groups.get(key)
    subscription = next(
        (
            subscription
            for subscription in (group.subscriptions if group is not None else ())
            if comparison_key(subscription.topic) == comparison_key(topic_name)
        ),
        None,
    )
    if subscription is None:
        problem = subscription_rows.explain_taken_retry_name(
            group=group_name, topic=topic_name
        )
        return Step(
            entry,
            ImportOutcome.CONFLICT if problem else ImportOutcome.CREATE,
            problem=problem,
        )
    if subscription.state != SubscriptionState.READY:
        return Step(entry, ImportOutcome.UNFINISHED, problem=UNFINISHED)
    name = f"{subscription.group}/{subscription.topic}"
    return _compare(entry, name, {}, subscription.delivery, rule=rule)


def _compare(
    entry: Entry, name: str, words: Mapping[str, Any], row: object, *, rule: str
) -> Step:
    """Return the step for an existing object: `same`, or what `rule` makes of differences."""
    if name != entry.name:
        problem = f"is spelled {name} here, and databases take both for one name"
        return Step(entry, ImportOutcome.CONFLICT, problem=problem)
    settings = SETTINGS[entry.kind]
    # A word that the document leaves out has a default, which must not count as a difference.
    present = {word: value for word, value in words.items() if word not in entry.defaulted}
    present |= write_settings({name: settings[name] for name in entry.settings}, row)
    document = {**entry.fields, **entry.settings}
    differences = tuple(
        Difference(name, value, document[name])
        for name, value in present.items()
        if not is_same_value(settings.get(name), value, document[name])
    )
    if not differences:
        return Step(entry, ImportOutcome.SAME)
    if rule == ExistingRule.KEEP:
        return Step(entry, ImportOutcome.KEEP, differences)
    fixed = [difference for difference in differences if difference.field in FIXED]
    if rule == ExistingRule.CHANGE and not fixed:
        return Step(entry, ImportOutcome.CHANGE, differences)
    # Fixed fields are named alone, because no other rule would help either.
    texts = ", ".join(
        f"{difference.field} {_shorten(difference.here)}, not {_shorten(difference.there)}"
        for difference in fixed or differences
    )
    remedy = "import with existing keep or change"
    if rule == ExistingRule.CHANGE:
        remedy = "an import changes settings only"
    return Step(
        entry, ImportOutcome.CONFLICT, differences, f"exists with {texts}: {remedy}"
    )


def _shorten(value: Any) -> str:
    text = "null" if value is None else str(value)
    return f"{text[:40]}…" if len(text) > 40 else text or "''"
