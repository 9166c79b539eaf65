"""The base of the calls of Java clients: who is let in, how they write requests, how they
read answers.

Such a client takes any status but 2xx, and an empty answer, for a broker that is away: it
pauses for half a second and asks the next one, a few times. `suc: false` is final. So what
cannot be done now is answered with 503, and what is wrong with 200, `suc: false` and a
message.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Annotated, Any

import msgspec
from django.http import HttpRequest, HttpResponse
from django.urls import Resolver404, resolve
from drf_spectacular.utils import extend_schema
from msgspec import Meta, Struct

from brokerapi.endpoint import Call, Endpoint
from brokerapi.http import draining, errors, metrics, renderers, value_limits
from brokerapi.http.formats import JSON
from brokerapi.http.parsers import field_error, read_bytes
from brokerapi.http.repeats import REPEAT
from brokerapi.java import holds
from messagestore.heads.heads import Flag, board
from metadata.actors import Actor
from metadata.brokers import java_callers
from metadata.cache import snapshot
from metadata.config import config
from metadata.db import access
from metadata.errors import (
    Forbidden,
    Invalid,
    Malformed,
    NotFound,
    RateLimited,
    Unavailable,
)
from metadata.rules import rates
from metadata.rules.membership import addresses
from metadata.rules.rates import Bucket
from metadata.users import api_keys

Long = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]  # what a Java long holds
MOST_BYTES = 1 << 20  # of a request
# of one with messages: these clients send as many as they are given
MOST_BYTES_OF_MESSAGES = 16 << 20
MOST_GROUPS = 200  # that one request names
MOST_NAMES = 1_000  # of topics in one request
SENDS_AND_READS = {"produce": ("*",), "consume": ("*",)}
SLASHES = re.compile(r"/{2,}")

MOST_KNOWN = 10_000  # addresses
# a client for which nothing changed is looked up, and answered in full, so often
SETTLED_S = 120.0
CATMQ_VERSION = "${project.version}"  # CatMQ's build leaves its version out

_networks = addresses.parse_networks(config.java_networks)
_guard = threading.Lock()
_buckets: dict[str, Bucket] = {}  # requests that an address may still make, in this process


class JavaRequest(Struct, kw_only=True):
    """Base of all requests. Unknown fields are left out; a null means the default."""

    clientIp: str | None = None
    sdkVersion: str | None = None


class Body:
    """A request's body as a struct: numbers may be text, and what is null may be absent."""

    def __init__(self, kind: type[JavaRequest], *, most_bytes: int = MOST_BYTES) -> None:
        self._decode = msgspec.json.Decoder(kind, strict=False).decode
        self._most_bytes = most_bytes

    def read(self, request: HttpRequest) -> Any:
        """Raises Malformed, TooLarge, or Invalid naming the field."""
        data = read_bytes(request, self._most_bytes)
        value_limits.check_json(data)
        try:
            return self._decode(data or b"{}")
        except msgspec.ValidationError as error:
            raise field_error(error) from error
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise Malformed(f"The body is not JSON: {error}.") from error


def java_actor(address: str) -> Actor:
    """Return who a Java client at an address is to us. Raises Forbidden."""
    if not addresses.is_within(address, _networks):
        raise Forbidden(
            f"Java clients at {address} are not let in: CATMQ_JAVA_NETWORKS of this broker "
            "lacks it."
        )
    if not config.java_key:
        return Actor(kind="key", name="java", address=address, rights=SENDS_AND_READS)
    key = next(
        (one for one in snapshot.current().keys.values() if one.name == config.java_key),
        None,
    )
    if key is None:
        raise Forbidden(
            f"CATMQ_JAVA_KEY names the API key {config.java_key}, which does not exist: create it."
        )
    return Actor(
        kind="key", name=key.name, address=address, rights=key.rights, key_id=key.id
    )


def check_right(call: Call, group_id: int) -> None:
    """Raise Forbidden unless Java clients of the caller's address may consume in a group
    now.

    A membership outlasts the right by which it was made, and so does a call that waits. So
    the key is looked up again. A group that this process does not know was deleted, or made
    a moment ago.
    """
    group = snapshot.current().groups.get(group_id)
    if group is not None:
        actor = java_actor(call.request.META.get("REMOTE_ADDR", ""))
        access.require(actor, "consume", group.name, what="group")


def check_rate(address: str) -> None:
    """Raise RateLimited for an address that makes more requests than a worker's part of
    what it may.
    """
    rate = config.java_requests_per_s / config.workers
    if not rate:
        return
    now = time.monotonic()
    with _guard:
        if len(_buckets) >= MOST_KNOWN:
            _buckets.clear()
        bucket = _buckets.setdefault(address, Bucket(level=rate, at=now))
        wait_s = rates.wait_s(bucket, rate=rate, amount=1, now=now)
        if not wait_s:
            bucket.level -= 1
            return
    raise RateLimited(
        f"Java clients at {address} make more than {config.java_requests_per_s} requests/s: "
        "CATMQ_JAVA_REQUESTS_PER_S of this broker limits them.",
        retry_after_ms=max(1, round(wait_s * 1000)),
    )


def client_name(name: str, version: str) -> str:
    """Return which client this is, and its version; CatMQ's names end in a blank.

    >>> (client_name("10.0.0.5|1|2|80", "5.5.1-SNAPSHOT"),
    ...  client_name("10.0.0.5|1|280 ", "${project.version}"))
    ('pmq-java/5.5.1-SNAPSHOT', 'catmq-java')
    """
    if name.endswith(" ") or version == CATMQ_VERSION:
        return "catmq-java" if version == CATMQ_VERSION else f"catmq-java/{version}"
    return f"pmq-java/{version}"


def actor_with_token(actor: Actor, token: str | None) -> Actor:
    """Return the actor whose API key a request has as its token; the same actor for any
    other token.
    """
    key = snapshot.find_key(api_keys.digest(token)) if token else None
    if key is None:
        return actor
    return Actor(
        kind="key", name=key.name, address=actor.address, rights=key.rights, key_id=key.id
    )


class Unchanged:
    """The answer of a Java client that has news neither of its groups nor of its queues.

    `generations` are those of the groups that it was told, `offsets` the ends of the queues
    that it awaits.
    """

    address = sdk = route = ""  # of the request
    lasts_s = SETTLED_S  # how long it is believed

    def __init__(
        self,
        wait_s: float,
        generations: Mapping[int, int],
        offsets: Mapping[int, int] = holds.EMPTY,
    ) -> None:
        self.wait_s, self._generations, self._offsets = wait_s, generations, offsets
        self._metadata = snapshot.current().version
        self._until = time.monotonic() + self.lasts_s

    def begins(self) -> bool:
        """Note that the request came again; False if it is to be answered in full."""
        if time.monotonic() >= self._until or snapshot.current().version != self._metadata:
            return False
        if not self.holds():
            return False
        try:
            check_rate(self.address)
        except RateLimited:
            return False
        return self.note()

    def note(self) -> bool:
        """Note what a full answer would note; False if it is not certain to be the same."""
        raise NotImplementedError

    def watch(self, flag: Flag) -> Callable[[], object]:
        """Have a flag raised at any news, and return what ends that."""
        waiters = [
            board.watch(group, self._offsets, flag=flag) for group in self._generations
        ]
        for one in waiters:
            board.add(one)

        def leave() -> None:
            for one in waiters:
                board.remove(one)

        return leave

    def holds(self) -> bool:
        """Return True if there is no news."""
        if draining.must_not_wait() or holds.has_changed(self._generations):
            return False
        return not any(
            board.known(queue) > offset for queue, offset in self._offsets.items()
        )

    def answered(self) -> None:
        """Count the request."""
        java_callers.count_request(address=self.address, sdk=self.sdk, outcome="answered")
        metrics.count_again("POST", self.route)


class JavaEndpoint(Endpoint):
    """Base of all; `answer_to` takes (call, request) and returns the fields of the answer."""

    public = True  # no key: who is let in is a matter of networks
    # False: never refused for its rate, because the client would not ask again
    limited = True
    body: Body

    @extend_schema(exclude=True)
    def post(self, call: Call) -> HttpResponse:
        """Answer a call."""
        address, sdk = call.request.META.get("REMOTE_ADDR", ""), ""
        outcome: java_callers.Outcome = "answered"
        try:
            call.actor = java_actor(address)
            if self.limited:
                check_rate(call.actor.address)
            asked = self.body.read(call.request)
            sdk = client_name("", asked.sdkVersion) if asked.sdkVersion else ""
            answer = java_answer(call, self.answer_to(call, asked))
            if isinstance(call.repeat, Unchanged):
                match = call.request.resolver_match
                call.repeat.address, call.repeat.sdk = address, sdk
                call.repeat.route = match.route if match is not None else ""
                call.request.META[REPEAT] = call.repeat
            return answer
        except Exception as error:  # noqa: BLE001 - as Endpoint does: refused() logs what is a bug
            outcome = "limited" if isinstance(error, RateLimited) else "refused"
            return self.refused(call, error)
        finally:
            java_callers.count_request(address=address, sdk=sdk, outcome=outcome)

    def answer_to(self, call: Call, asked: Any) -> dict[str, Any]:
        raise NotImplementedError

    def refused(self, call: Call, error: Exception) -> HttpResponse:
        """Return the answer to a call that failed."""
        return refusal(call, error)


def java_answer(
    call: Call, fields: dict[str, Any], status: int = HTTPStatus.OK
) -> HttpResponse:
    """Return an answer with the fields that all have."""
    common = {"suc": True, "time": 0, "serverIp": config.broker_name}
    return renderers.render(call.request, {**common, **fields}, JSON, status)


def refusal(call: Call, error: Exception, **fields: Any) -> HttpResponse:
    """Return the answer to a failed call: 503 for what may be tried again, 200 for what is
    wrong.
    """
    problem = errors.respond(error)  # logs what is a bug
    known = errors.to_catmq_error(error)
    is_wrong = isinstance(known, Invalid) and not isinstance(known, Unavailable)
    status = HTTPStatus.OK if is_wrong else problem.status_code
    answer = java_answer(
        call, {"suc": False, "code": "0", "msg": known.detail, **fields}, status
    )
    answer.catmq_code = known.code  # type: ignore[attr-defined]  # read by metrics
    return answer


class Elsewhere(Endpoint):
    """Any other URL of these clients: one that is written differently, or a call that we do
    not have.
    """

    public = True

    @extend_schema(exclude=True)
    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        """Answer as the call does whose URL is meant: doubled slashes and one at the end do
        not count.
        """
        path = SLASHES.sub("/", request.path_info).rstrip("/")
        try:
            match = resolve(path)
        except Resolver404:
            match = None
        kind = getattr(getattr(match, "func", None), "cls", None)
        if match is not None and path != request.path_info and kind is not Elsewhere:
            request.resolver_match = match
            answer: HttpResponse = match.func(request, **match.kwargs)
            return answer
        return super().dispatch(request, *args, **kwargs)

    @extend_schema(exclude=True)
    def post(self, call: Call) -> HttpResponse:
        """Refuse the call; GET the same."""
        detail = (
            f"There is no call {call.request.path_info} here: "
            "docs/reference/java-clients.md lists them."
        )
        return refusal(call, NotFound(detail))

    get = post
