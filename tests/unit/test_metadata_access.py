"""Rights of actors, and what audit rows may hold."""

from __future__ import annotations

import pytest

from metadata.actors import Actor, command, job
from metadata.db import access, audit, secrets
from metadata.errors import Forbidden, Invalid
from metadata.rules.rights import GRANTABLE


def key(**rights: tuple[str, ...]) -> Actor:
    return Actor(kind="key", name="k", rights=rights, key_id=1)


def test_a_right_reaches_as_far_as_its_patterns() -> None:
    actor = key(produce=("orders*", "logs"))

    assert access.may(actor, "produce", "orders.v2")
    assert not access.may(actor, "produce", "logs2")
    assert not access.may(actor, "produce", "Orders")
    assert not access.may(actor, "consume", "logs")


def test_admin_includes_every_right_and_manage_no_other() -> None:
    assert all(access.may(key(admin=("*",)), right, "x") for right in GRANTABLE)
    assert [right for right in GRANTABLE if access.may(key(manage=("*",)), right, "x")] == [
        "manage"
    ]


def test_who_owns_a_topic_has_no_right_on_a_group_of_its_name() -> None:
    owner = Actor(kind="user", name="ann", owns={"topic": ("orders",)})
    assert access.may(owner, "produce", "orders")
    assert not access.may(owner, "admin", "orders")
    assert not access.may(owner, "consume", "orders", what="group")


def test_commands_and_jobs_need_no_rights() -> None:
    assert access.may(command("c"), "admin", "x")
    assert access.may(job("j"), "admin", "x")


def test_a_refusal_names_right_and_resource() -> None:
    with pytest.raises(Forbidden, match="lacks the right manage on group billing"):
        access.require(key(), "manage", "billing", what="group")


@pytest.mark.parametrize(
    "rights", [{}, {"write": ["*"]}, {"produce": []}, {"produce": [""]}]
)
def test_rights_that_do_not_exist_or_say_nothing_are_refused(
    rights: dict[str, list[str]],
) -> None:
    with pytest.raises(Invalid):
        access.check_rights(rights)


def test_a_limited_admin_gives_away_only_its_own_patterns() -> None:
    actor = key(admin=("team-*", "logs"), produce=("*",))

    access.require_grantable(actor, {"produce": ["team-*"], "admin": ["logs", "team-*"]})
    for pattern in ("*", "team-a", "team-?", "Team-*"):
        with pytest.raises(Forbidden, match="may not give the right produce on"):
            access.require_grantable(actor, {"produce": [pattern]})


def test_an_admin_of_everything_commands_and_jobs_give_away_anything() -> None:
    for actor in (key(admin=("team-*", "*")), command("c"), job("j")):
        access.require_grantable(actor, {"admin": ["*"], "produce": ["orders*"]})


def test_secrets_never_reach_the_audit_log() -> None:
    values = {
        "host": "h",
        "password": "p",
        "password_encrypted": "e",
        "reader_password": "r",
        "digest": "d",
    }

    assert audit._without_secrets(values) == {"host": "h"}


def test_a_sealed_password_opens_again_and_a_foreign_one_does_not() -> None:
    assert secrets.decrypt(secrets.encrypt("geheim")) == "geheim"
    assert "geheim" not in secrets.encrypt("geheim")
    assert secrets.encrypt("") == ""
    with pytest.raises(secrets.Undecryptable):
        secrets.decrypt("gAAAAABnotours")
