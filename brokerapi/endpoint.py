"""The base of all endpoints: the caller, the formats, the outcome.

An `Endpoint` is a DRF APIView for its URL, its schema and its freedom from CSRF; the rest
of DRF's way through a request (its Request, negotiation, throttles) costs more than a send
and is left out. A method gets a `Call` and the words of the URL, makes one call below and
returns
`call.answer(…)`.
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

T = TypeVar("T")
# of a body that is checked by a serializer: none of them needs a tenth of it
MOST_BYTES = 256 << 10
MOST_NAME_CHARS = 256
METHODS = ("get", "post", "patch", "delete")
MOST_KNOWN_HOSTS = 256
_allowed_hosts: set[tuple[str | None, ...]] = set()
NOBODY = Actor(kind="key", name="")  # has no rights; for endpoints that need none


class Call:
    """One request on its way through a view."""

    __slots__ = ("actor", "kind", "repeat", "request")

    def __init__(self, request: HttpRequest, actor: Actor) -> None:
        self.request = request
        self.actor = actor
        self.kind = formats.answer_format(request)
        # under which the same request gets the same answer again
        self.repeat: Repeat | None = None

    def read(self, body: Body[T]) -> T:
        """The body as a typed struct. Raises Malformed, TooLarge or Invalid."""
        return body.read(self.request)

    def read_fields(
        self,
        serializer: type[Serializer[Any]],
        *,
        manages: tuple[str, str] | None = None,
        most_bytes: int = MOST_BYTES,
    ) -> dict[str, Any]:
        """The body's fields, checked by a serializer. Raises Malformed, TooLarge or
        ValidationError.

        `manages` is ("topic" or "group", its name; "" if the body has it): who may not
        manage that is told so before anything in the body is checked. Raises Forbidden.
        """
        most_values = max(value_limits.MAX_VALUES, getattr(serializer, "most_parts", 0))
        data = ANY.read(self.request, most_bytes, most_values)
        if manages is not None:
            what, name = manages
            named = name or (data.get("name") if isinstance(data, dict) else None)
            if isinstance(named, str):
                access.require(self.actor, "manage", named[:MOST_NAME_CHARS], what=what)
        checked = serializer(data=data)
        checked.is_valid(raise_exception=True)
        return dict(checked.validated_data)

    def query(self, struct: type[T]) -> T:
        """The query parameters. Raises Invalid."""
        return read_query(self.request, struct)

    def query_fields(self, struct: type[Struct]) -> dict[str, Any]:
        """The query parameters by name, for a call below that knows them by these names.
        Raises Invalid.
        """
        return structs.asdict(self.query(struct))

    def window(self, struct: type[ListQuery] = ListQuery) -> Window:
        """The part of a list that the query asks for. Raises Invalid."""
        asked = self.query(struct)
        return Window(search=asked.search, limit=asked.limit, after=asked.after)

    def confirmed_name(self) -> str:
        """The name given in `?confirm=`, '' if none. Raises Invalid."""
        return self.query(ConfirmQuery).confirm

    def consumer_id(self, text: str) -> ConsumerId:
        """The consumer id of the URL. Raises NotFound or Forbidden."""
        return auth.check_consumer(text, self.actor)

    def check_key(self) -> None:
        """Raise Unauthenticated if the API key was deleted while the request waited."""
        auth.check_key_exists(self.actor)

    def has_hung_up(self) -> bool:
        """Return True if the client has closed its connection; False where the server
        cannot tell.
        """
        has_ended = getattr(self.request.META.get("gunicorn.socket"), "has_ended", None)
        return has_ended is not None and has_ended()

    def waited_s(self) -> float:
        """Return how long the server has held the request back before this."""
        now = time.monotonic()
        return now - float(self.request.META.get(CAME_AT, now))

    def was_held(self) -> bool:
        """Return True for a repeated request that the server has held back until something
        changed.
        """
        return CAME_AT in self.request.META

    def answer(self, value: Any) -> HttpResponse:
        """200 with a value."""
        return renderers.render(self.request, value, self.kind)

    def created(self, value: Any, *path: str) -> HttpResponse:
        """201 with the new resource; `path` are the words of its URL behind /api/v1."""
        response = renderers.render(self.request, value, self.kind, HTTPStatus.CREATED)
        # SCRIPT_NAME is the path prefix
        root = f"{self.request.META['SCRIPT_NAME']}/api/v1/"
        response["Location"] = root + "/".join(quote(part, safe="") for part in path)
        return response

    def no_content(self) -> HttpResponse:
        """204: nothing to say."""
        return HttpResponse(status=HTTPStatus.NO_CONTENT)


def _check_host(request: HttpRequest) -> None:
    """Raises DisallowedHost. What was asked before is remembered: to take a name apart
    costs more.
    """
    asked = (request.META.get("HTTP_HOST"), *settings.ALLOWED_HOSTS)
    if asked not in _allowed_hosts or asked[0] is None:
        request.get_host()
        if len(_allowed_hosts) < MOST_KNOWN_HOSTS:
            _allowed_hosts.add(asked)


class ApiKey(BaseAuthentication):
    """Names the API key in the schema; `auth.actor_of` does the work."""

    def authenticate(self, request: Request) -> None:
        """Never asked: endpoints do not pass DRF's authentication."""


class Endpoint(APIView):
    """Base of all endpoints; the methods `get`, `post`, `patch`, `delete` take (call,
    *words of the URL).
    """

    authentication_classes = (ApiKey,)
    permission_classes = ()
    public = False  # True: answers without an API key

    def setup(self, request: Any, *args: Any, **kwargs: Any) -> None:
        """Django's own would also make a method of the view an attribute of it: garbage in
        a circle, which kept every request with its body until the garbage collector stopped
        everything to find it."""
        self.request, self.args, self.kwargs = request, args, kwargs

    def get_authenticators(self) -> list[BaseAuthentication]:
        """Return what the schema says about authentication."""
        return [] if self.public else super().get_authenticators()

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        """The answer to a request, a problem if anything is raised; counted."""
        try:
            response = self._answer(request, kwargs)
        except Exception as error:  # noqa: BLE001 - the edge of the product: respond() logs what is a bug
            response = errors.respond(error)
        if request.method == "HEAD":
            response.content = b""
        metrics.count_request(request, response)
        # respond() has logged it if it is a fault; Django would log every 503, too.
        response._has_been_logged = True  # type: ignore[attr-defined]
        return response

    def _answer(self, request: HttpRequest, words: dict[str, Any]) -> HttpResponse:
        method = (request.method or "").lower().replace("head", "get")
        handler = getattr(self, method, None) if method in METHODS else None
        if handler is None:
            return self._not_allowed(request)
        _check_host(request)
        actor = NOBODY if self.public else auth.authenticate(request)
        answer: HttpResponse = handler(Call(request, actor), **words)
        return answer

    def _not_allowed(self, request: HttpRequest) -> HttpResponse:
        allowed = ", ".join(method.upper() for method in METHODS if hasattr(self, method))
        detail = f"{request.method} is not possible here; this URL takes {allowed}."
        response = errors.respond(Invalid(detail, code=Code.METHOD_NOT_ALLOWED))
        response["Allow"] = allowed
        return response
