"""Fingerprints of the keys of an installation, so that nobody works on its metadata with
others.

The keys lie in a data directory or in the environment, metadata lies in a database. A
second data directory has keys of its own: consumer ids that its broker signs are refused by
all others, passwords that it seals nobody else can read, and it cannot read theirs. So
metadata keeps a fingerprint of the key that signs and of each key that sealed something,
and whoever has others is told so before it does anything.

Encryption keys can be changed while brokers run: a process has several, seals with its
first and reads with all. It may work here if it has every recorded one, or if its first is
recorded and it can read all that is sealed. So can the signing key, while each process also
takes what the other key signs: it may work here if one of those that it takes is recorded.
"""

from __future__ import annotations

import hashlib
import hmac
from itertools import chain

from metadata.actors import Actor
from metadata.config import config
from metadata.db import access, audit
from metadata.db.clock import database_now
from metadata.db.secrets import Undecryptable, decrypt, encrypt
from metadata.db.transactions import reachable, transactional
from metadata.errors import Code, Conflict
from metadata.models import ChangeCounter, DbNode, KeyFingerprint

SIGNING, ENCRYPTION = KeyFingerprint.Purpose.SIGNING, KeyFingerprint.Purpose.ENCRYPTION
SEALED = ("password_encrypted", "reader_password_encrypted")
REMEDY = (
    "Copy secret.key and encryption.key from the data directory of a broker that works "
    "into {home}, or set "
    "CATMQ_SECRET_KEY and CATMQ_ENCRYPTION_KEYS as it has them. If {home} is the wrong "
    "directory, name the "
    "right one: --data DIR for script/server, CATMQ_DATA_DIR for manage.py. If those keys "
    "are lost: "
    "manage.py accept_keys"
)


def find_mismatch() -> str:
    """Return why this process may not work on this metadata, '' if it may. Raises
    MetadataUnavailable.
    """
    with reachable():
        return _trouble()


def require_same_keys() -> None:
    """Raise Conflict(foreign_keys) if other keys than this process's are used here,
    MetadataUnavailable.
    """
    found = find_mismatch()
    if found:
        raise Conflict(found, code=Code.FOREIGN_KEYS)


@transactional
def record_keys() -> None:
    """Record what this process signs and seals with; before it seals, and before it serves.

    Raises Conflict(foreign_keys). Two that come first at once do so one after the other.
    """
    own = _own()
    if set(own) <= _recorded():
        return
    ChangeCounter.objects.select_for_update().get()
    found = _trouble()
    if found:
        raise Conflict(found, code=Code.FOREIGN_KEYS)
    for purpose, fingerprint in own:
        KeyFingerprint.objects.get_or_create(
            purpose=purpose, fingerprint=fingerprint, defaults={"noted_at": database_now()}
        )


@transactional
def accept_keys(*, actor: Actor) -> list[str]:
    """Make this process's keys those of the installation; the nodes whose passwords are
    lost by that.

    Passwords that can be read are sealed anew with the first encryption key. Needs `admin`
    on everything.
    """
    access.require(actor, "admin", "*", what="installation")
    ChangeCounter.objects.select_for_update().get()
    lost = [
        row.name
        for row in DbNode.objects.select_for_update().order_by("name")
        if not _sealed_anew(row)
    ]
    before = {"fingerprints": sorted(found for _, found in _recorded())}
    KeyFingerprint.objects.all().delete()
    now = database_now()
    for purpose, fingerprint in _own():
        KeyFingerprint.objects.create(
            purpose=purpose, fingerprint=fingerprint, noted_at=now
        )
    after = {"fingerprints": sorted(found for _, found in _own())}
    audit.record(
        actor=actor,
        verb="accept_keys",
        kind="installation",
        name="keys",
        before=before,
        after=after,
    )
    return lost


def _sealed_anew(row: DbNode) -> bool:
    """Return True if all passwords of a node could be read; they are sealed with the first
    key now.
    """
    try:
        for field in SEALED:
            setattr(row, field, encrypt(decrypt(getattr(row, field))))
    except Undecryptable:
        return False
    row.save(update_fields=SEALED)
    return True


def _trouble() -> str:
    recorded = _recorded()
    _, (_, sealing) = _own()
    signed = {found for purpose, found in recorded if purpose == SIGNING}
    sealed = {found for purpose, found in recorded if purpose == ENCRYPTION}
    others = []
    # Signatures by its own key are taken, and by those that went before it.
    taken = {
        _fingerprint(SIGNING, key)
        for key in (config.secret_key, *config.secret_key_fallbacks)
    }
    readable = {_fingerprint(ENCRYPTION, key) for key in config.encryption_keys}
    if signed and not signed & taken:
        others.append("signs consumer ids with another key")
    if not (sealed <= readable if sealed else _reads_all()) and not (
        sealing in sealed and _reads_all()
    ):
        others.append("seals the passwords of nodes with another key")
    if not others:
        return ""
    home = config.data_dir
    return (
        f"This metadata database belongs to an installation that {' and '.join(others)} "
        "than the one "
        f"here ({home}). {REMEDY.format(home=home)}"
    )


def _reads_all() -> bool:
    """Return True if this process can read every password that metadata holds."""
    try:
        for sealed in chain.from_iterable(DbNode.objects.values_list(*SEALED)):
            decrypt(sealed)
    except Undecryptable:
        return False
    return True


def _recorded() -> set[tuple[str, str]]:
    return set(KeyFingerprint.objects.values_list("purpose", "fingerprint"))


def _own() -> tuple[tuple[str, str], tuple[str, str]]:
    sealing = _fingerprint(ENCRYPTION, config.encryption_keys[0])
    return (SIGNING.value, _fingerprint(SIGNING, config.secret_key)), (
        ENCRYPTION.value,
        sealing,
    )


def _fingerprint(purpose: str, key: str) -> str:
    """128 bits that tell nothing of the key; the same key for another purpose has another
    one.
    """
    return hmac.digest(
        key.encode(), f"catmq fingerprint {purpose}".encode(), hashlib.sha256
    ).hex()[:32]
