"""Errors of the lower layers in the language of the page.

Their details are in English. In another language, a sentence for the error code stands
before the detail.
"""

from __future__ import annotations

from collections.abc import Mapping

from django.utils.functional import Promise
from django.utils.translation import get_language
from django.utils.translation import gettext_lazy as lazy

from metadata.errors import CatmqError, Code

SENTENCES: Mapping[Code, Promise] = {
    Code.MALFORMED: lazy("The request cannot be read."),
    Code.INVALID: lazy("A value is not valid."),
    Code.TOO_LARGE: lazy("It is too large."),
    Code.UNAUTHENTICATED: lazy("Log in first."),
    Code.FORBIDDEN: lazy("You have no permission for this."),
    Code.TOPIC_NOT_FOUND: lazy("The topic does not exist."),
    Code.QUEUE_NOT_FOUND: lazy("The queue does not exist."),
    Code.GROUP_NOT_FOUND: lazy("The consumer group does not exist."),
    Code.SUBSCRIPTION_NOT_FOUND: lazy("The subscription does not exist."),
    Code.NODE_NOT_FOUND: lazy("The node does not exist."),
    Code.BROKER_NOT_FOUND: lazy("The broker does not exist."),
    Code.KEY_NOT_FOUND: lazy("The API key does not exist."),
    Code.TOKEN_NOT_FOUND: lazy("The send token does not exist."),
    Code.CONSUMER_NOT_FOUND: lazy("The consumer does not exist."),
    Code.MESSAGE_NOT_FOUND: lazy("The message does not exist, or no longer."),
    Code.RESET_NOT_FOUND: lazy("The offset reset does not exist."),
    Code.REDRIVE_NOT_FOUND: lazy("The redrive does not exist."),
    Code.ALREADY_EXISTS: lazy("The name is taken."),
    Code.IN_USE: lazy("It is in use."),
    Code.NOT_CONFIRMED: lazy("It was not confirmed."),
    Code.GROUP_SETTINGS_DIFFER: lazy("The group has other settings."),
    Code.NO_FAILURE_TOPIC: lazy("There is no retry topic for failed messages."),
    Code.LAST_BROKER: lazy("No other broker would be left."),
    Code.LAST_QUEUE: lazy("No other queue of the topic would take messages."),
    Code.BATCH_CONFLICT: lazy("The batch id was used for other messages."),
    Code.ALREADY_DELIVERED: lazy("The message is in its queue already."),
    Code.TOPIC_READ_ONLY: lazy("The topic is read-only."),
    Code.QUEUE_NOT_WRITABLE: lazy("The queue takes no messages."),
    Code.NODE_REFUSED: lazy("The database cannot serve as a node."),
    Code.EXPIRED: lazy("It has expired."),
    Code.REPLACED: lazy("It was replaced."),
    Code.NOT_IMPLEMENTED: lazy("This is not available."),
    Code.STORE_CORRUPT: lazy("A queue contradicts itself."),
    Code.NO_WRITABLE_QUEUE: lazy("No queue of the topic takes messages now."),
    Code.NODE_UNAVAILABLE: lazy("A node does not answer."),
    Code.NODE_FULL: lazy("A node has too little disk space."),
    Code.METADATA_UNAVAILABLE: lazy("The metadata database does not answer."),
    Code.OUTCOME_UNKNOWN: lazy("It is not known if this was done."),
    Code.BUSY: lazy("The server is busy. Try again."),
    Code.RATE_LIMITED: lazy("The rate limit is reached. Try again later."),
    Code.DRAINING: lazy("The broker is being drained."),
}


def describe_error(error: CatmqError, field_message: str = "") -> str:
    """Return the text of an error, for a page or a form.

    `field_message` replaces the detail of the error at a field.

    >>> from metadata.errors import NotFound
    >>> describe_error(NotFound("Topic orders does not exist.", code=Code.TOPIC_NOT_FOUND))
    'Topic orders does not exist.'
    """
    detail = field_message or error.detail
    if (get_language() or "en").startswith("en") or error.code not in SENTENCES:
        return detail
    return f"{SENTENCES[error.code]} {detail}"
