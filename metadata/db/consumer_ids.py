"""Signed consumer ids, which any broker verifies without metadata.

An id is `<group>.<key>.<member>-<random>.<hmac>`, with numbers in base 36, at most 100
ASCII characters. In broadcasting groups it is `<group>.<key>.<member>.<instance>-…`, so
that pulls and commits find the instance's reader rows without metadata.

The HMAC proves that a broker of this installation issued the id to that API key for that
group. It does not prove that the member still exists: heartbeats check that in metadata,
pulls and commits in the node's reader row.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import hmac
import re
import secrets

from msgspec import Struct

from metadata.config import config
from metadata.errors import Code, NotFound

MAC_BYTES = 16
NUMBER = "([0-9a-z]{1,13})"
SHAPE = re.compile(
    rf"{NUMBER}\.{NUMBER}\.{NUMBER}(?:\.{NUMBER})?-[0-9a-f]{{16}}\.[A-Za-z0-9_-]{{22}}"
)
DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


class ConsumerId(Struct, frozen=True):
    """A verified consumer id. `text` is the id itself.

    `key_id` is 0 for a consumer without an API key. `instance_id` is a BroadcastInstance, 0
    in other groups.
    """

    group_id: int
    key_id: int
    member_id: int
    text: str
    instance_id: int = 0

    @property
    def public_text(self) -> str:
        """The numbers of the id, without the random part and the HMAC, which are secret."""
        return self.text.partition("-")[0]

    @property
    def instance(self) -> str:
        """The name of this consumer's instance in its reader rows."""
        return reader_instance(self.instance_id)


def reader_instance(instance_id: int) -> str:
    """Return the name of an instance in reader rows: its id, '' for id 0.

    >>> reader_instance(7), reader_instance(0)
    ('7', '')
    """
    return str(instance_id) if instance_id else ""


def issue(
    *, group_id: int, key_id: int | None, member_id: int, instance_id: int = 0
) -> str:
    """Return a new signed id for a member."""
    numbers = [group_id, key_id or 0, member_id, *([instance_id] if instance_id else [])]
    # Random, so that a member that registers again gets an id of its own.
    body = f"{'.'.join(map(_base36, numbers))}-{secrets.token_hex(8)}"
    return f"{body}.{_mac(body, config.secret_key)}"


def check(text: str) -> ConsumerId:
    """Return the parts of an id. Raises NotFound(consumer_not_found) unless this
    installation signed it.
    """
    shape = SHAPE.fullmatch(text)
    body, _, mac = text.rpartition(".")
    # Former keys are accepted, too, so that the key can be changed while members read.
    keys = (config.secret_key, *config.secret_key_fallbacks)
    if shape is None or not any(hmac.compare_digest(mac, _mac(body, key)) for key in keys):
        raise NotFound("No such consumer: register first.", code=Code.CONSUMER_NOT_FOUND)
    group_id, key_id, member_id, instance_id = (
        int(number, 36) for number in shape.groups("0")
    )
    return ConsumerId(group_id, key_id, member_id, text, instance_id)


def _mac(body: str, secret_key: str) -> str:
    digest = hmac.digest(_key(secret_key), body.encode(), hashlib.sha256)[:MAC_BYTES]
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


@functools.lru_cache(maxsize=16)
def _key(secret_key: str) -> bytes:
    """Derive a key for this purpose only, so that no other signed value passes as a
    consumer id.
    """
    return hmac.digest(secret_key.encode(), b"catmq consumer id", hashlib.sha256)


def _base36(number: int) -> str:
    digits = ""
    while number:
        number, digit = divmod(number, 36)
        digits = DIGITS[digit] + digits
    return digits or "0"
