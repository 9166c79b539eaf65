"""catmq doctor, catmq nodes, catmq brokers, catmq broker, catmq quota"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

from catmq_client.admin.api import Admin
from catmq_client.admin.shapes import DoctorFinding, DoctorReport
from catmq_client.cli.arguments import whole_number
from catmq_client.cli.connection import Brokers
from catmq_client.cli.forms import Paint
from catmq_client.cli.manage.connection_check import ConnectionCheck, start_checks
from catmq_client.cli.output import (
    Columns,
    field_columns,
    format_facts,
    note,
    show,
    time_column,
)
from catmq_client.cli.verbs import NAME, Argument, Noun, Verb, action, detail, listing
from catmq_client.cli.wait import wait_until_done
from catmq_client.errors import OptionError


def describe_place(node: Mapping[str, Any]) -> str:
    """Return where the tables of a node are: host:port/database, or the database of a file.

    A host that lists several servers has ports of its own.
    """
    if not node["host"]:
        return str(node["database"])
    has_port = "," in node["host"]
    place = node["host"] if has_port else f"{node['host']}:{node['port']}"
    return f"{place}/{node['database']}"


NODE: Columns = {
    **field_columns("name kind engine state dedicated queues"),
    # The server of several that is written to; brokers of older releases do not name it.
    "WRITER": lambda node: node.get("writer"),
    "WHERE": describe_place,
}
BROKER: Columns = {
    **field_columns("name url state alive"),
    "LAST HEARD": time_column("last_seen_at_ms"),
    "VERSION": "version",
}
NODES = listing(
    "nodes",
    "list the nodes, the databases that store messages",
    (),
    lambda admin, _: admin.nodes(),
    columns=NODE,
)
LISTED = listing(
    "brokers",
    "list the brokers that clients may use",
    (),
    lambda admin, _: admin.brokers(),
    columns=BROKER,
)


def list_brokers(args: argparse.Namespace, brokers: Brokers) -> int:
    """List the brokers, with `--wait` as soon as a broker answers."""
    if args.wait and not wait_until_done(
        lambda: check_answer(brokers.admin()), continues="no broker has answered"
    ):
        return 1
    return LISTED.run(args, brokers)


def check_answer(admin: Admin) -> str:
    """Ask a broker for the list. Return '', since no work remains once it answers."""
    list(admin.brokers())
    return ""


UNTIL = Argument("--wait", "wait until a broker answers")
BROKERS = Verb(LISTED.name, LISTED.help, (UNTIL, *LISTED.arguments), list_brokers)
BROKER_NOUN = Noun(
    "broker",
    "drain, enable, forget brokers",
    (
        action(
            "drain",
            "drain a broker; it completes running requests, and clients switch to others",
            (NAME,),
            lambda admin, args: admin.change_broker(args.name, state="out"),
            done="broker {name} takes no more work; give it some again: catmq broker enable {name}",
            old="out",
        ),
        action(
            "enable",
            "enable a drained broker",
            (NAME,),
            lambda admin, args: admin.change_broker(args.name, state="in"),
            done="broker {name} takes work",
            old="in",
        ),
        action(
            "forget",
            "remove a broker that no longer runs from the list",
            (NAME,),
            lambda admin, args: admin.forget_broker(args.name),
            done="broker {name} forgotten; it comes back by itself when it is started",
            asks="broker",
        ),
    ),
)


def run_doctor(args: argparse.Namespace, brokers: Brokers) -> int:
    """Print the faults of the installation and of the way to it. Return 0 if there are
    none, 1, or 2.
    """
    checks = start_checks(brokers)
    report = brokers.admin().doctor()
    # Through a proxy this takes as long as the longest wait of a pull.
    for check in checks:
        check.join()
    report = add_findings(report, checks)
    if args.json:
        show(json.dumps(report, indent=2, ensure_ascii=False) + "\n")
        return report["exit_code"]
    texts = [
        f"{finding['severity'].upper()} {finding['kind']} {finding['name']}".rstrip()
        + f": {finding['cause']}\n  Why: {finding['why']}\n  Do: {finding['remedy']}"
        for finding in report["findings"]
    ]
    if texts:
        show("\n\n".join(texts) + "\n")
    severities = [finding["severity"] for finding in report["findings"]]
    note(
        f"{report['checks']} checks: {severities.count('error')} errors, "
        f"{severities.count('warning')} warnings"
    )
    return report["exit_code"]


def add_findings(report: DoctorReport, checks: Sequence[ConnectionCheck]) -> DoctorReport:
    """Return the report with the findings of the client's own checks, errors first."""
    own = [cast(DoctorFinding, finding) for check in checks for finding in check.findings]
    own_exit_code = max(
        (2 if finding["severity"] == "error" else 1 for finding in own), default=0
    )
    return {
        "exit_code": max(report["exit_code"], own_exit_code),
        "checks": report["checks"] + sum(check.done for check in checks),
        "findings": sorted(
            [*own, *report["findings"]], key=lambda finding: finding["severity"] != "error"
        ),
    }


DOCTOR = Verb(
    "doctor",
    "say what is wrong with the installation and with a proxy before it; exit code 1: "
    "warnings, 2: errors",
    (Argument("--json", "print the report as JSON"),),
    run_doctor,
)

QUOTAS = {"messages": "max_messages_per_s", "bytes": "max_bytes_per_s"}
QUOTA_OPTIONS = (
    Argument("--messages N", "maximum messages per second", type=whole_number(1)),
    Argument("--bytes N", "maximum bytes of bodies per second", type=whole_number(1)),
    Argument("--none", "remove the quotas that are not given"),
)


def quota_verb(kind: str, text: str) -> Verb:
    """Return the verb that sets the quotas of a topic or key, and shows them."""

    def call(admin: Admin, args: argparse.Namespace) -> dict[str, Any]:
        values = {field: getattr(args, option) for option, field in QUOTAS.items()}
        changes = {
            field: value
            for field, value in values.items()
            if value is not None or args.none
        }
        change, read = {
            "topic": (admin.change_topic, admin.topic),
            "key": (admin.change_key, admin.key),
        }[kind]
        # Without options the verb shows the quotas and changes nothing.
        row: Any = change(args.name, **changes) if changes else read(args.name)
        # Brokers of an earlier release ignore the fields they do not know.
        if QUOTAS["messages"] not in row:
            raise OptionError("this broker is older and has no quotas")
        return {"name": row["name"], **{field: row[field] for field in values}}

    def page(row: Any, colours: Paint) -> str:
        limits = {
            option: "no limit" if row[field] is None else row[field]
            for option, field in QUOTAS.items()
        }
        return format_facts(
            {**row, **limits},
            {kind: "name", "messages/s": "messages", "bytes/s": "bytes"},
            colours,
        )

    return detail(
        kind,
        f"show or set {text}, for all brokers together",
        (NAME, *QUOTA_OPTIONS),
        call,
        page=page,
    )


QUOTA = Noun(
    "quota",
    "show and set quotas of topics and API keys",
    (
        quota_verb("topic", "the maximum rate of sends to a topic"),
        quota_verb("key", "the maximum rate of sends with an API key"),
    ),
    old="limit",
)
