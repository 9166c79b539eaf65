"""Casual groups: made by a command that somebody ran for a look, so nobody misses a
consumer in them.
"""

from __future__ import annotations

from metadata.models import ConsumerGroup

TOOL = "catmq-cli/"  # how the command names itself when it registers


def is_command_line_tool(sdk: str) -> bool:
    """Return True if a member is such a command, as it says of itself."""
    return sdk.startswith(TOOL)


def enable_no_consumer_alarm(group: ConsumerGroup) -> None:
    """Make a casual group one whose lack of consumers is an alarm."""
    if group.casual:
        ConsumerGroup.objects.filter(pk=group.pk).update(casual=False)
