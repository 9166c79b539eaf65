"""manage.py accept_keys: makes the keys of this process those of the installation."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from catmq_site.management.base import CatmqCommand
from metadata.brokers import discovery, fingerprints
from metadata.errors import Code, Conflict


class Command(CatmqCommand):
    checks_keys = False
    help = (
        "Makes the signing key and the encryption keys of this process (its data directory's, or "
        "CATMQ_SECRET_KEY and CATMQ_ENCRYPTION_KEYS) those of the installation: brokers and commands with "
        "others are refused from then on. Passwords of nodes that can be read are sealed anew with the first "
        "encryption key, the others have to be set anew. After an encryption key was put before the old one "
        "everywhere, this is the last step before the old one goes. After the keys were lost, stop all "
        "brokers first; consumers register anew and users log in anew."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--yes", action="store_true", help="without it only tell what would be done")

    def run(self, **options: Any) -> None:
        found = fingerprints.trouble()
        living = [one.name for one in discovery.listed(actor=self.actor) if one.alive]
        if found and living:
            text = f"Live brokers work with the other keys: {', '.join(living)}. Stop them first."
            raise Conflict(text, code=Code.IN_USE)
        if not options["yes"]:
            self.stdout.write(found or "The keys here are those of the installation.")
            self.stdout.write("Nothing is changed. To accept the keys that are here, repeat it with --yes")
            return
        lost = fingerprints.accept(actor=self.actor)
        self.stdout.write("The keys of this process are those of the installation now.")
        for name in lost:
            self.stdout.write(f"The password of node {name} is lost: manage.py set_account {name} USER")
