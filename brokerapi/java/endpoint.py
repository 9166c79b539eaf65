"""The base of the calls of Java clients: admission, requests, answers.

Such a client takes any status but 2xx, and an empty answer, for an unreachable broker: it
pauses for half a second and calls the next broker, a few times. `suc: false` is final. So
errors that may pass are answered with 503, and wrong requests with 200, `suc: false` and a
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

from brokerapi.endpoint import Call, PublicEndpoint
from brokerapi.http import auth, draining, errors, metrics, renderers, value_limits
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
from metadata.rules.rights import ActorKind, Right
from metadata.users import api_keys

# A Java long.
Long = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
# Of a request without messages.
MOST_BYTES = 1 << 20
# Of a request with messages: the clients have no limit of their own.
MOST_BYTES_OF_MESSAGES = 16 << 20
# Groups, and topics, that a request may name.
MOST_GROUPS = 200
MOST_NAMES = 1_000
# Rights of Java clients without a configured key.
SENDS_AND_READS: Mapping[str, tuple[str, ...]] = {
    Right.PRODUCE: ("*",),
    Right.CONSUME: ("*",),
}
SLASHES = re.compile(r"/{2,}")

# Addresses whose rate is remembered.
MOST_KNOWN = 10_000
# A client without news is answered in full, and looked up, once in this time.
SETTLED_S = 120.0
# CatMQ's Java build does not fill in its version.
CATMQ_VERSION = "${project.version}"

_networks = addresses.parse_networks(config.java_networks)
_guard = threading.Lock()
# Requests that an address may still make, in this process.
_buckets: dict[str, Bucket] = {}


class JavaRequest(Struct, kw_only=True):
    """Base of all requests. Unknown fields are ignored; null means the default."""

    clientIp: str | None = None
    sdkVersion: str | None = None


class Body:
    """The body of a request as a struct. Numbers may be strings; null counts as missing."""

    def __init__(self, kind: type[JavaRequest], *, most_bytes: int = MOST_BYTES) -> None:
        self._decode = msgspec.json.Decoder(kind, strict=False).decode
        self._most_bytes = most_bytes

    def read(self, request: HttpRequest) -> Any:
        """Return the struct. Raises Malformed, TooLarge, or Invalid naming the field."""
        # An empty body is an empty object: these clients send none for calls without
        # fields.
        data = read_bytes(request, self._most_bytes)
        # Before decoding: a small body may hold a huge number of values.
        value_limits.check_json(data)
        try:
            return self._decode(data or b"{}")
        except msgspec.ValidationError as error:
            raise field_error(error) from error
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise Malformed(f"The body is not JSON: {error}.") from error


def java_actor(address: str) -> Actor:
    """Return the actor for a Java client at an address. Raises Forbidden."""
    if not addresses.is_within(address, _networks):
        raise Forbidden(
            f"Java clients at {address} are not let in: CATMQ_JAVA_NETWORKS of this broker "
            "lacks it."
        )
    # Without a configured key, every Java client may send and read, but not manage.
    if not config.java_key:
        return Actor(
            kind=ActorKind.KEY, name="java", address=address, rights=SENDS_AND_READS
        )
    key = next(
        (key for key in snapshot.current().keys.values() if key.name == config.java_key),
        None,
    )
    if key is None:
        raise Forbidden(
            f"CATMQ_JAVA_KEY names the API key {config.java_key}, which does not exist: create it."
        )
    return auth.actor_of_key(key, address)


def check_right(call: Call, group_id: int) -> None:
    """Raise Forbidden unless Java clients at the caller's address may still consume in a
    group.

    A membership outlives the right that created it, and so does a waiting call. So the key
    is looked up again. A group that this process does not know was deleted, or created a
    moment ago.
    """
    group = snapshot.current().groups.get(group_id)
    if group is not None:
        actor = java_actor(call.request.META.get("REMOTE_ADDR", ""))
        access.require(actor, Right.CONSUME, group.name, what="group")


def check_rate(address: str) -> None:
    """Raise RateLimited if an address makes more requests than this worker's share of its
    rate.
    """
    rate = config.java_requests_per_s / config.workers
    if not rate:
        return
    now = time.monotonic()
    with _guard:
        # Emptied, not trimmed: an address regains at most a second of its rate.
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
    """Return the name and version of a client. The names of CatMQ's clients end in a blank.

    >>> client_name("10.0.0.5|1|2|80", "5.5.1-SNAPSHOT")
    'pmq-java/5.5.1-SNAPSHOT'
    >>> client_name("10.0.0.5|1|280 ", "${project.version}")
    'catmq-java'
    """
    if name.endswith(" ") or version == CATMQ_VERSION:
        return "catmq-java" if version == CATMQ_VERSION else f"catmq-java/{version}"
    return f"pmq-java/{version}"


def actor_with_token(actor: Actor, token: str | None) -> Actor:
    """Return the actor of the API key that a request has as its token; `actor` for any
    other token.
    """
    key = snapshot.find_key(api_keys.digest(token)) if token else None
    return auth.actor_of_key(key, actor.address) if key is not None else actor


class Unchanged:
    """The repeated call of a Java client for which neither its groups nor its queues have
    news.

    `generations` are those of the groups that the client has, `offsets` the log ends that
    it waits at.
    """

    address = sdk = route = ""  # of the request
    lasts_s = SETTLED_S  # then a full answer is due

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
        """Note that the request was repeated. Return False if it needs a full answer."""
        if time.monotonic() >= self._until or snapshot.current().version != self._metadata:
            return False
        if not self.is_still_valid():
            return False
        try:
            check_rate(self.address)
        except RateLimited:
            return False
        return self.note()

    def note(self) -> bool:
        """Record the same facts as a full answer would. Return False if a full answer might
        be different.
        """
        raise NotImplementedError

    def watch(self, flag: Flag) -> Callable[[], object]:
        """Raise the flag at any news. Return a function that ends the watch."""
        waiters = [
            board.watch(group, self._offsets, flag=flag) for group in self._generations
        ]
        # All watches share the flag: a change that any of them reports ends the wait.
        for waiter in waiters:
            board.add(waiter)

        def leave() -> None:
            for waiter in waiters:
                board.remove(waiter)

        return leave

    def is_still_valid(self) -> bool:
        if draining.must_not_wait() or holds.has_changed(self._generations):
            return False
        return not any(
            board.durable_head(queue) > offset for queue, offset in self._offsets.items()
        )

    def answered(self) -> None:
        java_callers.count_request(address=self.address, sdk=self.sdk, outcome="answered")
        metrics.count_again("POST", self.route)


class JavaEndpoint(PublicEndpoint):
    """Base of all calls. Their clients are admitted by network, not by API key.

    `answer_to` takes (call, request) and returns the fields of the answer.
    """

    # False: never refused for its rate, because the client would not repeat the call.
    limited = True
    body: Body

    @extend_schema(exclude=True)
    def post(self, call: Call) -> HttpResponse:
        address, sdk = call.request.META.get("REMOTE_ADDR", ""), ""
        outcome: java_callers.Outcome = "answered"
        try:
            call.actor = java_actor(address)
            if self.limited:
                check_rate(call.actor.address)
            request = self.body.read(call.request)
            sdk = client_name("", request.sdkVersion) if request.sdkVersion else ""
            answer = java_answer(call, self.answer_to(call, request))
            # The server reads REPEAT from the environ after the answer is written.
            if isinstance(call.repeat, Unchanged):
                match = call.request.resolver_match
                call.repeat.address, call.repeat.sdk = address, sdk
                call.repeat.route = match.route if match is not None else ""
                call.request.META[REPEAT] = call.repeat
            return answer
        except Exception as error:  # noqa: BLE001 - as Endpoint does: refused() logs bugs
            outcome = "limited" if isinstance(error, RateLimited) else "refused"
            return self.refused(call, error)
        finally:
            java_callers.count_request(address=address, sdk=sdk, outcome=outcome)

    def answer_to(self, call: Call, request: Any) -> dict[str, Any]:
        raise NotImplementedError

    def refused(self, call: Call, error: Exception) -> HttpResponse:
        return refusal(call, error)


def java_answer(
    call: Call, fields: dict[str, Any], status: int = HTTPStatus.OK
) -> HttpResponse:
    common = {"suc": True, "time": 0, "serverIp": config.broker_name}
    return renderers.render(call.request, {**common, **fields}, JSON, status)


def refusal(call: Call, error: Exception, **fields: Any) -> HttpResponse:
    """Return the answer to a failed call: 503 if the call may be tried again, 200 if the
    call itself is wrong.
    """
    problem = errors.respond(error)  # logs bugs
    catmq_error = errors.to_catmq_error(error)
    is_wrong = isinstance(catmq_error, Invalid) and not isinstance(catmq_error, Unavailable)
    status = HTTPStatus.OK if is_wrong else problem.status_code
    answer = java_answer(
        call, {"suc": False, "code": "0", "msg": catmq_error.detail, **fields}, status
    )
    answer.catmq_code = catmq_error.code  # type: ignore[attr-defined]  # read by metrics
    return answer


class Elsewhere(PublicEndpoint):
    """Any other URL of these clients: a variant of a known URL, or an unknown call."""

    @extend_schema(exclude=True)
    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        """Answer as the call whose URL is meant: doubled and trailing slashes are ignored."""
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
        detail = (
            f"There is no call {call.request.path_info} here: "
            "docs/reference/java-clients.md lists them."
        )
        return refusal(call, NotFound(detail))

    get = post
