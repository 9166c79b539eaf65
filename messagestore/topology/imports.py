"""The import of definitions: each entry is made by the verb that makes it everywhere else.

All of the document is checked before anything is made. What fails later, or is cut off,
leaves whole topics, groups and subscriptions, and the import can be repeated: it goes on
where it stopped.
"""

from __future__ import annotations

from typing import Any

from messagestore.topology import subscriptions, topics
from metadata.actors import Actor
from metadata.definitions import plans
from metadata.definitions.plans import Plan, Step
from metadata.errors import CatmqError
from metadata.groups import groups, subscription_rows
from metadata.topics import topic_rows


def import_definitions(
    *, document: Any, actor: Actor, existing: str = "refuse", dry_run: bool = False
) -> Plan:
    """Make what a document defines and is not there; return what was done, or with
    `dry_run` would be.

    `existing`: see `metadata.definitions.plans.plan_import`, which says what is raised before
    anything is made.
    """
    plan = plans.plan_import(document=document, existing=existing, actor=actor)
    if dry_run:
        return plan
    if plan.of("unfinished"):
        topics.sweep()  # what an import that was cut off left half made
        subscriptions.sweep()
        plan = plans.plan_import(document=document, existing=existing, actor=actor)
    plan.require_clear()
    wanted = plan.of("create", "change")
    for done, step in enumerate(wanted):
        try:
            _make(step, actor) if step.outcome == "create" else _change(step, actor)
        except CatmqError as error:
            entry = step.entry
            where = f"at {entry.place}, {entry.kind} {entry.name}, after {done} of {len(wanted)}"
            error.detail = (
                f"The import stopped {where}: {error.detail} Repeat it: it goes on there."
            )
            raise
    return plan


def _make(step: Step, actor: Actor) -> None:
    words, settings = step.entry.words, step.entry.settings
    match step.entry.kind:
        case "topic":
            topics.create(
                name=words["name"], queues=words["queues"], settings=settings, actor=actor
            )
        case "group":
            groups.create(
                name=words["name"], mode=words["mode"], settings=settings, actor=actor
            )
        case _:
            subscriptions.create(**words, settings=settings, actor=actor)


def _change(step: Step, actor: Actor) -> None:
    words = step.entry.words
    settings = {one.field: one.there for one in step.differences}
    match step.entry.kind:
        case "topic":
            topic_rows.update(name=words["name"], settings=settings, actor=actor)
        case "group":
            groups.update(name=words["name"], settings=settings, actor=actor)
        case _:
            pair = {"group": words["group"], "topic": words["topic"]}
            subscription_rows.update(**pair, settings=settings, actor=actor)
