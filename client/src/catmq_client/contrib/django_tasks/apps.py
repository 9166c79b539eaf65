"""The Django application of the tasks backend."""

from __future__ import annotations

from django.apps import AppConfig


class TasksConfig(AppConfig):
    name = "catmq_client.contrib.django_tasks"
    label = "catmq_tasks"
    verbose_name = "CatMQ tasks"
    default_auto_field = "django.db.models.BigAutoField"
