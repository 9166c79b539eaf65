"""One picture of every page, light, dark, on a phone and in Chinese: script/screenshots."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from playwright.sync_api import Browser, Page

from catmq_client import HttpTransport
from catmq_client.admin.api import Admin
from catmq_client.admin.dead_letters import DeadLetters
from tests.browser.browsing import chromium, log_in, tab
from tests.browser.planting import planted

LISTS = (
    "topics", "groups", "subscriptions", "consumers", "rebalances", "messages", "nodes", "alarms",
    "jobs", "audit", "keys", "users", "settings", "checks", "consistency", "doctor", "create/topic",
    "create/group", "create/key", "create/user", "create/node", "reports", "create/report",
    "pipeline",
    "create/archive", "create/replay", "create/purge", "create/import", "help", "parts",
    "search?q=seen",
    "brokers", "java-clients", "password", "jobs/record_lag/run",
)  # fmt: skip
PLANTED = (  # what is there on the server that is started for it
    "search", "search?q=mail", "alarms?show=all", "topics?kind=failure", "users/uma",
    "users/uma/delete",
    "keys/shop/limits", "keys/shop/delete", "runs/1", "runs/1/cancel", "reports/1",
    "audit?name=mailer&of=group", "rebalances?q=mailer&of=group",
)  # fmt: skip
UNSAFE = re.compile(r"[^\w.]+")  # in the name of a file
TOPIC_ACTIONS = (
    "settings", "expand", "shrink", "clean", "delete", "send", "delayed", "tokens", "tokens/create",
)  # fmt: skip
GROUP_ACTIONS = (
    "settings", "reset", "moves", "stop", "start", "rebalance", "subscribe", "delete", "failures",
    "dead/redrive", "dead/drop", "dead/seen",
)  # fmt: skip
NODE_ACTIONS = ("settings", "account", "reader", "promote", "test", "adopt", "delete")
LOOKS = {  # language, colours, width
    "light": ("en", "light", 1440),
    "dark": ("en", "dark", 1440),
    "phone": ("en", "light", 390),
    "zh": ("zh-CN", "light", 1440),
}


def main() -> int:
    """Takes the pictures."""
    asked = arguments()
    asked.into.mkdir(parents=True, exist_ok=True)
    with chromium() as browser:
        if asked.data is not None:
            return pictures_of(browser, asked, asked.data)
        with planted(browser) as data:
            return pictures_of(browser, asked, data)


def pictures_of(browser: Browser, asked: argparse.Namespace, data: Path) -> int:
    """Takes them of the server of a data directory."""
    lines = (data / "credentials.env").read_text().splitlines()
    known = dict(line.split("=", 1) for line in lines if "=" in line)
    found = pages(known) | {name: f"/{name}" for name in PLANTED}
    chosen = {
        name: path for name, path in found.items() if not asked.only or name in asked.only
    }
    for look in asked.looks:
        pictures(browser, known, chosen, look=look, into=asked.into)
    sys.stdout.write(f"{len(chosen) * len(asked.looks)} pictures in {asked.into}\n")
    return 0


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="script/screenshots", description=__doc__)
    parser.add_argument("only", nargs="*", help="names of pages (default: all)")
    parser.add_argument(
        "--data",
        type=Path,
        help="the data directory of a running server (default: one is started and filled)",
    )
    parser.add_argument("--into", type=Path, default=Path("var/screenshots"))
    parser.add_argument("--looks", nargs="+", choices=[*LOOKS], default=[*LOOKS])
    return parser.parse_args()


def pages(known: dict[str, str], *, topic: str = "", group: str = "") -> dict[str, str]:
    """Name → path of every page worth a picture; without names, of the first topic and
    group there are.
    """
    transport = HttpTransport(known["CATMQ_URL"], api_key=known["CATMQ_API_KEY"])
    admin = Admin(transport)
    topic = topic or next((one["name"] for one in admin.topics()), "")
    names = [one["name"] for one in admin.groups()]
    # of script/demo: it fails
    usual = "mailer" if "mailer" in names else next(iter(names), "")
    node = next((one["name"] for one in admin.nodes()), "main")
    found = {name: f"/{name}" for name in LISTS} | {
        "overview": "/",
        f"node-{node}": f"/nodes/{node}",
        **{f"node-{name}": f"/nodes/{node}/{name}" for name in NODE_ACTIONS},
        "login": "/login",
        "lost": "/nowhere",
    }
    for broker in admin.brokers()[:1]:
        found |= {
            f"broker-{name}": f"/brokers/{broker['name']}/{name}"
            for name in ("state", "forget")
        }
    if topic:
        found |= of_topic(admin, topic)
    if group or usual:
        found |= of_group(transport, group or usual)
    return found


def of_topic(admin: Admin, topic: str) -> dict[str, str]:
    """The pages of one topic and of one of its messages."""
    found = {f"topic-{name}": f"/topics/{topic}/{name}" for name in TOPIC_ACTIONS}
    asked = f"/messages?topic={topic}"
    found |= {
        "topic": f"/topics/{topic}",
        "messages-of": asked,
        "messages-tail": f"{asked}&tail=1&key=k",
    }
    for queue in admin.queues(topic):
        found.setdefault("topic-queue", f"/topics/{topic}/queues/{queue['queue']}")
        if queue["head"]:
            found["message"] = f"/messages/{topic}/{queue['queue']}-{queue['head'] - 1}"
            found["resend"] = f"{found['message']}/resend"
            break
    return found


def of_group(transport: HttpTransport, group: str) -> dict[str, str]:
    """The pages of one group, of its first subscription and its first dead message."""
    found = {f"group-{name}": f"/groups/{group}/{name}" for name in GROUP_ACTIONS}
    found |= {"group": f"/groups/{group}"}
    for one in Admin(transport).group(group)["subscriptions"][:1]:
        found["subscription"] = f"/groups/{group}/of/{one['topic']}"
        found["unsubscribe"] = f"{found['subscription']}/end"
    for dead in DeadLetters(transport).messages(group, page=1):
        found["dead"] = f"/groups/{group}/dead/of/{dead['id']}"
        break
    return found


def pictures(
    browser: Browser,
    known: dict[str, str],
    chosen: dict[str, str],
    *,
    look: str,
    into: Path,
) -> None:
    """One look at the chosen pages."""
    language, scheme, wide = LOOKS[look]
    with tab(
        browser,
        known["CATMQ_URL"].partition(",")[0],
        language=language,
        look=scheme,
        wide=wide,
    ) as page:
        if "login" in chosen:
            picture(page, chosen["login"], into / f"{look}-login.png")
        log_in(page, known["CATMQ_ADMIN_USER"], known["CATMQ_ADMIN_PASSWORD"])
        for name, path in chosen.items():
            if name != "login":
                picture(page, path, into / f"{look}-{UNSAFE.sub('-', name)}.png")


def picture(page: Page, path: str, file: Path) -> None:
    """The whole page, as it is once its script ran."""
    page.goto(path)
    page.wait_for_load_state("load")
    page.screenshot(path=file, full_page=True)


if __name__ == "__main__":
    sys.exit(main())
