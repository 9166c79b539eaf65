"""Signed consumer ids: any broker checks one without asking metadata.

`<group>.<key>.<member>-<random>.<hmac>`, numbers in base 36, at most 100 ASCII characters;
in broadcasting groups `<group>.<key>.<member>.<instance>-…`, so that pulls and commits find
the instance's reader rows without metadata. The HMAC proves that a broker of this
installation issued it to that key for that group; whether the member still exists is for
metadata (heartbeat) and the node's reader row (pull, commit) to say.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass

from metadata.config import config
from metadata.errors import Code, NotFound

MAC_BYTES = 16
NUMBER = "([0-9a-z]{1,13})"
SHAPE = re.compile(
    rf"{NUMBER}\.{NUMBER}\.{NUMBER}(?:\.{NUMBER})?-[0-9a-f]{{16}}\.[A-Za-z0-9_-]{{22}}"
)
DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True, slots=True)
class ConsumerId:
    """A checked consumer id; `text` is the id itself.

    `key_id` is 0 for a consumer without an API key, `instance_id` (a BroadcastInstance) in
    clustering groups.
    """

    group_id: int
    key_id: int
    member_id: int
    text: str
    instance_id: int = 0

    @property
    def instance(self) -> str:
        """Name of this consumer's instance in its reader rows."""
        return reader_instance(self.instance_id)


def reader_instance(instance_id: int) -> str:
    """Return the name of an instance in reader rows: its id, '' for none.

    >>> reader_instance(7), reader_instance(0)
    ('7', '')
    """
    return str(instance_id) if instance_id else ""


def issue(
    *, group_id: int, key_id: int | None, member_id: int, instance_id: int = 0
) -> str:
    numbers = [group_id, key_id or 0, member_id, *([instance_id] if instance_id else [])]
    body = f"{'.'.join(map(_base36, numbers))}-{secrets.token_hex(8)}"
    return f"{body}.{_mac(body, config.secret_key)}"


def check(text: str) -> ConsumerId:
    """The parts of an id that this installation signed; raises NotFound(consumer_not_found)
    for any other.
    """
    shape = SHAPE.fullmatch(text)
    body, _, mac = text.rpartition(".")
    if shape is None or not _is_ours(body, mac):
        raise NotFound("No such consumer: register first.", code=Code.CONSUMER_NOT_FOUND)
    group_id, key_id, member_id, instance_id = (int(part, 36) for part in shape.groups("0"))
    return ConsumerId(group_id, key_id, member_id, text, instance_id)


def _is_ours(body: str, mac: str) -> bool:
    """Return True if the secret key, or one that went before it, made a signature."""
    if hmac.compare_digest(mac, _mac(body, config.secret_key)):
        return True
    return any(
        hmac.compare_digest(mac, _mac(body, old)) for old in config.secret_key_fallbacks
    )


def _mac(body: str, secret_key: str) -> str:
    digest = hmac.digest(_key(secret_key), body.encode(), hashlib.sha256)[:MAC_BYTES]
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


@functools.lru_cache(maxsize=16)
def _key(secret_key: str) -> bytes:
    """A key of its own, so that a signature made here is worth nothing anywhere else."""
    return hmac.digest(secret_key.encode(), b"catmq consumer id", hashlib.sha256)


def _base36(number: int) -> str:
    digits = ""
    while number:
        number, digit = divmod(number, 36)
        digits = DIGITS[digit] + digits
    return digits or "0"
