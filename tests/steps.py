"""The steps of script/test: what each one runs, and the groups that they form.

`script/test` without a name runs `everyday`. `all` adds what takes long, and repeats
nothing: `everyday` marks single tests of slow folders, `servers.CORE` names files. Tests
that are neutral to the database engine are marked `one_engine` and run on SQLite only.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests import servers

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / ".test"  # reports, logs, and the data directory of checks
BIN = Path(sys.executable).parent
PYTHON = str(BIN / "python")


@dataclass(frozen=True)
class Step:
    """One command. `measured`: with --branches, the branches of the product that its own
    process takes count.

    `server` is the version of a database server to download for it.
    """

    name: str
    command: tuple[str, ...]
    environ: Mapping[str, str] = field(default_factory=dict)
    measured: bool = False
    server: str = ""


def tests(name: str, *arguments: str, measured: bool = False, **environ: str) -> Step:
    """Return a pytest run. A test that fails is tried once more, and 20 failures are enough
    to see.
    """
    options = (
        "-o",
        f"cache_dir={WORK / name}.cache",
        "--reruns",
        "1",
        "-rfER",
        "--maxfail",
        "20",
    )
    return Step(name, (PYTHON, "-m", "pytest", *options, *arguments), environ, measured)


def on_server(name: str, version: str) -> Step:
    """Return a suite of tests on a server of a version."""
    _, paths, options, engine = servers.SUITES[name]
    environ = {"CATMQ_TEST_ENGINE": engine, "CATMQ_TEST_SERVER": version}
    step = tests(f"{name}-{version or 'installed'}", *paths, *options, **environ)
    return replace(step, server=version)


def ignoring(paths: tuple[str, ...]) -> tuple[str, ...]:
    """Return pytest's options that leave these paths out."""
    return tuple(f"--ignore={path}" for path in paths)


def ruff(name: str, *arguments: str) -> Step:
    """Return a run of ruff on the files that git tracks: what else lies in a checkout is
    not ours.
    """
    patterns = (
        "*.py",
        "*.pyi",
        "script/bare",
        "script/cluster",
        "script/deployment",
        "script/image",
        "script/mariadb",
        "script/mysql",
    )
    git = subprocess.run(
        ["git", "ls-files", "-z", *patterns], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    tracked = [file for file in git.stdout.split("\0") if file and (ROOT / file).exists()]
    return Step(
        name, (str(BIN / "ruff"), *arguments, "--force-exclude", *(tracked or ["."]))
    )


java_tests = sorted((ROOT / "tests/contract").glob("test_java_*.py"))
OF_OTHER_CLIENTS = (*map(str, java_tests), "tests/contract/test_kombu.py")
# In the order of the folder: mixed_releases upgrades all nodes, and later tests leave dead
# ones.
ON_TWO_BROKERS = servers.files(
    "acceptance",
    "brokers",
    "mixed_releases",
    "outages",
    "portal_outages",
    "trials",
    "two_brokers",
)
# which has pages and commands
BELOW_SITE = ("tests/integration", "--ignore=tests/integration/site")
# doctests
WITH_EXAMPLES = (
    "metadata",
    "messagestore",
    "brokerapi",
    "portal",
    "catmq_site",
    "client/src",
)
MYPY_OF_TESTS = (
    *(str(BIN / "mypy"), "--config-file=tests/mypy.ini"),
    *("--package=tests", "--package=benchmarks"),
)
EVERYDAY = (  # the longest begin first, and short ones fill the gaps at the end
    tests("integration-sqlite", *BELOW_SITE, measured=True, CATMQ_TEST_ENGINE="sqlite"),
    tests("contract", "tests/contract", *ignoring(OF_OTHER_CLIENTS), measured=True),
    on_server("core", servers.INSTALLED),
    tests("unit", "tests/unit", *WITH_EXAMPLES, measured=True),
    Step("mypy", (str(BIN / "mypy"),)),
    Step("mypy-tests", MYPY_OF_TESTS),
    tests("main-job", "tests/acceptance/test_main_job.py", "-m", "everyday"),
    tests("spark-read", "tests/spark", "-m", "everyday"),
    tests("browser-pages", "tests/browser", "-m", "everyday"),
    tests("architecture", "tests/architecture"),
    Step("imports", (str(BIN / "lint-imports"),)),
    Step(
        "schema",
        (
            PYTHON,
            "manage.py",
            "spectacular",
            "--validate",
            "--fail-on-warn",
            "--file=/dev/null",
        ),
    ),
    Step("migrations", (PYTHON, "manage.py", "makemigrations", "--check", "--dry-run")),
    ruff("ruff", "check"),
    ruff("format", "format", "--check"),
)
ON_ONE_BROKER = tests(
    "acceptance-one-broker",
    "tests/acceptance",
    *ignoring(ON_TWO_BROKERS),
    *("-m", "not everyday"),
)
ACCEPTANCE = (ON_ONE_BROKER, tests("acceptance-two-brokers", *ON_TWO_BROKERS))
ON_MARIADB = ("tests/integration", *ignoring(servers.CORE), "-m", "not one_engine")
# Galera and Group Replication: 200 MB to download; skipped if they cannot be had. A group
# takes a minute to expel a member and to take it back. So `all` has only a Galera cluster:
# its writer is killed and cut off, and another member ends transactions. It takes a minute,
# and most of it waits.
ON_GALERA = tests(
    "clusters-short",
    "tests/clusters/test_addresses.py",
    "tests/clusters/test_former_writers.py",
    "tests/clusters/test_outcomes.py",
    *("-k", "galera and (kill or cut or statement or string or whole or beginning)"),
)
ON_CLUSTERS = tests(
    "clusters", "tests/clusters", "-m", "not rounds", "-k", "not (unknown and group)"
)
ROUNDS_ON_CLUSTERS = (
    tests("clusters-rounds", "tests/clusters", "-m", "rounds"),
    tests("clusters-group", "tests/clusters", "-k", "unknown and group"),
)
REST = (  # the longest first, too
    tests("integration-mysql", *ON_MARIADB, CATMQ_TEST_ENGINE="mysql"),
    *ACCEPTANCE,
    tests(
        "site-sqlite", "tests/integration/site", measured=True, CATMQ_TEST_ENGINE="sqlite"
    ),
    tests("spark", "tests/spark", "spark_tasks", "-m", "not everyday"),
    tests("browser", "tests/browser", "-m", "not everyday"),
    tests("contract-others", *OF_OTHER_CLIENTS),
    Step("interpreters", (PYTHON, "-m", "tests.interpreters")),
    Step("public-types", (PYTHON, "-m", "tests.public_types")),
    # FastAPI and uvicorn: 10 MB to download; skipped if they cannot be had
    tests("web", "tests/web"),
    ON_GALERA,
    Step(
        "docs",
        (str(BIN / "mkdocs"), "build", "-d", str(WORK / "docs")),
        {"NO_MKDOCS_2_WARNING": "1"},
    ),
)
IN_CI = tuple(
    on_server(suite, version)
    for version, suites in servers.IN_CI.items()
    for suite in suites
)
# which have the core in them
WHOLE_SUITES = tuple(name for name in servers.SUITES if name != "core")
GROUPS = {
    "everyday": EVERYDAY,
    "all": (*EVERYDAY, *REST),
    "acceptance": ACCEPTANCE,
    "clusters": (ON_CLUSTERS, *ROUNDS_ON_CLUSTERS),
    "core": tuple(on_server("core", version) for version in servers.IN_CI),
    "servers": tuple(
        on_server(suite, version) for version in servers.VERSIONS for suite in WHOLE_SUITES
    ),
    # clients of generators, and libraries of data engineers: 50 MB and 200 MB to download
    "servers-ci": (
        *IN_CI,
        tests("clients", "tests/clients"),
        tests("data", "tests/data"),
    ),
    # `all` has the oldest Python, its own, and the newest
    "interpreters-all": (
        Step("interpreters-all", (PYTHON, "-m", "tests.interpreters", "--all")),
    ),
    # OpenTelemetry: 5 MB to download; tests/unit/test_trace_context.py needs none of it
    "otel": (tests("otel", "tests/otel"),),
    "foreign": tuple(  # suites of other projects, downloaded
        Step(f"foreign-{name}", (PYTHON, "-m", f"tests.foreign.{name}"))
        for name in ("tasks", "native", "oldest", "celery")
    ),
}
STEPS = {step.name: step for group in GROUPS.values() for step in group}
# After all measured steps: the lowest share of branches is in pyproject.toml.
BRANCHES = Step(
    "branches",
    ("sh", "-c", f"{PYTHON} -m coverage combine -q; {PYTHON} -m coverage report"),
)
