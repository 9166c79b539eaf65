"""manage.py rights_check: lists keys and users that manage topics and may not read them."""

from __future__ import annotations

from typing import Any

from catmq_site.management.base import CatmqCommand
from metadata.users import subscribe_rights
from metadata.users.subscribe_rights import ManagesOnly

MOST_NAMES = 20


class Command(CatmqCommand):
    checks_keys = False
    help = (
        "Lists API keys and users with `manage` and without `consume` on topics. Until "
        "release 0.1.0, such a "
        "key could subscribe its groups to these topics. Now that needs `consume` on the "
        "topic. Existing "
        "subscriptions stay, and their members read on. Changes nothing, and runs before "
        "an upgrade as well."
    )

    def run(self, **options: Any) -> None:
        entries = subscribe_rights.find_manage_only()
        for entry in entries:
            self.stdout.write("\n".join(_lines(entry)))
        if not entries:
            self.stdout.write("Every key and user that manages topics may consume them.")


def _lines(entry: ManagesOnly) -> list[str]:
    patterns = ", ".join(entry.patterns)
    lines = [
        f"{entry.kind} {entry.name}: manage without consume{patterns and f' on {patterns}'}"
    ]
    if entry.topics:
        lines.append(f"  cannot subscribe to: {_named(entry.topics)}")
    if entry.subscriptions:
        pairs = tuple(f"{group}/{topic}" for group, topic in entry.subscriptions)
        lines.append(f"  could not make again: {_named(pairs)}")
    return lines


def _named(names: tuple[str, ...]) -> str:
    """Return the first names, and how many more there are."""
    more = len(names) - MOST_NAMES
    return ", ".join(names[:MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
