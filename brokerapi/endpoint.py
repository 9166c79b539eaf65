"""The base of all endpoints: authentication, formats, errors, metrics.

An `Endpoint` is a DRF APIView for its URL, its schema and its exemption from CSRF. The rest
of DRF's request handling (its Request, negotiation, throttles) costs more than a send and
is bypassed. A method gets a `Call` and the arguments of the URL, calls a single function of
the layers below and returns `call.answer(…)`.
"""

from __future__ import annotations

import time
from http import HTTPStatus
from typing import Any, TypeVar
from urllib.parse import quote

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from msgspec import Struct, structs
from rest_framework.authentication import BaseAuthentication
from rest_framework.request import Request
from rest_framework.serializers import Serializer
from rest_framework.views import APIView

from brokerapi.http import auth, errors, formats, metrics, renderers, value_limits
from brokerapi.http.parsers import ANY, Body, read_query
from brokerapi.http.repeats import CAME_AT, Repeat
from brokerapi.shapes.base import ConfirmQuery, ListQuery
from metadata.actors import Actor
from metadata.db import access
from metadata.db.consumer_ids import ConsumerId
from metadata.db.paging import Window
from metadata.errors import Code, Invalid
from metadata.rules.rights import ActorKind, Right

T = TypeVar("T")
# Largest body that a serializer checks. No management request needs a tenth of it.
MOST_BYTES = 256 << 10
MOST_NAME_CHARS = 256
METHODS = ("get", "post", "patch", "delete")
MOST_KNOWN_HOSTS = 256
_allowed_hosts: set[tuple[str | None, ...]] = set()
NOBODY = Actor(kind=ActorKind.KEY, name="")  # has no rights; for public endpoints


class Call:
    """A request while a view handles it."""

    __slots__ = ("actor", "kind", "repeat", "request")

    def __init__(self, request: HttpRequest, actor: Actor) -> None:
        self.request = request
        self.actor = actor
        self.kind = formats.answer_format(request)
        # Set by a view whose answer stays right until something changes (repeats.py).
        self.repeat: Repeat | None = None

    def read(self, body: Body[T]) -> T:
        """Return the body as a typed struct. Raises Malformed, TooLarge or Invalid."""
        return body.read(self.request)

    def read_fields(
        self,
        serializer: type[Serializer[Any]],
        *,
        manages: tuple[str, str] | None = None,
        most_bytes: int = MOST_BYTES,
    ) -> dict[str, Any]:
        """Return the fields of the body, checked by a serializer.

        `manages` is ("topic" or "group", its name; "" if the body has the name): the right
        to manage it is checked before anything else in the body. Raises Malformed,
        TooLarge, ValidationError, Forbidden.
        """
        # A large request, such as an import, declares its own limit on values.
        most_values = max(value_limits.MAX_VALUES, getattr(serializer, "most_parts", 0))
        # Untyped first: the serializer reports all wrong fields at once, msgspec only the
        # first.
        data = ANY.read(self.request, most_bytes, most_values)
        if manages is not None:
            kind, name = manages
            checked_name = name or (data.get("name") if isinstance(data, dict) else None)
            if isinstance(checked_name, str):
                access.require(
                    self.actor, Right.MANAGE, checked_name[:MOST_NAME_CHARS], what=kind
                )
        validated = serializer(data=data)
        validated.is_valid(raise_exception=True)
        return dict(validated.validated_data)

    def query(self, struct: type[T]) -> T:
        """Return the query parameters. Raises Invalid."""
        return read_query(self.request, struct)

    def query_fields(self, struct: type[Struct]) -> dict[str, Any]:
        """Return the query parameters as keyword arguments. Raises Invalid."""
        return structs.asdict(self.query(struct))

    def window(self, struct: type[ListQuery] = ListQuery) -> Window:
        """Return the part of a list that the query selects. Raises Invalid."""
        query = self.query(struct)
        return Window(search=query.search, limit=query.limit, after=query.after)

    def confirmed_name(self) -> str:
        """Return the name in `?confirm=`, "" if there is none. Raises Invalid."""
        return self.query(ConfirmQuery).confirm

    def consumer_id(self, text: str) -> ConsumerId:
        """Return the consumer id of the URL. Raises NotFound or Forbidden."""
        return auth.check_consumer(text, self.actor)

    def check_key(self) -> None:
        """Raise Unauthenticated if the API key was deleted while the request waited."""
        auth.check_key_exists(self.actor)

    def has_hung_up(self) -> bool:
        """Return True if the client has closed its connection, False if it has not or the
        server cannot know.
        """
        # Only the sockets of our gunicorn worker have `has_ended`.
        has_ended = getattr(self.request.META.get("gunicorn.socket"), "has_ended", None)
        return has_ended is not None and has_ended()

    def waited_s(self) -> float:
        """Return the seconds since a held request arrived, 0 if the server did not hold it."""
        now = time.monotonic()
        return now - float(self.request.META.get(CAME_AT, now))

    def was_held(self) -> bool:
        """Return True if the request repeats an earlier request and the server held it until
        something changed.
        """
        return CAME_AT in self.request.META

    def answer(self, value: Any) -> HttpResponse:
        return renderers.render(self.request, value, self.kind)

    def created(self, value: Any, *path: str) -> HttpResponse:
        """Return 201 with the new resource. `path` are the parts of its URL after /api/v1."""
        response = renderers.render(self.request, value, self.kind, HTTPStatus.CREATED)
        # SCRIPT_NAME is the path prefix of the installation.
        root = f"{self.request.META['SCRIPT_NAME']}/api/v1/"
        response["Location"] = root + "/".join(quote(part, safe="") for part in path)
        return response

    def no_content(self) -> HttpResponse:
        return HttpResponse(status=HTTPStatus.NO_CONTENT)


class ApiKey(BaseAuthentication):
    """Names the API key in the schema. `auth.authenticate` does the work."""

    def authenticate(self, request: Request) -> None:
        pass


class Endpoint(APIView):
    """Base of all endpoints. The methods `get`, `post`, `patch`, `delete` take (call, *URL
    arguments).
    """

    authentication_classes = (ApiKey,)
    permission_classes = ()
    public = False

    def setup(self, request: Any, *args: Any, **kwargs: Any) -> None:
        # Replaces Django's setup(), which stores a bound method in the view (`self.head =
        # self.get`). This reference cycle kept every request with its body in memory until a
        # full garbage collection, which stops all threads.
        self.request, self.args, self.kwargs = request, args, kwargs

    def get_authenticators(self) -> list[BaseAuthentication]:
        return [] if self.public else super().get_authenticators()

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        try:
            response = self._answer(request, kwargs)
        except Exception as error:  # noqa: BLE001 - the outermost handler: respond() logs bugs
            response = errors.respond(error)
        # HEAD is answered like GET; only the body is left out.
        if request.method == "HEAD":
            response.content = b""
        metrics.count_request(request, response)
        # respond() has logged bugs; Django would log every 503, too.
        response._has_been_logged = True  # type: ignore[attr-defined]
        return response

    def _answer(self, request: HttpRequest, url_arguments: dict[str, Any]) -> HttpResponse:
        method = (request.method or "").lower().replace("head", "get")
        handler = getattr(self, method, None) if method in METHODS else None
        if handler is None:
            return self._not_allowed(request)
        # Accepted hosts are cached: parsing a host costs more than looking it up.
        host_and_setting = (request.META.get("HTTP_HOST"), *settings.ALLOWED_HOSTS)
        if host_and_setting not in _allowed_hosts or host_and_setting[0] is None:
            request.get_host()  # raises DisallowedHost
            if len(_allowed_hosts) < MOST_KNOWN_HOSTS:
                _allowed_hosts.add(host_and_setting)
        actor = NOBODY if self.public else auth.authenticate(request)
        answer: HttpResponse = handler(Call(request, actor), **url_arguments)
        return answer

    def _not_allowed(self, request: HttpRequest) -> HttpResponse:
        allowed = ", ".join(method.upper() for method in METHODS if hasattr(self, method))
        detail = f"{request.method} is not possible here; this URL takes {allowed}."
        response = errors.respond(Invalid(detail, code=Code.METHOD_NOT_ALLOWED))
        response["Allow"] = allowed
        return response


class PublicEndpoint(Endpoint):
    """Base of endpoints that need no API key."""

    public = True
