"""Runs Django's own tests of its task interface, and those of django-tasks-db, against
CatmqBackend.

    python -m tests.foreign.tasks            or: script/test foreign-tasks

Downloads the sdists in pinned versions (to ~/.cache/catmq/foreign), changes the names of
modules in a copy, and runs them with a broker in memory. `shim` has the names that the
tests of django-tasks-db import. Each test that is left out is in LEFT_OUT, with its reason.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import django

from tests.foreign.sdists import read

DJANGO = (
    "django",
    "6.1.3",
    "b5d2d9e35295065d13b1927b3f19a59bd119f737aa6299def14ccca1ae3c8c0d",
)
TASKS_DB = (
    "django_tasks_db",
    "0.13.0",
    "09630d417cf722b07e1439b837403e18e86455908ba532fa6795b0d23dc3ff23",
)
# The package django-tasks has other names for what Django has had since 6.0.
BACKPORT = (
    (r"\bdjango\.tasks\b", "django_tasks"),
    (r"\bInvalidTask\b", "InvalidTaskError"),
    (r"\bInvalidTaskBackend\b", "InvalidTaskBackendError"),
)
DUMMY = (
    (
        r"from \S+\.backends\.dummy import DummyBackend",
        "from tests.foreign.shim.recording import DummyBackend",
    ),
    (
        r"django[._]tasks\.backends\.dummy\.DummyBackend",
        "tests.foreign.shim.recording.DummyBackend",
    ),
    (r"\(SimpleTestCase\)", "(TransactionTestCase)"),
    (r"import SimpleTestCase,", "import TransactionTestCase,"),
)
OPTIONS = "has options of its own"
LOCKS = "locks rows to claim them; here a message is leased"
LEFT_OUT = {
    # django-tasks-db
    "test_using_correct_backend": "the backend has options here: one attempt",
    "test_invalid_uuid": "an id is any text here, so there is no wrong one; "
    "test_get_missing_result runs",
    "test_async_invalid_uuid": "as test_invalid_uuid",
    "test_database_backend_app_missing": "names its own app; "
    "tests/unit/test_tasks_settings.py has ours",
    "test_priority_range_check": "its table has the limits as a constraint; here a task is checked",
    "test_index_scan_for_ready": "no index is read to find work",
    "test_run_after_null_0016_migration": "is about a migration of its own",
    "test_custom_id_function": OPTIONS,
    "test_unknown_id_function": OPTIONS,
    "test_postgres_db_id_function": OPTIONS,
    "test_postgres_id_function_expression": OPTIONS,
    "test_enqueue_task": "wants an id of UUID version 4; the copy in core's tests runs",
    "test_enqueue_task_async": "as test_enqueue_task",
    "test_run_after_priority": "orders rows by priority; here lanes do",
    "test_run_after": "moves run_after of a row; here the message has the time",
    "test_verbose_logging": "compares the words of its own command",
    "test_exclude_queues_requires_processing_all_queues": OPTIONS,
    "test_excluding_unknown_queue_processes_selected_queues": OPTIONS
    + ": an unknown queue is an error here",
    "test_unknown_backend": OPTIONS,
    "test_incorrect_backend": OPTIONS,
    "test_negative_interval": OPTIONS,
    "test_infinite_interval": OPTIONS,
    "test_fractional_interval": OPTIONS,
    "test_zero_interval": OPTIONS,
    "test_negative_max_tasks": OPTIONS,
    "test_zero_max_tasks": OPTIONS,
    "test_too_long_worker_id": OPTIONS,
    "test_empty_worker_id": OPTIONS,
    "test_worker_with_locked_rows": LOCKS,
    "test_only_prunes_specified_queue": OPTIONS,
    "test_prune_all_queues": OPTIONS,
    "test_dry_run": OPTIONS,
    "test_negative_age": OPTIONS,
    "DatabaseTaskResultTestCase": LOCKS,
    "ConnectionExclusiveTranscationTestCase": LOCKS,
    "DatabaseWorkerProcessTestCase": "starts its own command; script/chaos tasks and "
    "test_tasks_processes.py",
    "CompatTestCase": "is about its own package",
    "DBTaskResultOrderingTestCase": "orders rows by priority; here lanes do",
    "AdminTestCase": "is about its own admin",
    "DatabaseBackendTestCase.test_refresh_result": "changes rows by hand: "
    "last_attempted_at is a column here",
    "DatabaseBackendTestCase.test_refresh_result_async": "changes rows by hand: as above",
    "DatabaseBackendTestCase.test_invalid_task_path": "reads a column under its own name",
    "test_complex_return_value": "wants the words of json.dumps; it fails with a TypeError "
    "here, too",
    "test_task_import_string": "wants the word ImportError; TaskMissing is one",
    # Django
    "TaskTestCase.test_get_missing_result": "a call that waits, of a database, in a coroutine",
    "TaskTestCase.test_refresh_result": "a call that waits, of a database, in a coroutine",
    "test_no_backends": "needs no TASKS at all; the backend is not asked",
}


BESIDE = ("test_dummy_backend", "test_immediate_backend")
# Of Django's tests, with django-tasks.
NOT_IN_BACKPORT = dict.fromkeys(
    (
        "test_pickle_task",
        "test_pickle_task_result",
        "test_unpickle_arbitrary_string",
        "test_unpickle_non_task_object",
        "test_run_after_in_decorator",
    ),
    "came with Django 6.1; django-tasks 0.12 has it not",
)
if django.VERSION < (6, 1):
    LEFT_OUT |= NOT_IN_BACKPORT


def main() -> int:
    """Run both suites; return 0 if all went well."""
    with tempfile.TemporaryDirectory(prefix="catmq-foreign-") as home:
        place = Path(home)
        core, others = place / "tasks", place / "tests_of_db"
        for name in ("__init__.py", "tasks.py", "test_tasks.py"):
            copy(DJANGO, f"tests/tasks/{name}", core / name, (*native(), *DUMMY))
        words = ((r"This Task failed", "This task failed"),)
        copy(DJANGO, "tests/tasks/tasks.py", others / "tasks.py", (*native(), *words))
        names = (
            (r"\bfrom tests import\b", "from tests_of_db import"),
            (r"\btests\.tasks\b", "tests_of_db.tasks"),
        )
        names += ((r"\bdjango_tasks_db\b", "tests.foreign.shim"),)
        copy(TASKS_DB, "tests/tests.py", others / "test_db.py", names)
        (others / "__init__.py").touch()
        environ = {"SHOP_DATABASE": "foreign.db", **os.environ}
        environ["DJANGO_SETTINGS_MODULE"] = "tests.foreign.shim.settings"
        root = Path(__file__).resolve().parents[2]
        environ["PYTHONPATH"] = os.pathsep.join(
            map(str, (place, root, root / "client/src"))
        )
        ours = (
            "-m",
            "tests.foreign.shim.runner",
            "tasks.test_tasks",
            "tests_of_db.test_db",
        )
        commands = [ours]
        if django.VERSION >= (6, 0):
            # Django's backends beside ours: nothing is changed in their tests, and none is
            # left out.
            for name in BESIDE:
                copy(DJANGO, f"tests/tasks/{name}.py", core / f"{name}.py", ())
            commands.append(("-m", "django", "test", *(f"tasks.{name}" for name in BESIDE)))
        return max(
            subprocess.run(
                (sys.executable, *words), env=environ, cwd=place, check=False
            ).returncode
            for words in commands
        )


def native() -> tuple[tuple[str, str], ...]:
    return BACKPORT if django.VERSION < (6, 0) else ()


def copy(
    source: tuple[str, str, str],
    path: str,
    target: Path,
    changes: tuple[tuple[str, str], ...],
) -> None:
    """Copy a file of an sdist with other names in it."""
    text = read(source, path)
    for old, new in changes:
        text = re.sub(old, new, text)
    target.parent.mkdir(exist_ok=True)
    target.write_text(text)


if __name__ == "__main__":
    sys.exit(main())
