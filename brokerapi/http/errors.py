"""The one place where an error becomes HTTP: `application/problem+json` (RFC 9457),
whatever was raised.

type            /api/v1/docs#<code>, behind the path prefix: the docs page explains every code
title, status   words and number of the HTTP answer
detail, code    what happened, in words and as a word for programs
retriable       whether the same request may succeed later; `retry_after_ms` says when, if known
errors          [{field, message}] when fields are wrong
id              only for status 500: the same id stands in the broker's log
metadata_silent_ms, assigned, subscriptions
                only for a heartbeat that was not recorded, with a promise to its member
                (metadata/db/contact.py) and with what the nodes say it
                owns, as the answer to one that was recorded says it
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Mapping, Sequence
from http import HTTPStatus
from itertools import islice
from typing import Any

import msgspec
from django.core.exceptions import PermissionDenied, RequestDataTooBig, SuspiciousOperation
from django.db import InterfaceError, OperationalError
from django.http import Http404, HttpRequest, HttpResponse
from rest_framework.exceptions import APIException, ErrorDetail, ValidationError

from metadata.config import config
from metadata.errors import (
    CatmqError,
    Code,
    Conflict,
    FieldError,
    Forbidden,
    Gone,
    Invalid,
    Malformed,
    MetadataUnavailable,
    NotBuilt,
    NotFound,
    StoreCorrupt,
    TooLarge,
    Unauthenticated,
    Unavailable,
    Unrecorded,
)

log = logging.getLogger(__name__)

DOCS = f"{config.path_prefix}/api/v1/docs"
MOST_NAMED = 20  # wrong fields in one answer
MOST_CHARS = 500  # of what is said about one of them
# A code, or a class for all its codes that are not named; the first that fits counts.
STATUS: tuple[tuple[Code | type[CatmqError], HTTPStatus], ...] = (
    (Code.METHOD_NOT_ALLOWED, HTTPStatus.METHOD_NOT_ALLOWED),
    (Code.UNSUPPORTED_MEDIA_TYPE, HTTPStatus.UNSUPPORTED_MEDIA_TYPE),
    (Code.NOT_ACCEPTABLE, HTTPStatus.NOT_ACCEPTABLE),
    (Code.INTERNAL, HTTPStatus.INTERNAL_SERVER_ERROR),
    (Code.RATE_LIMITED, HTTPStatus.TOO_MANY_REQUESTS),
    (Code.REQUEST_TIMEOUT, HTTPStatus.REQUEST_TIMEOUT),
    # 503 means "nothing was done"; here it is not known
    (Code.OUTCOME_UNKNOWN, HTTPStatus.GATEWAY_TIMEOUT),
    (TooLarge, HTTPStatus.REQUEST_ENTITY_TOO_LARGE),
    (Unauthenticated, HTTPStatus.UNAUTHORIZED),
    (Forbidden, HTTPStatus.FORBIDDEN),
    (NotFound, HTTPStatus.NOT_FOUND),
    (Conflict, HTTPStatus.CONFLICT),
    (Gone, HTTPStatus.GONE),
    (NotBuilt, HTTPStatus.NOT_IMPLEMENTED),
    (Invalid, HTTPStatus.BAD_REQUEST),
    (Unavailable, HTTPStatus.SERVICE_UNAVAILABLE),
    (StoreCorrupt, HTTPStatus.INTERNAL_SERVER_ERROR),
)


class Problem(msgspec.Struct, kw_only=True, omit_defaults=True):
    """An error as it is answered."""

    type: str
    title: str
    status: int
    detail: str
    code: Code
    retriable: bool
    retry_after_ms: int | None = None
    errors: tuple[FieldError, ...] = ()
    id: str | None = None
    metadata_silent_ms: int | None = None
    assigned: Sequence[Any] | None = None
    subscriptions: Mapping[str, Any] | None = None


def respond(error: BaseException, **more: Any) -> HttpResponse:
    """The HTTP answer for whatever a request raised, with `more` fields; bugs are logged
    with their id.
    """
    known = to_catmq_error(error)
    status = http_status(known)
    incident = _logged(error) if status == HTTPStatus.INTERNAL_SERVER_ERROR else None
    problem = Problem(
        type=f"{DOCS}#{known.code}",
        title=code_title(known.code),
        status=status,
        detail=f"{known.detail} See id {incident} in the broker's log."
        if incident
        else known.detail,
        code=known.code,
        retriable=known.retriable,
        retry_after_ms=known.retry_after_ms,
        errors=known.errors,
        id=incident,
        metadata_silent_ms=known.silent_ms if isinstance(known, Unrecorded) else None,
        **more,
    )
    response = HttpResponse(
        msgspec.json.encode(problem), "application/problem+json", status
    )
    if status == HTTPStatus.UNAUTHORIZED:
        response["WWW-Authenticate"] = 'Bearer realm="catmq"'
    if known.retry_after_ms is not None:
        response["Retry-After"] = str(-(-known.retry_after_ms // 1000))
    response.catmq_code = known.code  # type: ignore[attr-defined]  # read by metrics
    return response


def encode_problem(
    *, status: HTTPStatus, code: Code, detail: str, retriable: bool
) -> bytes:
    """Return the JSON of a problem that comes from outside the views."""
    made = Problem(
        type=f"{DOCS}#{code}",
        title=code_title(code),
        status=status,
        detail=detail,
        code=code,
        retriable=retriable,
    )
    return msgspec.json.encode(made)


def code_title(code: Code) -> str:
    """A code as words: "Topic not found"."""
    return code.replace("_", " ").capitalize()


def http_status(error: CatmqError) -> HTTPStatus:
    """The HTTP status of an error: the first in the table that fits."""
    fits = (
        status
        for what, status in STATUS
        if (what == error.code if isinstance(what, Code) else isinstance(error, what))
    )
    return next(fits, HTTPStatus.INTERNAL_SERVER_ERROR)


def _code_of(status: int) -> Code:
    """Return the code of a status that the framework chose."""
    known = (
        what if isinstance(what, Code) else what.code
        for what, one in STATUS
        if one == status
    )
    return next(known, Code.INVALID)


def to_catmq_error(error: BaseException) -> CatmqError:
    """Any exception as one of our tree; what nobody expected is `internal`, without its
    words.
    """
    if isinstance(error, CatmqError):
        return error
    if isinstance(error, ValidationError):
        return _invalid(error)
    if isinstance(error, APIException):
        code = _code_of(error.status_code)
        return (
            Invalid(str(error.detail), code=code)
            if error.status_code < 500
            else _internal()
        )
    if isinstance(error, OperationalError | InterfaceError):
        log.warning("The metadata database did not answer: %s", error)
        return MetadataUnavailable(
            "The metadata database did not answer. Sends, pulls and commits work."
        )
    return _of_django(error)


def _of_django(error: BaseException) -> CatmqError:
    if isinstance(error, Http404):
        return NotFound("There is nothing at this URL. GET /api/v1/docs lists the API.")
    if isinstance(error, PermissionDenied):
        return Forbidden("This is not allowed.")
    if isinstance(error, RequestDataTooBig):
        return TooLarge(str(error))
    if isinstance(error, SuspiciousOperation):
        return Malformed(str(error))
    return _internal()


def _internal() -> CatmqError:
    return CatmqError("This is a fault of the broker, not of the request.")


def _logged(error: BaseException) -> str:
    incident = uuid.uuid4().hex[:16]
    log.error("request failed, id %s", incident, exc_info=error)
    return incident


def _invalid(error: ValidationError) -> Invalid:
    errors = list(islice(_flat(error.detail, ""), MOST_NAMED))
    return Invalid(
        "; ".join(f"{one.field}: {one.message}" for one in errors), errors=errors
    )


def _flat(detail: Any, path: str) -> Iterator[FieldError]:
    """A serializer's nested errors one by one, fields named as the caller wrote them."""
    if isinstance(detail, ErrorDetail | str):
        yield FieldError(path or "(body)", str(detail)[:MOST_CHARS])
        return
    if isinstance(detail, dict):
        parts = ((_joined(path, name), value) for name, value in detail.items())
    elif all(isinstance(item, ErrorDetail) for item in detail):
        parts = ((path, item) for item in detail)
    else:
        parts = ((f"{path}[{index}]", item) for index, item in enumerate(detail))
    for name, value in parts:
        yield from _flat(value, name)


def _joined(path: str, name: str | int) -> str:
    if isinstance(name, int):
        return f"{path}[{name}]"
    return path if name == "non_field_errors" else f"{path}.{name}".strip(".")


def exception_handler(error: Exception, context: dict[str, Any]) -> HttpResponse:
    """REST_FRAMEWORK["EXCEPTION_HANDLER"]: for the framework's own views (the schema)."""
    return respond(error)


def handler400(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Django's answer to a request it refuses itself, such as a host that is not allowed."""
    known = isinstance(exception, SuspiciousOperation)
    return respond(exception if known else Malformed("The request is malformed."))


def handler403(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Django's answer to what it forbids itself."""
    return respond(PermissionDenied())


def handler404(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Django's answer to an unknown URL."""
    return respond(Http404())


def handler500(request: HttpRequest) -> HttpResponse:
    """Django's answer to an error outside our endpoints; Django has logged it, and we log
    it with an id.
    """
    return respond(_internal())
