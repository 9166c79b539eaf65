"""System checks of a backend in the setting TASKS.

The ids are catmq_tasks.…:

    E001  this app is not installed         E007  another option is wrong or unknown
    E002  the outbox is not installed       E008  tasks and messages in two databases
    E003  CATMQ_OUTBOX is wrong             E009  QUEUES give no topics, or invalid names
    E004  PRIORITY_LANES is wrong           E010  two backends whose rows would be mixed
    E005  MAX_ATTEMPTS is wrong             E011  two queues whose rows would be mixed
    E006  SCHEDULES is wrong
"""

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
from catmq_client.contrib.django_outbox import conf as outbox_conf
from catmq_client.contrib.django_tasks import conf

TASKS = "catmq_client.contrib.django_tasks"
OUTBOX = "catmq_client.contrib.django_outbox"
_HINTS = {
    "E004": "For example [[-100, -1], [0, 0], [1, 100]].",
    "E005": "A task may have max_attempts of its own.",
}


def check_backend(
    alias: str, queues: Sequence[str], options: Mapping[str, Any]
) -> Iterator[CheckMessage]:
    """Yield the errors in the QUEUES and OPTIONS of the backend `alias`, and in the settings
    that it requires: INSTALLED_APPS, CATMQ_OUTBOX and the database routers.
    """
    missing_apps = [
        Error(
            f"TASKS[{alias!r}]: {app} is not in INSTALLED_APPS.",
            hint=f"Add {app!r}.",
            id=f"catmq_tasks.{error_id}",
        )
        for app, error_id in ((TASKS, "E001"), (OUTBOX, "E002"))
        if not apps.is_installed(app)
    ]
    yield from missing_apps
    try:
        outbox_conf.current()
    except ImproperlyConfigured as error:
        yield Error(
            f"TASKS[{alias!r}]: {error}",
            hint="Workers and the relay take their brokers from CATMQ_OUTBOX.",
            id="catmq_tasks.E003",
        )
    problems = [*conf.find_problems(options)]
    for problem in problems:
        yield Error(
            f"TASKS[{alias!r}]['OPTIONS'][{problem.option!r}] {problem.text}",
            hint=_HINTS.get(problem.check, "See the how-to 'Run Django tasks'."),
            id=f"catmq_tasks.{problem.check}",
        )
    # The other checks need valid options, or the models of both apps.
    if not problems:
        task_settings = conf.read(alias, queues, options)
        if not task_settings.queues:
            yield Error(
                f"TASKS[{alias!r}]['QUEUES'] is empty.",
                hint="Name them: workers and topics go by queues.",
                id="catmq_tasks.E009",
            )
        for topic in conf.find_invalid_topics(task_settings):
            yield Error(
                f"TASKS[{alias!r}]: {topic!r} is not a valid name of a topic.",
                hint=f"For queues and TOPIC_PREFIX {NAME_RULE}; {conf.MAX_TOPIC_LENGTH} "
                "characters together.",
                id="catmq_tasks.E009",
            )
        yield from _check_collisions(alias, queues)
    if not problems and not missing_apps:
        from catmq_client.contrib.django_tasks.working import schedules

        for text in schedules.find_problems(task_settings.schedules):
            yield Error(
                f"TASKS[{alias!r}]: {text}",
                hint="No worker would run it.",
                id="catmq_tasks.E006",
            )
    if not missing_apps:
        yield from _check_databases(alias)


def _check_collisions(alias: str, queues: Sequence[str]) -> Iterator[CheckMessage]:
    """Yield errors for names that the default collations of MySQL and MariaDB treat as equal:
    the alias and that of another backend, or two queues.
    """
    for other in getattr(settings, "TASKS", {}):
        if other != alias and _fold(other) == _fold(alias):
            yield Error(
                f"TASKS[{alias!r}] and TASKS[{other!r}] differ only in capitals, "
                "accents or blanks at the end.",
                hint="Name them otherwise: MySQL and MariaDB would take their rows for the "
                "same.",
                id="catmq_tasks.E010",
            )
            break
    by_folded_name: dict[str, str] = {}
    for queue in sorted(queues):
        if (other := by_folded_name.setdefault(_fold(queue), queue)) != queue:
            yield Error(
                f"The queues {other!r} and {queue!r} of TASKS[{alias!r}] differ only in "
                "capitals, accents or blanks at the end.",
                hint="Name them otherwise: MySQL and MariaDB would count their tasks together.",
                id="catmq_tasks.E011",
            )


def _fold(name: str) -> str:
    """Return a name in a form that is equal for names which a default collation may treat as
    equal: without capitals, accents and trailing blanks.

    MySQL 8 (utf8mb4_0900_ai_ci) compares trailing blanks; MariaDB ignores them.

    >>> _fold("Büro ") == _fold("buro")
    True
    """
    letters = unicodedata.normalize("NFKD", name)
    return "".join(c for c in letters if not unicodedata.combining(c)).casefold().rstrip()


def _check_databases(alias: str) -> Iterator[CheckMessage]:
    """Yield an error if the routers send tasks and messages to different databases."""
    from catmq_client.contrib.django_outbox.models import OutboxMessage
    from catmq_client.contrib.django_tasks.models import TaskRecord

    tasks_alias = router.db_for_write(TaskRecord)
    outbox_alias = router.db_for_write(OutboxMessage)
    if tasks_alias != outbox_alias:
        yield Error(
            f"TASKS[{alias!r}]: tasks go to database {tasks_alias!r}, their messages to "
            f"{outbox_alias!r}.",
            hint="Let the routers send both apps, and the rows of the application, to one "
            "database.",
            id="catmq_tasks.E008",
        )
