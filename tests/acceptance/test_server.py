"""script/server as its users meet it: start, refuse, restart, stop, come back."""

from __future__ import annotations

import os
import signal
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support import mounts
from tests.support.certificates import VERIFIED_HOST, Authority
from tests.support.mariadb import MariaDB
from tests.support.server import Server
from tests.support.waiting import until

SEND = "/api/v1/topics/orders/messages"
NewServer = Callable[..., Server]
INCARNATION = "0190b6f0-0000-7000-8000-000000000001"


def test_credentials_are_private_and_work(server: Server) -> None:
    file = server.data / "credentials.env"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    names = ["CATMQ_URL", "CATMQ_API_KEY", "CATMQ_ADMIN_USER", "CATMQ_ADMIN_PASSWORD"]
    assert list(server.credentials) == names
    assert server.credentials["CATMQ_URL"] == server.url
    assert server.call("GET", "/api/v1/nodes")[1]["nodes"][0]["name"] == "failure"


def test_a_second_server_on_the_same_directory_is_refused(server: Server) -> None:
    code, text = Server(server.data).refused()
    assert code == 1
    assert f"already runs on {server.data}" in text


def test_a_data_directory_that_is_a_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    code, text = Server(file).refused()
    assert code == 1
    assert f"The data directory {file} cannot be used: File exists." in text


def test_a_data_directory_that_one_may_not_write_is_refused(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    for data in (closed, closed / "var"):
        code, text = NotEvenRoot(data).refused()
        assert code == 1
        assert f"The data directory {data} cannot be used: Permission denied." in text
        assert "Traceback" not in text


class NotEvenRoot(Server):
    """A server without root's right to write where others may not."""

    def command(self) -> list[str]:
        return [*mounts.drop_root_rights(), *super().command()]


def test_a_port_in_use_is_refused(server: Server, tmp_path: Path) -> None:
    code, text = Server(tmp_path / "other", port=server.port).refused()
    assert code == 1
    assert f"Port {server.port} of 127.0.0.1 is in use" in text


def test_a_setting_that_does_not_exist_is_refused_with_the_nearest_name(
    tmp_path: Path,
) -> None:
    code, text = Server(tmp_path / "other", environ={"CATMQ_WORKER": "3"}).refused()
    assert code == 1
    assert (
        text.strip().splitlines()[-1]
        == "CatMQ: CATMQ_WORKER is not a setting. Did you mean CATMQ_WORKERS?"
    )


def test_jobs_that_end_are_started_again(server: Server) -> None:
    before = until(server.job_runners)
    server.kill_job_runners()
    until(lambda: server.job_runners() and not server.job_runners() & before, limit_s=30)


def test_a_waiting_pull_does_not_delay_the_end_and_a_changed_password_stays(
    new_server: NewServer,
) -> None:
    server = new_server()
    server.call("POST", "/api/v1/topics", {"name": "orders", "queues": 1})
    asked = {
        "name": "c",
        "incarnation": "0190b6f0-0000-7000-8000-000000000001",
        "topics": ["orders"],
        "sdk": "test",
    }
    consumer = server.call("POST", "/api/v1/groups/g/consumers", asked)[1]["consumer_id"]
    pull = {
        "generation": 99,
        "queues": [],
        "max_messages": 1,
        "max_bytes": 1000,
        "wait_ms": 30_000,
    }
    answers: list[tuple[int, Any]] = []
    waiting = threading.Thread(
        target=lambda: answers.append(
            server.call("POST", f"/api/v1/consumers/{consumer}/pull", pull)
        )
    )
    waiting.start()
    until(lambda: "catmq_waiters 1.0" in server.call("GET", "/metrics")[1])

    assert server.end(signal.SIGINT) == 0

    waiting.join(5)
    assert answers[0][0] == 200
    assert server.processes() == []

    # The start after a change of the password makes no second administrator.
    shell = "from django.contrib.auth import get_user_model as m; u = m().objects.get(); "
    server.manage(
        "shell",
        "--no-imports",
        "--command",
        shell + "u.set_password('another one'); u.save()",
    )
    server.start()
    assert list(server.credentials) == ["CATMQ_URL", "CATMQ_API_KEY"]
    assert (
        server.manage(
            "shell", "--no-imports", "--command", shell + "print(u.username)"
        ).strip()
        == "admin"
    )


def test_all_processes_may_be_told_to_stop_at_once(new_server: NewServer) -> None:
    """As a service manager does; the supervisor tells its children a second time."""
    server = new_server()
    until(lambda: len(server.job_runners()) > 2)
    for pid in sorted(server.processes(), reverse=True):  # the supervisor last
        os.kill(pid, signal.SIGTERM)
    until(lambda: not server.processes(), limit_s=20)


def test_a_killed_server_leaves_nothing_and_comes_back_with_everything(
    new_server: NewServer,
) -> None:
    server = new_server()
    server.call("POST", "/api/v1/topics", {"name": "orders", "queues": 2})
    sent = server.call("POST", SEND, {"messages": [{"body": "kept", "key": "k"}]})[1][
        "results"
    ][0]
    key = server.api_key

    server.end(signal.SIGKILL)
    until(lambda: not server.processes(), limit_s=60)
    server.start()

    assert server.api_key == key
    found = server.call("GET", f"{SEND}?message_id={sent['message_id']}")[1]["messages"]
    assert [message["body"] for message in found] == ["kept"]


def test_metadata_may_lie_on_mariadb_and_all_connections_be_encrypted(
    new_server: NewServer, mariadb: MariaDB, authority: Authority, tmp_path: Path
) -> None:
    with (
        mariadb.schema() as metadata,
        mariadb.schema() as schema,
        mariadb.reader(metadata) as (name, password),
    ):
        mariadb.execute(f"GRANT ALL ON {metadata}.* TO {name}@'127.0.0.1'")
        mariadb.execute(f"ALTER USER {name}@'127.0.0.1' REQUIRE SSL")
        url = f"mysql://{name}:{password}@{VERIFIED_HOST}:{mariadb.port}/{metadata}?tls=verify&ca="
        server = new_server(environ={"CATMQ_DATABASE_URL": url + str(authority.ca)})
        where = {"host": VERIFIED_HOST, "port": mariadb.port, "database": schema}
        node = {"name": "n1", "engine": "mysql", **where}
        account = {"username": "catmq", "password": mariadb.password}
        encrypted = {"tls": "verify", "tls_ca": str(authority.ca)}
        assert server.call("POST", "/api/v1/nodes", node | account | encrypted)[0] == 201
        assert (
            server.call("POST", "/api/v1/topics", {"name": "orders", "queues": 2})[0] == 201
        )
        results = server.call("POST", SEND, {"messages": [{"body": "hello"}]})[1]["results"]
        assert results[0]["offset"] == 0
        assert server.end() == 0
        other = Authority(tmp_path / "other").ca
        code, text = Server(
            tmp_path / "lost", environ={"CATMQ_DATABASE_URL": f"{url}{other}"}
        ).refused()
        assert code == 1
        assert f"not signed by a CA of {other}" in text
    assert server.processes() == []


def test_people_log_in_to_the_admin(server: Server) -> None:
    status, page = server.call("GET", "/admin/login/")
    assert (status, "csrfmiddlewaretoken" in page) == (200, True)
    assert server.call("GET", "/static/admin/css/base.css")[0] == 200


def said_by(server: Server) -> str:
    """What a server says to people, right after the line that says that it is ready."""
    return (server.data / "stderr").read_text()


def test_a_second_server_on_the_same_metadata_needs_its_keys_and_makes_no_administrator(
    new_server: NewServer, database_url: str, tmp_path: Path
) -> None:
    settings = {"CATMQ_DATABASE_URL": database_url}
    first = new_server(environ=settings)
    until(lambda: "Made: an administrator and an API key" in said_by(first))
    stranger = Server(tmp_path / "stranger", environ=settings)

    code, text = stranger.refused()
    assert code == 1
    assert (
        "signs consumer ids with another key and seals the passwords of nodes with another key"
        in text
    )
    assert "Copy secret.key and encryption.key" in text and str(stranger.data) in text
    assert not (stranger.data / "credentials.env").exists()

    stranger.join(first, "secret.key", "encryption.key")
    try:
        stranger.start()
        assert list(stranger.credentials) == ["CATMQ_URL"]
        until(lambda: "manage.py create_api_key" in said_by(stranger))
        assert "got neither key nor account" in said_by(stranger)
        until(
            lambda: len(first.call("GET", "/api/v1/brokers")[1]["brokers"]) == 2, limit_s=30
        )
        # Each file names its own broker first.
        until(lambda: first.credentials["CATMQ_URL"] == f"{first.url},{stranger.url}")
        until(lambda: stranger.credentials["CATMQ_URL"] == f"{stranger.url},{first.url}")
        file = first.data / "credentials.env"
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        stranger.end()
        until(lambda: first.credentials["CATMQ_URL"] == first.url)
        stranger.start()
        both = {first.url, stranger.url}
        until(lambda: set(first.credentials["CATMQ_URL"].split(",")) == both)
    finally:
        stranger.clear_away()
    assert first.credentials["CATMQ_API_KEY"].startswith("catmq_")
    shell = "from django.contrib.auth import get_user_model as m; print('n', m().objects.count())"
    assert first.manage("shell", "--no-imports", "--command", shell).split() == ["n", "1"]
