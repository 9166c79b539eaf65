"""Import of definitions: creates each entry with the same function as the API.

The whole document is checked first. An import that fails later, or is killed, leaves
complete topics, groups and subscriptions. A repeat continues where it stopped.
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
    """Create what a document defines and does not exist yet; return the plan.

    With `dry_run` nothing is changed. `existing`: see
    `metadata.definitions.plans.plan_import`, which lists what is raised before any change.
    """
    plan = plans.plan_import(document=document, existing=existing, actor=actor)
    if dry_run:
        return plan
    if plan.steps_with("unfinished"):
        # Remove topics and subscriptions that a killed import left unfinished.
        topics.sweep()
        subscriptions.sweep()
        plan = plans.plan_import(document=document, existing=existing, actor=actor)
    plan.require_clear()
    steps = plan.steps_with("create", "change")
    for done, step in enumerate(steps):
        try:
            _create_entry(step, actor) if step.outcome == "create" else _update_entry(
                step, actor
            )
        except CatmqError as error:
            entry = step.entry
            position = (
                f"at {entry.place}, {entry.kind} {entry.name}, after {done} of {len(steps)}"
            )
            error.detail = (
                f"The import stopped {position}: {error.detail} "
                "Repeat it: it goes on there."
            )
            raise
    return plan


def _create_entry(step: Step, actor: Actor) -> None:
    names, settings = step.entry.words, step.entry.settings
    match step.entry.kind:
        case "topic":
            topics.create(
                name=names["name"], queues=names["queues"], settings=settings, actor=actor
            )
        case "group":
            groups.create(
                name=names["name"], mode=names["mode"], settings=settings, actor=actor
            )
        case _:
            subscriptions.create(**names, settings=settings, actor=actor)


def _update_entry(step: Step, actor: Actor) -> None:
    names = step.entry.words
    settings = {difference.field: difference.there for difference in step.differences}
    match step.entry.kind:
        case "topic":
            topic_rows.update(name=names["name"], settings=settings, actor=actor)
        case "group":
            groups.update(name=names["name"], settings=settings, actor=actor)
        case _:
            pair = {"group": names["group"], "topic": names["topic"]}
            subscription_rows.update(**pair, settings=settings, actor=actor)
