"""selftest.py: plants every defect in a clean run and prints how each is named;
CATMQ_TEST_ENGINE chooses the engine. Ends with 1 at the first one that is not named."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.support import environment, mariadb


@contextmanager
def prepared() -> Iterator[list[dict[str, Any]]]:
    """A metadata database and three databases for nodes, as those of the gate."""
    environment.prepare()
    import django

    django.setup()
    from django.test.utils import setup_databases, teardown_databases

    from tests.support import databases

    with ExitStack() as stack:
        if environment.ENGINE == "mysql":
            home, port = environment.HOME / "mariadb", environment.MARIADB_PORT
            password = environment.MARIADB_PASSWORD
            server = mariadb.start(
                home, port=port, password=password, options=mariadb.SMALL
            )
            stack.callback(server.stop)
            nodes = [stack.enter_context(databases.mysql_node(server)) for _ in range(3)]
        else:
            nodes = [
                stack.enter_context(databases.sqlite_node(environment.HOME))
                for _ in range(3)
            ]
        made = setup_databases(verbosity=0, interactive=False, serialized_aliases=[])
        stack.callback(teardown_databases, made, verbosity=0)
        yield nodes


def prove(nodes: list[dict[str, Any]], directory: Path) -> int:
    """Plants everything; how many defects there were."""
    from messagestore.nodes import registry
    from metadata import actors
    from metadata.cache import snapshot
    from tests.support import selftest
    from tests.support.clean_run import CleanRun

    kinds = {"n1": "normal", "n2": "normal", "failure": "failure"}
    for (name, kind), where in zip(kinds.items(), nodes, strict=True):
        settings = {"kind": kind, "dedicated": False, "capacity_gb": None, "unsafe": False}
        registry.register(name=name, actor=actors.command("selftest"), **settings, **where)
    snapshot.refresh()
    run = CleanRun(directory)
    run.play()
    count = 0
    for count, one in enumerate(selftest.prove_all(run), 1):
        sys.stdout.write(f"{count:3} {one}\n")
    return count


def main() -> int:
    """0 if all were named."""
    with prepared() as nodes:
        try:
            count = prove(nodes, environment.HOME / "journals")
        except AssertionError as error:
            sys.stdout.write(f"not named as it should be: {error}\n")
            return 1
    sys.stdout.write(
        f"nothing was found in a clean run, and all of {count} planted defects were named\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
