"""A shop commits and rolls back at random; its clerks and its relays are killed at random.

What must hold afterwards: the topic holds one message for each committed sale and no other,
each customer's in the order in which the sales were committed.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from itertools import count

from tests.acceptance.scenarios.stage import Stage
from tests.support.terminal import Process
from tests.support.waiting import until

SHOP = "tests/acceptance/programs/shop"
CLERKS, RELAYS = 3, 2
LEASE_S = "1.5"


@dataclass
class Shop:
    """One play of `seconds`; `database` as SHOP_DATABASE takes it."""

    stage: Stage
    database: str
    seconds: float = 8.0
    topic: str = ""
    kills: dict[str, int] = field(default_factory=lambda: {"clerk": 0, "relay": 0})

    def __post_init__(self) -> None:
        self._seeds = count(1)
        self.environ = {
            "DJANGO_SETTINGS_MODULE": "tests.acceptance.programs.shop.settings",
            "SHOP_DATABASE": self.database,
        }

    def run(self) -> None:
        """Plays, lets the last messages go, and judges."""
        self.topic = self.stage.fresh("sales")
        self.stage.terminal.run("topic", "create", self.topic, "--queues", "3")
        self.manage("migrate", "--verbosity", "0")
        self.play()
        self.manage("relay_outbox", "--once")
        self.judge()

    def play(self) -> None:
        """Kills a clerk or a relay every now and then, and starts another in its place."""
        running = {
            "clerk": [self.clerk() for _ in range(CLERKS)],
            "relay": [self.relay() for _ in range(RELAYS)],
        }
        for clerk in running["clerk"]:
            until(lambda clerk=clerk: b"open" in clerk.out.read_bytes(), limit_s=60)  # type: ignore[misc]
        ends_at = time.monotonic() + self.seconds
        while time.monotonic() < ends_at:
            before, more = self.stage.stored(self.topic), self.stage.rng.randrange(1, 60)
            until(
                lambda b=before, m=more: self.stage.stored(self.topic) >= b + m, limit_s=60
            )  # type: ignore[misc]
            kind = self.stage.rng.choice(("clerk", "relay"))
            victim = self.stage.rng.randrange(len(running[kind]))
            running[kind][victim].kill()
            self.kills[kind] += 1
            running[kind][victim] = self.clerk() if kind == "clerk" else self.relay()
        left = [*running["clerk"], *running["relay"]]
        while left:  # first those that work: in SQLite's file they let nobody else write
            ready = until(
                lambda: [one for one in left if one.out.read_bytes() or not one.runs],
                limit_s=60,
            )
            for one in ready:
                one.end()
                left.remove(one)

    def clerk(self) -> Process:
        """Starts one more clerk."""
        return self.stage.terminal.start(
            f"{SHOP}/clerk.py", self.topic, str(next(self._seeds)), environ=self.environ
        )

    def relay(self) -> Process:
        """Starts one more relay."""
        words = ("relay_outbox", "--lease-s", LEASE_S, "--poll-ms", "20", "--report-s", "1")
        return self.stage.terminal.start("-m", "django", *words, environ=self.environ)

    def manage(self, *words: str) -> str:
        """What a management command of the shop prints."""
        process = self.stage.terminal.start("-m", "django", *words, environ=self.environ)
        process.wait()
        return process.out.read_text()

    def judge(self) -> None:
        """Compares the shop's table with the topic's."""
        shell = "from tests.acceptance.programs.shop.models import Sale\n"
        shell += "for s in Sale.objects.order_by('place'): print(s.customer, s.id, sep='|')"
        listed = self.manage("shell", "--no-imports", "--command", shell).splitlines()
        sold: dict[str, list[str]] = {}
        for line in listed:
            customer, _, name = line.partition("|")
            sold.setdefault(customer, []).append(name)
        told = self.told()
        assert told == sold, {
            customer: (len(told.get(customer, [])), len(sold.get(customer, [])))
            for customer in {*told, *sold}
        }
        self.stage.say(
            f"{len(listed)} sales, each told once and in order; killed {self.kills}"
        )
        assert len(listed) > 100 and min(self.kills.values()) > 0

    def told(self) -> dict[str, list[str]]:
        """{customer: messages in their order}, as the topic's queues hold them."""
        found: dict[str, list[str]] = {}
        for queue in self.stage.terminal.admin.topic(self.topic)["queues"]:
            offset, head = 0, queue["head"] or 0
            while offset < head:
                page = self.stage.terminal.admin.messages(
                    self.topic, queue=queue["queue"], offset=offset, limit=1000
                )
                offset += len(page)
                for message in page:
                    found.setdefault(message["key"], []).append(
                        message["body_bytes"].decode()
                    )
        return found
