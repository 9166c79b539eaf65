"""manage.py syncjobs: writes the schedules of schedules.py to django-q."""

from __future__ import annotations

from typing import Any

from catmq_site.jobs import schedules
from catmq_site.management.base import CatmqCommand


class Command(CatmqCommand):
    help = (
        "Synchronizes the schedules of django-q with catmq_site/jobs/schedules.py. Adds "
        "new schedules and "
        "removes others."
    )

    def run(self, **options: Any) -> None:
        there, removed = schedules.sync()
        self.stdout.write(f"{there} schedules; {removed} old ones removed.")
