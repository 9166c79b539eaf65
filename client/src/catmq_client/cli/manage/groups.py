"""catmq group, catmq subscribe, catmq unsubscribe"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from catmq_client.admin.activity_shapes import SlowHandler
from catmq_client.admin.api import Admin
from catmq_client.admin.calls import PAGE
from catmq_client.admin.shapes import Group, Rebalance, Subscription
from catmq_client.cli.arguments import Target, target, wrong
from catmq_client.cli.connection import Brokers, Command
from catmq_client.cli.declared import options
from catmq_client.cli.forms import Paint, is_table
from catmq_client.cli.output import (
    Columns,
    at,
    duration,
    facts,
    fields,
    moment,
    note,
    print_rows,
    rows_table,
    span,
)
from catmq_client.cli.verbs import (
    CHANGED,
    DRY_RUN,
    GROUP,
    NAME,
    QUEUES,
    TABLE,
    TOPIC,
    Argument,
    Noun,
    Verb,
    action,
    detail,
    given_by,
    limit,
    listing,
    search,
    settings,
    show_row,
)
from catmq_client.cli.wait import WAIT, waited
from catmq_client.errors import NotFound

STARTS = (
    "earliest, latest, a TIME like 2026-03-01T12:00, or a time ago like -15m (s, m, h, d)"
)


def start_position(text: str) -> Target:
    """A position at which a subscription can start: any but an offset."""
    with suppress(argparse.ArgumentTypeError):
        found = target(text)
        if found.to != "offset":
            return found
    raise wrong(f"{text!r}: give {STARTS}")


MODE = Argument(
    "--mode",
    "members share the queues (clustering, the default), each instance reads all (broadcasting), "
    "or members lease messages of any queue (share)",
    choices=("clustering", "broadcasting", "share"),
)
SETTINGS = options("group")
ONLY_TOPIC = Argument("--topic TOPIC", "only this topic")
START = Argument(
    "--from POSITION",
    f"where to start: {STARTS} (default earliest)",
    dest="start",
    type=start_position,
    default=Target("earliest"),
)

LIST: Columns = {
    **fields("name mode stopped"),
    "SESSION TIMEOUT": span("session_timeout_ms"),
    "CREATED": at("created_at_ms"),
}
FACTS: Columns = {
    **fields("name mode stopped"),
    "session timeout": span("session_timeout_ms"),
    "allowed addresses": lambda group: group.get("allow_addresses") or "all",
    "denied addresses": "deny_addresses",
    "active members": lambda group: active_limit(group.get("max_active_members")),
    **fields("description generation"),
    "created": at("created_at_ms"),
}
SHARE_FACTS: Columns = {
    "lease": span("lease_ms"),
    "messages of a lease": "run_messages",
    "maximum deliveries": lambda group: group.get("max_deliveries") or "no limit",
}
SUBSCRIPTIONS: Columns = {
    **fields("topic state"),
    "FROM": lambda row: started(row),
    "STOPPED": "stopped",
    "STOPPED QUEUES": lambda row: ids(row.get("stopped_queues", ())),
}
MEMBERS: Columns = {
    "MEMBER": "name",
    **fields("address sdk"),
    "JOINED": at("joined_at_ms"),
    "LAST HEARD": span("heartbeat_age_ms"),
    "ACTIVE": "active",
    "QUEUES": lambda row: ids(row["queues"]),
}
PROCESSES: Columns = {
    "MEMBER": "name",
    "THREADS": lambda row: f"{row['process']['busy']} of {row['process']['threads']}",
    "BUFFERED": lambda row: row["process"]["buffered"],
    "BUFFERED BYTES": lambda row: row["process"]["buffered_bytes"],
    "HANDLED": lambda row: row["process"]["handled"],
    "FAILED": lambda row: row["process"]["failed"],
    "SLOWEST HANDLER": lambda row: slowest(row["process"]["slowest"]),
    "REPORTED": span("process_age_ms"),
}
PLANNED: Columns = fields("topic queue from to at_once")
REBALANCES: Columns = {
    "TIME": at("at_ms"),
    **fields("generation cause"),
    "MOVES": lambda row: len(row["moves"]),
    "LONGEST PAUSE": lambda row: duration(longest_pause(row)),
}


def started(subscription: Subscription) -> str:
    """Return where a subscription started: at a word, or at a time."""
    return moment(subscription.get("start_at_ms")) or subscription["start"]


def subscribe(admin: Admin, args: argparse.Namespace) -> dict[str, Any]:
    """Subscribe a group, and return the answer with the start in words."""
    start: Target = args.start
    made = admin.subscribe(
        args.group,
        args.topic,
        start="latest" if start.to == "latest" else "earliest",
        start_at_ms=start.at_ms,
        start_ago_ms=start.ago_ms,
    )
    return {**made, "from": started(made)}


def active_limit(most: int | None) -> str:
    """Return how many members may own queues, as text."""
    return "all" if most is None else f"at most {most}"


def ids(queues: Iterable[int]) -> str:
    """Return ids of queues, in a cell."""
    return " ".join(map(str, queues))


def slowest(handler: SlowHandler | None) -> str:
    """Return the message that the slowest handler of a process is at work on, and for how
    long.
    """
    if handler is None:
        return ""
    return f"{handler['queue']}-{handler['offset']} for {duration(handler['running_ms'])}"


def members(group: Group, colours: Paint) -> str:
    """Return what `catmq group members` prints: the members, and the processes that report
    on themselves.
    """
    processes = [one for one in group["members"] if one.get("process")]
    parts = [rows_table(group["members"], MEMBERS, colours)]
    if processes:
        parts.append(rows_table(processes, PROCESSES, colours))
    return "\n".join(parts)


def longest_pause(row: Rebalance) -> int | None:
    """Return the longest pause of a queue in ms; None: none paused, or all still do."""
    return max(
        (move["pause_ms"] for move in row["moves"] if move["pause_ms"] is not None),
        default=None,
    )


def page(group: Group, colours: Paint) -> str:
    """Return what `catmq group show` prints."""
    parts = (
        facts(
            group, {**FACTS, **(SHARE_FACTS if group["mode"] == "share" else {})}, colours
        ),
        rows_table(group["subscriptions"], SUBSCRIPTIONS, colours),
        members(group, colours),
    )
    return "\n".join(parts)


def create(admin: Admin, args: argparse.Namespace) -> Group:
    return admin.create_group(args.name, mode=args.mode, **given_by(args, SETTINGS))


def switch(*, stopped: bool) -> Command:
    """Return the command that pauses or resumes delivery to a group: all of it, of a topic,
    or of queues.
    """

    def run(args: argparse.Namespace, brokers: Brokers) -> int:
        admin = brokers.admin()
        if args.queue:
            for topic, queues in topics_of(args, admin).items():
                show_row(
                    switch_queues(admin, args.name, topic, queues, stopped=stopped),
                    args.output,
                )
            return 0
        what = only = ""
        if args.topic:
            changed: Any = admin.change_subscription(args.name, args.topic, stopped=stopped)
            what, only = f": topic {args.topic}", f" --topic {args.topic}"
        else:
            changed = admin.change_group(args.name, stopped=stopped)
        done = (
            f"paused; resume it: catmq group resume {args.name}{only}"
            if stopped
            else "resumed"
        )
        note(f"group {args.name}{what} {done}")
        show_row(changed, args.output)
        return 0

    return run


def topics_of(args: argparse.Namespace, admin: Admin) -> dict[str, set[int]]:
    """Return the queues by topic. Raises NotFound for one that the group does not read."""
    if args.topic:
        return {args.topic: set(args.queue)}
    read = {row["queue"]: row["topic"] for row in admin.lag(args.name)["queues"]}
    found: dict[str, set[int]] = {}
    for queue in args.queue:
        if queue not in read:
            known = ", ".join(map(str, sorted(read))) or "none"
            raise NotFound(
                f"queue {queue} is not read by group {args.name}; it reads {known}"
            )
        found.setdefault(read[queue], set()).add(queue)
    return found


def switch_queues(
    admin: Admin, group: str, topic: str, queues: set[int], *, stopped: bool
) -> Any:
    """Pause or resume queues of one topic; the others stay as they are. Return the
    subscription then.
    """
    now = found = admin.subscription(group, topic)
    before = set(now["stopped_queues"])
    after = before | queues if stopped else before - queues
    if after != before:
        found = admin.change_subscription(group, topic, stopped_queues=sorted(after))
    for queue in sorted(queues):
        if stopped:
            done = "was already paused" if queue in before else "paused"
        else:
            done = "resumed" if queue in before else "was not paused"
        note(f"group {group}: queue {queue} of {topic} {done}")
    if now["stopped"] and not stopped:
        note(
            f"all of {topic} is also paused; resume it: catmq group resume {group} --topic {topic}"
        )
    return found


def rebalance(args: argparse.Namespace, brokers: Brokers) -> int:
    """Rebalance a group; with `--wait` return when the new owners read."""
    admin = brokers.admin()
    plan: Any = admin.rebalance(args.name, dry_run=args.dry_run)
    about = {
        "group": args.name,
        "dry_run": plan["dry_run"],
        "generation": plan["generation"],
    }
    print_rows(({**about, **move} for move in plan["moves"]), PLANNED, args.output)
    if is_table(args.output):
        moved = f"{len(plan['moves'])} queues moved; generation {plan['generation']}"
        note("nothing moved (--dry-run)" if args.dry_run else moved)
    if args.wait and not args.dry_run and plan["moves"]:
        goes_on = "the queues move all the same"
        return (
            0
            if waited(lambda: moving(admin, args.name, plan["generation"]), goes_on=goes_on)
            else 1
        )
    return 0


def moving(admin: Admin, group: str, generation: int) -> str:
    """Return how many queues of a rebalance still pause, '' for none; a later rebalance
    ends the wait.
    """
    newest = next(iter(admin.rebalances(group, page=1)), None)
    if newest is None or newest["generation"] != generation:
        return ""
    paused = sum(
        move["pause_ms"] is None and move["to"] is not None for move in newest["moves"]
    )
    return (
        f"{paused} of {len(newest['moves'])} queues wait for their new member"
        if paused
        else ""
    )


NOUN = Noun(
    "group",
    "create, list, show, change, pause, resume, rebalance, delete groups",
    (
        action(
            "create",
            "create a group",
            (NAME, MODE, *SETTINGS),
            create,
            done="group {name} created; let it read a topic: catmq subscribe {name} TOPIC",
        ),
        listing(
            "list",
            "list groups",
            (search("groups"),),
            lambda admin, args: admin.groups(search=args.search),
            columns=LIST,
        ),
        detail(
            "show",
            "show a group with its subscriptions and members",
            (NAME,),
            lambda admin, args: admin.group(args.name),
            page=page,
        ),
        detail(
            "members",
            "show the members of a group, and what their processes do",
            (NAME,),
            lambda admin, args: admin.group(args.name),
            page=members,
        ),
        action(
            "delete",
            "delete a group and its offsets",
            (NAME,),
            lambda admin, args: admin.delete_group(args.name),
            done="group {name} deleted",
            asks="group",
        ),
        settings(
            "change a group's settings",
            (NAME,),
            SETTINGS,
            lambda admin, args, given: admin.change_group(args.name, **given),
            label="group {name}",
        ),
        Verb(
            "pause",
            "pause delivery to a group, of all topics, one topic or some queues",
            (NAME, ONLY_TOPIC, QUEUES, CHANGED),
            switch(stopped=True),
            old="stop",
        ),
        Verb(
            "resume",
            "resume paused delivery",
            (NAME, ONLY_TOPIC, QUEUES, CHANGED),
            switch(stopped=False),
            old="start",
        ),
        Verb(
            "rebalance",
            "rebalance a group's queues now",
            (NAME, DRY_RUN, WAIT, TABLE),
            rebalance,
        ),
        listing(
            "rebalances",
            "list rebalances of a group, newest first",
            (NAME, limit(20)),
            lambda admin, args: admin.rebalances(args.name, page=min(args.limit, PAGE)),
            columns=REBALANCES,
        ),
    ),
)
SUBSCRIBE = action(
    "subscribe",
    "subscribe a group to a topic",
    (GROUP, TOPIC, START),
    subscribe,
    done="group {answer[group]} reads {answer[topic]} from {answer[from]}",
)
UNSUBSCRIBE = action(
    "unsubscribe",
    "end a subscription and delete its offsets",
    (GROUP, TOPIC),
    lambda admin, args: admin.unsubscribe(args.group, args.topic),
    done="group {group} no longer reads {topic}",
    asks="the subscription of group {group} to topic",
)
