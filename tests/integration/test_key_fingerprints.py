"""Keys of two data directories on one metadata database: whoever has others is told so, and
does nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from cryptography.fernet import Fernet
from django.core.management import CommandError, call_command

from messagestore.nodes import registry
from metadata import actors
from metadata.brokers import discovery, fingerprints, registration
from metadata.config import config
from metadata.db import secrets
from metadata.errors import Code, Conflict
from metadata.models import AuditLog, DbNode, KeyFingerprint
from tests.support import databases, rows
from tests.support.mariadb import MariaDB

pytestmark = [pytest.mark.usefixtures("metadata_db"), pytest.mark.one_engine]
OLD, NEW, OTHER = (Fernet.generate_key().decode() for _ in range(3))


@contextmanager
def keys(
    *encryption: str, signing: str = "s", taken: tuple[str, ...] = ()
) -> Iterator[None]:
    """This process with other keys, as another data directory or another environment gives
    it.
    """
    given = dataclasses.replace(
        config, encryption_keys=encryption, secret_key=signing, secret_key_fallbacks=taken
    )
    with pytest.MonkeyPatch.context() as patch:
        for module in ("brokers.fingerprints", "db.secrets"):
            patch.setattr(f"metadata.{module}.config", given)
        yield


@pytest.fixture(autouse=True)
def no_broker() -> Iterator[None]:
    """A process that knows of no broker, before and afterwards."""
    registration.evict()
    yield
    registration.evict()


@pytest.fixture
def sealed(make_node: Callable[..., str]) -> str:
    """A node whose password was sealed with the old key, by an installation that has
    recorded its keys.
    """
    name = make_node("n1", engine="sqlite")
    with keys(OLD):
        fingerprints.record_keys()
        DbNode.objects.filter(name=name).update(
            password_encrypted=secrets.encrypt("secret")
        )
    return name


def test_whoever_comes_first_is_right_and_others_are_refused_with_cause_and_remedy() -> (
    None
):
    with keys(OLD):
        fingerprints.record_keys()
        fingerprints.record_keys()
        assert fingerprints.find_mismatch() == ""
    with keys(OTHER, signing="t"):
        found = fingerprints.find_mismatch()
        with pytest.raises(Conflict) as refused:
            fingerprints.record_keys()
    assert refused.value.code == Code.FOREIGN_KEYS and refused.value.detail == found
    for said in (
        "signs consumer ids",
        "seals the passwords",
        str(config.data_dir),
        "--data",
        "accept_keys",
    ):
        assert said in found
    assert KeyFingerprint.objects.count() == 2


@pytest.mark.parametrize(
    ("encryption", "signing", "said"),
    [(OLD, "t", "signs consumer ids"), (OTHER, "s", "seals the passwords")],
)
def test_one_foreign_key_is_enough(encryption: str, signing: str, said: str) -> None:
    with keys(OLD):
        fingerprints.record_keys()
    with keys(encryption, signing=signing):
        assert said in fingerprints.find_mismatch()


def test_the_signing_key_is_changed_while_brokers_run() -> None:
    with keys(OLD):
        fingerprints.record_keys()
    for signing, taken in (("s", ("t",)), ("t", ("s",)), ("t", ())):
        with keys(OLD, signing=signing, taken=taken):
            fingerprints.record_keys()
            assert fingerprints.find_mismatch() == ""
    with keys(OLD, signing="u"):
        assert "signs consumer ids" in fingerprints.find_mismatch()


def test_an_encryption_key_is_changed_while_brokers_run(sealed: str) -> None:
    with keys(NEW, OLD):
        fingerprints.record_keys()
    with keys(OLD):
        assert fingerprints.find_mismatch() == "", "it reads all that is sealed until now"
    with keys(NEW):
        assert "seals the passwords" in fingerprints.find_mismatch(), (
            "one is sealed with the old key"
        )
    with keys(NEW, OLD):
        assert fingerprints.accept_keys(actor=rows.ME) == []
    with keys(NEW):
        assert fingerprints.find_mismatch() == ""
        assert (
            secrets.decrypt(DbNode.objects.get(name=sealed).password_encrypted) == "secret"
        )
    with keys(OLD):
        assert fingerprints.find_mismatch() != ""


def test_an_older_installation_is_recorded_only_by_who_can_read_its_passwords(
    sealed: str,
) -> None:
    KeyFingerprint.objects.all().delete()
    with keys(OTHER), pytest.raises(Conflict, match="accept_keys"):
        fingerprints.record_keys()
    with keys(OLD):
        fingerprints.record_keys()
    assert KeyFingerprint.objects.count() == 2


def test_lost_keys_are_replaced_by_accepting_others_which_names_the_nodes_and_is_audited(
    sealed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with keys(OTHER):
        call_command("accept_keys")
        assert (
            "Nothing was changed" in capsys.readouterr().out
            and fingerprints.find_mismatch() != ""
        )
        call_command("accept_keys", "--yes")
        assert f"manage.py set_node {sealed} --username USER" in capsys.readouterr().out
        assert fingerprints.find_mismatch() == ""
    assert AuditLog.objects.get(verb="accept_keys").kind == "installation"


def test_keys_are_not_replaced_under_a_live_broker(sealed: str) -> None:
    with keys(OLD):
        registration.heartbeat(
            identity=registration.BrokerIdentity("b1", "http://b1:1", "1", "i1"), held=False
        )
    with keys(OTHER), pytest.raises(CommandError, match=r"b1\. Stop them first"):
        call_command("accept_keys", "--yes")


def test_a_broker_with_foreign_keys_is_not_listed_and_takes_no_work() -> None:
    with keys(OLD):
        fingerprints.record_keys()
    with keys(OTHER):
        standing = registration.heartbeat(
            identity=registration.BrokerIdentity("b2", "http://b2:1", "1", "i2"), held=False
        )
        assert standing.state == "out" and "seals the passwords" in standing.complaint
        assert discovery.list_brokers(actor=rows.ME) == ()


def test_no_command_works_beside_an_installation_with_other_keys() -> None:
    with keys(OLD):
        fingerprints.record_keys()
    with (
        keys(OTHER),
        pytest.raises(CommandError, match="CATMQ_DATA_DIR for manage") as refused,
    ):
        call_command("rebalance", "--all")
    assert refused.value.returncode == 1


def test_a_password_is_sealed_only_with_a_key_of_the_installation(
    mariadb: MariaDB, make_node: Callable[..., str]
) -> None:
    with keys(OLD):
        fingerprints.record_keys()
    with (
        databases.mysql_node(mariadb) as given,
        keys(OTHER),
        pytest.raises(Conflict, match="seals the passwords"),
    ):
        register(given)
    assert not DbNode.objects.exists()
    with databases.mysql_node(mariadb) as given, keys(OLD):
        register(given)
        assert DbNode.objects.get().password_encrypted


def register(given: dict[str, Any]) -> None:
    more = {"dedicated": False, "capacity_gb": None, "unsafe": False, "kind": "normal"}
    registry.register(name="n2", actor=actors.command("test"), **given, **more)
