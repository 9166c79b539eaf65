"""The squashed migration of metadata: new, half-migrated and migrated databases."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from django.db import connections
from django.db.migrations.executor import MigrationExecutor
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder
from django.db.utils import load_backend

from metadata.db.migration_state import check_can_migrate, why_not_migratable
from metadata.errors import Conflict

pytestmark = pytest.mark.one_engine
SQUASHED = "0001_squashed_0044_delayed_messages_of_nodes"
ALIAS = "default"


@pytest.fixture
def empty_database(tmp_path: Path, django_db_blocker: Any) -> Iterator[Path]:
    """A file of SQLite without tables in the place of the metadata database."""
    file = tmp_path / "metadata.sqlite3"
    usual = connections[ALIAS]
    settings: dict[str, Any] = {**usual.settings_dict, "NAME": str(file)}
    connection = load_backend(settings["ENGINE"]).DatabaseWrapper(settings, ALIAS)
    connections[ALIAS] = connection
    try:
        with django_db_blocker.unblock():
            yield file
    finally:
        connection.close()
        connections[ALIAS] = usual


def migrate(*targets: str, replaced: bool = False) -> None:
    """Migrate metadata; `replaced`: by the migrations that the squashed one replaces."""
    executor = MigrationExecutor(connections[ALIAS])
    if replaced:
        executor.loader = MigrationLoader(connections[ALIAS], replace_migrations=False)
        squashed = executor.loader.graph.nodes.pop(("metadata", SQUASHED), None)
        assert squashed is not None
    executor.migrate([("metadata", target) for target in targets])


def applied() -> set[str]:
    return {
        name
        for app, name in MigrationRecorder(connections[ALIAS]).applied_migrations()
        if app == "metadata"
    }


def tables(file: Path) -> dict[str, set[tuple[str, str, int]]]:
    """Name, type and nullability of each column, by table."""
    with closing(sqlite3.connect(file)) as database:
        names = [
            name
            for (name,) in database.execute(
                "SELECT name FROM sqlite_master WHERE type = 'table' AND name LIKE 'metadata_%'"
            )
        ]
        return {
            name: {row[1:4] for row in database.execute(f"PRAGMA table_info({name})")}
            for name in names
        }


def incarnation(file: Path) -> str:
    with closing(sqlite3.connect(file)) as database:
        ((value,),) = database.execute("SELECT incarnation FROM metadata_changecounter")
    return str(value)


def test_a_new_database_is_made_in_one_step_and_has_all_migrations(
    empty_database: Path,
) -> None:
    check_can_migrate()
    migrate(SQUASHED)
    replaced = [name for _, name in disk()["metadata", SQUASHED].replaces]
    assert applied() == {SQUASHED, *replaced}
    assert incarnation(empty_database)


@pytest.mark.parametrize(
    "last", ["0018_alarms_and_mails", "0044_delayed_messages_of_nodes"]
)
def test_an_existing_database_keeps_its_rows_and_gets_the_same_tables(
    empty_database: Path, tmp_path: Path, last: str
) -> None:
    migrate(last, replaced=True)
    before = incarnation(empty_database)
    check_can_migrate()
    # A half-migrated database goes on with the old migrations, then has the squashed one, too.
    newest = MigrationExecutor(connections[ALIAS]).loader.graph.leaf_nodes("metadata")
    migrate(*(name for _, name in newest))
    assert incarnation(empty_database) == before
    old = tables(empty_database)
    connections[ALIAS].close()
    empty_database.unlink()
    migrate(*(name for _, name in newest))
    assert tables(empty_database) == old


def disk() -> dict[tuple[str, str], Any]:
    loader = MigrationLoader(None, load=False)
    loader.load_disk()
    return dict(loader.disk_migrations)


def test_a_half_migrated_database_is_refused_in_words_once_the_old_migrations_are_gone(
    empty_database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    migrate("0018_alarms_and_mails", replaced=True)
    later = {
        key: migration
        for key, migration in disk().items()
        if key[0] != "metadata" or key[1] == SQUASHED
    }
    monkeypatch.setattr(
        MigrationLoader, "load_disk", lambda self: setattr(self, "disk_migrations", later)
    )
    with pytest.raises(Conflict) as caught:
        check_can_migrate()
    assert "is at migration 0018_alarms_and_mails of metadata" in caught.value.detail
    assert "0020_topic_routings, which comes next. Install the release before" in (
        caught.value.detail
    )
    replaced = later["metadata", SQUASHED].replaces
    assert why_not_migratable(later, []) is None
    assert why_not_migratable(later, replaced) is None
