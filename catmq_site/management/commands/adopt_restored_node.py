"""manage.py adopt_restored_node: puts a node into service with a restored database."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from catmq_site.management.base import CatmqCommand, add_yes_option
from catmq_site.management.outcomes import describe_outcome, describe_plan
from messagestore.nodes import promotion, promotion_plans


class Command(CatmqCommand):
    help = (
        "Puts a node into service with the database that is at its address now: a "
        "restored backup, a replica that took over the address, or an empty database. "
        "Messages that may be lost are declared as gaps, so no consumer skips them "
        "silently."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("node")
        parser.add_argument(
            "--dry-run", action="store_true", help="show the changes without making them"
        )
        parser.add_argument(
            "--rows",
            choices=("keep", "drop"),
            default="",
            help="keep or drop messages of queues that were made after the backup",
        )
        add_yes_option(parser)

    def run(self, **options: Any) -> None:
        if options["dry_run"]:
            plan = promotion_plans.adopt(name=options["node"], actor=self.actor)
            self.stdout.write("\n".join(describe_plan(plan)))
            return
        # Irreversible: lost messages are declared as gaps.
        self.confirm(
            "Adopt the database now at the address of node",
            options["node"],
            yes=options["yes"],
        )
        outcome = promotion.adopt(
            name=options["node"],
            rows=options["rows"],
            say=self.stderr.write,
            actor=self.actor,
        )
        self.stdout.write("\n".join(describe_outcome(outcome)))
