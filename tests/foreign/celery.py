"""Runs kombu's integration classes, and Celery's integration suites, on a server with
`catmq://`.

    python -m tests.foreign.celery [kombu | celery] [-k WORDS]       or: script/test foreign-celery

Downloads the sdists in pinned versions (to ~/.cache/catmq/foreign), and what their tests
need; results of Celery are in a Redis. A real worker with processes runs the tasks. Each
test that is left out is in LEFT_OUT, with its reason.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tests.foreign import redis, sdists
from tests.support.server import Server

ROOT = Path(__file__).resolve().parents[2]
KOMBU = (
    "kombu",
    "5.7.0",
    "31e62fdfd2381caa3422f8e02b84a491d9a2180ddda74507b57f4cb1e1c2c2c9",
)
CELERY = (
    "celery",
    "5.7.0",
    "6a5dfcf6662287204f009a02002b9e66c83d4105e47ebabdc7079108772fc6f0",
)
NEEDED = (
    "redis==8.1.0",
    "pydantic==2.14.3",
    "pydantic_core==2.50.4",
    "annotated-types==0.8.0",
    "typing-inspection==0.4.5",
    "pytest-rerunfailures==16.7",
    "pytest-timeout==2.4.0",
)
# The files, each in a run of its own: workers that a test makes leave their marks in the
# process.
SUITES = (
    "test_inspect",
    "test_worker",
    "test_connection_recovery",
    "test_tasks",
    "test_canvas",
)
ETA = "t/integration/test_inspect.py::test_Inspect::test_scheduled"
LEFT_OUT = {
    ETA: "a task with an eta is with the brokers, not in a worker; it runs with "
    "native_eta=False, below",
}
# Some tests want the order of tasks in their queue: its topic has one queue.
IN_ORDER = {"topic_queues": 1}


def main(words: list[str]) -> int:
    """Run both, or one of them; return 0 if all went well."""
    wanted = {word for word in words[:1] if word in ("kombu", "celery")} or {
        "kombu",
        "celery",
    }
    more = words[1:] if words[:1] and words[0] in wanted else words
    with tempfile.TemporaryDirectory(prefix="catmq-foreign-") as home:
        place = Path(home)
        server = Server(place / "server").start()
        try:
            failed = [
                run(place, server, more) for name, run in RUNS.items() if name in wanted
            ]
        finally:
            server.clear_away()
    return max(failed)


def kombu(place: Path, server: Server, more: list[str]) -> int:
    """Run the classes, with fixtures of ours."""
    root = sdists.unpacked(KOMBU, place)
    shutil.copy(ROOT / "tests/foreign/kombu_suite.py", root / "t/integration/test_catmq.py")
    environ = {"CATMQ_BROKER": url_of(server)}
    # as kombu does for Redis
    again = ("-p", "pytest_rerunfailures", "--reruns", "2", "--reruns-delay", "2")
    return pytest(root, environ, "t/integration/test_catmq.py", *again, *more)


def celery(place: Path, server: Server, more: list[str]) -> int:
    """Run the suites, then what needs other options."""
    root = sdists.unpacked(CELERY, place)
    shutil.rmtree(root / "celery")  # the installed one has its version and metadata
    (place / "sitecustomize.py").write_text("import catmq_client.contrib.kombu\n")
    options = root / "integration-tests-config.json"
    options.write_text(json.dumps({"broker_transport_options": IN_ORDER}))
    left_out = [word for test in LEFT_OUT for word in ("--deselect", test)]
    with redis.running(place) as port:
        environ = {
            "WORKER_LOGLEVEL": "INFO",
            "TEST_BACKEND": f"redis://127.0.0.1:{port}/0",
            "REDIS_PORT": str(port),
        }
        codes = []
        for number, suite in enumerate(SUITES):
            environ["TEST_BROKER"] = f"{url_of(server)}/celery{number}"
            codes.append(
                pytest(
                    root, environ, f"t/integration/{suite}.py", *left_out, *PLUGINS, *more
                )
            )
        options.write_text(
            json.dumps({"broker_transport_options": {**IN_ORDER, "native_eta": False}})
        )
        environ["TEST_BROKER"] = f"{url_of(server)}/eta"
        codes.append(pytest(root, environ, ETA, *PLUGINS, *more))
    return max(code for code in codes if code != NOTHING_CHOSEN or not more)


RUNS = {"kombu": kombu, "celery": celery}
PLUGINS = (
    "-p",
    "celery.contrib.pytest",
    "-p",
    "pytest_rerunfailures",
    "-p",
    "pytest_timeout",
)
NOTHING_CHOSEN = 5


def url_of(server: Server) -> str:
    return f"catmq://:{server.api_key}@127.0.0.1:{server.port}"


def pytest(root: Path, environ: Mapping[str, str], *words: str) -> int:
    """Run tests in a tree of others, without the plugins that are installed here."""
    paths = (root, root.parent, ROOT / "client/src", sdists.packages(*NEEDED))
    given = {
        name: value for name, value in os.environ.items() if not name.startswith("CATMQ_")
    }
    given |= {
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        **environ,
    }
    given["PATH"] = os.pathsep.join((str(Path(sys.executable).parent), given["PATH"]))
    ours = (
        "-q",
        "-ra",
        "-p",
        "no:cacheprovider",
        "-c",
        "/dev/null",
        "--rootdir",
        str(root),
    )
    command = (
        sys.executable,
        "-m",
        "pytest",
        *ours,
        "-o",
        "python_classes=test_* Test*",
        *words,
    )
    return subprocess.run(command, env=given, cwd=root, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
