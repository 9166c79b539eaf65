"""steady.py TOPIC JOURNAL EVERY_MS FIRST QUEUE…: sends a message to each queue every
EVERY_MS, evenly spread.

The bodies are numbers, from FIRST on. Runs until SIGTERM and then waits for all receipts;
see tests/support/journal.py for what it writes.
"""

from __future__ import annotations

import logging
import sys
import threading
import time

from catmq_client import Producer
from catmq_client.errors import CatmqError
from catmq_client.sending.receipts import SendFuture
from tests.support import fixed
from tests.support.journal import Journal
from tests.support.terminated import Terminated

LAST_CALLBACK_S = 30.0


class Steady:
    """Sends by the clock, whatever became of earlier sends."""

    def __init__(
        self, producer: Producer, journal: Journal, topic: str, first: int
    ) -> None:
        self.producer, self.journal, self.topic, self.first = (
            producer,
            journal,
            topic,
            first,
        )
        self.asked = 0
        self.told = threading.Semaphore(0)  # how many sends have ended

    def run(self, queues: list[int], every_s: float, terminated: Terminated) -> None:
        """Sends until stopped; what is late is made up for at once."""
        begun, number = time.monotonic(), 0
        while True:
            due = begun + number * every_s / len(queues)
            if terminated.wait(due - time.monotonic()):
                return
            queue = queues[number % len(queues)]
            self.send(self.first + number, due, key=str(queue), queue=queue)
            number += 1

    def send(self, number: int, due: float, *, key: str, queue: int | None = None) -> None:
        """Send a message, and write its receipt down when it comes."""
        asked = time.monotonic()
        self.asked += 1
        try:
            future = self.producer.send_async(
                self.topic, b"%d" % number, key=key, queue=queue
            )
        except CatmqError as error:
            self.journal.tell("error", error=repr(error))
            self.told.release()
            return
        took_s = time.monotonic() - asked

        def told(done: SendFuture) -> None:
            error = done.exception()
            if error is not None:
                self.journal.tell(
                    "error", error=repr(error), waited_s=time.monotonic() - asked
                )
            else:
                receipt = done.result()
                where = {"queue": receipt.queue, "offset": receipt.offset, "number": number}
                self.journal.tell("sent", **where, asked=asked, due=due, took_s=took_s)
            self.told.release()

        future.add_done_callback(told)

    def leave(self) -> None:
        """Says that all is told, once it is: callbacks may run a little later than close()
        returns.
        """
        for _ in range(self.asked):
            assert self.told.acquire(timeout=LAST_CALLBACK_S), "a send never ended"
        self.journal.tell("left", numbers=[self.first, self.first + self.asked])


def main() -> None:
    """Runs until SIGTERM."""
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(relativeCreated)d %(message)s"
    )
    topic, path, every_ms, first, *queues = sys.argv[1:]
    journal, terminated = Journal(path), Terminated()
    with Producer(transport=fixed.transport()) as producer:
        steady = Steady(producer, journal, topic, int(first))
        journal.tell("up")
        steady.run([int(queue) for queue in queues], int(every_ms) / 1000, terminated)
    steady.leave()


if __name__ == "__main__":
    main()
