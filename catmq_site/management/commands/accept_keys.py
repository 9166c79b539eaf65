"""manage.py accept_keys: registers the keys of this process for the installation."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from catmq_site.management.base import CatmqCommand
from metadata.brokers import discovery, fingerprints
from metadata.errors import Code, Conflict
from metadata.installation import name_programs


class Command(CatmqCommand):
    checks_keys = False
    help = (
        "Registers the signing key and the encryption keys of this process as those of "
        "the installation. The keys are in the data directory or in CATMQ_SECRET_KEY and "
        "CATMQ_ENCRYPTION_KEYS. Brokers and commands with other keys are refused from "
        "then on. Node passwords that can be decrypted are encrypted with the first "
        "encryption key; set the others again. To rotate an encryption key, put the new "
        "key first everywhere, run this command, and then remove the old key. If the "
        "keys were lost, stop all brokers first. Consumers then register again, and "
        "users log in again."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--yes",
            action="store_true",
            help="make the changes; without it, only show them",
        )

    def run(self, **options: Any) -> None:
        mismatch = fingerprints.find_mismatch()
        live_brokers = [
            broker.name
            for broker in discovery.list_brokers(actor=self.actor)
            if broker.alive
        ]
        # Live brokers could not decrypt passwords that this process encrypts from now on.
        if mismatch and live_brokers:
            text = (
                f"Live brokers work with the other keys: {', '.join(live_brokers)}. Stop "
                "them first."
            )
            raise Conflict(text, code=Code.IN_USE)
        if not options["yes"]:
            self.stdout.write(
                mismatch or "The keys of this process are those of the installation."
            )
            self.stdout.write(
                "Nothing was changed. To accept the keys of this process, repeat with --yes"
            )
            return
        lost_nodes = fingerprints.accept_keys(actor=self.actor)
        self.stdout.write("The keys of this process are now those of the installation.")
        for name in lost_nodes:
            remedy = name_programs(f"manage.py set_node {name} --username USER")
            self.stdout.write(f"The password of node {name} is lost: {remedy}")
