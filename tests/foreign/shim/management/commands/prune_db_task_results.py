"""prune_db_task_results: deletes rows as CatmqBackend does."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from catmq_client.contrib.django_tasks.working import upkeep

logger = logging.getLogger("shim")


class Command(BaseCommand):
    """Takes what tests give to the command of django-tasks-db."""

    stealth_options = ("backend", "failed_min_age_days", "min_age_days")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            settings = upkeep.find_settings(options.get("backend", "default"))
        except Exception as error:
            raise CommandError(str(error)) from error
        days = options.get("min_age_days", 14)
        failed = options.get("failed_min_age_days")
        settings = replace(
            settings, result_days=days, failed_days=days if failed is None else failed
        )
        self.stdout.write(f"Deleted {upkeep.prune(settings)} task result(s)")
