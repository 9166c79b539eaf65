"""Tasks of django-q: background work that metadata requests, and the entry point of each
schedule.

Their paths are stored in the database, so the functions keep their names. Tasks run at
least once, so each is harmless when repeated.
"""

from __future__ import annotations

import logging
import subprocess

from django_q.models import OrmQ
from django_q.tasks import async_task

from catmq_site import processes
from metadata.actors import job as job_actor
from metadata.db.clock import database_now, ms
from metadata.errors import NotFound
from metadata.installation import HOME
from metadata.jobs import pipeline, runs
from metadata.log_context import log_context
from metadata.membership import rebalance

log = logging.getLogger(__name__)

MAX_AGE_MS = 60_000
MAX_WAITING_TASKS = 20  # tasks


def connect() -> None:
    """Give metadata the functions with which it requests background work. Called once by
    every process that changes metadata.
    """
    # Imported late: table.py imports every package that has a job.
    from catmq_site.background.pipeline import describe_place
    from catmq_site.background.table import JOBS, list_broker_loops

    rebalance.set_background(ask_for_rebalance)
    scheduled_jobs = {
        name: runs.ScheduledJob(job.text, job.every_minutes) for name, job in JOBS.items()
    }
    runs.set_scheduled_jobs(scheduled_jobs, ask_for_job)
    runs.set_broker_loops(list_broker_loops)
    pipeline.set_runner(ask_for_run, describe_place)


def ask_for_rebalance(group_id: int) -> None:
    """Let a worker of django-q rebalance the group. Metadata calls this after its
    transaction has committed.

    The mark on the group counts: if the task is lost, a broker rebalances the group after 3
    s. So no task is added when tasks pile up because no worker of django-q runs.
    """
    if OrmQ.objects.count() >= MAX_WAITING_TASKS:
        log.info("group %d is left to the brokers: no task worker runs", group_id)
        return
    name = f"rebalance group {group_id}"
    async_task(
        "catmq_site.jobs.tasks.run_rebalance", group_id, ms(database_now()), task_name=name
    )


def ask_for_job(name: str) -> None:
    async_task(
        "catmq_site.jobs.tasks.run_job", name, asked=True, task_name=f"{name}, asked for"
    )


def ask_for_run(id: int) -> None:
    """Let a worker of django-q start the process of a pipeline run."""
    async_task("catmq_site.jobs.tasks.run_asked", id, task_name=f"run {id}, asked for")


def run_rebalance(group_id: int, asked_at_ms: int) -> bool:
    """Rebalance a group. Return False if the group is gone or the request is so old that
    a broker has done it.
    """
    # Tasks that waited while no worker ran are skipped: brokers rebalanced their groups
    # after 3 s. The database's clock is the only clock that all processes share.
    if ms(database_now()) - asked_at_ms > MAX_AGE_MS:
        return False
    try:
        rebalance.rebalance(group_id)
    except NotFound:  # the group was deleted meanwhile
        return False
    return True


def run_job(name: str, *, asked: bool = False) -> None:
    """Run a scheduled job and record the run, or only start its process if it runs apart
    and is due. `asked`: by a user, so it is due.

    The process stays in django-q's process group, so a server that stops ends it together
    with its Spark.
    """
    from catmq_site.background.table import JOBS

    job = JOBS[name]
    if not job.apart:
        run_here(name)
    elif asked or job.is_due():
        _start_process("run_job", name)


def run_asked(id: int) -> None:
    """Start the process that executes a pipeline run. A second process would
    find the run claimed.
    """
    _start_process("run_asked", str(id))


def _start_process(*arguments: str) -> None:
    subprocess.Popen(  # noqa: S603  our own program
        processes.command(*arguments),
        cwd=HOME,
        env=processes.environ(),
        stdin=subprocess.DEVNULL,
    )


def run_here(name: str) -> int:
    """Run the job in this process and record the run. Return the job's count."""
    from catmq_site.background.table import JOBS

    job = JOBS[name]
    with log_context(job=name, actor=job_actor(name)), runs.record_run(name) as run:
        run.count = job.run(run) if job.reports else job.run()
    return run.count
