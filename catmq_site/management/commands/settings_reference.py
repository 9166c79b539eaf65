"""manage.py settings_reference: pages and data made from the declarations of settings."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from django.apps import apps
from django.core.management.base import BaseCommand, CommandParser
from django.db.models import Model

from brokerapi import client_types, docs
from metadata import config
from metadata.config import Config, setting_comments, variable_name
from metadata.rules.grants import ACCOUNTS
from metadata.rules.setting_types import Setting
from metadata.rules.settings import GROUP, KEY, SUBSCRIPTION, TOPIC

HEAD = """# Settings

Made from `metadata/config.py` by `manage.py settings_reference`; edit the comments there.
An empty variable counts as not set; an unknown one that begins with `CATMQ_` is refused at start.

| variable | default | meaning |
|---|---|---|"""
DECLARED_HEAD = """# Settings of topics, groups, subscriptions and keys

Made from `metadata/rules/settings.py` and `metadata/rules/groups/delivery.py` by `manage.py
settings_reference --write`. The names are those of the API. Values may change at any time."""
COLUMNS = ("| setting | default | values | meaning |", "|---|---|---|---|")
GRANTS_HEAD = """# Rights of database accounts

Made from `metadata/rules/grants.py` by `manage.py settings_reference --write`. `manage.py grants`
with `node`, `promotion`, `reader`, `backup` or `metadata` prints the statements. Tests run
everything with exactly these rights, and take each away once. A node's account that lacks a right
is told which, with the statement that grants it."""
GRANTS_COLUMNS = ("| MariaDB | MySQL | scope | needed for |", "|---|---|---|---|")
TABLES_MARK = "## Tables of metadata\n"
TABLES_HEAD = """
Made from `metadata/models` by `manage.py settings_reference --write`. These tables lie in the
metadata database, with those of Django for users and sessions. They may be read; only brokers and
commands may write. Releases add columns and tables, and [migrations](../how-to/upgrade.md) make
them. An arrow names the table to which a column refers. Passwords of nodes are encrypted, and of
API keys only a hash is stored.

| table | a row is | columns |
|---|---|---|"""
NOUNS: Mapping[str, Mapping[str, Setting]] = {
    "topic": TOPIC,
    "group": GROUP,
    "subscription": SUBSCRIPTION,
    "key": KEY,
}


class Command(BaseCommand):
    """Prints the reference of the server's settings, or writes all that is made from
    declarations.
    """

    requires_system_checks: list[str] = []  # noqa: RUF012  Django's own declaration
    help = (
        "Prints the page of the server's settings. With --write, writes that page, the page of the "
        "settings of topics, groups, subscriptions and keys, that of the rights of "
        "accounts, the tables "
        "of metadata, and the settings file of the client."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Adds --write."""
        parser.add_argument(
            "--write", action="store_true", help="write the files instead of printing"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Prints the page, or writes the files."""
        if not options["write"]:
            self.stdout.write(page(), ending="")
            return
        for path, text in files().items():
            path.write_text(text)
            self.stdout.write(str(path))


def files() -> dict[Path, str]:
    """Return the files that are made from declarations."""
    return {
        config.HOME / "docs/reference/settings.md": page(),
        config.HOME / "docs/reference/declared-settings.md": declared_page(),
        config.HOME / "docs/reference/grants.md": grants_page(),
        (tables := config.HOME / "docs/reference/tables.md"): tables_page(
            tables.read_text()
        ),
        config.HOME / "client/src/catmq_client/cli/settings.json": client_table(),
        config.HOME / "client/src/catmq_client/admin/shapes.py": client_types.module(
            json.loads(docs.schema("json", packed=False))["components"]["schemas"]
        ),
    }


def page() -> str:
    """Return the page of the server's settings."""
    said = setting_comments()
    rows = [
        f"| `{variable_name(one.name)}` | {shown(one.default)} | {said[one.name]} |"
        for one in fields(Config)
    ]
    return "\n".join([HEAD, *rows, ""])


def shown(default: object) -> str:
    """A default as readers want it."""
    if default == config.HOME / "var":
        return "`var` beside `manage.py`"
    if default in ("", (), None):
        return ""
    if isinstance(default, tuple):
        return f"`{', '.join(map(str, default))}`"
    return f"`{str(default).lower() if isinstance(default, bool) else default}`"


def declared_page() -> str:
    """Return the page of the settings of topics, groups, subscriptions and keys."""
    lines = [DECLARED_HEAD]
    for noun, settings in NOUNS.items():
        lines += ["", f"## {noun.capitalize()}", "", *COLUMNS]
        for one in settings.values():
            unit = getattr(one.kind, "unit", "")
            empty = (
                one.kind.null
                and f" {'null' if one.default is None else 'Empty'}: {one.kind.null}."
            )
            meaning = f"{one.label}{unit and f', {unit}'}. {one.help}{empty}".strip()
            lines.append(
                f"| `{one.name}` | {shown(one.default)} | {one.kind.range()} | {meaning} |"
            )
    return "\n".join([*lines, ""]).replace("||, ", "\\|\\|, ").replace("|| or", "\\|\\| or")


def grants_page() -> str:
    """Return the page of the rights that accounts need."""
    lines = [GRANTS_HEAD]
    for name, (purpose, needed) in ACCOUNTS.items():
        lines += ["", f"## {name.capitalize()}", "", f"For {purpose}.", "", *GRANTS_COLUMNS]
        for one in needed:
            names = (
                f"`{given}`" if given else "-"
                for given in (one.right, one.mysql or one.right)
            )
            scope = f"{one.scope}, optional" if one.optional else one.scope
            lines.append(f"| {' | '.join(names)} | {scope} | {one.why} |")
    return "\n".join([*lines, ""])


def summary(model: type[Model]) -> str:
    """Return the first paragraph of a model's docstring on one line."""
    return " ".join((model.__doc__ or "").partition("\n\n")[0].split())


def tables_page(before: str) -> str:
    """Return the page of tables with the tables of metadata at its end; the rest is as it
    was `before`.
    """
    models = sorted(
        apps.get_app_config("metadata").get_models(), key=lambda model: model._meta.db_table
    )
    rows = [
        f"| `{model._meta.db_table}` | {summary(model)} | "
        f"{', '.join(map(column, model._meta.concrete_fields))} |"
        for model in models
    ]
    return "\n".join(
        [before.partition(TABLES_MARK)[0] + TABLES_MARK + TABLES_HEAD, *rows, ""]
    )


def column(field: Any) -> str:
    """Return the name of a column, and of the table that it refers to."""
    other = field.related_model._meta.db_table if field.related_model else ""
    return f"`{field.column}`" + (f" → `{other}`" if other else "")


def client_table() -> str:
    """Return the declarations as JSON, by noun, for the options of the client's command
    line.
    """
    told = {
        noun: [_told(one) for one in settings.values()] for noun, settings in NOUNS.items()
    }
    return json.dumps(told, indent=1, ensure_ascii=False) + "\n"


def _told(one: Setting) -> dict[str, Any]:
    kind = {
        name: value
        for name, value in asdict(one.kind).items()
        if value is not False and value != ""
    }
    for server_only in ("check", "separator"):
        kind.pop(server_only, None)
    return {
        "name": one.name,
        "kind": type(one.kind).__name__.lower(),
        "label": one.label,
        "help": one.help,
        "default": one.default,
        **kind,
    }
