"""`python -m tests.support.python_member URL GROUP TOPIC NAME`: a Consumer that prints
handled messages.

Its lines are those of java_member.py. A message whose body begins with `bad` fails at its
first attempt. The API key comes from the environment.
"""

from __future__ import annotations

import os
import sys

from catmq_client import Consumer
from tests.support.java_member import failed, handled


def main() -> None:
    url, group, topic, name = sys.argv[1:]
    key = os.environ["CATMQ_API_KEY"]
    with Consumer(url, group=group, topics=[topic], api_key=key, name=name) as consumer:
        while True:
            for message in consumer.poll(max_messages=20, timeout_s=0.2):
                if message.attempt == 0 and message.text.startswith("bad"):
                    failed(message.text)
                    consumer.fail(message, "bad")
                else:
                    handled(message.queue, message.epoch, message.text)


if __name__ == "__main__":
    main()
