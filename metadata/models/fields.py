"""Column types that behave alike on both engines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.db import models
from django.db.backends.base.base import BaseDatabaseWrapper

MAX_NAME = 210  # names given by users end at 100; `<group>_<topic>_fail` and `name~id` must fit too

if TYPE_CHECKING:
    _Text = models.CharField[str, str]
else:
    _Text = models.CharField  # Django's own class takes no type arguments


class NameField(_Text):
    """A CharField that compares byte by byte: `orders` and `Orders` are two names.

    SQLite does so by itself; MySQL and MariaDB need a binary collation, which is not named in the
    migration because SQLite does not know it.
    """

    def db_parameters(self, connection: BaseDatabaseWrapper) -> Any:
        """Add the binary collation on MySQL and MariaDB."""
        parameters: dict[str, Any] = dict(super().db_parameters(connection))
        if connection.vendor == "mysql":
            parameters["collation"] = "utf8mb4_bin"
        return parameters
