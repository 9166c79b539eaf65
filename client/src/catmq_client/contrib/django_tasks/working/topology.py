"""Creation of the topics, the share group and the subscriptions of a backend's tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from catmq_client.admin.api import Admin
from catmq_client.admin.calls import create_if_missing
from catmq_client.contrib.django_tasks.conf import TaskSettings
from catmq_client.errors import CatmqError, NotFound

# Queues of each topic. A share group may have more members than queues, so few are enough.
QUEUES = 4
# Unread messages are kept for this long while the group has consumers. Read messages are
# deleted by the topic's retention_days.
KEEP_UNREAD_DAYS = 3650


class WrongGroup(CatmqError, code="wrong_group"):
    """The group in the settings exists, but is not a share group."""


def create_missing(
    admin: Admin, settings: TaskSettings, *, dry_run: bool = False
) -> list[str]:
    """Create missing topics, group and subscriptions. Return a line of text for each.

    With `dry_run` nothing is created. Raises WrongGroup, Forbidden, and other errors of
    requests.
    """
    lines = []
    for line, create in _find_missing(admin, settings):
        lines.append(line)
        if not dry_run:
            create_if_missing(create)
    return lines


def _find_missing(
    admin: Admin, settings: TaskSettings
) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield a line of text and the request that creates it for each missing object."""
    group_name = settings.group
    for topic in settings.topics():
        if _get_or_none(admin.topic, topic) is None:
            yield (
                f"topic {topic}, {QUEUES} queues",
                partial(
                    admin.create_topic,
                    topic,
                    queues=QUEUES,
                    keep_unread_days=KEEP_UNREAD_DAYS,
                ),
            )
    group = _get_or_none(admin.group, group_name)
    if group is None:
        yield (
            f"share group {group_name}",
            lambda: admin.create_group(
                group_name, mode="share", max_deliveries=0, description="Workers of tasks"
            ),
        )
    elif group["mode"] != "share":
        raise WrongGroup(
            f"group {group_name} is no share group, its mode is {group['mode']}: set another "
            "GROUP in OPTIONS"
        )
    elif group.get("max_deliveries"):
        # A task has attempts of its own. If brokers stopped the deliveries, no worker would
        # write that the task has failed.
        yield (
            f"group {group_name}: max_deliveries 0",
            lambda: admin.change_group(group_name, max_deliveries=0),
        )
    subscribed = (
        {subscription["topic"] for subscription in group["subscriptions"]}
        if group is not None
        else set()
    )
    for topic in settings.topics():
        if topic not in subscribed:
            yield (
                f"subscription of {group_name} to {topic}",
                partial(admin.subscribe, group_name, topic),
            )


def _get_or_none(get: Callable[[str], Any], name: str) -> Any:
    try:
        return get(name)
    except NotFound as error:
        if error.code in ("topic_not_found", "group_not_found"):
            return None
        raise
