"""The base of the calls of Java clients: admission, requests, answers.

A Java client treats an empty answer, and any status but 2xx, as an unreachable broker: it
pauses for half a second and calls the next broker, a few times. An answer with `suc: false`
is final for it. So a temporary error is answered with 429 or 503, which the client tries
again, and a wrong request with 200, `suc: false` and a message.

A client that waits for news sends the same request again and again. Its repeats can be held
by the server without a thread; see Unchanged.
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
)
from metadata.rules import rates
from metadata.rules.membership import addresses
from metadata.rules.rates import Bucket
from metadata.rules.rights import ActorKind, Right
from metadata.users import api_keys

# A Java long.
Long = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
# Largest body of a request without messages.
MOST_BYTES = 1 << 20
# Largest body of a request with messages. The clients themselves have no limit.
MOST_BYTES_OF_MESSAGES = 16 << 20
# Limits on the groups, and on the names of topics, in a request.
MOST_GROUPS = 200
MOST_NAMES = 1_000
# Rights of Java clients without a configured key.
SENDS_AND_READS: Mapping[str, tuple[str, ...]] = {
    Right.PRODUCE: ("*",),
    Right.CONSUME: ("*",),
}
SLASHES = re.compile(r"/{2,}")

# Addresses with a bucket of their rate limit.
MOST_KNOWN = 10_000
# For this long, the repeats of a client without news are answered from memory. Then one
# repeat is handled in full: the client is looked up and its answer built again.
SETTLED_S = 120.0
# CatMQ's Java build does not fill in its version.
CATMQ_VERSION = "${project.version}"

_networks = addresses.parse_networks(config.java_networks)
_guard = threading.Lock()
# By client address: the token bucket of its request rate in this process.
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
    is looked up again.
    """
    # A group that is not in the snapshot was deleted, or created a moment ago: there is no
    # name to check yet.
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
        # All buckets are dropped, which is simpler than finding old ones. An address gains at
        # most the requests of one second by it.
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
    """Return the kind and version of a client as the portal shows them.

    CatMQ's own clients are recognized by a blank at the end of `name`, or by the version
    that their build does not fill in.

    >>> client_name("10.0.0.5|1|2|80", "5.5.1-SNAPSHOT")
    'pmq-java/5.5.1-SNAPSHOT'
    >>> client_name("10.0.0.5|1|280 ", "${project.version}")
    'catmq-java'
    """
    if name.endswith(" ") or version == CATMQ_VERSION:
        return "catmq-java" if version == CATMQ_VERSION else f"catmq-java/{version}"
    return f"pmq-java/{version}"


def actor_with_token(actor: Actor, token: str | None) -> Actor:
    """Return the actor of the API key that `token` is. Return `actor` for any other token."""
    key = snapshot.find_key(api_keys.digest(token)) if token else None
    return auth.actor_of_key(key, actor.address) if key is not None else actor


class Unchanged:
    """The condition under which the repeats of a request get the same answer: neither the
    client's groups nor its queues have news. It implements brokerapi.http.repeats.Repeat.

    A view attaches it to an answer without news (`call.repeat`). When the client sends the
    same bytes again, no view runs. The server's event loop uses this object instead:

    1. begins(): may this repeat be held? If not, a view handles it as usual.
    2. watch() for up to `wait_s`. When the flag is raised, is_still_valid() tells whether the
       hold goes on; if not, a view handles the repeat.
    3. answered(), after the hold has ended without news and the same answer was sent.

    `generations` are the generations of the client's groups when the answer was built, by
    group id. `offsets` are the log end offsets at which the client waits, by queue id.
    """

    # Of the request; set by JavaEndpoint.post().
    address = sdk = route = ""
    # Seconds after the full answer until a repeat is handled in full again.
    lasts_s = SETTLED_S

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
        """Record that the request was repeated. Return False if it must be handled in full."""
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
        """Record what a view would record for this request, such as a heartbeat. Return False
        if the answer of a view might be different.
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
        """Return True if no group has another generation and no queue a new message."""
        if draining.must_not_wait() or holds.has_changed(self._generations):
            return False
        return not any(
            board.durable_head(queue) > offset for queue, offset in self._offsets.items()
        )

    def answered(self) -> None:
        """Count the repeat, after the same answer was sent again."""
        java_callers.count_request(address=self.address, sdk=self.sdk, outcome="answered")
        metrics.count_again("POST", self.route)


class JavaEndpoint(PublicEndpoint):
    """Base of all calls. Their clients are admitted by network, not by API key."""

    # False for a call that the client would not repeat: it is never refused for its rate.
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
            # META is the WSGI environ, where the server finds the condition for repeats after
            # it has sent the answer.
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
        """Handle the decoded request. Return the fields of the answer."""
        raise NotImplementedError

    def refused(self, call: Call, error: Exception) -> HttpResponse:
        return refusal(call, error)


def java_answer(
    call: Call, fields: dict[str, Any], status: int = HTTPStatus.OK
) -> HttpResponse:
    common = {"suc": True, "time": 0, "serverIp": config.broker_name}
    return renderers.render(call.request, {**common, **fields}, JSON, status)


def refusal(call: Call, error: Exception, **fields: Any) -> HttpResponse:
    """Return the answer to a failed call: 200 if the request itself is wrong, else the status
    of the error, at which the client tries another broker. `fields` are added to the body.
    """
    problem = errors.respond(error)  # logs bugs
    catmq_error = errors.to_catmq_error(error)
    # Invalid is the base of all errors that a repeat of the request would meet again.
    status = HTTPStatus.OK if isinstance(catmq_error, Invalid) else problem.status_code
    answer = java_answer(
        call, {"suc": False, "code": "0", "msg": catmq_error.detail, **fields}, status
    )
    answer.catmq_code = catmq_error.code  # type: ignore[attr-defined]  # read by metrics
    return answer


class Elsewhere(PublicEndpoint):
    """Any other URL of Java clients: a known URL with extra slashes, or an unknown call."""

    @extend_schema(exclude=True)
    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        """Call the view of the URL without doubled and trailing slashes, if there is one."""
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
