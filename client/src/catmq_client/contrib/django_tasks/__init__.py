"""A backend of Django's tasks. Needs the extra `tasks`.

    INSTALLED_APPS = [..., "catmq_client.contrib.django_outbox",
    "catmq_client.contrib.django_tasks"]
    TASKS = {"default": {"BACKEND": "catmq_client.contrib.django_tasks.CatmqBackend"}}

A task is a row of the application's database and a message of the outbox, written in the
transaction of the caller: it exists if and only if that transaction commits. `manage.py
catmq_worker` sends the messages and runs the tasks. States of a task:

    READY ── claim: a worker's token is written ──▶ RUNNING ──▶ SUCCESSFUL
      ▲                                               │
      ├── failed, with attempts left: sent again ─────┤
      │                                               └── no attempts left ──▶ FAILED
      └── catmq_tasks retry ─────────────────────────────────────────────────────┘

The token is a fence. It rises with every delivery of a message, and with every message that
is sent for the task. A worker changes the row only while the row has the worker's token, so a
worker that lost its lease changes nothing.
"""

from catmq_client.contrib.django_tasks.backend import CatmqBackend

__all__ = ["CatmqBackend"]
