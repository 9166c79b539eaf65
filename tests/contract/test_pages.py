"""The commands of pages do what the pages say: all run, in their order, on one broker."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command

from catmq_client import Consumer, HttpTransport
from catmq_client.admin.api import Admin
from catmq_client.cli.main import main
from metadata.cache import snapshot
from tests.support import commands, page_runs
from tests.support.broker import Broker
from tests.support.environment import ROOT

BLOCK = re.compile(r"^ *```(?:sh|bash)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
# What the setup has done, or what would set up another server.
DONE = ("catmq topic create orders", "manage.py register_node")
# What runs until it is stopped; tests/unit/test_cli_following.py does.
ENDLESS = ("catmq tail ",)


@pytest.fixture
def shop(broker: Broker, make_node: Callable[..., str]) -> Admin:
    """What the pages speak of: a topic, a group that has failed with some messages, and a
    key.
    """
    make_node("failures", kind="failure")
    admin = Admin(HttpTransport(broker.url, api_key=broker.api_key))
    admin.create_topic("orders", queues=4)
    admin.create_group("billing")
    admin.subscribe("billing", "orders")
    # the pages speak of them as groups that exist
    for name in ("billing-v2", "audit", "reports"):
        admin.create_group(name)
    admin.subscribe("billing-v2", "orders")
    admin.change_subscription("billing", "orders", retries=0)
    snapshot.refresh()  # failures are not to be retried from now on
    sent = [
        {"body": f"refused {n}", "key": f"{n}", "headers": {"region": "eu"}}
        for n in range(20)
    ]
    broker.ok("POST", "/topics/orders/messages", {"messages": sent})
    broker.ok("POST", "/keys", {"name": "shop-7", "rights": {"produce": ["orders"]}})
    fail_some(broker, 10)
    return admin


def fail_some(broker: Broker, count: int) -> None:
    """Let a member of the group fail with so many messages, and handle the others."""
    seen = 0
    with Consumer(
        broker.url, api_key=broker.api_key, group="billing", topics=["orders"]
    ) as consumer:
        while seen < 20:
            for message in consumer.poll(timeout_s=5):
                seen += 1
                if seen <= count:
                    consumer.fail(message, ValueError("no stock"))
        consumer.commit()


def told(page: str) -> Iterator[str]:
    """The commands of a page that are run."""
    for block in BLOCK.findall((ROOT / "docs" / page).read_text()):
        for line in block.replace("\\\n", " ").splitlines():
            yield from (
                part
                for part in commands.parts(line)
                if not any(one in part for one in DONE + ENDLESS)
            )


def known(command: str, admin: Admin) -> str:
    """The command with ids that exist in place of the page's."""
    if "dead-2-17" in command:
        command = command.replace(
            "dead-2-17", next(iter(admin.dead_letters.messages("billing")))["id"]
        )
    if command.startswith("catmq dlq redrive "):
        command += " --wait"  # the page's are a choice: a group has one at a time
    if command == "catmq dlq stop billing 3":
        command = (
            f"catmq dlq stop billing {admin.dead_letters.redrives('billing')[0]['id']}"
        )
    if "d1-17" in command:
        command = command.replace(
            "d1-17", admin.delayed("orders")["messages"][0]["message_id"]
        )
    if "RESET" in command:
        resets: list[Any] = list(admin.offset_moves("billing"))
        command = command.replace("RESET", str(resets[0]["reset"]))
    command = command.replace(
        "set_node node1", f"set_node {next(iter(admin.nodes()))['name']}"
    )
    queue = admin.topic("orders")["queues"][0]["queue"]
    return command.replace("queue orders 7", f"queue orders {queue}")


def run(command: str, broker: Broker) -> int:
    """Run a command in this process; its exit code."""
    words = shlex.split(command)
    if words[0] == "catmq":
        return main([*words[1:], "--url", broker.url, "--api-key", broker.api_key])
    call_command(
        *words[words.index("manage.py") + 1 :] if "manage.py" in words else words[2:]
    )
    return 0


def test_the_commands_of_the_pages_run(
    broker: Broker, shop: Admin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    failed = []
    ran = 0
    for page in page_runs.COMMANDS:
        for command in told(page):
            ran += 1
            asked = known(command, shop)
            code = run(asked, broker)
            if code != 0:
                failed.append(f"{page}: {asked}: {code}")
    assert failed == []
    assert ran >= 35
