"""The environment of a test session, prepared before Django reads its settings.

`CATMQ_TEST_ENGINE=sqlite|mysql` (default sqlite) chooses the engine of metadata and of the
nodes that fixtures create. `CATMQ_TEST_SERVER=VERSION` chooses the server version, in the
notation of script/mysql; without it tests use the installed MariaDB. All data lives in a
temporary directory that is removed at the end.
"""

from __future__ import annotations

import atexit
import os
import random
import secrets
import shutil
import socket
import tempfile
from pathlib import Path

ENGINE = os.environ.get("CATMQ_TEST_ENGINE", "sqlite")
SERVER = os.environ.get("CATMQ_TEST_SERVER", "")
IS_MYSQL = SERVER.startswith(("8.", "9."))  # MariaDB's versions begin at 10
ROOT = Path(__file__).resolve().parent.parent.parent
PORTS = (10_000, 32_000)  # below the range from which the system assigns ports
HOME = Path(tempfile.mkdtemp(prefix="catmq-test-"))


def free_port() -> int:
    """Return a TCP port without a listener that the system does not assign to connections.

    A port that the system assigned could belong to another connection by the time a server
    binds it.
    """
    while True:
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", random.randrange(*PORTS)))
            except OSError:
                continue
            return int(probe.getsockname()[1])


MARIADB_PORT = free_port()
MARIADB_PASSWORD = secrets.token_hex(8)
MARIADB_URL = f"mysql://catmq:{MARIADB_PASSWORD}@127.0.0.1:{MARIADB_PORT}/catmq"


def prepare() -> None:
    """Replace all CATMQ_ settings of the caller's environment by those of the session."""
    if ENGINE not in ("sqlite", "mysql"):
        raise SystemExit(f"CATMQ_TEST_ENGINE must be sqlite or mysql, not {ENGINE!r}")
    atexit.register(shutil.rmtree, HOME, ignore_errors=True)
    kept_names = ("CATMQ_TEST_ENGINE", "CATMQ_TEST_SERVER")
    for name in [
        name for name in os.environ if name.startswith("CATMQ_") and name not in kept_names
    ]:
        del os.environ[name]
    os.environ["CATMQ_DATA_DIR"] = str(HOME / "var")
    # Node files of tests are in pytest's directories.
    os.environ["CATMQ_SQLITE_DIRS"] = tempfile.gettempdir()
    if ENGINE == "mysql":
        os.environ["CATMQ_DATABASE_URL"] = MARIADB_URL
    os.environ["DJANGO_SETTINGS_MODULE"] = "tests.support.settings"
