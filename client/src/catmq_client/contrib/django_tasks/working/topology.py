"""The topics, the share group and the subscriptions of a backend's tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from catmq_client.admin.api import Admin
from catmq_client.admin.calls import create_if_missing
from catmq_client.contrib.django_tasks.conf import TaskSettings
from catmq_client.errors import CatmqError, NotFound

# Of each topic. The members of a share group need not be more.
QUEUES = 4
# While workers come, a task that waits is kept for so long. What ended goes with the
# topic's retention_days.
KEEP_UNREAD_DAYS = 3650


class WrongGroup(CatmqError, code="wrong_group"):
    """The group of the settings exists, and is no share group."""


def ensure(admin: Admin, settings: TaskSettings, *, dry_run: bool = False) -> list[str]:
    """Make what is missing; return a line for each. Raises WrongGroup, Forbidden and what
    requests raise.
    """
    done = []
    for line, make in _missing(admin, settings):
        done.append(line)
        if not dry_run:
            create_if_missing(make)
    return done


def _missing(
    admin: Admin, settings: TaskSettings
) -> Iterator[tuple[str, Callable[[], Any]]]:
    group = settings.group
    for topic in settings.topics():
        if _found(admin.topic, topic) is None:
            yield (
                f"topic {topic}, {QUEUES} queues",
                partial(
                    admin.create_topic,
                    topic,
                    queues=QUEUES,
                    keep_unread_days=KEEP_UNREAD_DAYS,
                ),
            )
    found = _found(admin.group, group)
    if found is None:
        yield (
            f"share group {group}",
            lambda: admin.create_group(
                group, mode="share", max_deliveries=0, description="Workers of tasks"
            ),
        )
    elif found["mode"] != "share":
        raise WrongGroup(
            f"group {group} is no share group, its mode is {found['mode']}: set another "
            "GROUP in OPTIONS"
        )
    elif found.get("max_deliveries"):
        # A task has attempts of its own; nobody would write that it has ended.
        yield (
            f"group {group}: max_deliveries 0",
            lambda: admin.change_group(group, max_deliveries=0),
        )
    reads = {one["topic"] for one in found["subscriptions"]} if found is not None else set()
    for topic in settings.topics():
        if topic not in reads:
            yield (
                f"subscription of {group} to {topic}",
                partial(admin.subscribe, group, topic),
            )


def _found(call: Callable[[str], Any], name: str) -> Any:
    try:
        return call(name)
    except NotFound as error:
        if error.code in ("topic_not_found", "group_not_found"):
            return None
        raise
