"""manage.py promote_node: promotes the replica of a node."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from catmq_site.management.base import CatmqCommand, add_yes_option
from catmq_site.management.outcomes import describe_outcome, describe_plan
from messagestore.nodes import promotion, promotion_plans
from metadata.errors import Invalid
from metadata.rules.tls import MODES


class Command(CatmqCommand):
    help = (
        "Promotes the replica of a node. Fences the old primary, declares messages that "
        "may be lost as gaps, and informs brokers and consumers. Nothing needs a "
        "restart. If the command fails, the node stays offline; repeat the command."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("node")
        parser.add_argument(
            "--to",
            metavar="HOST:PORT",
            help="address of the new primary (default: the node's replica)",
        )
        parser.add_argument(
            "--tls", choices=[*MODES], help="encryption there (default: that of the node)"
        )
        parser.add_argument(
            "--tls-ca", metavar="FILE", help="with --tls verify: certificates of CAs in PEM"
        )
        parser.add_argument(
            "--i-know-it-is-dead",
            action="store_true",
            dest="known_dead",
            help="the old primary is off for good; do not wait for brokers to confirm",
        )
        parser.add_argument(
            "--patience",
            type=float,
            default=promotion.PATIENCE_S,
            metavar="S",
            help="seconds to wait for brokers, and for the replica to catch up (default "
            "%(default)s)",
        )
        parser.add_argument(
            "--dry-run", action="store_true", help="show the changes without making them"
        )
        add_yes_option(parser)

    def run(self, **options: Any) -> None:
        host, port = parse_address(options["to"])
        replica = {
            "host": host,
            "port": port,
            "tls": options["tls"],
            "tls_ca": options["tls_ca"],
        }
        if options["dry_run"]:
            plan = promotion_plans.promote(
                name=options["node"], **replica, actor=self.actor
            )
            self.stdout.write("\n".join(describe_plan(plan)))
            return
        # Irreversible: the old primary is fenced, and lost messages are declared as gaps.
        self.confirm("Promote a replica of node", options["node"], yes=options["yes"])
        outcome = promotion.promote(
            name=options["node"],
            **replica,
            known_dead=options["known_dead"],
            patience_s=options["patience"],
            say=self.stderr.write,
            actor=self.actor,
        )
        self.stdout.write("\n".join(describe_outcome(outcome)))


def parse_address(text: str | None) -> tuple[str, int | None]:
    """Return (host, port) of HOST[:PORT]; ('', None) for an empty text. Raises Invalid."""
    if not text:
        return "", None
    host, colon, port = text.rpartition(":")
    if not colon:
        return text, None
    if not host or not port.isdigit() or not 0 < int(port) < 65_536:
        raise Invalid.field("to", f"must look like HOST:PORT, not {text!r}")
    return host, int(port)
