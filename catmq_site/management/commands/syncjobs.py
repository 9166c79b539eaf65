"""manage.py syncjobs: writes the schedules of jobs.py to django-q."""

from __future__ import annotations

from typing import Any

from catmq_site import jobs
from catmq_site.management.base import CatmqCommand


class Command(CatmqCommand):
    """Makes django-q's schedules equal to catmq_site/jobs.py."""

    help = "Makes django-q's schedules equal to catmq_site/jobs.py: new ones are added, others removed."

    def run(self, **options: Any) -> None:
        """Calls jobs.sync."""
        there, removed = jobs.sync()
        self.stdout.write(f"{there} schedules, {removed} others removed.")
