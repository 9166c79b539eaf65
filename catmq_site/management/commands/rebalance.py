"""manage.py rebalance: shares the queues of groups anew among their members."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from catmq_site.management.base import CatmqCommand
from metadata.cache import snapshot
from metadata.cache.snapshot_types import GroupInfo
from metadata.errors import Invalid
from metadata.membership import rebalance
from metadata.membership.rebalance import Move, RebalanceResult


class Command(CatmqCommand):
    help = (
        "Rebalances the queues of groups and prints the moves. Brokers do this "
        "automatically when members "
        "join or leave. A balanced assignment is not changed."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("groups", nargs="*", metavar="GROUP")
        parser.add_argument("--all", action="store_true", help="all groups")
        parser.add_argument(
            "--dry-run", action="store_true", help="show the moves without making them"
        )

    def run(self, **options: Any) -> None:
        dry_run = options["dry_run"]
        for group in chosen(options["groups"], everything=options["all"]):
            moves = rebalance.rebalance_by_hand(
                group=group.name, dry_run=dry_run, actor=self.actor
            )
            self.stdout.write("\n".join(report(group, moves, dry_run=dry_run)))


def chosen(names: list[str], *, everything: bool) -> list[GroupInfo]:
    """The groups meant, all of which exist. Raises Invalid, NotFound."""
    if bool(names) == everything:
        raise Invalid("Name groups, or give --all.")
    if not everything:
        return [snapshot.find_group(name) for name in names]
    return sorted(snapshot.current().groups.values(), key=lambda group: group.name)


def report(group: GroupInfo, done: RebalanceResult, *, dry_run: bool) -> list[str]:
    """A line for the group and one for each queue that moves."""
    if not done.moves:
        return [f"{group.name}: balanced, generation {done.generation}"]
    verb = "would move" if dry_run else "moved"
    total = f"{len(done.moves)} queue{'s' if len(done.moves) > 1 else ''} {verb}"
    return [f"{group.name}: {total}, generation {done.generation}", *map(line, done.moves)]


def line(move: Move) -> str:
    when = "at once" if move.at_once else f"when {move.source} has let go"
    source, target = move.source or "nobody", move.target or "nobody"
    return f"  {move.topic} queue {move.queue}: {source} -> {target}, {when}"
