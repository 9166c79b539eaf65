"""Tasks and schedules in Django's admin, with the actions retry and discard."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from django.conf import settings
from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.html import format_html, format_html_join

from catmq_client.contrib.django_tasks.conf import TaskSettings
from catmq_client.contrib.django_tasks.models import TaskRecord, TaskSchedule
from catmq_client.contrib.django_tasks.working import upkeep

Change = Callable[[TaskSettings, Sequence[str]], int]


class ReadOnly(admin.ModelAdmin):  # type: ignore[type-arg]  # not generic when the program runs
    """An admin without forms: only workers and the actions change rows."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Return False, which makes the form read-only. The actions have a permission of
        their own.
        """
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_act_permission(self, request: HttpRequest) -> bool:
        """Return True if the user may retry and discard tasks. Needs the change permission."""
        return request.user.has_perm(f"{self.opts.app_label}.change_{self.opts.model_name}")


@admin.register(TaskRecord)
class TaskRecordAdmin(ReadOnly):
    list_display = (
        "id",
        "status",
        "path",
        "queue_name",
        "priority",
        "begun",
        "enqueued_at",
        "finished_at",
    )
    list_filter = ("status", "queue_name", "backend_name")
    search_fields = ("id", "path")
    show_full_result_count = False
    actions = ("retry", "discard")
    fieldsets = (
        (None, {"fields": ("id", "status", "path", "arguments", "value", "tracebacks")}),
        (
            "Way",
            {
                "fields": (
                    "queue_name",
                    "priority",
                    "backend_name",
                    "max_attempts",
                    "worker_ids",
                    "message",
                )
            },
        ),
        (
            "Times",
            {
                "fields": (
                    "enqueued_at",
                    "run_after",
                    "started_at",
                    "last_attempted_at",
                    "finished_at",
                )
            },
        ),
    )

    @admin.display(description="attempts")
    def begun(self, record: TaskRecord) -> int:
        return len(record.worker_ids)

    @admin.display(description="arguments")
    def arguments(self, record: TaskRecord) -> str:
        return format_html(
            "<pre>{}</pre>",
            json.dumps([record.args, record.kwargs], indent=1, ensure_ascii=False),
        )

    @admin.display(description="return value")
    def value(self, record: TaskRecord) -> str:
        return format_html(
            "<pre>{}</pre>", json.dumps(record.return_value, indent=1, ensure_ascii=False)
        )

    @admin.display(description="errors")
    def tracebacks(self, record: TaskRecord) -> str:
        return (
            format_html_join(
                "", "<pre>{}</pre>", ((error["traceback"],) for error in record.errors)
            )
            or "-"
        )

    @admin.display(description="message")
    def message(self, record: TaskRecord) -> str:
        """Return the id of the task's last message, as a link to the portal if
        CATMQ_PORTAL_URL is set.
        """
        portal = getattr(settings, "CATMQ_PORTAL_URL", None)
        if not portal or not record.message_id:
            return record.message_id or "-"
        topic = upkeep.find_settings(record.backend_name).topic(
            record.queue_name, record.priority
        )
        return format_html(
            '<a href="{}">{}</a>',
            f"{portal.rstrip('/')}/messages/{topic}/{record.message_id}",
            record.message_id,
        )

    @admin.action(description="Retry: one more attempt", permissions=["act"])
    def retry(self, request: HttpRequest, selected: QuerySet[TaskRecord]) -> None:
        self._change(request, selected, upkeep.retry, "get one more attempt")

    @admin.action(description="Discard: never run", permissions=["act"])
    def discard(self, request: HttpRequest, selected: QuerySet[TaskRecord]) -> None:
        self._change(request, selected, upkeep.discard, "are discarded")

    def _change(
        self,
        request: HttpRequest,
        selected: QuerySet[TaskRecord],
        change: Change,
        outcome: str,
    ) -> None:
        ids: dict[str, list[str]] = defaultdict(list)
        for task_id, backend in selected.values_list("pk", "backend_name"):
            ids[backend].append(task_id)
        number = sum(
            change(upkeep.find_settings(backend), task_ids)
            for backend, task_ids in ids.items()
        )
        total = sum(map(len, ids.values()))
        level = messages.SUCCESS if number == total else messages.WARNING
        skipped = (
            f"; {total - number} have another status and are left" if number < total else ""
        )
        self.message_user(request, f"{number} tasks {outcome}{skipped}.", level)


@admin.register(TaskSchedule)
class TaskScheduleAdmin(ReadOnly):
    list_display = ("name", "rule", "due_at")
    search_fields = ("name",)
