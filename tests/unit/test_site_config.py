"""metadata/config.py: what the environment may say."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from catmq_site.databases import databases
from metadata.config import Config, ConfigError, load, parse_database_url
from metadata.installation import HOME
from tests.support import migrated


def loaded(directory: Path, **variables: str) -> Config:
    """The settings of an environment that holds these variables."""
    return load({"CATMQ_DATA_DIR": str(directory), **variables})


def test_an_empty_environment_gives_the_defaults(tmp_path: Path) -> None:
    config = loaded(tmp_path, CATMQ_THREADS="")
    assert (config.bind, config.broker_url, config.threads) == (
        "127.0.0.1:8000",
        "http://127.0.0.1:8000",
        528,
    )
    assert config.database is None


@pytest.mark.parametrize(
    ("bind", "name", "url"),
    [
        ("127.0.0.1:8001", "box-1:8001", "http://127.0.0.1:8001"),
        ("0.0.0.0:8000", "box-1:8000", "http://box-1:8000"),
        ("[::]:8000", "box-1:8000", "http://box-1:8000"),
        (":::8000", "box-1:8000", "http://box-1:8000"),
        (":8000", "box-1:8000", "http://box-1:8000"),
        ("::1:8000", "box-1:8000", "http://[::1]:8000"),
        ("10.0.0.7", "box-1:8000", "http://10.0.0.7:8000"),
    ],
)
def test_a_brokers_name_and_url_follow_from_machine_and_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, bind: str, name: str, url: str
) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "box 1")
    config = loaded(tmp_path, CATMQ_BIND=bind)
    assert (config.broker_name, config.broker_url) == (name, url)


@pytest.mark.parametrize("machine", ["_box", "-box-", "..."])
def test_a_machine_with_an_odd_name_gives_its_broker_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machine: str
) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: machine)
    assert loaded(tmp_path).broker_name in ("box:8000", "localhost:8000")


def test_a_brokers_name_and_url_may_be_given_and_requests_for_that_host_are_answered(
    tmp_path: Path,
) -> None:
    given = {"CATMQ_BROKER_NAME": "east-1", "CATMQ_BROKER_URL": "https://mq.example/east/"}
    config = loaded(tmp_path, **given)
    assert (config.broker_name, config.broker_url) == ("east-1", "https://mq.example/east")
    assert loaded(tmp_path, CATMQ_BIND="unix:/run/catmq", **given).broker_name == "east-1"
    assert config.allowed_hosts == ("127.0.0.1", "localhost", "[::1]", "mq.example")
    assert loaded(tmp_path, CATMQ_BIND="0.0.0.0:8000", **given).allowed_hosts == ("*",)


@pytest.mark.parametrize(
    ("variable", "text", "said"),
    [
        ("CATMQ_WORKER", "2", "CATMQ_WORKER is not a setting. Did you mean CATMQ_WORKERS?"),
        ("CATMQ_XYZZY", "2", "CATMQ_XYZZY is not a setting. docs/reference/settings.md lists all."),
        ("CATMQ_WORKERS", "two", "CATMQ_WORKERS must be a whole number, not 'two'."),
        ("CATMQ_WORKERS", "0", "CATMQ_WORKERS must be at least 1, not 0."),
        ("CATMQ_HSTS_DAYS", "-1", "CATMQ_HSTS_DAYS must be at least 0, not -1."),
        ("CATMQ_SECRET_KEY", "x", "CATMQ_SECRET_KEY must be random, with at least 32 characters."),
        ("CATMQ_SECRET_KEY", "x" * 64, "CATMQ_SECRET_KEY must be random, with at least 32 "
                                       "characters."),
        ("CATMQ_SECRET_KEY_FALLBACKS", "abcdefgh" * 4 + ",x", "CATMQ_SECRET_KEY_FALLBACKS: "
                                                              "each key must"),
        ("CATMQ_DEBUG", "perhaps", "CATMQ_DEBUG must be true or false, not 'perhaps'."),
        ("CATMQ_MAX_WAITERS", "600", "CATMQ_MAX_WAITERS must be less than CATMQ_THREADS"),
        ("CATMQ_DATABASE_URL", "postgres://x/y", "CATMQ_DATABASE_URL must look like mysql://"),
        ("CATMQ_DATABASE_URL", "mysql://u:p@h:x/d", "CATMQ_DATABASE_URL must look like mysql://"),
        ("CATMQ_DATABASE_URL", "mysql://u:p@h/d?tls=yes", "CATMQ_DATABASE_URL must end "
                                                          "with ?tls=off"),
        ("CATMQ_DATABASE_URL", "mysql://u:p@h/d?tls=on&ca=/x", "CATMQ_DATABASE_URL must "
                                                               "end with ?tls=off"),
        ("CATMQ_DATABASE_URL", "mysql://u:p@h/d?charset=utf8", "CATMQ_DATABASE_URL must "
                                                               "end with ?tls=off"),
        ("CATMQ_DATABASE_URL", "mysql://u:p@h/d?tls=verify&ca=/x/y", "CATMQ_DATABASE_URL: "
                                                                     "the CA file /x/y"),
        ("CATMQ_ENCRYPTION_KEYS", "short", "CATMQ_ENCRYPTION_KEYS: each must be 32 bytes"),
        ("CATMQ_BROKER_NAME", "a b", "CATMQ_BROKER_NAME must have 1 to 200 characters"),
        ("CATMQ_BROKER_NAME", "a/b", "CATMQ_BROKER_NAME must have 1 to 200 characters"),
        ("CATMQ_BROKER_URL", "mq.example:8000", "CATMQ_BROKER_URL must look like http://host:port"),
        ("CATMQ_BROKER_URL", "http://u:p@mq", "CATMQ_BROKER_URL must look like http://host:port"),
        ("CATMQ_BROKER_URL", "http://mq:port", "CATMQ_BROKER_URL must look like http://host:port"),
        ("CATMQ_BROKER_URL", "http://mq:0/", "CATMQ_BROKER_URL must look like http://host:port"),
        ("CATMQ_BIND", "unix:/run/catmq", "CATMQ_BROKER_URL must look like http://host:port"),
        ("CATMQ_PATH_PREFIX", "catmq", "CATMQ_PATH_PREFIX must look like /catmq: begin with /"),
        ("CATMQ_PATH_PREFIX", "/catmq/", "CATMQ_PATH_PREFIX must look like /catmq: begin with /"),
        ("CATMQ_PATH_PREFIX", "/", "CATMQ_PATH_PREFIX must look like /catmq: begin with /"),
        ("CATMQ_PATH_PREFIX", "/a//b", "CATMQ_PATH_PREFIX must have only A-Z a-z 0-9 . _ ~ -"),
        ("CATMQ_PATH_PREFIX", "/a?b", "CATMQ_PATH_PREFIX must have only A-Z a-z 0-9 . _ ~ -"),
        ("CATMQ_PATH_PREFIX", "/a/../b", "CATMQ_PATH_PREFIX must not have . or .. as a part"),
        ("CATMQ_PATH_PREFIX", "/topics", "CATMQ_PATH_PREFIX must not begin with /topics, a "
                                         "path of the"),
        ("CATMQ_PATH_PREFIX", "/x" * 101, "CATMQ_PATH_PREFIX must have at most 200 "
                                          "characters, not 202."),
    ],
)  # fmt: skip
def test_a_wrong_setting_is_refused_by_name(
    tmp_path: Path, variable: str, text: str, said: str
) -> None:
    with pytest.raises(ConfigError) as refusal:
        loaded(tmp_path, **{variable: text})
    assert str(refusal.value).startswith(said)


def test_a_wide_network_of_proxies_is_refused_where_java_clients_are_let_in_by_address(
    tmp_path: Path,
) -> None:
    wide, java = (
        {"CATMQ_TRUSTED_PROXIES": "10.0.0.0/8"},
        {"CATMQ_JAVA_NETWORKS": "10.1.0.0/16"},
    )
    with pytest.raises(
        ConfigError, match="CATMQ_TRUSTED_PROXIES: each of the 16777216 hosts"
    ):
        loaded(tmp_path, **wide, **java)
    loaded(tmp_path, **wide)
    loaded(tmp_path, CATMQ_TRUSTED_PROXIES="10.0.0.2,10.9.0.0/24", **java)


def test_zero_means_no_limit_where_the_meaning_says_so(tmp_path: Path) -> None:
    assert loaded(tmp_path, CATMQ_JAVA_REQUESTS_PER_S="0").java_requests_per_s == 0


def test_what_belongs_to_the_client_and_to_jobs_is_left_alone(tmp_path: Path) -> None:
    loaded(
        tmp_path, CATMQ_URL="http://x", CATMQ_API_KEY="k", CATMQ_NODE_MAIN_URL="mysql://x"
    )


def test_secrets_are_made_once_and_private(tmp_path: Path) -> None:
    first, second = loaded(tmp_path), loaded(tmp_path)
    assert first.secret_key == second.secret_key
    assert first.encryption_keys == second.encryption_keys
    assert stat.S_IMODE((tmp_path / "secret.key").stat().st_mode) == 0o600


def test_processes_that_start_at_once_agree_on_the_secret(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        found = {
            config.secret_key for config in pool.map(lambda _: loaded(tmp_path), range(32))
        }
    assert len(found) == 1


def test_no_secret_is_in_the_text_of_the_settings(tmp_path: Path) -> None:
    config = loaded(tmp_path, CATMQ_DATABASE_URL="mysql://u:hidden@h/d")
    assert not [
        word
        for word in ("hidden", config.secret_key, *config.encryption_keys)
        if word in repr(config)
    ]


def test_a_database_url_may_hold_escapes() -> None:
    parts = parse_database_url("mysql://us%40er:p%2Fw@[::1]:3307/db")
    assert (parts.username, parts.password, parts.host, parts.port, parts.name) == (
        "us@er",
        "p/w",
        "::1",
        3307,
        "db",
    )


def test_a_broker_waits_less_for_metadata_than_a_command(tmp_path: Path) -> None:
    url = "mysql://u:p@h/d"
    limits = []
    for process in ("broker", "command"):
        config = loaded(tmp_path, CATMQ_DATABASE_URL=url, CATMQ_PROCESS=process)
        limits.append(databases(config)["default"]["OPTIONS"]["read_timeout"])
    assert limits == [2, 60]


# Django settings of applications, and a constant.
ELSEWHERE = {"CATMQ_OUTBOX", "CATMQ_PORTAL_URL", "CATMQ_VERSION"}
FOLDERS = (
    "catmq_site", "metadata", "messagestore", "brokerapi", "portal", "client/src",
    "spark_tasks", "docs",
)  # fmt: skip
READ = re.compile(r"\bCATMQ_[A-Z][A-Z0-9_]*[A-Z0-9]\b")


def test_every_variable_that_code_or_documentation_names_can_be_exported(
    tmp_path: Path,
) -> None:
    every = [path for folder in FOLDERS for path in (HOME / folder).rglob("*")]
    files = [path for path in every if path.suffix in (".py", ".md")]
    named = {
        name
        for path in [*files, HOME / "README.md"]
        for name in READ.findall(path.read_text())
    }
    assert {"CATMQ_PMQ_URL", "CATMQ_CA_FILE", "CATMQ_ALARM_LAG"} <= named
    loaded(tmp_path, **dict.fromkeys(named - ELSEWHERE, ""))


def test_a_command_runs_with_its_variable_exported(tmp_path: Path) -> None:
    environ = {
        "PATH": os.environ["PATH"],
        "CATMQ_DATA_DIR": str(tmp_path),
        "CATMQ_PMQ_URL": "mysql://u:secret@127.0.0.1:1/pmq",
    }
    migrated.copy_to(tmp_path)
    command = [sys.executable, "manage.py", "import_pmq"]
    done = subprocess.run(command, cwd=HOME, env=environ, capture_output=True, text=True)
    assert (done.returncode, "127.0.0.1:1/pmq does not answer" in done.stderr) == (
        3,
        True,
    ), done.stderr


def test_a_url_may_name_several_servers() -> None:
    parts = parse_database_url("mysql://u:p%40w@DB1:3307,db2,[::1]:3308/db?tls=on")
    assert (parts.host, parts.password) == ("db1:3307,db2:3306,[::1]:3308", "p@w")
    assert parse_database_url("mysql://u@db1/db").port == 3306
    with pytest.raises(ConfigError, match="must look like"):
        parse_database_url("mysql://u@db1,,db2/db")
