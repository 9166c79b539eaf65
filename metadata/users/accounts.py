"""Users: accounts of the portal, and their rights.

administrator   an account marked as staff or superuser: may do everything
owner           listed among the owners of a topic or group: may manage it, send to it, and
                read its messages
user            sees all names, states and figures, and messages without their bodies; more
                with rights

Rights have the form of those of an API key, name patterns by right. A pattern matches
topics and groups alike.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from django.contrib.auth import get_user_model, password_validation
from django.contrib.auth.hashers import make_password
from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction
from msgspec import Struct

from metadata.actors import Actor
from metadata.db import access, audit
from metadata.db.transactions import reachable, transactional
from metadata.errors import Code, Conflict, Forbidden, Invalid, NotFound
from metadata.models import ConsumerGroup, SavedFilter, Topic, UserRights
from metadata.rules.audit_verbs import Verb
from metadata.rules.rights import ActorKind, Right
from metadata.rules.topics.names import check_confirmed
from metadata.rules.topics.states import TopicState

USER_NAME = re.compile(r"[A-Za-z0-9@][A-Za-z0-9@.+_-]{0,149}")
EVERYTHING: Mapping[str, tuple[str, ...]] = {Right.ADMIN: ("*",)}
LOOK: Mapping[str, tuple[str, ...]] = {Right.LOOK: ("*",)}


class UserView(Struct, frozen=True):
    """An account. Administrators have no `rights`, because they may do everything."""

    name: str
    email: str
    administrator: bool
    active: bool
    rights: Mapping[str, tuple[str, ...]]
    last_login_ms: int | None


def user_actor(*, name: str, administrator: bool, address: str) -> Actor:
    """Return the actor of a user who is logged in. Raises MetadataUnavailable."""
    if administrator:
        return Actor(
            kind=ActorKind.USER, name=name, address=address, rights={**EVERYTHING, **LOOK}
        )
    with reachable():
        stored = _stored_rights(name)
        topics = tuple(_owned(Topic.objects.exclude(state=TopicState.DELETED), name))
        groups = tuple(_owned(ConsumerGroup.objects.filter(deleted_at__isnull=True), name))
    rights = {right: tuple(patterns) for right, patterns in stored.items()}
    owns = {"topic": topics, "group": groups}
    return Actor(
        kind=ActorKind.USER,
        name=name,
        address=address,
        rights={**rights, **LOOK},
        owns=owns,
    )


def _owned(rows: Any, name: str) -> list[str]:
    # The filter also matches parts of longer names, which are sorted out below.
    candidates = rows.filter(owners__icontains=name).values_list("name", "owners")
    return [owned for owned, owners in candidates if name in owner_names(owners)]


def owner_names(text: str) -> list[str]:
    """Split a list of owners into names.

    >>> owner_names("ann, bob;cid dan")
    ['ann', 'bob', 'cid', 'dan']
    """
    return [name for name in re.split(r"[\s,;]+", text) if name]


def list_users(*, actor: Actor) -> list[UserView]:
    access.require(actor, Right.ADMIN, "*", what="user")
    with reachable():
        # Read at once, not with a query for each account.
        rights = dict(UserRights.objects.values_list("name", "rights"))
        return [
            _view(row, rights.get(row.get_username(), {}))
            for row in _users().order_by("username")
        ]


def find_user(*, name: str, actor: Actor) -> UserView:
    access.require(actor, Right.ADMIN, "*", what="user")
    with reachable():
        rights = _stored_rights(name)
        return _view(_account(name), rights)


def create(
    *,
    name: str,
    password: str,
    actor: Actor,
    administrator: bool = False,
    email: str = "",
    rights: Mapping[str, Sequence[str]] | None = None,
    dry_run: bool = False,
) -> UserView:
    """Create an account. With `dry_run` nothing is changed. Needs `admin`.

    Raises Invalid (name, password, rights), Conflict(already_exists).
    """
    access.require(actor, Right.ADMIN, "*", what="user")
    if not USER_NAME.fullmatch(name):
        raise Invalid.field(
            "name", "a user name has 1 to 150 characters from A-Z a-z 0-9 @ . + _ -"
        )
    # Outside the transaction of _create, see _hashed.
    hashed = _hashed(password, name, dry_run=dry_run)
    values = _checked(rights)
    # Django's own admin asks for is_staff, its permission checks for is_superuser.
    flags = {"is_staff": administrator, "is_superuser": administrator}
    row = _users().model(
        username=name, email=_users().normalize_email(email), password=hashed, **flags
    )
    return _create(row, values, actor=actor, dry_run=dry_run)


@transactional
def _create(
    row: Any, rights: dict[str, list[str]], *, actor: Actor, dry_run: bool
) -> UserView:
    name = row.get_username()
    if _users().filter(username=name).exists():
        raise Conflict(f"User {name} exists already.", code=Code.ALREADY_EXISTS)
    row.pk = None  # set by an earlier try of this transaction that was rolled back
    # A concurrent call may pass the check above, too; then the unique index refuses it.
    try:
        row.save(force_insert=True)
    except IntegrityError:
        raise Conflict(f"User {name} exists already.", code=Code.ALREADY_EXISTS) from None
    # Rights may be left from an account that was deleted without delete().
    UserRights.objects.update_or_create(name=name, defaults={"rights": rights})
    after = {"administrator": _is_admin(row), "email": row.email, "rights": rights}
    audit.record(actor=actor, verb=Verb.CREATE, kind="user", name=name, after=after)
    transaction.set_rollback(dry_run)
    return _view(row, rights)


def update(
    *,
    name: str,
    actor: Actor,
    administrator: bool,
    active: bool,
    rights: Mapping[str, Sequence[str]],
    password: str = "",
    dry_run: bool = False,
) -> UserView:
    """Change role, rights and state of an account, and its password unless that is ''. Needs
    `admin`.

    With `dry_run` nothing is changed. Raises Invalid, NotFound, and Conflict(in_use) if no
    administrator would be left.
    """
    access.require(actor, Right.ADMIN, "*", what="user")
    values = _checked(rights)
    columns: dict[str, Any] = {
        "is_staff": administrator,
        "is_superuser": administrator,
        "is_active": active,
    }
    if password:
        columns["password"] = _hashed(password, name, dry_run=dry_run)
    return _update(name, columns, values, actor=actor, dry_run=dry_run)


@transactional
def _update(
    name: str,
    columns: Mapping[str, Any],
    rights: dict[str, list[str]],
    *,
    actor: Actor,
    dry_run: bool,
) -> UserView:
    row = _account(name)
    before = {
        "administrator": _is_admin(row),
        "active": row.is_active,
        "rights": _stored_rights(name),
    }
    for column, value in columns.items():
        setattr(row, column, value)
    row.save(update_fields=tuple(columns))
    # After the change, so that the query counts this account as it will be.
    _require_administrator(before, name)
    UserRights.objects.update_or_create(name=name, defaults={"rights": rights})
    after = {"administrator": _is_admin(row), "active": row.is_active, "rights": rights}
    if "password" in columns:
        after["new_login_secret"] = True
    audit.record(
        actor=actor, verb=Verb.UPDATE, kind="user", name=name, before=before, after=after
    )
    transaction.set_rollback(dry_run)
    return _view(row, rights)


def change_own_password(*, password: str, actor: Actor, dry_run: bool = False) -> None:
    """Change the password of the actor. The caller has verified the old password.

    With `dry_run` the password is only checked. Raises Invalid, NotFound, and Conflict for
    an account whose password is kept by another service.
    """
    if actor.kind != ActorKind.USER:
        raise Forbidden(f"{actor.kind} {actor.name} has no password.")
    hashed = _hashed(password, actor.name, dry_run=dry_run)
    # Accounts of LDAP or single sign-on have no usable password here.
    if not _account(actor.name).has_usable_password():
        raise Conflict(
            f"The password of {actor.name} is kept by the service that checks it: change it there."
        )
    if not dry_run:
        _save_password(hashed, actor)


@transactional
def _save_password(hashed: str, actor: Actor) -> None:
    row = _account(actor.name)
    row.password = hashed
    row.save(update_fields=("password",))
    after = {"new_login_secret": True}
    audit.record(
        actor=actor, verb=Verb.CHANGE_PASSWORD, kind="user", name=actor.name, after=after
    )


def _hashed(password: str, name: str, *, dry_run: bool) -> str:
    """Return the hash of a password, '' for a dry run. Raises Invalid if it is too easy.

    Must not be called in a transaction: it takes up to a second on a busy machine, and the
    database ends transactions that are idle for seconds, because of their locks.
    """
    try:
        password_validation.validate_password(password, get_user_model()(username=name))
    except ValidationError as error:
        raise Invalid.field("password", " ".join(error.messages)) from None
    return "" if dry_run else make_password(password)


@transactional
def delete(*, name: str, confirm: str | None, actor: Actor, dry_run: bool = False) -> None:
    """Delete an account, its rights and its filters. Its sessions end at once.

    Needs `admin`. The name stays in lists of owners (see owned_names). With `dry_run`
    nothing is changed. Raises NotFound, Invalid(not_confirmed), and Conflict(in_use) for
    the last administrator.
    """
    access.require(actor, Right.ADMIN, "*", what="user")
    row = _account(name)
    check_confirmed(name, confirm)
    before = {
        "administrator": _is_admin(row),
        "active": row.is_active,
        "email": row.email,
        "rights": _stored_rights(name),
    }
    row.delete()
    # A later account with this name must not inherit rights and filters.
    UserRights.objects.filter(name=name).delete()
    SavedFilter.objects.filter(user=name).delete()
    _require_administrator(before, name)
    audit.record(actor=actor, verb=Verb.DELETE, kind="user", name=name, before=before)
    transaction.set_rollback(dry_run)


def owned_names(*, name: str, actor: Actor) -> list[str]:
    """Return the names of topics and groups with `name` among their owners, even if it has
    no account. Needs `admin`.
    """
    access.require(actor, Right.ADMIN, "*", what="user")
    owns = user_actor(name=name, administrator=False, address="").owns
    return sorted({owned for names in owns.values() for owned in names})


def _require_administrator(before: Mapping[str, Any], name: str) -> None:
    """Raise Conflict if no active administrator is left after a change of this account."""
    was_administrator = before["administrator"] and before["active"]
    if (
        was_administrator
        and not _users().filter(is_superuser=True, is_active=True).exists()
    ):
        raise Conflict(f"{name} is the last administrator.", code=Code.IN_USE)


def _users() -> Any:
    return get_user_model().objects


def _account(name: str) -> Any:
    row = _users().filter(username=name).first()
    if row is None or row.get_username() != name:  # MariaDB may match another spelling
        raise NotFound(f"User {name} does not exist.")
    return row


def _stored_rights(name: str) -> Mapping[str, Sequence[str]]:
    rights = UserRights.objects.filter(name=name).values_list("rights", flat=True)
    return rights.first() or {}


def _checked(rights: Mapping[str, Sequence[str]] | None) -> dict[str, list[str]]:
    lists = {
        right: list(patterns) for right, patterns in (rights or {}).items() if patterns
    }
    return access.check_rights(lists) if lists else {}


def _is_admin(row: Any) -> bool:
    return bool(row.is_superuser or row.is_staff)


def _view(row: Any, rights: Mapping[str, Sequence[str]]) -> UserView:
    return UserView(
        name=row.get_username(),
        email=row.email,
        administrator=_is_admin(row),
        active=row.is_active,
        rights={right: tuple(patterns) for right, patterns in rights.items()},
        last_login_ms=round(row.last_login.timestamp() * 1000) if row.last_login else None,
    )
