"""manage.py rights_check: lists keys and users with `manage` on topics and without
`consume`.
"""

from __future__ import annotations

from typing import Any

from catmq_site.management.base import CatmqCommand
from metadata.users import subscribe_rights

MAX_NAMES = 20


class Command(CatmqCommand):
    checks_keys = False
    help = (
        "Lists API keys and users with `manage` and without `consume` on topics. Until "
        "release 0.1.0, such a key could subscribe its groups to these topics. Now that "
        "needs `consume` on the topic. Existing subscriptions stay, and their members "
        "read on. Changes nothing, and runs before an upgrade as well."
    )

    def run(self, **options: Any) -> None:
        entries = subscribe_rights.find_manage_only()
        for entry in entries:
            patterns = ", ".join(entry.patterns)
            self.stdout.write(
                f"{entry.kind} {entry.name}: manage without consume"
                f"{patterns and f' on {patterns}'}"
            )
            if entry.topics:
                self.stdout.write(f"  cannot subscribe to: {_list_names(entry.topics)}")
            if entry.subscriptions:
                pairs = tuple(f"{group}/{topic}" for group, topic in entry.subscriptions)
                self.stdout.write(f"  could not make again: {_list_names(pairs)}")
        if not entries:
            self.stdout.write("Every key and user that manages topics may consume them.")


def _list_names(names: tuple[str, ...]) -> str:
    """Return the first names, and the number of the others."""
    omitted = len(names) - MAX_NAMES
    return ", ".join(names[:MAX_NAMES]) + (f" and {omitted} more" if omitted > 0 else "")
