"""The environment of a test session, set before Django reads its settings.

`CATMQ_TEST_ENGINE=sqlite|mysql` (default sqlite) chooses the engine of metadata and of the
nodes that fixtures make. `CATMQ_TEST_SERVER=VERSION` is that of the server, as script/mysql
takes it; without it, the MariaDB that is installed. Everything lives in a temporary
directory, removed at the end.
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
PORTS = (10_000, 32_000)  # below what the system chooses from for connections
HOME = Path(tempfile.mkdtemp(prefix="catmq-test-"))


def free_port() -> int:
    """A TCP port that nobody listens on, and that the system gives to no connection
    meanwhile.

    A port that the system chose could be that of somebody's connection by the time a server
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
    """Replaces every CATMQ_ setting of the caller's environment by the session's own."""
    if ENGINE not in ("sqlite", "mysql"):
        raise SystemExit(f"CATMQ_TEST_ENGINE must be sqlite or mysql, not {ENGINE!r}")
    atexit.register(shutil.rmtree, HOME, ignore_errors=True)
    chosen = ("CATMQ_TEST_ENGINE", "CATMQ_TEST_SERVER")
    for name in [
        name for name in os.environ if name.startswith("CATMQ_") and name not in chosen
    ]:
        del os.environ[name]
    os.environ["CATMQ_DATA_DIR"] = str(HOME / "var")
    # nodes of tests lie in pytest's directories
    os.environ["CATMQ_SQLITE_DIRS"] = tempfile.gettempdir()
    if ENGINE == "mysql":
        os.environ["CATMQ_DATABASE_URL"] = MARIADB_URL
    os.environ["DJANGO_SETTINGS_MODULE"] = "tests.support.settings"
