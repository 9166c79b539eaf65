"""The application of the commands and of the other name of the rows."""

from __future__ import annotations

from django.apps import AppConfig


class ShimConfig(AppConfig):
    """The shim."""

    name = "tests.foreign.shim"
    label = "foreign_shim"
