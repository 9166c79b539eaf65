"""Schedules and tasks of django-q: its own pages would let a browser name any function to be run."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django_q.models import Failure, OrmQ, Schedule, Success

from portal.admin.readonly import ReadOnlyAdmin

for model in (Failure, OrmQ, Schedule, Success):
    admin.site.unregister(model)


@admin.register(Schedule)
class ScheduleAdmin(ReadOnlyAdmin):
    """Schedules of the jobs; catmq_site/jobs/schedules.py is where they are written."""

    list_display = ("name", "func", "schedule_type", "minutes", "next_run")
    search_fields = ("name", "func")


@admin.register(Failure, Success)
class TaskAdmin(ReadOnlyAdmin):
    list_display = ("name", "func", "started", "stopped", "success", "attempt_count")
    search_fields = ("name", "func")


@admin.register(OrmQ)
class OrmQAdmin(ReadOnlyAdmin):
    list_display = ("id", "key", "lock")
    search_fields = ("key",)

    def get_fields(self, request: object, obj: object = None) -> Any:
        return ["key", "lock"]
