"""manage.py prepare: does everything that a server needs before it starts. Harmless to
repeat.
"""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management import call_command

from catmq_site import credentials
from catmq_site.jobs import schedules
from catmq_site.management.base import CatmqCommand
from messagestore.nodes import registry
from metadata import data_dir
from metadata.brokers import fingerprints
from metadata.cache import snapshot
from metadata.config import config
from metadata.db import migration_state
from metadata.errors import Invalid
from metadata.rules.nodes import Engine, NodeKind

EMBEDDED_NODES = {"main": NodeKind.NORMAL, "failure": NodeKind.FAILURE}


class Command(CatmqCommand):
    help = (
        "Migrates the metadata database and creates what is missing: on the embedded "
        "engine the nodes main and failure; the fingerprints of the keys; an "
        "administrator and an API key, written to credentials.env in CATMQ_DATA_DIR; and "
        "the schedules of django-q. Repeating it is harmless."
    )

    checks_keys = (
        False  # before the first migration there is no table for their fingerprints
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--url", default=config.broker_url, help="URL of the broker")

    def run(self, **options: Any) -> None:
        """Migrate, and create missing objects. Each step skips work that was done."""
        try:
            data_dir.require_usable(config.data_dir)
        except data_dir.Unusable as error:
            raise Invalid(str(error)) from None
        migration_state.check_can_migrate()
        call_command("migrate", interactive=False, verbosity=1)
        fingerprints.record_keys()
        if config.database is None:
            call_command(
                "migrate", "django_q", database="jobs", interactive=False, verbosity=0
            )
            for name, kind in EMBEDDED_NODES.items():
                if snapshot.current().node(name) is None:
                    registry.register(
                        name=name,
                        kind=kind,
                        engine=Engine.SQLITE,
                        database=f"node-{name}.sqlite3",
                        actor=self.actor,
                    )
        credentials.ensure(url=options["url"], actor=self.actor)
        schedules.sync()
