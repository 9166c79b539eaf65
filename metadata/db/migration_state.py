"""Checks whether this release can migrate the metadata database."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from django.db import connections
from django.db.migrations import Migration
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder

from metadata.errors import Conflict

Key = tuple[str, str]  # label of the app, name of the migration


def check_can_migrate(*, alias: str = "default") -> None:
    """Raise Conflict if the database is at a state that only an earlier release can migrate.

    A release replaces old migrations by a squashed one, and the next release deletes the old
    ones. A database that has only some of the old ones must first be migrated by the release
    in between, which has both.
    """
    loader = MigrationLoader(None, load=False)
    loader.load_disk()
    applied = MigrationRecorder(connections[alias]).applied_migrations()
    if reason := why_not_migratable(loader.disk_migrations, applied):
        raise Conflict(reason)


def why_not_migratable(
    migrations: Mapping[Key, Migration], applied: Collection[Key]
) -> str | None:
    """Return the text for the operator if a database cannot be migrated, None if it can.

    `migrations` are those of this release, `applied` those that the database has.
    """
    for key, migration in migrations.items():
        applied_old = [old for old in migration.replaces if old in applied]
        # Old migrations that the database still needs, and that this release has deleted.
        deleted_old = [
            old
            for old in migration.replaces
            if old not in applied and old not in migrations
        ]
        # With none of the old ones applied, the squashed migration itself can be applied.
        if applied_old and deleted_old and key not in applied:
            return (
                f"The metadata database is at migration {applied_old[-1][1]} of {key[0]}, and this "
                f"release no longer has {deleted_old[0][1]}, which comes next. Install the release "
                "before this one, run `manage.py prepare` there, and then upgrade to this one."
            )
    return None


def compare_migrations(*, alias: str = "default") -> tuple[list[Key], list[Key]]:
    """Return the migrations that the database lacks, and those that this release lacks.

    A squashed migration counts as applied if all that it replaces are applied.
    """
    loader = MigrationLoader(connections[alias])
    applied = loader.applied_migrations
    missing = [
        key
        for key in loader.graph.nodes
        if key not in applied and key[0] != "django_q"  # on SQLite in a file of its own
    ]
    recorded = MigrationRecorder(connections[alias]).applied_migrations()
    replaced = {
        old for migration in loader.disk_migrations.values() for old in migration.replaces
    }
    own_apps = {app for app, _ in loader.disk_migrations}
    unknown = [
        key
        for key in recorded
        # Rows of an app that was removed are no sign of a later release.
        if key[0] in own_apps and key not in loader.disk_migrations and key not in replaced
    ]
    return sorted(missing), sorted(unknown)


def read_isolation(*, alias: str = "default") -> str:
    """Return the isolation level of a connection, such as READ-COMMITTED; "" on SQLite."""
    connection = connections[alias]
    if connection.vendor != "mysql":
        return ""
    with connection.cursor() as cursor:
        # MariaDB had another name for it up to 11.1; MySQL never had that since 8.0.
        cursor.execute(
            "SHOW SESSION VARIABLES WHERE Variable_name IN ('transaction_isolation', "
            "'tx_isolation')"
        )
        return str(cursor.fetchall()[0][1])


def database_name(*, alias: str = "default") -> str:
    """Return the name of the schema, or the path of the file, that Django uses."""
    return str(connections[alias].settings_dict["NAME"])
