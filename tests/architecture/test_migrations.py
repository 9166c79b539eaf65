"""Migrations of metadata only add, so that brokers of the previous release go on with what
this one made.

A column or table goes in two steps. One release stops using it; the release after that
removes it, with a row in ALLOWED. A new column has a default in the database, or may be
null: the previous release inserts rows without it.
"""

from __future__ import annotations

from importlib import import_module

import pytest
from django.db import migrations, models
from django.db.migrations.operations.base import Operation
from django.db.models.fields import NOT_PROVIDED

from tests.support.environment import ROOT

FIRST = "0028"  # those before it were made before the first release that had one before it
ADDING = (
    migrations.CreateModel,
    migrations.AddIndex,
    migrations.RemoveIndex,
    migrations.RemoveConstraint,
    migrations.AlterModelOptions,
)
# (migration, operation as Django describes it): why the previous release goes on working.
ALLOWED: dict[tuple[str, str], str] = {
    ("0028_tls_of_nodes", "Create constraint db_node_tls on model dbnode"): (
        "the previous release writes no tls, and the default is one of the values"
    ),
    ("0029_share_groups", "Create constraint group_mode on model consumergroup"): (
        "it takes one value more than the one it replaces"
    ),
    (
        "0029_share_groups",
        "Alter field mode on consumergroup",
    ): "only the choices that forms offer",
    ("0047_key_index", "Create constraint queue_key_index on model queue"): (
        "the previous release writes no key_index, and the default is one of the values"
    ),
    ("0045_writers", "Alter field host on dbnode"): "the column only gets wider",
    ("0045_writers", "Alter field replica_host on dbnode"): "the column only gets wider",
    ("0045_writers", "Alter field kind on alarm"): "only the choices that forms offer",
    ("0045_writers", "Create constraint alarm_kind on model alarm"): (
        "it takes one value more than the one it replaces"
    ),
    (
        "0046_copies_of_nodes",
        "Alter field kind on alarm",
    ): "only the choices that forms offer",
    ("0046_copies_of_nodes", "Create constraint alarm_kind on model alarm"): (
        "it takes one value more than the one it replaces"
    ),
    (
        "0048_metadata_moved",
        "Alter field kind on alarm",
    ): "only the choices that forms offer",
    ("0048_metadata_moved", "Create constraint alarm_kind on model alarm"): (
        "it takes one value more than the one it replaces"
    ),
}


def refused(name: str, operation: Operation) -> str:
    """Return why the previous release might not work after an operation; "" if it does."""
    if isinstance(operation, ADDING) or (name, operation.describe()) in ALLOWED:
        return ""
    if isinstance(operation, migrations.AddField):
        field = operation.field
        if (
            isinstance(field, models.ManyToManyField)
            or field.null
            or field.db_default is not NOT_PROVIDED
        ):
            return ""
        return f"{name}: {operation.describe()}: needs db_default or null"
    return f"{name}: {operation.describe()}: not additive"


def test_migrations_add_and_never_take_away() -> None:
    names = sorted(path.stem for path in (ROOT / "metadata/migrations").glob("[0-9]*.py"))
    later = [name for name in names if name >= FIRST]
    found = [
        refused(name, operation)
        for name in later
        for operation in import_module(f"metadata.migrations.{name}").Migration.operations
    ]
    assert [one for one in found if one] == []


@pytest.mark.parametrize(
    "operation",
    [
        migrations.RemoveField("dbnode", "host"),
        migrations.DeleteModel("DbNode"),
        migrations.RenameField("dbnode", "host", "place"),
        migrations.RenameModel("DbNode", "Node"),
        migrations.AlterField("dbnode", "host", models.CharField(max_length=1)),
        migrations.AddField("dbnode", "place", models.CharField(max_length=1, default="")),
        migrations.RunSQL("SELECT 1"),
    ],
)
def test_what_the_previous_release_may_not_stand_is_refused(operation: Operation) -> None:
    assert refused("0028_x", operation)


def test_a_column_with_a_default_in_the_database_is_taken() -> None:
    added = models.CharField(max_length=1, default="", db_default="")
    assert refused("0028_x", migrations.AddField("dbnode", "place", added)) == ""
