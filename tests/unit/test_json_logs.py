"""Log lines as JSON: one object each, with the fields of its request, and no secrets."""

from __future__ import annotations

import json
import logging
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

from catmq_site import logs, request_log
from catmq_site.request_log import RequestLog
from catmq_site.server import supervisor
from metadata.actors import command
from metadata.log_context import add_fields, current_fields, log_context

TRACE = "0af7651916cd43dd8448eb211c80319c"


def record(message: str, *args: Any, **more: Any) -> logging.LogRecord:
    return logging.LogRecord("a.b", logging.WARNING, "a.py", 1, message, args, None, **more)


def parsed(entry: logging.LogRecord) -> dict[str, Any]:
    """Return the entry as a reader of lines gets it."""
    line = logs.JsonLine().format(entry)
    assert line.isascii() and len(line.splitlines()) == 1
    found: dict[str, Any] = json.loads(line)
    return found


@pytest.mark.parametrize(
    "text", ["a\nb", 'quo"te', "\u2028 \x85 \x00", "拒绝 💶", "\ud800", "{}"]
)
def test_a_line_is_an_object_whatever_its_text_is(text: str) -> None:
    entry = parsed(record("%s!", text))
    assert entry["message"] == f"{text}!"
    assert (entry["level"], entry["logger"]) == ("WARNING", "a.b")
    assert entry["time"].endswith("+00:00")


def test_an_exception_is_a_field_of_its_line() -> None:
    try:
        raise KeyError("seven\nlines")
    except KeyError:
        failed = record("it failed")
        failed.exc_info = sys.exc_info()
    entry = parsed(failed)
    assert entry["message"] == "it failed"
    assert entry["error"] == "KeyError: 'seven\\nlines'"
    assert entry["stack"].startswith("Traceback (most recent call last):\n")
    assert "raise KeyError" in entry["stack"]


def test_a_line_has_the_fields_of_its_context_until_it_ends() -> None:
    with log_context(request_id="r1"):
        add_fields(actor=command("grants"), group=None)
        entry = parsed(record("x"))
    assert entry["request_id"] == "r1" and entry["actor"] == "command grants"
    assert "group" not in entry
    add_fields(actor="nobody")  # outside of a context nothing is kept
    assert current_fields() == {} and "actor" not in parsed(record("x"))


@pytest.fixture
def hooks() -> Iterator[None]:
    """Restore what log_everything_as_json() replaces."""
    kept = sys.excepthook, logs.threading.excepthook
    yield
    sys.excepthook, logs.threading.excepthook = kept
    logging.captureWarnings(False)


def test_warnings_and_uncaught_errors_become_lines(
    hooks: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(logs, "config", type("C", (), {"log_format": "json"}))
    assert isinstance(logs.make_formatter(), logs.JsonLine)
    logs.log_everything_as_json()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        # Within the block: catch_warnings() itself replaces what is called.
        logging.captureWarnings(False)
        logging.captureWarnings(True)
        warnings.warn("old\nfashioned", stacklevel=1)
    thread = logs.threading.Thread(target=lambda: 1 // 0, name="t7")
    thread.start()
    thread.join()
    sys.excepthook(ValueError, ValueError("end"), None)
    texts = [parsed(entry)["message"] for entry in caplog.records]
    assert "old\nfashioned" in texts[0]
    assert texts[1:] == ["Thread t7 has ended", "The process ends"]


def test_the_supervisor_logs_events_in_the_same_form(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CATMQ_LOG_FORMAT", "json")
    supervisor.log_event("The broker\nended")
    (line,) = capsys.readouterr().err.splitlines()
    assert json.loads(line)["message"] == "The broker\nended"


# Requests


def ask(
    path: str, *, access_log: str = "on", status: int = 200, **environ: str
) -> dict[str, Any]:
    """Send a request to an application that only answers; return the context it had."""
    seen: dict[str, Any] = {}

    def application(environ: Any, start_response: Any) -> list[bytes]:
        seen.update(current_fields())
        start_response(f"{status} Some", [("Content-Length", "2")])
        return [b"ok"]

    asked = {"PATH_INFO": path, "REQUEST_METHOD": "GET", "REMOTE_ADDR": "10.0.0.9"}
    log = RequestLog(application, access_log=access_log, path_prefix="/catmq")
    assert log({**asked, **environ}, lambda *_: None) == [b"ok"]
    return seen


def test_a_request_has_an_id_its_objects_and_its_trace(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    parent = f"00-{TRACE}-b7ad6b7169203331-01"
    seen = ask(
        "/catmq/api/v1/topics/orders/messages",
        HTTP_X_REQUEST_ID="from-proxy.7",
        HTTP_TRACEPARENT=parent,
        QUERY_STRING="contains=secret",
    )
    assert seen == {"request_id": "from-proxy.7", "topic": "orders", "trace_id": TRACE}
    (line,) = caplog.records
    entry = parsed(line)
    assert entry["message"].startswith("GET /api/v1/topics/orders/messages 200 in ")
    assert (entry["status"], entry["address"], entry["bytes"]) == (200, "10.0.0.9", 2)
    assert entry["duration_ms"] >= 0 and "secret" not in json.dumps(entry)
    assert ask("/groups/billing/settings")["group"] == "billing"


@pytest.mark.parametrize("given", ["", "a b", "x" * 65, "n\nm", "é"])
def test_an_id_that_is_no_id_is_replaced(given: str) -> None:
    ids = {ask("/livez", HTTP_X_REQUEST_ID=given)["request_id"] for _ in range(2)}
    assert given not in ids and len(ids) == 2
    assert all(request_log.REQUEST_ID.fullmatch(one) for one in ids)


@pytest.mark.parametrize(
    ("access_log", "logged"), [("off", []), ("errors", [400, 503]), ("on", [200, 400, 503])]
)
def test_which_requests_are_logged_is_a_setting(
    access_log: str, logged: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    for status in (200, 400, 503):
        ask("/nowhere", access_log=access_log, status=status)
    assert [entry.status for entry in caplog.records] == logged  # type: ignore[attr-defined]


def test_secrets_in_a_path_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    ask("/api/v1/consumers/1.2.3-0123456789abcdef.mac/pull")
    ask("/api/v1/topics/orders/send-tokens/tok-secret")
    ask("/topics/orders/tokens/tok-secret/delete")
    paths = [entry.path for entry in caplog.records]  # type: ignore[attr-defined]
    assert paths == [
        "/api/v1/consumers/<consumer>/pull",
        "/api/v1/topics/orders/send-tokens/<token>",
        "/topics/orders/tokens/<token>/delete",
    ]
