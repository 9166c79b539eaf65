"""Whether the metadata database can be migrated by this release."""

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

    Releases replace old migrations by a squashed one, and delete the old ones a release later.
    A database that has some of them then needs the release in between.
    """
    loader = MigrationLoader(None, load=False)
    loader.load_disk()
    applied = MigrationRecorder(connections[alias]).applied_migrations()
    if refusal := half_migrated(loader.disk_migrations, applied):
        raise Conflict(refusal)


def half_migrated(
    migrations: Mapping[Key, Migration], applied: Collection[Key]
) -> str | None:
    """Return why the migrations cannot continue from those that are applied, or None."""
    for key, migration in migrations.items():
        done = [replaced for replaced in migration.replaces if replaced in applied]
        missing = [
            replaced
            for replaced in migration.replaces
            if replaced not in applied and replaced not in migrations
        ]
        if done and missing and key not in applied:
            return (
                f"The metadata database is at migration {done[-1][1]} of {key[0]}, and this "
                f"release no longer has {missing[0][1]}, which comes next. Install the release "
                "before this one, run `manage.py prepare` there, and then upgrade to this one."
            )
    return None
