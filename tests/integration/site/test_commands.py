"""Commands: what they print, and one clear line with an exit code when they refuse."""

from __future__ import annotations

from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth import hashers
from django.core.management import (
    CommandError,
    call_command,
    get_commands,
    load_command_class,
)
from django.db import connection

from catmq_site import credentials
from messagestore.topology import subscriptions, topics
from metadata.actors import command
from metadata.cache import snapshot
from metadata.groups import groups
from metadata.models import ApiKey, ConsumerGroup, DbNode, Topic
from metadata.users import accounts, api_keys
from tests.support import rows
from tests.support.certificates import VERIFIED_HOST, Authority

NewDatabase = Callable[..., dict[str, Any]]
ME = command("test")
OURS = sorted(name for name, app in get_commands().items() if app == "catmq_site")


def run(*arguments: str) -> str:
    """What a command prints on stdout."""
    out = StringIO()
    call_command(*arguments, stdout=out)
    return out.getvalue()


def url(database: dict[str, Any]) -> str:
    """A node's database as `register_node` wants it."""
    if database["engine"] == "sqlite":
        return f"sqlite:{database['database']}"
    where = f"{database['host']}:{database['port']}/{database['database']}"
    return f"mysql://{database['username']}:{database['password']}@{where}"


@pytest.mark.one_engine
@pytest.mark.parametrize("name", OURS)
def test_every_command_explains_itself(name: str) -> None:
    command = load_command_class("catmq_site", name)
    assert command.help
    assert name in command.create_parser("manage.py", name).format_help()


def test_from_a_node_to_a_subscription(
    metadata_db: None, node_database: NewDatabase, engine: str
) -> None:
    encrypted = ", with tls off" if engine == "mysql" else ""
    assert (
        run("register_node", "main", url(node_database()))
        == f"Node main is registered{encrypted}.\n"
    )
    assert len(topics.create(name="orders", queues=2, actor=rows.ME).queues) == 2
    groups.create(name="billing", settings={"session_timeout_ms": 5000}, actor=rows.ME)
    subscriptions.create(group="billing", topic="orders", start="latest", actor=rows.ME)
    assert Topic.objects.get().queues.count() == 2
    assert ConsumerGroup.objects.get().session_timeout_ms == 5000
    assert "billing: balanced" in run("rebalance", "billing", "--dry-run")


@pytest.mark.one_engine
def test_a_nodes_password_may_come_from_the_environment(
    metadata_db: None, node_database: NewDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CATMQ_NODE_EU_WEST_URL", url(node_database()))
    run("register_node", "eu-west", "--dedicated", "--capacity-gb", "10")
    node = DbNode.objects.get()
    assert (node.dedicated, node.capacity_gb) == (True, 10)


@pytest.mark.one_engine
def test_a_dry_run_examines_a_database_and_registers_nothing(
    metadata_db: None, node_database: NewDatabase
) -> None:
    place = url(node_database())
    said = run("register_node", "main", place, "--dry-run")
    assert "ok   reachable: " in said and "warn kind: There is no retry node yet" in said
    assert not DbNode.objects.exists()
    run("register_node", "main", place)
    with pytest.raises(CommandError, match="Nothing was changed"):
        run("register_node", "again", place, "--dry-run")
    foretold = run("adopt_restored_node", "main", "--dry-run")
    assert "Nothing was changed." in foretold and "Node main would be at" in foretold
    assert DbNode.objects.get().epoch == 1


@pytest.mark.one_engine
def test_a_url_and_a_command_say_how_connections_are_encrypted(
    metadata_db: None, node_database: NewDatabase, authority: Authority
) -> None:
    verified = f"?tls=verify&ca={authority.ca}"
    said = run(
        "register_node",
        "main",
        url({**node_database("mysql"), "host": VERIFIED_HOST}) + verified,
    )
    assert said == "Node main is registered, with tls verify.\n"
    assert run("set_tls", "main", "on") == "Node main is reached with tls on.\n"
    node = DbNode.objects.get()
    assert (node.tls, node.tls_ca) == ("on", "")
    for form in (("set_tls", "main", "verify"), ("set_node", "main", "--tls", "verify")):
        with pytest.raises(CommandError, match="tls_ca: the CA file /nowhere/ca"):
            run(*form, "--ca", "/nowhere/ca.pem")
    with pytest.raises(CommandError, match="must end with"):
        run("register_node", "other", "mysql://u:p@127.0.0.1:1/d?tls=on&ca=/ca.pem")


def test_no_password_is_hashed_in_a_transaction(
    metadata_db: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hasher = type(hashers.get_hasher())
    encode, calls = hasher.encode, []

    def encode_outside(self: Any, password: str, salt: str) -> str:
        assert not connection.in_atomic_block, (
            "on a busy machine the server would end the transaction"
        )
        calls.append(password)
        return encode(self, password, salt)

    monkeypatch.setattr(hasher, "encode", encode_outside)
    monkeypatch.setattr(credentials, "FILE", tmp_path / "credentials.env")
    assert credentials.ensure(url="http://broker", actor=command("test"))
    password = credentials.read_credentials()["CATMQ_ADMIN_PASSWORD"]
    credentials.ensure(url="http://other", actor=command("test"))
    assert credentials.read_credentials()["CATMQ_ADMIN_PASSWORD"] == password
    assert calls == [password, password]  # made, then verified


def test_the_file_of_credentials_lists_other_brokers_and_keeps_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "credentials.env"
    monkeypatch.setattr(credentials, "FILE", file)
    credentials.list_other_brokers(["http://b:1"])
    assert not file.exists(), "script/server did not start this broker"
    file.write_text("CATMQ_URL=http://a:1\nCATMQ_API_KEY=catmq_x=\n")
    credentials.list_other_brokers(["http://b:1", "http://a:1", "http://c:1"])
    assert file.read_text() == (
        "CATMQ_URL=http://a:1,http://b:1,http://c:1\nCATMQ_API_KEY=catmq_x=\n"
    )
    written_at = file.stat().st_ino
    credentials.list_other_brokers(["http://b:1", "http://c:1"])
    assert file.stat().st_ino == written_at, "nothing has changed"
    credentials.list_other_brokers([])
    assert file.read_text().startswith("CATMQ_URL=http://a:1\n")


@pytest.mark.one_engine
def test_a_node_is_taken_offline_and_its_capacity_is_set(
    metadata_db: None, node_database: NewDatabase
) -> None:
    run("register_node", "main", url(node_database("mysql")))
    said = run("set_node", "main", "--state", "offline", "--capacity-gb", "400")
    assert said == "Node main has state offline, capacity_gb 400.\n"
    node = DbNode.objects.get()
    assert (node.state, node.capacity_gb) == ("offline", 400)
    with pytest.raises(CommandError, match="Give --state, --capacity-gb, --host, --tls"):
        run("set_node", "main")
    with pytest.raises(CommandError, match="capacity_gb"):
        run("set_node", "main", "--capacity-gb", "0")


@pytest.mark.one_engine
def test_an_api_key_is_printed_once_and_found_by_its_digest(metadata_db: None) -> None:
    from metadata.users import api_keys

    plaintext = run(
        "create_api_key", "shop", "--right", "produce=a*,b", "--right", "produce=c"
    ).strip()
    found = snapshot.find_key(api_keys.digest(plaintext))
    assert found is not None
    assert found.rights == {"produce": ("a*", "b", "c")}
    assert plaintext not in str(ApiKey.objects.values().get())


@pytest.mark.one_engine
@pytest.mark.parametrize(
    ("arguments", "said", "code"),
    [
        (
            ("purge", "orders", "--archive", "/nowhere", "--dry-run"),
            "orders does not exist",
            1,
        ),
        (("register_node", "n1"), "CATMQ_NODE_N1_URL", 1),
        (("register_node", "n1", "postgres://x"), "must look like mysql://", 1),
        (("register_node", "n1", "mysql://u:p@127.0.0.1:1/d"), "127.0.0.1:1", 1),
        (
            ("create_api_key", "k", "--right", "produce"),
            "must look like produce=orders*",
            1,
        ),
        (("create_api_key", "k", "--right", "produc=*"), "produc", 1),
        (("set_account", "main", "u"), "CATMQ_NODE_MAIN_PASSWORD", 1),
        (("set_node", "main", "--username", "u"), "CATMQ_NODE_MAIN_PASSWORD", 1),
        (("set_node", "main", "--reader", "u"), "CATMQ_NODE_MAIN_READER_PASSWORD", 1),
        (("set_node", "main", "--username", ""), "--username needs an account", 1),
        (("set_node", "main", "--ca", "/ca.pem"), "--ca needs --tls verify", 1),
        (("set_node", "main", "--replica", "db:x"), "HOST:PORT", 1),
        (("promote_node", "main", "--dry-run"), "main does not exist", 1),
        (("rebalance",), "Name groups, or give --all.", 1),
        (("rebalance", "nobody"), "nobody does not exist", 1),
    ],
)
def test_a_refusal_is_one_line(
    metadata_db: None, arguments: tuple[str, ...], said: str, code: int
) -> None:
    with pytest.raises(CommandError) as refusal:
        run(*arguments)
    assert said in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert refusal.value.returncode == code


@pytest.mark.one_engine
def test_schedules_are_made_equal_to_the_list(metadata_db: None) -> None:
    from django_q.models import Schedule

    from catmq_site.background.table import JOBS

    Schedule.objects.create(name="of yesterday", func="os.getpid")
    run("syncjobs")
    run("syncjobs")
    assert sorted(Schedule.objects.values_list("name", flat=True)) == sorted(JOBS)


def test_every_job_runs_and_is_recorded(metadata_db: None) -> None:
    from catmq_site.background.table import JOBS
    from catmq_site.jobs import tasks
    from metadata.models import JobRun

    for name in JOBS:
        tasks.run_here(name)  # also those that would get a process of their own
    assert sorted(JobRun.objects.values_list("name", "state")) == [
        (name, "done") for name in sorted(JOBS)
    ]


def test_rights_check_names_who_manages_topics_without_reading_them(node: str) -> None:
    topics.create(name="orders", queues=1, actor=ME)
    groups.create(name="billing", actor=ME)
    subscriptions.create(group="billing", topic="orders", actor=ME)
    manages = {"manage": ["orders", "billing"]}
    for name, rights in (
        ("team", manages),
        ("reader", {**manages, "consume": ["orders", "billing"]}),
        ("all", {"admin": ["*"]}),
    ):
        api_keys.create(name=name, rights=rights, actor=ME)
    accounts.create(name="bob", password="enough characters", rights=manages, actor=ME)

    printed = run("rights_check")

    lines = ["manage without consume on orders, billing", "  cannot subscribe to: orders"]
    lines.append("  could not make again: billing/orders")
    assert printed.splitlines() == [
        f"key team: {lines[0]}", *lines[1:], f"user bob: {lines[0]}", *lines[1:]
    ]  # fmt: skip
