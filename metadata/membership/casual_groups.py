"""Casual groups: groups that `catmq consume` created for a look at a topic.

A casual group raises no "no consumer" alarm while it has no members.
"""

from __future__ import annotations

from metadata.models import ConsumerGroup

TOOL_SDK_PREFIX = "catmq-cli/"  # the `sdk` of the command line tool


def is_command_line_tool(sdk: str) -> bool:
    return sdk.startswith(TOOL_SDK_PREFIX)


def enable_no_consumer_alarm(group: ConsumerGroup) -> None:
    """Make a casual group ordinary, so that it raises an alarm while it has no consumer."""
    if group.casual:
        ConsumerGroup.objects.filter(pk=group.pk).update(casual=False)
