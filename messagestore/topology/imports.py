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
from metadata.rules.definitions import ExistingRule, ImportOutcome
from metadata.topics import topic_rows


def import_definitions(
    *,
    document: Any,
    actor: Actor,
    existing: str = ExistingRule.REFUSE,
    dry_run: bool = False,
) -> Plan:
    """Create the objects of a document that do not exist yet; return the plan.

    With `dry_run` nothing is changed. `existing`: see
    `metadata.definitions.plans.plan_import`, which lists the errors before any change.
    """
    plan = plans.plan_import(document=document, existing=existing, actor=actor)
    if dry_run:
        return plan
    if plan.steps_with(ImportOutcome.UNFINISHED):
        # Remove topics and subscriptions that a killed import left unfinished.
        topics.sweep()
        subscriptions.sweep()
        plan = plans.plan_import(document=document, existing=existing, actor=actor)
    plan.require_clear()
    steps = plan.steps_with(ImportOutcome.CREATE, ImportOutcome.CHANGE)
    for done, step in enumerate(steps):
        try:
            _execute_step(step, actor)
        except CatmqError as error:
            entry = step.entry
            position = (
                f"at {entry.path}, {entry.kind} {entry.name}, after {done} of {len(steps)}"
            )
            error.detail = (
                f"The import stopped {position}: {error.detail} "
                "Repeat it: it goes on there."
            )
            raise
    return plan


def _execute_step(step: Step, actor: Actor) -> None:
    fields, settings = step.entry.fields, step.entry.settings
    changes = {difference.field: difference.there for difference in step.differences}
    match step.outcome, step.entry.kind:
        case ImportOutcome.CREATE, "topic":
            topics.create(
                name=fields["name"], queues=fields["queues"], settings=settings, actor=actor
            )
        case ImportOutcome.CREATE, "group":
            groups.create(
                name=fields["name"], mode=fields["mode"], settings=settings, actor=actor
            )
        case ImportOutcome.CREATE, _:
            subscriptions.create(**fields, settings=settings, actor=actor)
        case _, "topic":
            topic_rows.update(name=fields["name"], settings=changes, actor=actor)
        case _, "group":
            groups.update(name=fields["name"], settings=changes, actor=actor)
        case _:
            pair = {"group": fields["group"], "topic": fields["topic"]}
            subscription_rows.update(**pair, settings=changes, actor=actor)
