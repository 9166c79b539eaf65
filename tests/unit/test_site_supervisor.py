"""When the supervisor says that a server is ready."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from brokerapi.http import draining
from catmq_site.server import supervisor
from tests.support.environment import free_port


class Health(BaseHTTPRequestHandler):
    """A broker that answers /readyz with what the test says."""

    says: tuple[int, str]

    def do_GET(self) -> None:
        """Any request."""
        status, text = self.says
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, format: str, *args: Any) -> None:
        """Tests print nothing."""


@pytest.fixture
def url() -> Iterator[str]:
    """Where it answers."""
    with HTTPServer(("127.0.0.1", 0), Health) as server:
        serving = threading.Thread(
            target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
        )
        serving.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        serving.join(10)


@pytest.mark.parametrize(
    ("says", "ready"),
    [
        ((200, "ok"), True),
        # it starts as it ended: clients are refused until it is enabled
        ((503, draining.DRAINED), True),
        ((503, "there is no picture of the metadata"), False),
        ((503, draining.STOPPING), False),
    ],
)
def test_a_server_is_ready_when_its_broker_serves_or_was_pulled_out(
    monkeypatch: pytest.MonkeyPatch, *, url: str, says: tuple[int, str], ready: bool
) -> None:
    monkeypatch.setattr(Health, "says", says, raising=False)
    assert supervisor.is_ready(url) is ready


def test_a_server_whose_broker_does_not_answer_is_not_ready() -> None:
    assert not supervisor.is_ready(f"http://127.0.0.1:{free_port()}")


def test_what_happened_to_a_child_is_told_with_its_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    child = supervisor.Child(
        "The broker", [sys.executable, "-c", "raise SystemExit(3)"], tmp_path / "log"
    )
    child.start()
    assert child.process is not None
    child.process.wait(20)
    child.ensure_running()
    told = capsys.readouterr().err
    assert re.match(
        r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}[+-]\d\d:\d\d The broker ended \(3\) after",
        told,
    )


def test_a_child_without_a_log_file_writes_to_the_stderr_of_the_supervisor(
    capfd: pytest.CaptureFixture[str],
) -> None:
    program = "import sys; print('out', flush=True); print('err', file=sys.stderr)"
    child = supervisor.Child("The broker", [sys.executable, "-c", program], None)
    child.start()
    assert child.process is not None
    child.process.wait(20)
    output = capfd.readouterr()
    assert (output.out, sorted(output.err.split())) == ("", ["err", "out"])


def test_a_server_without_jobs_has_the_broker_alone(tmp_path: Path) -> None:
    options = supervisor.parse_arguments(["--without-jobs", "--logs", "stderr"])
    server = supervisor.Supervisor(
        data=tmp_path,
        host=options.host,
        port=options.port,
        has_jobs=not options.without_jobs,
        has_log_files=options.logs == "files",
    )
    assert [child.name for child in server.children] == ["The broker"]
    assert server.broker.log is None


def test_directories_for_logs_and_metrics_exist_before_the_first_child_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(server: supervisor.Supervisor) -> None:
        assert (tmp_path / "log").is_dir() and (tmp_path / "metrics").is_dir()
        raise supervisor.StartRefused("enough")

    monkeypatch.setattr(supervisor.signal, "signal", lambda *_: None)
    monkeypatch.setattr(supervisor.Supervisor, "_prepare", refuse)
    server = supervisor.Supervisor(data=tmp_path, host="127.0.0.1", port=free_port())
    with pytest.raises(supervisor.StartRefused, match="enough"):
        server.run()
