"""manage.py rebalance: rebalances the queues of groups now."""

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
        "automatically when members join or leave. A balanced assignment is not changed."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("groups", nargs="*", metavar="GROUP")
        parser.add_argument("--all", action="store_true", help="all groups")
        parser.add_argument(
            "--dry-run", action="store_true", help="show the moves without making them"
        )

    def run(self, **options: Any) -> None:
        dry_run = options["dry_run"]
        # All names are resolved first, so a wrong name changes nothing.
        for group in find_groups(options["groups"], everything=options["all"]):
            moves = rebalance.rebalance_by_hand(
                group=group.name, dry_run=dry_run, actor=self.actor
            )
            self.stdout.write("\n".join(format_result(group, moves, dry_run=dry_run)))


def find_groups(names: list[str], *, everything: bool) -> list[GroupInfo]:
    """Return the named groups, or all. Raises Invalid, NotFound."""
    if bool(names) == everything:
        raise Invalid("Name groups, or give --all.")
    if not everything:
        return [snapshot.find_group(name) for name in names]
    return sorted(snapshot.current().groups.values(), key=lambda group: group.name)


def format_result(group: GroupInfo, result: RebalanceResult, *, dry_run: bool) -> list[str]:
    """Return a line for the group, and a line for each queue that moves."""
    if not result.moves:
        return [f"{group.name}: balanced, generation {result.generation}"]
    verb = "would move" if dry_run else "moved"
    total = f"{len(result.moves)} queue{'s' if len(result.moves) > 1 else ''} {verb}"
    return [
        f"{group.name}: {total}, generation {result.generation}",
        *map(format_move, result.moves),
    ]


def format_move(move: Move) -> str:
    when = "at once" if move.at_once else f"when {move.source} has let go"
    source, target = move.source or "nobody", move.target or "nobody"
    return f"  {move.topic} queue {move.queue}: {source} -> {target}, {when}"
