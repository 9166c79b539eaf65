"""Every route with every actor: the table of permissions, and the objects with which it is
tested.

`tests/integration/site/routes.txt` holds the table, a line for each method of each route.
Eleven actors send requests, on objects named `mine-…` and on objects named `theirs-…`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from django.apps import apps
from django.contrib import admin
from django.db import connection, transaction
from django.test import Client
from django.urls import URLPattern, get_resolver

from brokerapi.endpoint import METHODS
from messagestore.consume import offset_reset
from messagestore.engine.messages import NewMessage
from messagestore.pool import node_pools
from messagestore.produce.publish import publish
from messagestore.retries import dead_letters
from messagestore.tables import delayed_sql, queue_sql
from messagestore.topology import membership, subscriptions, topics
from metadata import actors, redrive_rows
from metadata.actors import Actor
from metadata.brokers import registration
from metadata.brokers.registration import BrokerIdentity
from metadata.cache import snapshot
from metadata.db.changes import record_change
from metadata.db.clock import database_now
from metadata.groups import groups
from metadata.jobs import reports
from metadata.models import ApiKey, DbNode, JobRun, Queue
from metadata.monitoring import alarms
from metadata.redrive_rows import RedriveSelection
from metadata.users import accounts, api_keys
from tests.support import moving
from tests.support.environment import ROOT
from tests.support.forms import browser

TABLE = ROOT / "tests" / "integration" / "site" / "routes.txt"
ME = actors.command("test")
MINE, THEIRS = "mine", "theirs"
RIGHTS: dict[str, dict[str, list[str]]] = {
    "other": {"browse": ["elsewhere"]},
    **{
        right: {right: ["mine-*"]}
        for right in ("produce", "consume", "browse", "manage", "admin")
    },
    "everything": {"admin": ["*"]},
}
PEOPLE = ("user", "owner", "administrator")
ACTORS = ("nobody", *RIGHTS, *PEOPLE)
# the columns of the table; other actors get the same answers as `nobody`
API, PORTAL = ("nobody", *RIGHTS), ("nobody", *PEOPLE)
REFUSED = ("401", "403", "405", "login")
MODEL = "{model}"
APPS = re.compile(r"\^\(\?P<app_label>[^)]*\)/\$")  # the admin's page of an application


@dataclass(frozen=True, slots=True)
class Route:
    """A method of a route. `cells` holds the answers of each actor on its own objects and
    on others'.
    """

    method: str
    route: str
    cells: dict[str, tuple[str, str]] = field(
        compare=False, hash=False, default_factory=dict
    )

    @property
    def columns(self) -> tuple[str, ...]:
        """The actors that have cells."""
        return API if self.is_api else PORTAL

    @property
    def is_api(self) -> bool:
        """True for routes of programs."""
        return self.route.startswith(("api", "^api", "livez", "readyz", "metrics"))

    def expected(self, actor: str, prefix: str) -> str:
        """Return an actor's answer in the table; '' if the table has no such line."""
        return self.cells.get(actor if actor in self.columns else "nobody", ("", ""))[
            prefix == THEIRS
        ]

    def line(self) -> str:
        """Return the route as a line of the table."""
        cell_texts = [
            mine if mine == theirs else f"{mine}/{theirs}"
            for mine, theirs in self.cells.values()
        ]
        return " ".join(
            [f"{self.method:6}", f"{self.route:55}", *(f"{text:7}" for text in cell_texts)]
        ).rstrip()


def table() -> list[Route]:
    """Return the table as it is written."""
    rows = []
    for line in TABLE.read_text().splitlines():
        if line.strip() and not line.startswith("#"):
            method, route, *cells = line.split()
            row = Route(method, route)
            pairs = [
                (cell.partition("/")[0], cell.partition("/")[2] or cell) for cell in cells
            ]
            rows.append(Route(method, route, dict(zip(row.columns, pairs, strict=True))))
    return rows


def routes() -> Iterator[Route]:
    """Yield every method of every route in the URL configuration.

    The routes of the admin's model lists appear once for all models.
    """
    known_routes = set()
    for route, pattern in _walk(get_resolver().url_patterns):
        general_route = _generalize(route)
        for method in _methods(route, pattern):
            # Every model has the same routes in the admin, which are a single line of the
            # table.
            if (method, general_route) not in known_routes:
                known_routes.add((method, general_route))
                yield Route(method, general_route)


def _walk(patterns: Any, prefix: str = "") -> Iterator[tuple[str, URLPattern]]:
    for pattern in patterns:
        route = prefix + str(pattern.pattern)
        if isinstance(pattern, URLPattern):
            yield route, pattern
        else:
            yield from _walk(pattern.url_patterns, route)


def models() -> list[str]:
    """Return app/model of every list in the admin."""
    return [
        f"{model._meta.app_label}/{model._meta.model_name}"
        for model in admin.site._registry
    ]


def _generalize(route: str) -> str:
    for model in models():
        route = route.replace(f"admin/{model}/", f"admin/{MODEL}/")
    return APPS.sub("{app}/", route) or "/"


def _methods(route: str, pattern: URLPattern) -> list[str]:
    """Return the methods of a view: those an endpoint or class defines, GET and POST for a
    function.
    """
    view: Any = pattern.callback
    view_class: Any = getattr(view, "cls", None) or getattr(view, "view_class", None)
    if view_class is None or route.startswith(("^api", "admin/")):
        return ["GET", "POST"]
    return [method.upper() for method in METHODS if hasattr(view_class, method)]


class World:
    """Two objects of every kind, named mine-… and theirs-…, and the actors that send
    requests.
    """

    def __init__(self, make_node: Callable[..., str]) -> None:
        self.words: dict[str, dict[str, Any]] = {}
        self._new_names = 0
        for name in ("main", "failure"):
            make_node(name, kind="failure" if name == "failure" else "normal")
        self._keys = {name: api_keys.create(name=f"k-{name}", rights=rights, actor=ME)[1]
                      for name, rights in {**RIGHTS,
                      "stranger": RIGHTS["consume"]}.items()}  # fmt: skip
        self._people = {"user": "uma", "owner": "olga", "administrator": "ada"}
        for prefix in (MINE, THEIRS):
            self.words[prefix] = self._create_objects(prefix)
        self._rename_nodes()
        self._clients = {name: self._client(name) for name in ACTORS}

    def _rename_nodes(self) -> None:
        with transaction.atomic():
            for name, prefix in (("main", MINE), ("failure", THEIRS)):
                DbNode.objects.filter(name=name).update(name=f"{prefix}-node")
            record_change("node", *DbNode.objects.values_list("pk", flat=True))
        snapshot.refresh()

    def _create_objects(self, prefix: str) -> dict[str, Any]:
        topic, group = f"{prefix}-orders", f"{prefix}-billing"
        owners = {"owners": "olga"} if prefix == MINE else {}
        for name in (topic, f"{prefix}-spare"):
            topics.create(name=name, queues=1, actor=ME, settings=owners)
        groups.create(name=group, actor=ME, settings=owners)
        subscriptions.create(group=group, topic=topic, start="earliest", actor=ME)
        api_keys.create(name=f"{prefix}-key", rights={"produce": [f"{prefix}-*"]}, actor=ME)
        accounts.create(name=f"{prefix}-user", password="enough characters", actor=ME)
        registration.heartbeat(
            identity=BrokerIdentity(f"{prefix}-broker", f"http://{prefix}", "1.0", prefix),
            held=False,
        )
        snapshot.refresh()
        publish(
            topic=topic,
            messages=[NewMessage(body=b"treasure", key="k")],
            batch_id=None,
            actor=ME,
        )
        (receipt,) = moving.delay(topic, b"later")
        (move,) = offset_reset.reset(
            group=group, topic=topic, target=offset_reset.Target("latest"), actor=ME
        )
        alarms.raise_alarm(kind="lag", name=f"{group}/{topic}", detail="far behind")
        queue = Queue.objects.get(topic__name=topic).pk
        redrive = redrive_rows.request_redrive(
            group=group,
            chosen=RedriveSelection(None, None, "", None),
            to="group",
            rate=None,
            bounds={},
            total=0,
            actor=ME,
        )
        return {
            "topic": topic, "group": group, "queue": queue, "stored": f"{queue}-0",
            "first": 0, "reset": move.reset,
            "delayed": receipt.message_id, "redrive": redrive.id,
            "dead": dead_letters.dead_id(1, 1),
            "report": reports.save_report(
                name="volume", engine="direct", settings={}, rows=[{"n": 1}], actor=ME
            ),
            "run": JobRun.objects.create(name="report_volume", started_at=database_now()).pk,
        }  # fmt: skip

    def _client(self, name: str) -> Client:
        if name in PEOPLE:
            client = browser(self._people[name], administrator=name == "administrator")
        else:
            client = Client(
                headers={"authorization": f"Bearer {self._keys[name]}"}
                if name in RIGHTS
                else {}
            )
        client.raise_request_exception = False
        return client

    def ask(self, name: str, row: Route, request: dict[str, Any]) -> str:
        """Send an actor's request. Return the status, or login."""
        answer = self._clients[name].generic(row.method, **_sent(row, request))
        location = answer.headers.get("Location", "").partition("?")[0]
        answer.close()
        # The messages of the portal are not shown here, and the cookie would grow.
        self._clients[name].cookies.pop("messages", None)
        at_login = answer.status_code == 302 and location.rstrip("/").endswith("/login")
        if "logout" in row.route:
            self._clients[name] = self._client(name)
        return "login" if at_login else str(answer.status_code)

    def new(self, prefix: str) -> str:
        """Return a name without an object."""
        self._new_names += 1
        return f"{prefix}-new{self._new_names}"

    def request(self, row: Route, prefix: str) -> dict[str, Any]:
        """Return path and data of a request on the objects with this prefix."""
        path, query = "/" + row.route.lstrip("^/"), ""
        for pattern, example in OTHER_PATHS.items():
            path = path.replace(pattern, example)
        for word in path.split("<")[1:]:
            kind, _, rest = word.partition(":")
            path = path.replace(
                f"<{kind}:{rest.partition('>')[0]}>",
                self._word(row, prefix, rest.partition(">")[0]),
            )
        path = path.replace(MODEL, "metadata/topic").replace("{app}", "metadata")
        request_data = REQUESTS.get(f"{row.method} {row.route}", {})
        data = request_data(self, prefix) if callable(request_data) else request_data
        if row.method in ("GET", "DELETE") and data:
            query, data = (
                "?" + "&".join(f"{name}={value}" for name, value in data.items()),
                {},
            )
        return {"path": path + query, "data": data}

    def _word(self, row: Route, prefix: str, word: str) -> str:
        objects, route = self.words[prefix], row.route
        if word == "consumer":
            return self._consumer(prefix)
        if word == "name":
            return self._name(route, prefix)
        if word == "message_id":
            kind = (
                "dead"
                if "/dead/" in route
                else "stored"
                if route.startswith("messages/")
                else "delayed"
            )
            return str(objects[kind])
        if word == "topic" and f"{row.method} {route}" in UNSUBSCRIBED:
            return f"{prefix}-spare"
        named_objects = {kind: f"{prefix}-{kind}" for kind in ("node", "broker", "key")}
        placeholders = {
            "kind": "lag",
            "object_id": "0",
            "content_type_id": "0",
            "token": "none",
        }
        others = {
            "message": objects["dead"],
            "number_": objects["report"],
            **placeholders,
            **named_objects,
        }
        return str({**others, **objects}[word])

    def _name(self, route: str, prefix: str) -> str:
        first = route.partition("/")[0]
        if first == "jobs":
            return "prune_audit"
        if first == "alarms":
            return f"{prefix}-billing/{prefix}-orders"
        object_name = {"topics": "orders", "groups": "billing"}.get(
            first, first.removesuffix("s")
        )
        return f"{prefix}-{object_name}"

    def _consumer(self, prefix: str) -> str:
        """Join as a member, with the key `consume`, or with the key of a stranger."""
        name = "consume" if prefix == MINE else "stranger"
        key = ApiKey.objects.get(name=f"k-{name}")
        actor = Actor(kind="key", name=key.name, rights={"consume": ("*",)}, key_id=key.pk)
        return membership.join(
            group=f"{prefix}-billing", topics=(), name="c", incarnation=str(uuid4()),
            instance_id=None,
            sdk="test", actor=actor,
        ).consumer_id  # fmt: skip


def _sent(row: Route, request: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a test client's request."""
    if row.is_api:
        body = json.dumps(request["data"]) if row.method in ("POST", "PATCH") else ""
        return {"path": request["path"], "data": body, "content_type": "application/json"}
    body = "&".join(f"{name}={value}" for name, value in request["data"].items())
    return {
        "path": request["path"],
        "data": body,
        "content_type": "application/x-www-form-urlencoded",
    }


def _rows(model: Any) -> list[str]:
    """Return the rows of a table without `last_login`, because a logged-out actor must log
    in again.

    Reads without models, because it runs before and after every refused request.
    """
    names = ", ".join(
        f'"{column.column}"' for column in model._meta.fields if column.name != "last_login"
    )
    with connection.cursor() as cursor:
        cursor.execute(f'SELECT {names} FROM "{model._meta.db_table}"')
        return sorted(map(str, cursor.fetchall()))


def state() -> dict[str, Any]:
    """Return everything in metadata and the queues, except values that change by
    themselves.
    """
    models_with_state = [
        *apps.get_app_config("metadata").get_models(),
        *apps.get_app_config("auth").get_models(),
    ]
    excluded = ("Lease", "ClockMark", "Permission", "Heartbeat")
    contents: dict[str, Any] = {
        model.__name__: _rows(model)
        for model in models_with_state
        if model.__name__ not in excluded
    }
    for queue in Queue.objects.filter(
        topic__kind="normal", topic__state="ready"
    ).values_list("pk", flat=True):
        with node_pools.node_of(queue).reading() as session:
            contents[f"queue {queue}"] = queue_sql.read_head(session, queue=queue)
            contents[f"delayed {queue}"] = delayed_sql.count_delayed(
                session, queues=[queue], most=1_000
            )
    return contents


OTHER_PATHS = {"static/(?P<path>.+)$": "static/portal/portal.css", "api(/.*)?$": "api/nothing",
               "api/+(?:client|server)/.*$": "api/client/nothing",
               "admin/(?P<url>.*)$": "admin/nothing"}  # fmt: skip
# With the subscribed topic the first request would end the subscription.
UNSUBSCRIBED = ("DELETE api/v1/groups/<str:group>/subscriptions/<str:topic>",)
T, G, C, N = (
    "api/v1/topics/<str:topic>",
    "api/v1/groups/<str:group>",
    "api/v1/consumers/<str:consumer>",
    "nodes/<str:node>",
)
# Data of the requests. A permitted request must not affect the next actor's request.
REQUESTS: dict[str, Any] = {
    f"POST {T}/messages": {"messages": [{"body": "a"}]},
    f"GET {T}/messages": lambda world, prefix: {"queue": world.words[prefix]["queue"]},
    f"POST {G}/consumers": lambda _, prefix: {
        "name": "c", "sdk": "test", "incarnation": str(uuid4()), "topics": [f"{prefix}-orders"]
    },
    f"POST {C}/heartbeat": {"generation": 0, "owned": []},
    f"POST {C}/acquire": {"queues": []},
    f"POST {C}/pull": {"generation": 0, "queues": [], "max_messages": 1, "max_bytes": 1000,
    "wait_ms": 0},
    f"POST {C}/commit": {"offsets": []},
    f"POST {C}/share": {},
    f"POST {C}/share/done": {"done": []},
    f"POST {G}/share/runs/release": {"queue": 1, "first": 0},
    f"POST {C}/failures": {"messages": [{"queue": 1, "epoch": 1, "offset": 0}]},
    "POST api/v1/topics": lambda world, prefix: {"name": world.new(prefix), "queues": 1},
    "POST api/v1/import": lambda _, prefix: {
        "document": {"version": 1, "topics": [{"name": f"{prefix}-imported", "queues": 1}]},
        "dry_run": True
    },
    f"PATCH {T}": {"description": "r"},
    f"POST {T}/expand": {"queues": 1, "dry_run": True},
    f"POST {T}/shrink": {"count": 1, "dry_run": True},
    f"PATCH {T}/queues/<int:queue>": {"state": "read_write"},
    "POST api/v1/groups": lambda world, prefix: {"name": world.new(prefix)},
    f"PATCH {G}": {"description": "r"},
    f"PATCH {G}/offsets": {"to": "latest", "dry_run": True},
    f"POST {G}/offsets/undo": {"dry_run": True},
    f"POST {G}/rebalance": {"dry_run": True},
    f"POST {G}/subscriptions": lambda _, prefix: {"topic": f"{prefix}-orders"},
    f"PATCH {G}/subscriptions/<str:topic>": {"stopped": False},
    f"POST {G}/dead/redrive": {"to": "group"},
    "POST api/v1/nodes": lambda _, prefix: {"name": f"{prefix}-n", "engine": "sqlite",
    "database": "/etc/n"},
    f"PATCH api/v1/{N}": {"dedicated": False},
    f"POST api/v1/{N}/examine": {"engine": "sqlite", "database": "new.sqlite3"},
    f"PATCH api/v1/{N}/account": {"username": "u", "password": "p"},
    f"PATCH api/v1/{N}/reader": {"username": "u", "password": "p"},
    f"POST api/v1/{N}/promote": {"dry_run": True},
    f"POST api/v1/{N}/adopt": {"dry_run": True},
    "PATCH api/v1/brokers/<str:broker>": {"state": "in"},
    "POST api/v1/keys": lambda world, prefix: {
        "name": world.new(prefix), "rights": {"produce": [f"{prefix}-*"]}
    },
    "PATCH api/v1/keys/<str:key>": {"max_messages_per_s": None},
    "POST create/topic": lambda world, prefix: {"name": world.new(prefix), "queues": 1},
    "POST create/group": lambda world, prefix: {"name": world.new(prefix)},
}  # fmt: skip
