"""Steps of script/test: their commands, the order in which they begin, and groups of them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests import branches, servers

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / ".test"  # reports, output and the checks' own data directory
BIN = Path(sys.executable).parent
QUIET = {"NO_MKDOCS_2_WARNING": "1"}
ACCEPTANCE = "tests/acceptance"


@dataclass(frozen=True)
class Step:
    """One command; `budget_s` is what it should take, printed beside what it took."""

    name: str
    command: tuple[str, ...]
    budget_s: int
    environ: Mapping[str, str] = field(default_factory=dict)
    measured: bool = False

    @property
    def report(self) -> Path | None:
        """Where pytest writes its counts, None for other commands."""
        return WORK / f"{self.name}.xml" if "pytest" in self.command else None

    @property
    def server(self) -> str:
        """The version of the database server that it chooses, "" if it takes the installed one or none."""
        return self.environ.get("CATMQ_TEST_SERVER", "")

    @property
    def coverage(self) -> Path:
        """Where the branches that it took are written."""
        return WORK / f"{self.name}.branches.json"

    @property
    def measuring(self) -> tuple[str, ...]:
        """Its command, which also measures branches if it is to."""
        return branches.measuring(self.command, self.coverage) if self.measured else self.command

    @property
    def output(self) -> Path:
        """Where everything it prints is kept."""
        return WORK / f"{self.name}.log"


def tests(name: str, *paths: str, budget_s: int, measured: bool = False, **environ: str) -> Step:
    """A pytest run; what failed in it is remembered apart from other steps."""
    cache = f"cache_dir={WORK / name}.cache"
    command = (str(BIN / "python"), "-m", "pytest", "-o", cache, *paths)
    return Step(name, command, budget_s, environ, measured)


def manage(name: str, *arguments: str, budget_s: int = 10) -> Step:
    """A management command."""
    return Step(name, (str(BIN / "python"), "manage.py", *arguments), budget_s)


def on_server(name: str, suite: servers.Suite, version: str) -> Step:
    """A suite on a server of a version."""
    environ = {"CATMQ_TEST_ENGINE": suite.engine, "CATMQ_TEST_SERVER": version}
    return tests(f"{name}-{version or 'installed'}", *suite.paths, budget_s=suite.budget_s, **environ)


# Acceptance tests mostly wait: two steps of about the same length, by what they run on.
# In the order of the folder: mixed_releases upgrades all nodes, and later tests leave dead ones.
TWO_BROKERS = tuple(
    f"{ACCEPTANCE}/test_{name}.py"
    for name in ("brokers", "mixed_releases", "outages", "portal_outages", "trials", "two_brokers")
)
ONE_BROKER = (ACCEPTANCE, *(f"--ignore={path}" for path in TWO_BROKERS))
TIMED = (
    tests("acceptance-two-brokers", *TWO_BROKERS, budget_s=450),
    tests("acceptance-one-broker", *ONE_BROKER, budget_s=450),
)
# Clients of others mostly wait, too.
OTHERS = tuple(
    f"tests/contract/test_{name}.py"
    for name in (
        *("java_replay", "java_mixed_groups", "java_bad_input", "java_clients", "java_groups"),
        *("java_starts", "kombu"),
    )
)
CONTRACT = ("tests/contract", *(f"--ignore={path}" for path in OTHERS))
# In the gate the portal's and the admin's pages are rendered on MariaDB here, and on SQLite by the tests that
# use a browser or a server; with the other servers each of their tests runs on SQLite, too.
SITE = "tests/integration/site"
BELOW_SITE = ("tests/integration", f"--ignore={SITE}")
SITE_ON_SQLITE = tests("site-sqlite", SITE, budget_s=120, CATMQ_TEST_ENGINE="sqlite")
# In the order in which they begin: the longest first, and short ones last, so that no lane is left alone.
STEPS = (
    *TIMED,
    tests("integration-mysql", "tests/integration", budget_s=300, measured=True, CATMQ_TEST_ENGINE="mysql"),
    tests("integration-sqlite", *BELOW_SITE, budget_s=200, measured=True, CATMQ_TEST_ENGINE="sqlite"),
    tests("contract-others", *OTHERS, budget_s=240, measured=True),
    tests("spark", "tests/spark", "spark_tasks", budget_s=240),
    tests("contract", *CONTRACT, budget_s=180, measured=True),
    tests("browser", "tests/browser", budget_s=120),
    tests("unit", "tests/unit", "metadata/rules", budget_s=90, measured=True),
    Step("mypy", (str(BIN / "mypy"),), 120),
    tests("architecture", "tests/architecture", budget_s=60),
    Step("docs", (str(BIN / "mkdocs"), "build", "--site-dir", str(WORK / "docs")), 15, QUIET),
    Step("imports", (str(BIN / "lint-imports"),), 10),
    manage("schema", "spectacular", "--validate", "--fail-on-warn", "--file", "/dev/null"),
    manage("migrations", "makemigrations", "--check", "--dry-run"),
    Step("ruff", (str(BIN / "ruff"), "check"), 5),
    Step("format", (str(BIN / "ruff"), "format", "--check"), 5),
)
# The tests in which servers differ, on the other servers; the suites that CI runs there have them, too.
CORE = tuple(on_server("core", servers.CORE, version) for version in servers.IN_CI_ON)
# Of CI, not of the gate: it downloads 50 MB, and takes 40 s of processors the first time.
CLIENTS = tests("clients", "tests/clients", budget_s=180)
ON_SERVERS = {
    (suite, version): on_server(suite, servers.SUITES[suite], version)
    for version in (*servers.VERSIONS, servers.INSTALLED)
    for suite in servers.SUITES
}
# Suites of others, which are downloaded: not in the gate.
FOREIGN = (
    Step("foreign-tasks", (str(BIN / "python"), "-m", "tests.foreign.tasks"), 60),
    Step("foreign-native", (str(BIN / "python"), "-m", "tests.foreign.native"), 400),
    Step("foreign-oldest", (str(BIN / "python"), "-m", "tests.foreign.oldest"), 240),
    Step("foreign-celery", (str(BIN / "python"), "-m", "tests.foreign.celery"), 900),
)
GROUPS = {
    "gate": STEPS,
    "acceptance": TIMED,
    "core": CORE,
    "foreign": FOREIGN,
    "servers": (SITE_ON_SQLITE, *ON_SERVERS.values()),
    "servers-ci": (
        SITE_ON_SQLITE,
        CLIENTS,
        *(ON_SERVERS[suite, one] for one in servers.IN_CI_ON for suite in servers.IN_CI),
    ),
}


def everything() -> tuple[Step, ...]:
    """All steps there are."""
    return (*STEPS, *CORE, SITE_ON_SQLITE, CLIENTS, *FOREIGN, *ON_SERVERS.values())
