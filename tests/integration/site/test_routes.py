"""Every route by every actor: what the table says, no more and no less; and a refusal
changes nothing.

The routes come from the URL configuration: one that is added fails here until routes.txt
has its line. Each line that fails is printed as it would be right, to be judged and then
written down.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.routes import (
    ACTORS,
    MINE,
    REFUSED,
    THEIRS,
    Route,
    World,
    models,
    routes,
    state,
    table,
)

pytestmark = pytest.mark.one_engine
PARTS = (
    *(
        "api/v1/topics",
        "api/v1/groups",
        "api/v1/consumers",
        "api",
        "topics",
        "groups",
        "admin",
        "nodes",
    ),
    *("create", "messages", "reports", "users", ""),
)
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
KNOWN = {(row.method, row.route): row for row in table()}
LISTS = (
    # of the settings of tests
    "auth/user", "catmq_tasks/taskrecord", "catmq_tasks/taskschedule",
    "django_q/failure", "django_q/ormq", "django_q/schedule", "django_q/success",
    "metadata/alarm", "metadata/alarmmail", "metadata/apikey", "metadata/auditlog",
    "metadata/broadcastinstance", "metadata/broker", "metadata/brokerprocess",
    "metadata/changecounter",
    "metadata/changelog", "metadata/clockmark", "metadata/commitlook", "metadata/consumer",
    "metadata/consumergroup", "metadata/consumergroupconsumer", "metadata/consumergrouptopic",
    "metadata/dbnode", "metadata/deadlettercount", "metadata/handlingtrace", "metadata/heartbeat",
    "metadata/javacaller", "metadata/jobrun",
    "metadata/keyfingerprint", "metadata/lease",
    "metadata/nodesize", "metadata/offsetmove", "metadata/queue", "metadata/queueoffset",
    "metadata/rebalance", "metadata/rebalancemove", "metadata/redrive", "metadata/report",
    "metadata/reportrow", "metadata/sample", "metadata/savedfilter", "metadata/topic",
    "metadata/topicproducer", "metadata/topicrouting",
    "metadata/userrights",
)  # fmt: skip


def of_part(part: str) -> list[Route]:
    """The routes that are tried together, in a world of their own."""
    return [
        one
        for one in routes()
        if next(each for each in PARTS if one.route.lstrip("^").startswith(each)) == part
    ]


def test_every_route_has_its_line() -> None:
    found = {(one.method, one.route) for one in routes()}
    assert found - set(KNOWN) == set(), "routes without a line: say who may use them"
    assert set(KNOWN) - found == set(), "lines of routes that are gone"


def test_every_list_of_the_admin_is_known() -> None:
    """The table has one line for all of them; who adds one has thought of what it shows to
    administrators.
    """
    assert sorted(models()) == sorted(LISTS)


@pytest.mark.parametrize("part", PARTS)
def test_every_actor_gets_what_the_table_says_and_a_refusal_changes_nothing(
    make_node: Callable[..., str], part: str
) -> None:
    world, wrong = World(make_node), []
    for asked in of_part(part):
        row = KNOWN.get((asked.method, asked.route), asked)
        mine, theirs = (answers(world, row, prefix) for prefix in (MINE, THEIRS))
        found = {name: (mine[name], theirs[name]) for name in ACTORS}
        for name in set(ACTORS) - set(row.columns):
            assert found[name] == found["nobody"], (row.method, row.route, name)
        if {name: found[name] for name in row.columns} != row.cells:
            cells = {name: found[name] for name in row.columns}
            wrong.append(Route(row.method, row.route, cells).line())
    assert not wrong, "\n" + "\n".join(wrong)


def answers(world: World, row: Route, prefix: str) -> dict[str, str]:
    """Return what each actor is answered about what is called so: first those who shall be
    refused.
    """
    refused = [name for name in ACTORS if row.expected(name, prefix) in REFUSED]
    request, writes = world.request(row, prefix), row.method != "GET"
    before = state() if writes else {}
    found = {name: world.ask(name, row, request) for name in refused}
    if writes and not row.is_api:  # a form that is sent as if it had been looked at
        sure = {
            **request,
            "data": {**request["data"], "confirmed": "yes", "form_number": "x" * 20},
        }
        assert {name: world.ask(name, row, sure) for name in refused} == found, (
            row.route,
            prefix,
        )
    assert not writes or state() == before, (row.method, row.route, prefix)
    for name in ACTORS:
        if name not in found:
            found[name] = world.ask(name, row, world.request(row, prefix))
    return found


@pytest.mark.parametrize("part", PARTS)
def test_no_route_answers_another_method_by_doing_something(
    make_node: Callable[..., str], part: str
) -> None:
    """Asked by those who may do everything; a page that is a function shows itself,
    whatever the method.
    """
    world, known = World(make_node), [(one.method, one.route) for one in of_part(part)]
    others = (
        (method, route)
        for route in dict.fromkeys(route for _, route in known)
        for method in METHODS
    )
    for method, route in others:
        if (method, route) not in known:
            row = Route(method, route)
            request, before = world.request(row, MINE), state()
            answered = world.ask(
                "everything" if row.is_api else "administrator", row, request
            )
            describes = ("200",) if method == "OPTIONS" else ()
            assert not row.is_api or answered in ("404", "405", *describes), (
                method,
                route,
                answered,
            )
            assert state() == before, (method, route)
