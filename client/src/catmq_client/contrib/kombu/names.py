"""Names of topics for the queues and exchanges of kombu."""

from __future__ import annotations

import re

from catmq_client.errors import OptionError

MOST_CHARACTERS = 100
_OTHER = re.compile(r"[^A-Za-z0-9._-]|^_|_(?=x[0-9a-f]+_)|(?<=_)f(?=ail$)")


def escaped(name: str) -> str:
    """Return a name of letters, digits, '.', '_' and '-' that no other name is mapped to.

    None begins with '_', as names of this transport do, or ends with '_fail', as retry
    topics do.

    >>> escaped("mails"), escaped("a/b"), escaped("_a"), escaped("a_x2f_b")
    ('mails', 'a_x2f_b', '_x5f_a', 'a_x5f_x2f_b')
    """
    return _OTHER.sub(lambda found: f"_x{ord(found[0]):x}_", name)


class Names:
    """The names of one vhost."""

    def __init__(self, vhost: str) -> None:
        self.vhost = escaped(vhost)
        if not self.vhost or not self.vhost[0].isalnum() or not self.vhost.isascii():
            raise OptionError(
                f"broker URL: {vhost!r} behind the /: begin it with a letter or a digit"
            )
        self.bindings = self._checked(f"{self.vhost}._bindings", "the URL's path")

    def topic(self, queue: str, *, step: int = 0) -> str:
        """Return the topic of a queue, for messages of a priority step."""
        middle = f"._p{step}." if step else "."
        return self._checked(f"{self.vhost}{middle}{escaped(queue)}", f"queue {queue!r}")

    def log(self, exchange: str) -> str:
        """Return the topic with what was sent to an exchange."""
        return self._checked(
            f"{self.vhost}._log.{escaped(exchange)}", f"exchange {exchange!r}"
        )

    @staticmethod
    def _checked(topic: str, what: str) -> str:
        if len(topic) > MOST_CHARACTERS:
            raise OptionError(
                f"{what}: its topic would be {topic}, of {len(topic)} characters; at most "
                f"{MOST_CHARACTERS} "
                "are allowed: choose a shorter name"
            )
        return topic
