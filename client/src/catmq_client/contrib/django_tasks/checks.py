"""System checks of a backend's settings: ids catmq_tasks.E001 and so on."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from django.apps import apps
from django.conf import settings
from django.core.checks import CheckMessage, Error
from django.core.exceptions import ImproperlyConfigured
from django.db import router

from catmq_client.admin.calls import NAME_RULE
from catmq_client.contrib.django_outbox.conf import current
from catmq_client.contrib.django_tasks import conf

TASKS = "catmq_client.contrib.django_tasks"
OUTBOX = "catmq_client.contrib.django_outbox"


def of_backend(
    alias: str, queues: Sequence[str], options: Mapping[str, Any]
) -> Iterator[CheckMessage]:
    """Yield what is wrong with a backend."""
    missing = [
        Error(
            f"TASKS[{alias!r}]: {app} is not in INSTALLED_APPS.",
            hint=f"Add {app!r}.",
            id=f"catmq_tasks.{name}",
        )
        for app, name in ((TASKS, "E001"), (OUTBOX, "E002"))
        if not apps.is_installed(app)
    ]
    yield from missing
    yield from _of_outbox(alias)
    wrong = [*conf.problems(options)]
    for one in wrong:
        what = f"TASKS[{alias!r}]['OPTIONS'][{one.option!r}] {one.what}"
        yield Error(what, hint=_hint(one), id=f"catmq_tasks.{one.check}")
    if not wrong:
        settings = conf.read(alias, queues, options)
        yield from _of_topics(settings)
        yield from _of_names(alias, queues)
    if not wrong and not missing:
        yield from _of_schedules(settings)
    if not missing:
        yield from _of_databases(alias)


def _hint(problem: conf.Problem) -> str:
    return {
        "E004": "For example [[-100, -1], [0, 0], [1, 100]].",
        "E005": "A task may have max_attempts of its own.",
    }.get(problem.check, "See the how-to 'Run Django tasks'.")


def _of_outbox(alias: str) -> Iterator[CheckMessage]:
    try:
        current()
    except ImproperlyConfigured as error:
        hint = "Workers and the relay take their brokers from CATMQ_OUTBOX."
        yield Error(f"TASKS[{alias!r}]: {error}", hint=hint, id="catmq_tasks.E003")


def _of_topics(settings: conf.TaskSettings) -> Iterator[CheckMessage]:
    if not settings.queues:
        hint = "Name them: workers and topics go by queues."
        yield Error(
            f"TASKS[{settings.alias!r}]['QUEUES'] is empty.",
            hint=hint,
            id="catmq_tasks.E009",
        )
    for topic in conf.wrong_topics(settings):
        what = f"TASKS[{settings.alias!r}]: {topic!r} is no name of a topic."
        hint = f"For queues and TOPIC_PREFIX {NAME_RULE}; {conf.MOST_TOPIC} characters together."
        yield Error(what, hint=hint, id="catmq_tasks.E009")


def _of_schedules(settings: conf.TaskSettings) -> Iterator[CheckMessage]:
    from catmq_client.contrib.django_tasks.working import schedules

    for what in schedules.wrong(settings.schedules):
        hint = "No worker would run it."
        yield Error(f"TASKS[{settings.alias!r}]: {what}", hint=hint, id="catmq_tasks.E006")


def _of_names(alias: str, queues: Sequence[str]) -> Iterator[CheckMessage]:
    """Yield names that the default collations of MySQL and MariaDB take for the same."""
    for other in getattr(settings, "TASKS", {}):
        if other != alias and _folded(other) == _folded(alias):
            problem = (
                f"TASKS[{alias!r}] and TASKS[{other!r}] differ in capitals, accents "
                "or blanks only."
            )
            hint = (
                "Name them otherwise: MySQL and MariaDB would take their rows for the same."
            )
            yield Error(problem, hint=hint, id="catmq_tasks.E010")
            break
    names: dict[str, str] = {}
    for queue in sorted(queues):
        if (other := names.setdefault(_folded(queue), queue)) != queue:
            problem = (
                f"The queues {other!r} and {queue!r} of TASKS[{alias!r}] differ in "
                "capitals only."
            )
            hint = (
                "Name them otherwise: MySQL and MariaDB would count their tasks together."
            )
            yield Error(problem, hint=hint, id="catmq_tasks.E011")


def _folded(name: str) -> str:
    """Return a name as a collation compares it, without capitals, accents and blanks at the
    end.

    >>> _folded("Büro ") == _folded("buro")
    True
    """
    letters = unicodedata.normalize("NFKD", name)
    return "".join(c for c in letters if not unicodedata.combining(c)).casefold().rstrip()


def _of_databases(alias: str) -> Iterator[CheckMessage]:
    from catmq_client.contrib.django_outbox.models import OutboxMessage
    from catmq_client.contrib.django_tasks.models import TaskRecord

    of_tasks, of_outbox = (
        router.db_for_write(TaskRecord),
        router.db_for_write(OutboxMessage),
    )
    if of_tasks != of_outbox:
        what = (
            f"TASKS[{alias!r}]: tasks go to database {of_tasks!r}, their messages to "
            f"{of_outbox!r}."
        )
        hint = "Let the routers send both apps, and the rows of the application, to one database."
        yield Error(what, hint=hint, id="catmq_tasks.E008")
