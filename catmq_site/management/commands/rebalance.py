"""manage.py rebalance: shares the queues of groups anew among their members."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.db import transaction

from catmq_site.management.base import CatmqCommand
from metadata import rebalance, snapshot
from metadata.errors import Invalid
from metadata.rebalance import Moves
from metadata.snapshot import GroupInfo


class Command(CatmqCommand):
    """Rebalances groups."""

    help = (
        "Shares the queues of groups anew among their members. Brokers do this by themselves when members "
        "come and go; queues that are shared evenly stay where they are."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        """The command line."""
        parser.add_argument("groups", nargs="*", metavar="GROUP")
        parser.add_argument("--all", action="store_true", help="every group")
        parser.add_argument("--dry-run", action="store_true", help="only say what would move")

    def run(self, **options: Any) -> None:
        """Calls metadata.rebalance.rebalance per group."""
        for group in chosen(options["groups"], everything=options["all"]):
            moves = rehearsed(group.id) if options["dry_run"] else rebalance.rebalance(group.id)
            self.stdout.write(line(group, moves, dry_run=options["dry_run"]))


def chosen(names: list[str], *, everything: bool) -> list[GroupInfo]:
    """The groups meant. Raises Invalid, NotFound."""
    if bool(names) == everything:
        raise Invalid("Name groups, or say --all.")
    if not everything:
        return [snapshot.find_group(name) for name in names]
    return sorted(snapshot.current().groups.values(), key=lambda group: group.name)


def rehearsed(group_id: int) -> Moves:
    """What a rebalance would do, found out by doing it and rolling it back."""
    with transaction.atomic():
        moves = rebalance.rebalance(group_id)
        transaction.set_rollback(True)
    return moves


def line(group: GroupInfo, moves: Moves, *, dry_run: bool) -> str:
    """One line for the user."""
    would = "would be " if dry_run else ""
    if not moves.granted and not moves.revoked:
        return f"{group.name}: balanced, generation {moves.generation}"
    given, taken = (" ".join(map(str, queues)) or "none" for queues in (moves.granted, moves.revoked))
    return f"{group.name}: {would}given {given}; {would}asked back {taken}; generation {moves.generation}"
