"""catmq doctor: its request, its output and its exit codes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from catmq_client.cli import main
from catmq_client.errors import Forbidden
from tests.support.canned import Canned

FINDING = {
    "severity": "error",
    "key": "flush",
    "kind": "node",
    "name": "main",
    "cause": "The server may lose messages.",
    "why": "A crash would lose them.",
    "remedy": "Run SET GLOBAL innodb_flush_log_at_trx_commit = 1.",
}
WARNING = {**FINDING, "severity": "warning", "kind": "alarm", "name": ""}


def report(exit_code: int, *findings: dict[str, Any]) -> dict[str, Any]:
    return {"exit_code": exit_code, "checks": 30, "findings": list(findings)}


def test_findings_have_a_cause_a_reason_and_a_remedy(
    capsys: pytest.CaptureFixture[str],
) -> None:
    canned = Canned({"GET doctor": report(2, FINDING, WARNING)})
    assert main(["doctor"], transport=canned) == 2
    out, err = capsys.readouterr()
    first, second = out.strip().split("\n\n")
    assert first.splitlines() == [
        "ERROR node main: The server may lose messages.",
        "  Why: A crash would lose them.",
        "  Do: Run SET GLOBAL innodb_flush_log_at_trx_commit = 1.",
    ]
    assert second.startswith("WARNING alarm: ")
    assert err == "30 checks: 1 errors, 1 warnings\n"


@pytest.mark.parametrize("exit_code", [0, 1, 2])
def test_the_report_as_json(capsys: pytest.CaptureFixture[str], exit_code: int) -> None:
    answer = report(exit_code, *([FINDING] if exit_code else []))
    assert main(["doctor", "--json"], transport=Canned({"GET doctor": answer})) == exit_code
    out, err = capsys.readouterr()
    assert (json.loads(out), err) == (answer, "")


def test_who_lacks_the_right_is_no_finding(capsys: pytest.CaptureFixture[str]) -> None:
    canned = Canned({"GET doctor": Forbidden("lacks the right admin", status=403)})
    assert main(["doctor"], transport=canned) == 5
    assert "lacks the right admin" in capsys.readouterr().err
