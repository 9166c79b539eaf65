"""The only place where an exception becomes HTTP: `application/problem+json` (RFC 9457).

type            /api/v1/docs#<code>, after the path prefix: the docs page explains every code
title, status   text and number of the HTTP status
detail, code    explanation for people, and a code for programs
retriable       whether the same request may succeed later, after `retry_after_ms` if given
errors          [{field, message}] when fields are wrong
id              only for status 500: the same id is in the broker's log
metadata_silent_ms, assigned, subscriptions
                only for a heartbeat that was not recorded: how long metadata has been silent
                (metadata/db/contact.py), and the queues that the member owns on the nodes,
                in the form of a recorded heartbeat's answer
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
MOST_NAMED = 20  # wrong fields in an answer
MOST_CHARS = 500  # of the message about a wrong field
# The HTTP status by error code, or by class for the codes that are not listed. The first entry
# that matches counts.
STATUS: tuple[tuple[Code | type[CatmqError], HTTPStatus], ...] = (
    (Code.METHOD_NOT_ALLOWED, HTTPStatus.METHOD_NOT_ALLOWED),
    (Code.UNSUPPORTED_MEDIA_TYPE, HTTPStatus.UNSUPPORTED_MEDIA_TYPE),
    (Code.NOT_ACCEPTABLE, HTTPStatus.NOT_ACCEPTABLE),
    (Code.INTERNAL, HTTPStatus.INTERNAL_SERVER_ERROR),
    (Code.RATE_LIMITED, HTTPStatus.TOO_MANY_REQUESTS),
    (Code.REQUEST_TIMEOUT, HTTPStatus.REQUEST_TIMEOUT),
    # 503 would mean that nothing was done, which is unknown here.
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
    """Return the HTTP answer for any exception, with `more` fields. A 500 is logged with
    the id that its answer has.
    """
    catmq_error = to_catmq_error(error)
    status = http_status(catmq_error)
    incident_id = None
    # Only 500s get an id: other errors explain themselves.
    if status == HTTPStatus.INTERNAL_SERVER_ERROR:
        incident_id = uuid.uuid4().hex[:16]
        log.error("request failed, id %s", incident_id, exc_info=error)
    problem = Problem(
        type=f"{DOCS}#{catmq_error.code}",
        title=code_title(catmq_error.code),
        status=status,
        detail=f"{catmq_error.detail} See id {incident_id} in the broker's log."
        if incident_id
        else catmq_error.detail,
        code=catmq_error.code,
        retriable=catmq_error.retriable,
        retry_after_ms=catmq_error.retry_after_ms,
        errors=catmq_error.errors,
        id=incident_id,
        metadata_silent_ms=catmq_error.silent_ms
        if isinstance(catmq_error, Unrecorded)
        else None,
        **more,
    )
    response = HttpResponse(
        msgspec.json.encode(problem), "application/problem+json", status
    )
    if status == HTTPStatus.UNAUTHORIZED:
        response["WWW-Authenticate"] = 'Bearer realm="catmq"'
    if catmq_error.retry_after_ms is not None:
        # The header has whole seconds: rounded up, so that no client comes too early.
        response["Retry-After"] = str(-(-catmq_error.retry_after_ms // 1000))
    response.catmq_code = catmq_error.code  # type: ignore[attr-defined]  # read by metrics
    return response


def encode_problem(
    *, status: HTTPStatus, code: Code, detail: str, retriable: bool
) -> bytes:
    answer = Problem(
        type=f"{DOCS}#{code}",
        title=code_title(code),
        status=status,
        detail=detail,
        code=code,
        retriable=retriable,
    )
    return msgspec.json.encode(answer)


def code_title(code: Code) -> str:
    # topic_not_found becomes "Topic not found".
    return code.replace("_", " ").capitalize()


def http_status(error: CatmqError) -> HTTPStatus:
    """Return the HTTP status of an error: that of the first entry of STATUS that matches."""
    statuses = (
        status
        for kind, status in STATUS
        if (kind == error.code if isinstance(kind, Code) else isinstance(error, kind))
    )
    return next(statuses, HTTPStatus.INTERNAL_SERVER_ERROR)


def _code_of(status: int) -> Code:
    codes = (
        kind if isinstance(kind, Code) else kind.code
        for kind, kind_status in STATUS
        if kind_status == status
    )
    return next(codes, Code.INVALID)


def to_catmq_error(error: BaseException) -> CatmqError:
    """Return any exception as a CatmqError. An unexpected exception becomes `internal`, without
    its text.
    """
    if isinstance(error, CatmqError):
        return error
    if isinstance(error, ValidationError):
        errors = list(islice(_flatten(error.detail, ""), MOST_NAMED))
        detail = "; ".join(f"{wrong.field}: {wrong.message}" for wrong in errors)
        return Invalid(detail, errors=errors)
    if isinstance(error, APIException):
        return (
            Invalid(str(error.detail), code=_code_of(error.status_code))
            if error.status_code < 500
            else _internal()
        )
    # The layers below raise MetadataUnavailable themselves; these are from queries elsewhere.
    if isinstance(error, OperationalError | InterfaceError):
        log.warning("The metadata database did not answer: %s", error)
        return MetadataUnavailable(
            "The metadata database did not answer. Sends, pulls and commits work."
        )
    return _convert_django_error(error)


def _convert_django_error(error: BaseException) -> CatmqError:
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


def _flatten(detail: Any, path: str) -> Iterator[FieldError]:
    """Yield a serializer's nested errors, with field paths as the client wrote them."""
    if isinstance(detail, ErrorDetail | str):
        yield FieldError(path or "(body)", str(detail)[:MOST_CHARS])
        return
    if isinstance(detail, dict):
        parts = ((_join_path(path, name), value) for name, value in detail.items())
    elif all(isinstance(item, ErrorDetail) for item in detail):
        parts = ((path, item) for item in detail)
    else:
        parts = ((f"{path}[{index}]", item) for index, item in enumerate(detail))
    for name, value in parts:
        yield from _flatten(value, name)


def _join_path(path: str, name: str | int) -> str:
    if isinstance(name, int):
        return f"{path}[{name}]"
    return path if name == "non_field_errors" else f"{path}.{name}".strip(".")


def exception_handler(error: Exception, context: dict[str, Any]) -> HttpResponse:
    # REST_FRAMEWORK["EXCEPTION_HANDLER"]. Only DRF's schema view reaches this: all others
    # handle their exceptions in Endpoint.dispatch().
    return respond(error)


# Django's handlers, for requests that it refuses before they reach an endpoint.


def handler400(request: HttpRequest, exception: Exception) -> HttpResponse:
    # Django calls this for a host that is not allowed, among others. Only the texts of
    # SuspiciousOperation are fit for clients.
    is_suspicious = isinstance(exception, SuspiciousOperation)
    return respond(exception if is_suspicious else Malformed("The request is malformed."))


def handler403(request: HttpRequest, exception: Exception) -> HttpResponse:
    return respond(PermissionDenied())


def handler404(request: HttpRequest, exception: Exception) -> HttpResponse:
    return respond(Http404())


def handler500(request: HttpRequest) -> HttpResponse:
    # Django has logged the error; it is logged again with the id in the answer.
    return respond(_internal())
