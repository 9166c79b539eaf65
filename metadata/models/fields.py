"""Column types that behave equally on all databases, and columns and constraints that several
tables have.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from django.db import models
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Q

# Names that users choose have at most 100 characters. Derived names must fit, too:
# `<group>_<topic>_fail`, and `name~id` of deleted objects.
MAX_NAME = 210

if TYPE_CHECKING:
    _Text = models.CharField[str, str]
else:
    _Text = models.CharField  # Django's own class takes no type arguments


class NameField(_Text):
    """A CharField that compares byte by byte: `orders` and `Orders` are two names.

    SQLite does so by itself; MySQL and MariaDB need a binary collation, which is not named
    in the migration because SQLite does not know it.
    """

    def db_parameters(self, connection: BaseDatabaseWrapper) -> Any:
        """Add the binary collation on MySQL and MariaDB."""
        parameters: dict[str, Any] = dict(super().db_parameters(connection))
        if connection.vendor == "mysql":
            parameters["collation"] = "utf8mb4_bin"
        return parameters


class NamedModel(models.Model):
    """A row with a unique name."""

    name = NameField(max_length=MAX_NAME, unique=True)

    class Meta:
        abstract = True
        ordering = ("name",)

    def __str__(self) -> str:
        return self.name


class OwnedModel(NamedModel):
    """A topic or a group, which has owners. Its name can be used again after it was deleted."""

    owners = models.CharField(max_length=1000, blank=True)
    department = models.CharField(max_length=200, blank=True)
    alarm_emails = models.CharField(max_length=1000, blank=True)
    description = models.TextField(blank=True)
    created_at = models.DateTimeField()
    deleted_at = models.DateTimeField(null=True, blank=True)

    class Meta(NamedModel.Meta):
        abstract = True


def enum_field(
    values: type[StrEnum],
    default: StrEnum | None = None,
    *,
    max_length: int = 10,
    db_default: StrEnum | None = None,
) -> _Text:
    """Return a column that holds a member of an enum. Forms show the member's name.

    `db_default` is the value of rows that an earlier release creates.
    """
    choices = [(member.value, member.name.replace("_", " ").title()) for member in values]
    # Migrations name plain values, so that they do not depend on the enum.
    options: dict[str, Any] = {} if default is None else {"default": default.value}
    if db_default is not None:
        options["db_default"] = db_default.value
    return models.CharField(max_length=max_length, choices=choices, **options)


def value_constraint(
    column: str, values: Iterable[str | int], *, name: str
) -> models.CheckConstraint:
    """Return the constraint that a column holds one of some values."""
    plain_values = tuple(getattr(value, "value", value) for value in values)
    return models.CheckConstraint(condition=Q(**{f"{column}__in": plain_values}), name=name)
