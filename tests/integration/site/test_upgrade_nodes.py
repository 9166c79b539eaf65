"""manage.py upgrade_nodes, and the schema version of a node in the portal: what they show,
how they end.
"""

from __future__ import annotations

from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from messagestore.nodes import registry
from metadata.actors import command
from metadata.cache import snapshot
from metadata.models import AuditLog
from tests.support.forms import browser, text
from tests.support.older_tables import columns, make_older, need

pytestmark = pytest.mark.one_engine

ME = command("test")


def upgrade(*arguments: str) -> tuple[int, str, str]:
    """(exit code, stdout, stderr with the error's text) of the command."""
    out, err = StringIO(), StringIO()
    try:
        call_command("upgrade_nodes", *arguments, stdout=out, stderr=err)
    except CommandError as error:
        return error.returncode, out.getvalue(), err.getvalue() + str(error)
    return 0, out.getvalue(), err.getvalue()


def test_a_dry_run_changes_nothing_and_a_run_is_audited_under_the_commands_name(
    node: str,
) -> None:
    info = make_older()
    code, out, _ = upgrade("--dry-run")
    assert code == 0 and "main  node_identity  2" in out
    assert "Node main would have schema version 3, before 1; tables to change: 1." in out
    assert columns(info, "node_identity") == ["identity"]
    assert upgrade("--node", "main", "--pause-ms", "0")[0] == 0
    assert AuditLog.objects.get(verb="upgrade").actor_name == "upgrade_nodes"
    assert "Node main has schema version 3; nothing to upgrade." in upgrade()[1]


def test_exit_codes_tell_what_was_wrong(node: str) -> None:
    assert upgrade("--node", "other")[0] == 1
    assert upgrade("--pause-ms", "-1")[0] == 1
    need(snapshot.find_node("main"), "9.1")
    code, out, err = upgrade()
    assert code == 3 and "Node main was not upgraded; tables changed: 0." in out
    assert (
        "main: Node main needs CatMQ >= 9.1" in err
        and "1 of 1 nodes could not be upgraded." in err
    )


@pytest.mark.parametrize("language", ["en", "zh-hans"])
def test_the_page_of_a_node_shows_its_version_and_what_to_do(
    node: str, language: str
) -> None:
    make_older()
    registry.probe()
    ada = browser("ada", administrator=True)
    ada.cookies["django_language"] = language
    assert "manage.py upgrade_nodes --node main" in text(ada.get("/nodes/main"))
    tested = text(ada.get("/nodes/main/test"))
    said = {"en": "Missing changes: 1", "zh-hans": "缺少 1 项变更"}
    assert said[language] in tested
    upgrade()
    registry.probe()
    assert "manage.py upgrade_nodes" not in text(ada.get("/nodes/main")) + text(
        ada.get("/nodes/main/test")
    )
