"""The schedules of django-q, which follow the table of jobs."""

from __future__ import annotations

from django_q.models import Schedule

from catmq_site.background.table import JOBS


def sync() -> tuple[int, int]:
    """Make django-q's schedules equal to JOBS. Return (number of jobs, schedules removed)."""
    for name, job in JOBS.items():
        Schedule.objects.update_or_create(
            name=name,
            defaults={
                "func": "catmq_site.jobs.tasks.run_job",
                "args": repr((name,)),
                "minutes": job.every_minutes,
                "schedule_type": Schedule.MINUTES,
            },
        )
    removed, _ = Schedule.objects.exclude(name__in=JOBS).delete()
    return len(JOBS), removed
