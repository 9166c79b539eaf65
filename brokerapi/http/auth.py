"""Authentication: API key to Actor; a consumer id must belong to the key that registered
it.
"""

from __future__ import annotations

from django.http import HttpRequest

from metadata import log_context
from metadata.actors import Actor
from metadata.cache import snapshot
from metadata.cache.snapshot_types import KeyInfo
from metadata.db import consumer_ids
from metadata.db.consumer_ids import ConsumerId
from metadata.errors import Forbidden, Unauthenticated
from metadata.rules.rights import ActorKind
from metadata.users import api_keys

REMEDY = "Send the header `Authorization: Bearer <api key>`."
UNKNOWN = "Unknown API key: it was deleted, or belongs to another installation."


def authenticate(request: HttpRequest) -> Actor:
    """Return the actor of the request's API key. Raises Unauthenticated."""
    scheme, _, plaintext = request.META.get("HTTP_AUTHORIZATION", "").partition(" ")
    if scheme.lower() != "bearer" or not plaintext.strip():
        raise Unauthenticated(f"This needs an API key. {REMEDY}")
    key = snapshot.find_key(api_keys.digest(plaintext.strip()))
    if key is None:
        raise Unauthenticated(UNKNOWN)
    actor = actor_of_key(key, request.META.get("REMOTE_ADDR", ""))
    log_context.add_fields(actor=actor)
    return actor


def actor_of_key(key: KeyInfo, address: str) -> Actor:
    return Actor(
        kind=ActorKind.KEY, name=key.name, address=address, rights=key.rights, key_id=key.id
    )


def check_consumer(text: str, actor: Actor) -> ConsumerId:
    """Return the consumer id of a URL. Raises NotFound for an invalid id, Forbidden if
    another key registered it.
    """
    consumer = consumer_ids.check(text)
    if consumer.key_id != actor.key_id:
        raise Forbidden(
            "This consumer registered with another API key: use that one, or register anew."
        )
    group = snapshot.current().groups.get(consumer.group_id)
    log_context.add_fields(consumer=consumer.public_text, group=group and group.name)
    return consumer


def check_key_exists(actor: Actor) -> None:
    """Raise Unauthenticated if the actor's key was deleted since the request arrived."""
    if actor.key_id is not None and actor.key_id not in snapshot.current().keys:
        raise Unauthenticated(UNKNOWN)
