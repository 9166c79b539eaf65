"""A Celery application whose tasks write a journal, for `celery -A
tests.acceptance.programs.celery_shop`.

Each line of the journal is `WORD NUMBER PID TIME`: sent, begun or ended, by the monotonic
clock.

    python -m tests.acceptance.programs.celery_shop EVERY_MS       sends tasks until SIGTERM
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
import threading
import time

from celery import Celery
from kombu.exceptions import OperationalError

import catmq_client.contrib.kombu
from catmq_client.errors import CatmqError

assert catmq_client.contrib.kombu.Transport is not None
JOURNAL = os.environ["SHOP_JOURNAL"]
app = Celery("shop", broker=os.environ["SHOP_BROKER"])
app.conf.update(
    broker_transport_options={"lease_s": int(os.environ["SHOP_LEASE_S"])},
    broker_connection_retry_on_startup=True,
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    task_ignore_result=True,
    worker_prefetch_multiplier=2,
)


def note(word: str, number: int) -> None:
    line = f"{word} {number} {os.getpid()} {time.monotonic()}\n"
    file = os.open(JOURNAL, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, line.encode())
    os.close(file)


@app.task(name="shop.work")
def work(number: int, seconds: float) -> None:
    note("begun", number)
    time.sleep(seconds)
    note("ended", number)


def main() -> None:
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    for number in itertools.count():
        if stopped.wait(int(sys.argv[1]) / 1000):
            return
        try:
            work.apply_async((number, 0.05))
        except (OperationalError, CatmqError) as error:
            sys.stderr.write(f"{number} may not be sent: {error}\n")
        else:
            note("sent", number)


if __name__ == "__main__":
    main()
