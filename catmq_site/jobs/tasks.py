"""Tasks of django-q: background work that metadata asks for, and the entry point of every
schedule.

Tasks run at least once, so each is harmless when repeated.
"""

from __future__ import annotations

import logging
import subprocess
import sys

from django_q.models import OrmQ
from django_q.tasks import async_task

from metadata.config import HOME
from metadata.db.clock import database_now, ms
from metadata.errors import NotFound
from metadata.jobs import pipeline, runs
from metadata.membership import rebalance

log = logging.getLogger(__name__)

MOST_AGE_MS = 60_000
MOST_WAITING = 20  # tasks


def connect() -> None:
    """Give metadata its way to ask for background work; called once by every process that
    changes it.
    """
    from catmq_site.background.pipeline import describe_place
    from catmq_site.background.table import JOBS, list_broker_loops

    rebalance.set_background(ask_for_rebalance)
    listed = {
        name: runs.ScheduledJob(job.text, job.every_minutes) for name, job in JOBS.items()
    }
    runs.set_scheduled_jobs(listed, ask_for_job)
    runs.set_broker_loops(list_broker_loops)
    pipeline.set_runner(ask_for_run, describe_place)


def ask_for_rebalance(group_id: int) -> None:
    """Have a worker of django-q rebalance the group; metadata calls this once its
    transaction has committed.

    The mark on the group is the truth: if the task is lost, a broker takes the group up
    after 3 s. So when tasks pile up, because no worker of django-q lives, none is added.
    """
    if OrmQ.objects.count() >= MOST_WAITING:
        log.info("group %d is left to the brokers: no task worker runs", group_id)
        return
    name = f"rebalance group {group_id}"
    async_task(
        "catmq_site.jobs.tasks.run_rebalance", group_id, ms(database_now()), task_name=name
    )


def ask_for_job(name: str) -> None:
    async_task("catmq_site.jobs.tasks.run_job", name, task_name=f"{name}, asked for")


def ask_for_run(id: int) -> None:
    """Have a worker of django-q start what takes up a run of the data pipeline."""
    async_task("catmq_site.jobs.tasks.run_asked", id, task_name=f"run {id}, asked for")


def run_rebalance(group_id: int, asked_at_ms: int) -> bool:
    """Rebalance one group now, unless that was asked for long ago: a broker did it then.
    Whether it ran.
    """
    if ms(database_now()) - asked_at_ms > MOST_AGE_MS:
        return False
    try:
        rebalance.rebalance(group_id)
    except NotFound:  # the group was deleted meanwhile
        return False
    return True


def run_job(name: str) -> None:
    """Run the scheduled job of that name and record the run; one that runs apart is only
    started.

    A process apart stays in django-q's process group: the server that stops takes it along,
    and it its Spark.
    """
    from catmq_site.background.table import JOBS

    if JOBS[name].apart:
        _apart("run_job", name)
    else:
        run_here(name)


def run_asked(id: int) -> None:
    """Start the process that takes up a run of the data pipeline; a second one would find
    it taken.
    """
    _apart("run_asked", str(id))


def _apart(*arguments: str) -> None:
    command = [sys.executable, str(HOME / "manage.py"), *arguments]
    subprocess.Popen(command, cwd=HOME, stdin=subprocess.DEVNULL)  # noqa: S603  our own program


def run_here(name: str) -> int:
    """Run the job in this process and record the run; return how many things it did."""
    from catmq_site.background.table import JOBS

    with runs.record_run(name) as run:
        run.count = JOBS[name].run()
    return run.count
