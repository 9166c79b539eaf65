"""manage.py settings_reference: writes reference pages and data files from the declarations
of settings.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from django.apps import apps
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db.models import Model

from brokerapi import client_types, docs
from metadata import installation
from metadata.config import Config, setting_comments, variable_name
from metadata.rules.grants import ACCOUNTS
from metadata.rules.setting_types import Setting
from metadata.rules.settings import GROUP, KEY, SUBSCRIPTION, TOPIC

HEAD = """# Settings

Made from `metadata/config.py` by `manage.py settings_reference`; edit the comments there.
An empty variable counts as not set; an unknown one that begins with `CATMQ_` is refused at start.

A secret may be in a file: {files}
name files with the values, as do `CATMQ_NODE_<NAME>_URL_FILE` and `CATMQ_NODE_<NAME>_PASSWORD_FILE`
for commands. [How-to](../how-to/install-the-server.md#secrets-in-files): which files are refused.

| variable | default | meaning |
|---|---|---|"""
DECLARED_HEAD = """# Settings of topics, groups, subscriptions and keys

Made from `metadata/rules/settings.py` and `metadata/rules/groups/delivery.py` by `manage.py
settings_reference --write`. The names are those of the API. Values may change at any time."""
COLUMNS = ("| setting | default | values | meaning |", "|---|---|---|---|")
GRANTS_HEAD = """# Rights of database accounts

Made from `metadata/rules/grants.py` by `manage.py settings_reference --write`. `manage.py grants`
with `node`, `promotion`, `group`, `reader`, `backup` or `metadata` prints the statements. Tests run
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
    """Prints the reference of the server's settings, or writes all files that are generated
    from declarations.
    """

    requires_system_checks: list[str] = []  # noqa: RUF012  Django's own declaration
    help = (
        "Prints the page of the server's settings. With --write, writes that page, the "
        "page of the settings of topics, groups, subscriptions and keys, that of the "
        "rights of accounts, the tables of metadata, and the settings file of the "
        "client."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Adds --write."""
        parser.add_argument(
            "--write", action="store_true", help="write the files instead of printing"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Prints the page, or writes the files."""
        if not options["write"]:
            self.stdout.write(format_settings_page(), ending="")
            return
        if not installation.IS_CHECKOUT:
            raise CommandError("The files of --write are only in a checkout.")
        for path, text in generate_files().items():
            path.write_text(text)
            self.stdout.write(str(path))


def generate_files() -> dict[Path, str]:
    """Return the contents of all generated files, by path."""
    return {
        installation.HOME / "docs/reference/settings.md": format_settings_page(),
        installation.HOME / "docs/reference/declared-settings.md": format_declared_page(),
        installation.HOME / "docs/reference/grants.md": format_grants_page(),
        (tables := installation.HOME / "docs/reference/tables.md"): replace_tables(
            tables.read_text()
        ),
        installation.HOME
        / "client/src/catmq_client/cli/settings.json": format_client_settings(),
        installation.HOME / "client/src/catmq_client/admin/shapes.py": client_types.module(
            json.loads(docs.schema("json", packed=False))["components"]["schemas"]
        ),
    }


def format_settings_page() -> str:
    """Return the page of the server's settings."""
    comments = setting_comments()
    rows = [
        f"| `{variable_name(setting.name)}` | {format_default(setting.default)} | "
        f"{comments[setting.name]} |"
        for setting in fields(Config)
    ]
    files = [
        f"`{variable_name(setting.name)}_FILE`"
        for setting in fields(Config)
        if not setting.repr
    ]
    return "\n".join([HEAD.format(files=", ".join(files)), *rows, ""])


def format_default(default: object) -> str:
    """Return a default in the form that readers type."""
    if default == installation.DATA_DIR:
        return "`var` beside `manage.py`; of an installed server `/var/lib/catmq`"
    if default in ("", (), None):
        return ""
    if isinstance(default, tuple):
        return f"`{', '.join(map(str, default))}`"
    return f"`{str(default).lower() if isinstance(default, bool) else default}`"


def format_declared_page() -> str:
    """Return the page of the settings of topics, groups, subscriptions and keys."""
    lines = [DECLARED_HEAD]
    for noun, settings in NOUNS.items():
        lines += ["", f"## {noun.capitalize()}", "", *COLUMNS]
        for setting in settings.values():
            unit = getattr(setting.kind, "unit", "")
            empty = (
                setting.kind.null
                and f" {'null' if setting.default is None else 'Empty'}: {setting.kind.null}."
            )
            meaning = (
                f"{setting.label}{unit and f', {unit}'}. {setting.help}{empty}".strip()
            )
            lines.append(
                f"| `{setting.name}` | {format_default(setting.default)} | "
                f"{setting.kind.range()} | {meaning} |"
            )
    return "\n".join([*lines, ""]).replace("||, ", "\\|\\|, ").replace("|| or", "\\|\\| or")


def format_grants_page() -> str:
    """Return the page of the rights that accounts need."""
    lines = [GRANTS_HEAD]
    for name, (purpose, grants) in ACCOUNTS.items():
        lines += ["", f"## {name.capitalize()}", "", f"For {purpose}.", "", *GRANTS_COLUMNS]
        for grant in grants:
            names = (
                f"`{right}`" if right else "-"
                for right in (grant.right, grant.mysql or grant.right)
            )
            scope = f"{grant.scope}, optional" if grant.optional else grant.scope
            lines.append(f"| {' | '.join(names)} | {scope} | {grant.why} |")
    return "\n".join([*lines, ""])


def summarize_model(model: type[Model]) -> str:
    """Return the first paragraph of a model's docstring on a single line."""
    return " ".join((model.__doc__ or "").partition("\n\n")[0].split())


def replace_tables(old_page: str) -> str:
    """Return the page of tables with a new list of metadata tables at its end. The rest
    stays as in `old_page`.
    """
    models = sorted(
        apps.get_app_config("metadata").get_models(), key=lambda model: model._meta.db_table
    )
    rows = [
        f"| `{model._meta.db_table}` | {summarize_model(model)} | "
        f"{', '.join(map(format_column, model._meta.concrete_fields))} |"
        for model in models
    ]
    return "\n".join(
        [old_page.partition(TABLES_MARK)[0] + TABLES_MARK + TABLES_HEAD, *rows, ""]
    )


def format_column(field: Any) -> str:
    """Return the name of a column, and the table that it refers to."""
    referenced_table = field.related_model._meta.db_table if field.related_model else ""
    return f"`{field.column}`" + (f" → `{referenced_table}`" if referenced_table else "")


def format_client_settings() -> str:
    """Return the declarations as JSON by noun, for the options of the client's command
    line.
    """
    settings_of_noun = {
        noun: [_setting_as_json(setting) for setting in settings.values()]
        for noun, settings in NOUNS.items()
    }
    return json.dumps(settings_of_noun, indent=1, ensure_ascii=False) + "\n"


def _setting_as_json(setting: Setting) -> dict[str, Any]:
    # The client reads these fields by other names (catmq_client.cli.declared).
    client_names = {"minimum": "least", "maximum": "most", "meanings": "words"}
    kind = {
        client_names.get(name, name): value
        for name, value in asdict(setting.kind).items()
        if value is not False and value != ""
    }
    for server_only in ("check", "separator"):
        kind.pop(server_only, None)
    return {
        "name": setting.name,
        "kind": type(setting.kind).__name__.lower(),
        "label": setting.label,
        "help": setting.help,
        "default": setting.default,
        **kind,
    }
