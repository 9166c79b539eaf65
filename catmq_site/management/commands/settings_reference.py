"""manage.py settings_reference: the page docs/reference/settings.md."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from django.core.management.base import BaseCommand

from metadata import config
from metadata.config import Config, meanings, variable_of

HEAD = """# Settings

Made from `metadata/config.py` by `manage.py settings_reference`; edit the comments there.
An empty variable counts as not set; an unknown one that begins with `CATMQ_` is refused at start.

| variable | default | meaning |
|---|---|---|"""


class Command(BaseCommand):
    requires_system_checks: list[str] = []  # noqa: RUF012  Django's own declaration
    help = "Prints a table of all settings in Markdown: their variables, defaults and meanings."

    def handle(self, *args: Any, **options: Any) -> None:
        self.stdout.write(page(), ending="")


def page() -> str:
    said = meanings()
    rows = [
        f"| `{variable_of(one.name)}` | {shown(one.default)} | {said[one.name]} |" for one in fields(Config)
    ]
    return "\n".join([HEAD, *rows, ""])


def shown(default: object) -> str:
    """A default as readers want it."""
    if default == config.HOME / "var":
        return "`var` beside `manage.py`"
    if default in ("", ()):
        return ""
    return f"`{str(default).lower() if isinstance(default, bool) else default}`"
