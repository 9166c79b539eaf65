"""Fingerprints of the keys of an installation, so that no process works on its metadata with
other keys.

The keys are in a data directory or in the environment, the metadata is in a database. A
second data directory has keys of its own: all other brokers refuse the consumer ids that
its broker signs, cannot decrypt the passwords that it encrypts, and it cannot decrypt the
passwords of the others. So metadata keeps a fingerprint of the signing key and of each key
that encrypted a password, and a process with other keys is refused before it does anything.

Keys can be rotated while brokers run:

* A process has several encryption keys. It encrypts with the first and decrypts with all.
  It may work here if it has every recorded key, or if its first key is recorded and it can
  decrypt every password.
* Each process also accepts signatures of its former signing keys. It may work here if any
  key that it accepts is recorded.
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
from metadata.installation import name_programs
from metadata.models import ChangeCounter, DbNode, KeyFingerprint
from metadata.rules.audit_verbs import Verb
from metadata.rules.rights import Right

SIGNING, ENCRYPTION = KeyFingerprint.Purpose.SIGNING, KeyFingerprint.Purpose.ENCRYPTION
ENCRYPTED_FIELDS = ("password_encrypted", "reader_password_encrypted")
REMEDY = (
    "Copy secret.key and encryption.key from the data directory of a broker that works into "
    "{home}, or set CATMQ_SECRET_KEY and CATMQ_ENCRYPTION_KEYS as it has them. If {home} is "
    "the wrong directory, name the right one: --data DIR for script/server, CATMQ_DATA_DIR "
    "for manage.py. If those keys are lost: manage.py accept_keys"
)


def find_mismatch() -> str:
    """Return why this process may not work on this metadata, '' if it may. Raises
    MetadataUnavailable.
    """
    with reachable():
        return _find_mismatch()


def require_same_keys() -> None:
    """Raise Conflict(foreign_keys) if this metadata is used with other keys than those of
    this process. Raises MetadataUnavailable.
    """
    mismatch = find_mismatch()
    if mismatch:
        raise Conflict(mismatch, code=Code.FOREIGN_KEYS)


def list_ages() -> list[tuple[str, int]]:
    """Return (purpose, age in days) of the recorded keys that this process has. Raises
    MetadataUnavailable.
    """
    with reachable():
        now = database_now()
        own = set(_own_fingerprints())
        return [
            (row.purpose, (now - row.noted_at).days)
            for row in KeyFingerprint.objects.order_by("purpose")
            if (row.purpose, row.fingerprint) in own
        ]


@transactional
def record_keys() -> None:
    """Record the keys with which this process signs and encrypts. Called before it encrypts
    a password, and before it serves.

    Raises Conflict(foreign_keys).
    """
    own = _own_fingerprints()
    if set(own) <= _recorded():
        return
    # The lock: of two new installations on an empty database, only the first is recorded,
    # and the second is refused.
    ChangeCounter.objects.select_for_update().get()
    mismatch = _find_mismatch()
    if mismatch:
        raise Conflict(mismatch, code=Code.FOREIGN_KEYS)
    for purpose, fingerprint in own:
        KeyFingerprint.objects.get_or_create(
            purpose=purpose, fingerprint=fingerprint, defaults={"noted_at": database_now()}
        )


@transactional
def accept_keys(*, actor: Actor) -> list[str]:
    """Make this process's keys those of the installation. Return the names of nodes whose
    passwords it cannot decrypt: these are lost.

    The other passwords are encrypted again with the first encryption key. Needs `admin` on
    everything.
    """
    access.require(actor, Right.ADMIN, "*", what="installation")
    ChangeCounter.objects.select_for_update().get()
    lost = []
    for row in DbNode.objects.select_for_update().order_by("name"):
        try:
            for field in ENCRYPTED_FIELDS:
                setattr(row, field, encrypt(decrypt(getattr(row, field))))
        except Undecryptable:
            # Neither field is saved then.
            lost.append(row.name)
        else:
            row.save(update_fields=ENCRYPTED_FIELDS)
    before = {"fingerprints": sorted(value for _, value in _recorded())}
    KeyFingerprint.objects.all().delete()
    now = database_now()
    for purpose, fingerprint in _own_fingerprints():
        KeyFingerprint.objects.create(
            purpose=purpose, fingerprint=fingerprint, noted_at=now
        )
    after = {"fingerprints": sorted(value for _, value in _own_fingerprints())}
    audit.record(
        actor=actor,
        verb=Verb.ACCEPT_KEYS,
        kind="installation",
        name="keys",
        before=before,
        after=after,
    )
    return lost


def _find_mismatch() -> str:
    recorded = _recorded()
    _, (_, own_encryption) = _own_fingerprints()
    signing = {fingerprint for purpose, fingerprint in recorded if purpose == SIGNING}
    encryption = {fingerprint for purpose, fingerprint in recorded if purpose == ENCRYPTION}
    differences = []
    # A process accepts signatures of its own key and of the keys before it.
    accepted = {
        _fingerprint(SIGNING, key)
        for key in (config.secret_key, *config.secret_key_fallbacks)
    }
    readable = {_fingerprint(ENCRYPTION, key) for key in config.encryption_keys}
    if signing and not signing & accepted:
        differences.append("signs consumer ids with another key")
    # Metadata of an older release may hold passwords and no fingerprints: then it counts
    # whether this process can decrypt them.
    if not (encryption <= readable if encryption else _can_decrypt_all()) and not (
        own_encryption in encryption and _can_decrypt_all()
    ):
        differences.append("seals the passwords of nodes with another key")
    if not differences:
        return ""
    home = config.data_dir
    return (
        f"This metadata database belongs to an installation that {' and '.join(differences)} "
        f"than the one here ({home}). {name_programs(REMEDY.format(home=home))}"
    )


def _can_decrypt_all() -> bool:
    """Return True if this process can decrypt every password in the metadata."""
    try:
        for password in chain.from_iterable(DbNode.objects.values_list(*ENCRYPTED_FIELDS)):
            decrypt(password)
    except Undecryptable:
        return False
    return True


def _recorded() -> set[tuple[str, str]]:
    return set(KeyFingerprint.objects.values_list("purpose", "fingerprint"))


def _own_fingerprints() -> tuple[tuple[str, str], tuple[str, str]]:
    """Return (purpose, fingerprint) of the signing key and of the first encryption key."""
    encryption = _fingerprint(ENCRYPTION, config.encryption_keys[0])
    return (SIGNING.value, _fingerprint(SIGNING, config.secret_key)), (
        ENCRYPTION.value,
        encryption,
    )


def _fingerprint(purpose: str, key: str) -> str:
    """Return 128 bits from which the key cannot be derived. Different for each purpose."""
    return hmac.digest(
        key.encode(), f"catmq fingerprint {purpose}".encode(), hashlib.sha256
    ).hex()[:32]
