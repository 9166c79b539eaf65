"""catmq export and import: what is asked, printed, ended with."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from catmq_client.cli import main
from catmq_client.errors import Conflict
from tests.support.canned import Canned

DOCUMENT: dict[str, Any] = {
    "version": 1,
    "topics": [{"name": "orders"}],
    "groups": [],
    "subscriptions": [],
}


def step(outcome: str, **more: Any) -> dict[str, Any]:
    named = {"place": "topics[0]", "kind": "topic", "name": "orders", "outcome": outcome}
    return {**named, "problem": "", "differences": [], **more}


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "definitions.json"
    path.write_text(json.dumps(DOCUMENT))
    return str(path)


def test_an_export_is_json_that_can_be_read_again(
    capsys: pytest.CaptureFixture[str],
) -> None:
    canned = Canned({"GET export": DOCUMENT})
    assert main(["export", "--topic", "ord*"], transport=canned) == 0
    assert canned.requests[0].params == {"topic": "ord*"}
    out, err = capsys.readouterr()
    assert json.loads(out) == DOCUMENT
    assert "exported: 1 topics, 0 groups, 0 subscriptions" in err


def test_an_import_without_apply_asks_for_a_preview_only(
    file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    canned = Canned({"POST import": {"dry_run": True, "steps": [step("create")]}})
    assert main(["import", file], transport=canned) == 0
    (asked,) = canned.requests
    assert asked.body == {"document": DOCUMENT, "existing": "refuse", "dry_run": True}
    out, err = capsys.readouterr()
    assert "topics[0]  topic  orders  create" in out
    assert "create 1; nothing was done. Do it: --apply" in err


def test_an_import_with_apply_is_previewed_and_done(
    file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    differs = step(
        "change", differences=[{"field": "retention_days", "here": 7, "there": 3}]
    )
    answers = [
        {"dry_run": True, "steps": [differs]},
        {"dry_run": False, "steps": [differs]},
    ]
    canned = Canned({"POST import": answers})
    assert main(["import", file, "--existing", "change", "--apply"], transport=canned) == 0
    bodies = [asked.body for asked in canned.requests if asked.body is not None]
    assert [(body["existing"], body["dry_run"]) for body in bodies] == [
        ("change", True),
        ("change", False),
    ]
    out, err = capsys.readouterr()
    assert "retention_days: 7 > 3" in out and "done: change 1" in err


def test_a_conflict_ends_it_before_anything_is_done(
    file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    blocked = step("conflict", problem="exists with retention_days 7, not 3")
    canned = Canned({"POST import": {"dry_run": True, "steps": [step("create"), blocked]}})
    assert main(["import", file, "--apply"], transport=canned) == 1
    assert len(canned.requests) == 1
    out, err = capsys.readouterr()
    assert (
        "exists with retention_days 7, not 3" in out
        and "nothing was done: conflict 1" in err
    )


def test_what_changed_since_the_preview_is_told(
    file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    answers: list[Any] = [
        {"dry_run": True, "steps": [step("create")]},
        Conflict(
            "Nothing was done. topics[0]: topic orders exists with queues 2, not 4",
            code="already_exists",
        ),
    ]
    assert (
        main(["import", file, "--apply"], transport=Canned({"POST import": answers})) == 1
    )
    assert "topics[0]: topic orders exists" in capsys.readouterr().err


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_standard_input_is_read_for_a_dash_also_as_windows_writes_it(
    monkeypatch: pytest.MonkeyPatch, encoding: str
) -> None:
    data = json.dumps(DOCUMENT).encode(encoding)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))
    canned = Canned({"POST import": {"dry_run": True, "steps": []}})
    assert main(["import", "-"], transport=canned) == 0
    assert (
        canned.requests[0].body is not None
        and canned.requests[0].body["document"] == DOCUMENT
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"{", "is not a JSON document: see line 1, column 2; "),
        (b'{\n "topics": x}', "is not a JSON document: see line 2, column 12; "),
        (b"[" * 100_000, "is not a JSON document that"),
        (b'{"a": ' + b"1" * 5000 + b"}", "is not a JSON document that"),
        (b"[]", "must hold a JSON object"),
        (b"{\xff", "is not UTF-8 text: see byte 2"),
    ],
)
def test_a_file_that_is_no_document_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: bytes, said: str
) -> None:
    path = tmp_path / "broken.json"
    path.write_bytes(text)
    assert main(["import", str(path)], transport=Canned({})) == 2
    err = capsys.readouterr().err
    assert "broken.json" in err and said in err


def test_a_file_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import", "/nowhere/at/all.json"], transport=Canned({})) == 1
    assert "/nowhere/at/all.json: No such file" in capsys.readouterr().err
