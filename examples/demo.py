"""Keeps a server busy with real input, so that every page of the console has something to
show.

Three topics; four groups: `statistics` keeps up, `search-index` is slow, `mailer` fails for
one message in twenty, most of which it takes when they come again, and `archive` is
stopped. One message in a hundred is sent for half a minute later. Ends with Ctrl-C, or
after --seconds.

    script/demo                     against the server of var/
    script/demo --rate 500 --data /srv/catmq
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from catmq_client import Consumer, HttpTransport, Message, Producer
from catmq_client.admin.api import Admin
from catmq_client.errors import Conflict

INPUT = Path(__file__).parent / "data/nats-server-file-changes.jsonl.gz"
TOPICS = {"repo.changes": 8, "repo.code": 4, "repo.docs": 2}  # name → queues
GROUPS = {
    "statistics": ["repo.changes", "repo.code"],
    "search-index": ["repo.docs", "repo.code"],
    "mailer": ["repo.changes"],
    "archive": ["repo.changes"],
}
SLOW_S = 0.25  # a message, of search-index
FAILS = 20  # mailer fails at first for one message in so many
DIES = 200  # and always for one in so many
WAITS = 100  # one message in so many is sent for later
LATER_MS = 30_000
RETRY = {"retries": 2, "retry_delays_s": [2, 5]}  # of mailer
DOCS = (".md", ".txt", ".html")


def main() -> int:
    """Runs until Ctrl-C or for so many seconds."""
    asked = arguments()
    logging.getLogger("catmq").setLevel(logging.CRITICAL)  # that mailer fails is meant
    known = credentials(asked.data)
    server: dict[str, Any] = {"urls": known["CATMQ_URL"], "api_key": known["CATMQ_API_KEY"]}
    prepare(Admin(HttpTransport(known["CATMQ_URL"], api_key=known["CATMQ_API_KEY"])))
    readers = consumers(server)
    stop = threading.Event()
    threads = [
        threading.Thread(
            target=consumer.run, args=(handler,), kwargs={"threads": 2}, daemon=True
        )
        for consumer, handler in readers
    ]
    for thread in threads:
        thread.start()
    own_url = known["CATMQ_URL"].partition(",")[0]  # other brokers stand behind it
    print(
        f"About {asked.rate:g} messages a second; look at {own_url}. Ctrl-C ends it.",
        flush=True,
    )
    try:
        sent = send(server, rate=asked.rate, seconds=asked.seconds, stop=stop)
        print(f"{sent} messages were sent.")
    except KeyboardInterrupt:
        stop.set()
    for consumer, _handler in readers:
        consumer.stop()
    for thread in threads:
        thread.join(30)
    return 0


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="script/demo",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--rate",
        type=float,
        default=200,
        help="messages per second to all topics together (default 200)",
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=None,
        help="end after this many seconds (default: run until Ctrl-C)",
    )
    parser.add_argument(
        "--data", type=Path, default=Path("var"), help="the server's data directory"
    )
    asked = parser.parse_args()
    if asked.rate <= 0:
        parser.error("--rate must be more than 0")
    return asked


def credentials(data: Path) -> dict[str, str]:
    """URL and key of the server of a data directory."""
    file = data / "credentials.env"
    if not file.exists():
        sys.exit(f"There is no {file}: start a server (script/server) or name its --data.")
    return dict(line.split("=", 1) for line in file.read_text().splitlines() if "=" in line)


def prepare(admin: Admin) -> None:
    """Makes what is missing of topics, groups and subscriptions."""
    for topic, queues in TOPICS.items():
        unless_there(partial(admin.create_topic, topic, queues=queues))
    for group, topics in GROUPS.items():
        unless_there(partial(admin.create_group, group))
        for topic in topics:
            unless_there(partial(admin.subscribe, group, topic))
    admin.change_subscription("mailer", "repo.changes", **RETRY)
    admin.change_group("archive", stopped=True)


def unless_there(make: Callable[[], object]) -> None:
    """Makes something; that it is there already is fine."""
    try:
        make()
    except Conflict:
        return


def consumers(server: dict[str, Any]) -> list[tuple[Consumer, Callable[[Message], None]]]:
    """Two members of statistics, one each of the slow and the failing group."""
    handlers: list[tuple[str, Callable[[Message], None]]] = [
        ("statistics", read),
        ("statistics", read),
        ("search-index", read_slowly),
        ("mailer", fail_now_and_then),
    ]
    return [
        (
            Consumer(**server, group=group, topics=GROUPS[group], name=f"{group}-{number}"),
            handler,
        )
        for number, (group, handler) in enumerate(handlers, start=1)
    ]


def read(message: Message) -> None:
    """Read a message, and keep up."""
    message.json()


def read_slowly(message: Message) -> None:
    """Read a message slowly, and fall behind."""
    time.sleep(SLOW_S)


def fail_now_and_then(message: Message) -> None:
    """Fail for one message in FAILS until it is retried, and for one in DIES for good."""
    number = message.json()["seq"]
    if number % DIES == 0:
        raise LookupError(f"nobody has the address of {message.key}")
    if number % FAILS == 0 and message.attempt == 0:
        raise ConnectionError("the mail server is busy")


def send(
    server: dict[str, Any], *, rate: float, seconds: float | None, stop: threading.Event
) -> int:
    """Sends the input over and over at that rate; how many messages."""
    begun, sent = time.monotonic(), 0
    with Producer(**server) as producer:
        for event in itertools.cycle(events()):
            for topic in topics_of(event["path"]):
                later_ms = LATER_MS if sent % WAITS == 0 else None
                tag = event["path"].rpartition(".")[2][:20]
                producer.send_async(
                    topic, json=event, key=event["path"], tag=tag, delay_ms=later_ms
                )
                sent += 1
            ahead_s = begun + sent / rate - time.monotonic()
            if (ahead_s > 0.02 and stop.wait(ahead_s)) or (
                seconds and time.monotonic() - begun > seconds
            ):
                break
    return sent


def events() -> Iterator[dict[str, Any]]:
    """The input, oldest first."""
    with gzip.open(INPUT, "rt") as lines:
        yield from map(json.loads, lines)


def topics_of(path: str) -> list[str]:
    """The topics that hear of a file."""
    return ["repo.changes", "repo.docs" if path.endswith(DOCS) else "repo.code"]


if __name__ == "__main__":
    sys.exit(main())
