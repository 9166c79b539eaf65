"""Actions that cannot be taken back are asked for at a terminal, and need --yes where there
is none.
"""

from __future__ import annotations

import io

import pytest

from catmq_client.cli import main
from tests.support.canned import Canned

DELETIONS = {
    "topic delete orders": "DELETE topics/orders",
    "group delete billing": "DELETE groups/billing",
    "broker forget b1": "DELETE brokers/b1",
    "dlq drop billing --all": "DELETE groups/billing/dead",
    "unsubscribe billing orders": "DELETE groups/billing/subscriptions/orders",
}


@pytest.mark.parametrize("call", DELETIONS)
def test_without_a_terminal_nothing_is_deleted_unless_yes_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], call: str
) -> None:
    canned = Canned({DELETIONS[call]: {"dropped": 1}})
    monkeypatch.setattr(
        "sys.stdin", io.StringIO("orders\nbilling\n")
    )  # as of a pipe: no answer to a question
    assert main(call.split(), transport=canned) == 1
    assert canned.requests == [] and "give --yes" in capsys.readouterr().err
    assert main([*call.split(), "--yes"], transport=canned) == 0
    assert len(canned.requests) == 1
