"""Topic names for the queues and exchanges of kombu."""

from __future__ import annotations

import re

from catmq_client.errors import OptionError

MAX_CHARACTERS = 100
# Characters that a topic's name cannot have, and those that would make the escapes, the
# names of this transport (_…) or of retry topics (…_fail) ambiguous.
_ESCAPED = re.compile(r"[^A-Za-z0-9._-]|^_|_(?=x[0-9a-f]+_)|(?<=_)f(?=ail$)")


def escape_name(name: str) -> str:
    """Return a name of letters, digits, '.', '_' and '-'. Different names stay different.

    The result does not begin with '_' and a letter of this transport's own names, and does
    not end with '_fail', as the names of retry topics do.

    >>> escape_name("mails"), escape_name("a/b"), escape_name("_a"), escape_name("a_x2f_b")
    ('mails', 'a_x2f_b', '_x5f_a', 'a_x5f_x2f_b')
    """
    return _ESCAPED.sub(lambda match: f"_x{ord(match[0]):x}_", name)


class TopicNames:
    def __init__(self, vhost: str) -> None:
        self.vhost: str = escape_name(vhost)
        if not self.vhost or not self.vhost[0].isalnum() or not self.vhost.isascii():
            raise OptionError(
                f"broker URL: {vhost!r} behind the /: begin it with a letter or a digit"
            )
        self.bindings: str = self._check_length(f"{self.vhost}._bindings", "the URL's path")

    def topic(self, queue: str, *, step: int = 0) -> str:
        middle = f"._p{step}." if step else "."
        return self._check_length(
            f"{self.vhost}{middle}{escape_name(queue)}", f"queue {queue!r}"
        )

    def log_topic(self, exchange: str) -> str:
        return self._check_length(
            f"{self.vhost}._log.{escape_name(exchange)}", f"exchange {exchange!r}"
        )

    @staticmethod
    def _check_length(topic: str, subject: str) -> str:
        if len(topic) > MAX_CHARACTERS:
            raise OptionError(
                f"{subject}: its topic would be {topic}, of {len(topic)} characters; at most "
                f"{MAX_CHARACTERS} "
                "are allowed: choose a shorter name"
            )
        return topic
