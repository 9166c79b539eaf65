"""manage.py syncjobs: makes the schedules of django-q equal to the table of jobs."""

from __future__ import annotations

from typing import Any

from catmq_site.jobs import schedules
from catmq_site.management.base import CatmqCommand


class Command(CatmqCommand):
    help = (
        "Synchronizes the schedules of django-q with catmq_site/jobs/schedules.py. Adds "
        "new schedules and removes others."
    )

    def run(self, **options: Any) -> None:
        job_count, removed = schedules.sync()
        self.stdout.write(f"{job_count} schedules; {removed} old ones removed.")
