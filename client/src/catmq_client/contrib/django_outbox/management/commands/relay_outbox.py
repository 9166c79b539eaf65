"""manage.py relay_outbox: sends the messages of the outbox to the brokers."""

from __future__ import annotations

import signal
import threading
from argparse import ArgumentParser
from contextlib import nullcontext
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import router

from catmq_client.contrib.django_outbox import claims, conf, notify
from catmq_client.contrib.django_outbox.claims import Claims, LeaseLost
from catmq_client.contrib.django_outbox.models import OutboxMessage
from catmq_client.contrib.django_outbox.relay import Relay, new_relay_name
from catmq_client.contrib.django_outbox.relay_loop import RelayLoop
from catmq_client.errors import CatmqError
from catmq_client.http.transport import HttpTransport

MAX_LISTED = 1_000


class Command(BaseCommand):
    help = (
        "Sends the messages of the outbox until SIGTERM or Ctrl-C. Of several relays one "
        "works, the others "
        "stand by. Brokers and API key: CATMQ_OUTBOX in the settings, else CATMQ_URL and "
        "CATMQ_API_KEY. "
        "Exit codes: 0 done, 1 something is left or the brokers do not know the key, 2 wrong usage."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        mode = parser.add_mutually_exclusive_group()
        mode.add_argument(
            "--once", action="store_true", help="send what is there, then end"
        )
        mode.add_argument(
            "--status",
            action="store_true",
            help="only say how many messages wait, and for how long",
        )
        mode.add_argument(
            "--failed", action="store_true", help="list messages that were refused for good"
        )
        mode.add_argument(
            "--retry",
            nargs="*",
            type=int,
            metavar="ID",
            help="let refused messages go again; no ID: all",
        )
        mode.add_argument(
            "--discard",
            nargs="+",
            type=int,
            metavar="ID",
            help="delete refused messages for good",
        )
        parser.add_argument(
            "--max-age-s",
            type=float,
            metavar="N",
            help="with --status: end with 1 if a message has waited for longer",
        )
        parser.add_argument(
            "--database", metavar="ALIAS", help="the outbox of this database"
        )
        parser.add_argument(
            "--poll-ms",
            type=int,
            default=500,
            help="how long to wait when nothing is there, if commits are not notified "
            "(default 500)",
        )
        parser.add_argument(
            "--lease-s",
            type=float,
            default=15.0,
            help="how long a relay that is not heard counts as working (default 15; 1.5 to 600)",
        )
        parser.add_argument(
            "--report-s",
            type=float,
            default=60.0,
            help="how often to say how far it is (default 60)",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        alias = options["database"]
        if options["max_age_s"] is not None and not options["status"]:
            raise CommandError("--max-age-s: give --status, too", returncode=2)
        if options["status"]:
            self._show_status(alias, max_age_s=options["max_age_s"])
        elif options["failed"]:
            messages = claims.list_failed(using=alias, limit=MAX_LISTED)
            for message in messages:
                key = (
                    "no key"
                    if message.key is None
                    else f"key {message.key}, {message.held} held behind it"
                )
                self.stdout.write(
                    f"{message.id}  {message.created_at:%Y-%m-%d %H:%M:%S}  {message.topic}  "
                    f"({key})  {message.error}"
                )
            if not messages:
                self.stdout.write("none")
        elif options["retry"] is not None:
            self.stdout.write(
                f"{claims.retry(options['retry'] or None, using=alias)} messages go again"
            )
        elif options["discard"] is not None:
            self.stdout.write(
                f"{claims.discard(options['discard'], using=alias)} messages deleted"
            )
        else:
            self._relay(alias, options)

    def _show_status(self, alias: str | None, *, max_age_s: float | None) -> None:
        rows = claims.count_rows(using=alias)
        age_s = claims.read_oldest_age_s(using=alias)
        self.stdout.write(
            f"waiting {rows.waiting}, being sent {rows.claimed}, refused {rows.failed}, "
            f"held behind refused ones {rows.held}"
            + ("" if age_s is None else f", the oldest unsent is {age_s:.0f} s old")
        )
        if max_age_s is not None and age_s is not None and age_s > max_age_s:
            raise CommandError(
                f"a message has waited for {age_s:.0f} s, longer than {max_age_s:g} s: look at "
                "the log of the relay, and whether it runs"
            )

    def _relay(self, alias: str | None, options: dict[str, Any]) -> None:
        if options["poll_ms"] < 1:
            raise CommandError("--poll-ms: give a whole number, at least 1", returncode=2)
        if not 1.5 <= options["lease_s"] <= 600:
            raise CommandError("--lease-s: give 1.5 to 600 seconds", returncode=2)
        brokers = conf.current()
        try:
            transport = HttpTransport(
                brokers.urls, api_key=brokers.api_key, verify=brokers.verify
            )
        except CatmqError as error:
            raise CommandError(
                f"{error} (CATMQ_OUTBOX['URLS'] or CATMQ_URL)", returncode=2
            ) from None
        alias = alias or router.db_for_write(OutboxMessage)
        try:
            # With --once there is nothing to wait for, so no notifications are needed.
            with nullcontext() if options["once"] else notify.listening(alias) as listener:
                stop = threading.Event()
                # A thread sets it. The signal handler may interrupt `stop.wait()`, which
                # holds the event's lock; `stop.set()` in the handler itself would wait for
                # that lock forever.
                for number in (signal.SIGTERM, signal.SIGINT):
                    signal.signal(
                        number,
                        lambda *_: threading.Thread(target=stop.set, daemon=True).start(),
                    )
                relay_claims = Claims(
                    new_relay_name(),
                    using=alias,
                    lease_s=options["lease_s"],
                    address="" if listener is None else listener.address,
                )
                loop = RelayLoop(
                    Relay(transport, relay_claims),
                    say=self._say,
                    stop=stop,
                    poll_s=options["poll_ms"] / 1000,
                    report_s=options["report_s"],
                    listener=listener,
                )
                if not options["once"]:
                    loop.run()
                elif not loop.run_once():
                    raise CommandError(
                        "not all messages were sent; see --status and --failed"
                    )
        except LeaseLost as lost:
            raise CommandError(
                f"relay {lost} runs already; only one may run at a time"
            ) from None
        except CatmqError as error:
            raise CommandError(str(error)) from None
        finally:
            transport.close()

    def _say(self, text: str) -> None:
        self.stdout.write(text)
        self.stdout.flush()
