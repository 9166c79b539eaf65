"""What django-q runs: background work that metadata asks for, and the entry point of every schedule.

Tasks run at least once, so each is harmless when repeated.
"""

from __future__ import annotations

from django_q.tasks import async_task

from metadata import job_runs, rebalance


def connect() -> None:
    """Gives metadata its way to ask for background work; called once by every process that changes it."""
    rebalance.set_background(ask_for_rebalance)


def ask_for_rebalance(group_id: int) -> None:
    """Has a worker of django-q rebalance the group; metadata calls this once its transaction has committed.

    The mark on the group is the truth: if the task is lost, a broker takes the group up after 3 s.
    """
    async_task("catmq_site.tasks.run_rebalance", group_id, task_name=f"rebalance group {group_id}")


def run_rebalance(group_id: int) -> None:
    """Rebalances one group now."""
    rebalance.rebalance(group_id)


def run_job(name: str) -> None:
    """Runs the scheduled job of that name and records the run."""
    from catmq_site.jobs import JOBS

    with job_runs.record(name) as run:
        run.count = JOBS[name].run()
