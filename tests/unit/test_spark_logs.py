"""The log of a Spark job: its last words, and whether it waits for executors."""

from __future__ import annotations

from pathlib import Path

import pytest

from catmq_site.background import spark

REMOVED = "10:00:01 ERROR StandaloneSchedulerBackend: Application has been killed. Reason: removed"
OWN = "digest failed: node main does not answer"


@pytest.mark.parametrize(
    ("log", "words"),
    [
        (
            f"26/11/27 10:00:00 INFO x\n{REMOVED}\n26/11/27 10:00:02 INFO "
            "ShutdownHookManager: bye\n\n \n",
            REMOVED,
        ),
        (f"{REMOVED}\n{OWN}\nmore\n", OWN),
        ("only this\n\n", "only this"),
        ("\n \n", "The job ended without a word."),
    ],
)
def test_the_error_of_a_job_is_its_own_last_line_or_sparks_last_error(
    log: str, words: str, tmp_path: Path
) -> None:
    (tmp_path / "log").write_text(log)
    assert spark._last_message(tmp_path) == words


def test_a_job_waits_for_executors_until_its_log_goes_on() -> None:
    waiting = f"WARN TaskSchedulerImpl: {spark.NO_RESOURCES}; check your cluster UI\n"
    assert spark.waits_for_executors(f"INFO a\n{waiting}\n")
    assert not spark.waits_for_executors(f"{waiting}INFO TaskSetManager: Starting task\n")
    assert not spark.waits_for_executors("")
