"""manage.py purge: deletes from the nodes messages that an archive holds."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from catmq_site.management.base import CatmqCommand, add_yes_option
from catmq_site.management.commands.cleanup import write_result
from messagestore import retention


class Command(CatmqCommand):
    help = (
        "Deletes the archived messages of a topic from the nodes by dropping whole "
        "partitions. Every file of the archive is checked first. If one is damaged or of "
        "another installation, nothing is deleted. Messages that an active group has not "
        "read are kept. Exit codes: 0 done, 1 refused, 3 a queue could not be purged."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("topic")
        parser.add_argument("--archive", type=Path, required=True, help="archive directory")
        parser.add_argument(
            "--dry-run",
            action="store_true",
            help="show what would be deleted, and change nothing",
        )
        parser.add_argument(
            "--no-rest",
            action="store_true",
            help="do not wait for running pulls; they may miss rows, and then repeat",
        )
        add_yes_option(parser)

    def run(self, **options: Any) -> None:
        if not options["dry_run"]:
            self.confirm(
                "Drop what the archive holds of topic", options["topic"], yes=options["yes"]
            )
        cleaned_queues = retention.purge(
            topic=options["topic"],
            archive=options["archive"],
            dry_run=options["dry_run"],
            # A pull that started before the purge may still read a partition that is
            # dropped.
            rest_s=0.0 if options["no_rest"] else retention.REST_S,
            actor=self.actor,
        )
        write_result(
            self.stdout.write, cleaned_queues, "purged", dry_run=options["dry_run"]
        )
