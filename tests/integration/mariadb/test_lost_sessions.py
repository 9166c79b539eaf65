"""A session with the metadata that is lost in the middle of a write: not possible right
now, and no fault.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.db import close_old_connections, connection, transaction
from django.test import Client

from catmq_site.mysql.idle import idle
from metadata import actors
from metadata.db.transactions import transactional
from metadata.errors import MetadataUnavailable
from metadata.models import UserRights
from metadata.users import accounts
from tests.support.forms import browser, fields, filled, text
from tests.support.mariadb import MariaDB

ME = actors.command("test")
MOST = 60  # statements of a request, more than there are


class Killer:
    """Ends the session after so many statements, as a server does with a transaction that
    rests too long.
    """

    def __init__(self, server: MariaDB, after: int) -> None:
        self.left, self._server = after, server

    def __call__(self, execute: Callable[..., Any], *asked: Any) -> Any:
        done = execute(*asked)
        self.left -= 1
        if self.left == 0:
            self._server.execute(f"KILL {connection.connection.thread_id()}")
        return done


def pooled() -> None:
    """Gives the thread's connection back, so that the next request takes one that was used
    before.
    """
    connection.ensure_connection()
    close_old_connections()


def test_a_transaction_whose_session_is_lost_is_an_outage(
    metadata_db: None, mariadb: MariaDB
) -> None:
    @transactional
    def write() -> None:
        UserRights.objects.create(name="bob")
        mariadb.execute(f"KILL {connection.connection.thread_id()}")
        UserRights.objects.create(name="eve")

    pooled()
    with pytest.raises(MetadataUnavailable):
        write()
    assert not UserRights.objects.exists()


def test_whichever_statement_of_a_page_comes_too_late_the_page_says_not_now(
    metadata_db: None, mariadb: MariaDB
) -> None:
    client = browser("ada", administrator=True)
    client.raise_request_exception = False
    for after in range(1, MOST):
        killer = Killer(mariadb, after)
        answer = asked(client, killer, name=f"bob{after}")
        if killer.left > 0:  # the request needed fewer
            assert answer.status_code == 302, text(answer)
            break
        assert answer.status_code in (302, 503), (after, answer.status_code, text(answer))
    else:
        pytest.fail("a request that needs so many statements")
    made = set(
        get_user_model().objects.exclude(username="ada").values_list("username", flat=True)
    )
    # none by half
    assert made == set(
        UserRights.objects.exclude(name="ada").values_list("name", flat=True)
    )


def asked(client: Client, killer: Killer, *, name: str) -> Any:
    """Return what the confirmed form that makes a user answers while the killer watches."""
    seen = fields(filled(client, "/create/user", name=name, password="enough characters"))
    pooled()
    with connection.execute_wrapper(killer):
        answer = client.post("/create/user", seen)
    close_old_connections()
    # one that was killed by its last statement is trusted for a second
    for kind in list(idle._stacks):
        idle.drop(kind)
    return answer


@pytest.mark.parametrize("verb", ["create", "update", "change_own_password"])
def test_no_password_is_hashed_inside_a_transaction(
    metadata_db: None, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    accounts.create(name="uma", password="enough characters", actor=ME)
    make_password, seen = accounts.make_password, []

    def hashing(*args: Any) -> str:
        seen.append(transaction.get_connection().in_atomic_block)
        return make_password(*args)

    monkeypatch.setattr("metadata.users.accounts.make_password", hashing)
    monkeypatch.setattr("django.contrib.auth.base_user.make_password", hashing)
    given: dict[str, Any] = {"password": "other characters", "actor": ME}
    if verb == "create":
        accounts.create(name="bob", **given)
    elif verb == "update":
        accounts.update(name="uma", administrator=False, active=True, rights={}, **given)
    else:
        accounts.change_own_password(
            **{**given, "actor": actors.Actor(kind="user", name="uma")}
        )
    assert seen == [False]
