"""POST consumer/getConsumerGroupPolling: the news of a Java client's groups, waiting for
them.

The client calls again the moment it is answered, and starts to read after the fourth
answer. So an answer without news is held back, but only shortly while the client starts. A
call ends when the generation of any of its groups rises, which a commit with `flag` 1
causes (reading.py). In addition, the client asks for everything every two minutes, to
compare it with its own state; neither call ends the other.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import Annotated, Any, NamedTuple

from django.http import HttpResponse
from msgspec import Meta

from brokerapi.endpoint import Call
from brokerapi.http import draining
from brokerapi.java import assignment, handles, holds
from brokerapi.java.bounded import BoundedDict
from brokerapi.java.endpoint import (
    MOST_GROUPS,
    SETTLED_S,
    Body,
    JavaEndpoint,
    JavaRequest,
    Long,
    Unchanged,
    check_right,
    refusal,
)
from metadata.cache import snapshot
from metadata.errors import CatmqError, Forbidden, Gone
from metadata.groups import groups
from metadata.membership import java_beats, java_members
from metadata.membership.java_members import JavaMember

# The clients wait 10 s, some of them also for the end of this call when they stop.
HOLD_S = 7.0
# While a client starts, it counts START_ANSWERS answers.
START_HOLD_S = 0.3
START_ANSWERS = 4
# Polls within this time, and within this part of the session timeout, are recorded together.
TICK_S = 1.0
TICKS = 8
# Session timeout from which a poll may be recorded a second late.
SETTLED_FROM_MS = 6_000
# A client that is refused at once would call thousands of times.
ERROR_HOLD_S = 1.5
MOST_STARTING = 10_000
# Groups of a client that are looked up among the deleted groups.
MOST_DELETED = 100

# A heartbeat of a client that polled this recently has no news.
RECENT_S = 8.0
MOST_RECENT = 20_000


class _QuietClient(NamedTuple):
    """A client that has the newest of everything, while its groups have these generations."""

    until: float  # time.monotonic()
    members: tuple[JavaMember, ...]
    generations: Mapping[int, int]
    metadata: tuple[Any, ...]  # version of the snapshot


_recent = BoundedDict[int, float](MOST_RECENT)  # client → time.monotonic() of its last poll
_starting = BoundedDict[tuple[int, str], int](
    MOST_STARTING
)  # (client, group) → answers until it starts
_quiet_clients = BoundedDict[int, _QuietClient](MOST_RECENT)  # by client


class PollRequest(JavaRequest):
    consumerId: Long | None = None
    consumerGroupVersion: (
        Annotated[dict[str, Long | None], Meta(max_length=MOST_GROUPS)] | None
    ) = None


class Poll(JavaEndpoint):
    body = Body(PollRequest)

    def answer_to(self, call: Call, request: PollRequest) -> dict[str, Any]:
        draining.check()
        java_id = request.consumerId or 0
        versions = {
            group: version or 0
            for group, version in (request.consumerGroupVersion or {}).items()
        }
        quiet_client = _find_quiet_client(java_id, versions)
        members = (
            _find_members(java_id, versions)
            if quiet_client is None
            else quiet_client.members
        )
        missing = sorted(versions.keys() - {member.group for member in members})
        deleted = groups.deletion_times(missing[:MOST_DELETED]) if missing else {}
        if not members or len(members) + len(deleted) < len(versions):
            return _require_registration(call, java_id, members)
        for member in members:
            # At every poll: a right may have been revoked since the client joined.
            check_right(call, member.consumer.group_id)
        # A client gets the news of a deleted group once, as their version is the time of the
        # deletion. Versions of a membership start at the time of its registration, so those of
        # a deleted group are lower, and those of a new group of the same name are higher.
        deleted_news = {
            name: assignment.deleted_group(name, at_ms)
            for name, at_ms in deleted.items()
            if versions[name] < at_ms
        }
        try:
            if _is_full_refresh(members, versions):
                return _answer(_full_assignment(java_id, members, versions) | deleted_news)
            _note_poll(java_id)
            if quiet_client is None:
                news = _wait_for_news(call, members, versions, deleted_news)
            else:
                news = _wait_for_quiet_client(call, quiet_client, versions)
            _recent[java_id] = time.monotonic()
            # Found again: only a client that is still quiet gets the same answer again.
            if not news and (client := _find_quiet_client(java_id, versions)) is not None:
                call.repeat = _RepeatedPoll(java_id, versions, client)
            return _answer(news)
        except Gone:
            return _require_registration(call, java_id, members)

    def refused(self, call: Call, error: Exception) -> HttpResponse:
        """Hold the refusal back: a client that is refused calls again at once. A stranger
        has fewer places.
        """
        answer = refusal(call, error)
        if isinstance(error, Forbidden):
            holds.pause_stranger(call.request.META.get("REMOTE_ADDR", ""))
            answer.status_code = HTTPStatus.FORBIDDEN
            return answer
        holds.pause(f"refused {id(call)}", call.actor, ERROR_HOLD_S)
        may_pass = isinstance(error, CatmqError) and not draining.must_not_wait()
        answer.status_code = HTTPStatus.OK if may_pass else answer.status_code
        return answer


class _RepeatedPoll(Unchanged):
    """A repeated poll of a client without news."""

    def __init__(
        self, java_id: int, versions: Mapping[str, int], quiet_client: _QuietClient
    ) -> None:
        super().__init__(_max_hold_s(quiet_client.members), quiet_client.generations)
        self._java_id, self._versions = java_id, versions
        self._member_ids = [member.consumer.member_id for member in quiet_client.members]

    def note(self) -> bool:
        """Record that the client polls. Return False if a full poll is due."""
        quiet_client = _find_quiet_client(self._java_id, self._versions)
        if quiet_client is None or not java_members.has_polled(self._java_id):
            return False
        if any((self._java_id, group) in _starting for group in self._versions):
            return False
        _note_poll(self._java_id)
        _record_quiet_poll(quiet_client)
        return True

    def holds(self) -> bool:
        return not java_beats.needs_full_check(self._member_ids) and super().holds()

    def answered(self) -> None:
        super().answered()
        _recent[self._java_id] = time.monotonic()


def _answer(groups: Mapping[str, Any], *, deleted: bool = False) -> dict[str, Any]:
    """Return the fields of an answer. Both spellings of a field are sent, because the two
    kinds of clients differ in it.
    """
    return {
        "sleepTime": 0,
        "consumerDeleted": int(deleted),
        "brokerMetaMode": 0,
        "consumerGroups": groups,
        "consumerGroupSubEnvMap": {},
        "consumerGroupoSubEnvMap": {},
    }


def _require_registration(
    call: Call, java_id: int, members: Sequence[JavaMember]
) -> dict[str, Any]:
    """Make a client that lost a membership register again: its next heartbeat is answered
    with `deleted`.
    """
    _recent.pop(java_id, None)
    if members:
        java_beats.require_full_check(member.consumer.member_id for member in members)
        java_members.require_rejoin(java_id)
    # The client calls again at once, while its next heartbeat is seconds away.
    holds.pause(f"poll {java_id}", call.actor, ERROR_HOLD_S)
    return _answer({}, deleted=True)


def has_just_polled(java_id: int) -> bool:
    """Return True if a poll of the client arrived or ended here a moment ago: it counted as
    a heartbeat.
    """
    return time.monotonic() - _recent.get(java_id, float("-inf")) < RECENT_S


def _note_poll(java_id: int) -> None:
    # Without polls, the heartbeats of a client do not count.
    java_beats.note_poll(java_id)
    _recent[java_id] = time.monotonic()


def _find_members(java_id: int, versions: Mapping[str, int]) -> list[JavaMember]:
    return [
        member
        for member in java_members.memberships_of_client(java_id, versions=versions)
        if member.group in versions
    ]


def _is_full_refresh(members: Sequence[JavaMember], versions: Mapping[str, int]) -> bool:
    """Return True if the poll is a full refresh: the client sends version 0 to compare its
    assignment.

    A separate thread of the client does so every two minutes. In some clients it survives
    the threads that poll, as when a broker stops. So it records no heartbeat: that would
    keep a client alive that reads no more.
    """
    return all(member.has_answer and not versions[member.group] for member in members)


def _full_assignment(
    java_id: int, members: Sequence[JavaMember], versions: Mapping[str, int]
) -> dict[str, Any]:
    settings = _read_assignments(members)
    # Fewer: another broker has answered the client since, so the memberships are read again.
    if len(settings) < len(members):
        settings |= _read_assignments(
            member
            for member in _find_members(java_id, versions)
            if member.group not in settings
        )
    # A client that has not polled this process may be starting, so its next answers must
    # come quickly.
    if not java_members.has_polled(java_id):
        for member in members:
            _starting[java_id, member.group] = START_ANSWERS
    return settings


def _read_assignments(members: Iterable[JavaMember]) -> dict[str, Any]:
    assignments = (
        (member.group, assignment.read_assignment(member).group) for member in members
    )
    return {name: group for name, group in assignments if group is not None}


def _wait_for_news(
    call: Call,
    members: Sequence[JavaMember],
    versions: Mapping[str, int],
    deleted_news: Mapping[str, Any],
) -> dict[str, Any]:
    """Wait for news of a client's groups. Return the news by group name."""
    java_id = members[0].java_id
    for member in members:
        handles.remember(member.consumer)
    # A client that has the newest versions most likely only reports that it lives. Such polls
    # are recorded together, which saves work of the metadata database and of this process.
    is_quiet = not deleted_news and all(
        versions[member.group] == member.version
        and (java_id, member.group) not in _starting
        for member in members
    )
    was_held = call.was_held()  # until something changed: answer now
    until = time.monotonic() + (0 if was_held else _hold_s(java_id, members))
    with holds.waiting_place(f"poll {java_id}", call.actor) as max_wait_s:
        if is_quiet and not was_held:
            known_generations = holds.read_generations(
                member.consumer.group_id for member in members
            )
            # Polls are aligned to ticks, so that a single statement records the polls of
            # many clients.
            tick_s = min(
                TICK_S, *(member.session_timeout_ms / 1000 / TICKS for member in members)
            )
            now = time.monotonic()
            holds.wait(known_generations, now + min(tick_s - now % tick_s, max_wait_s))
        metadata = snapshot.current().version
        news, generations = _record_heartbeats(java_id, members, versions)
        # Not with a short session timeout: its polls must not be recorded a second late.
        if (
            is_quiet
            and not news
            and all(member.session_timeout_ms >= SETTLED_FROM_MS for member in members)
        ):
            java_beats.note_present(member.consumer.member_id for member in members)
            _quiet_clients[java_id] = _QuietClient(
                time.monotonic() + SETTLED_S, tuple(members), generations, metadata
            )
        if not news and not deleted_news and not draining.must_not_wait():
            holds.wait(
                generations,
                min(until, time.monotonic() + max_wait_s),
                is_over=call.has_hung_up,
            )
            if holds.has_changed(generations) and not call.has_hung_up():
                news, _ = _record_heartbeats(
                    java_id, _find_members(java_id, versions), versions
                )
    return {**news, **deleted_news}


def _find_quiet_client(java_id: int, versions: Mapping[str, int]) -> _QuietClient | None:
    """Return the client if it has these versions and nothing can have changed since it
    became quiet.
    """
    client = _quiet_clients.get(java_id)
    if (
        client is None
        or client.until < time.monotonic()
        or client.metadata != snapshot.current().version
    ):
        return None
    has_versions = versions == {member.group: member.version for member in client.members}
    # Another broker, or an expiry, has changed a membership since the client was cached.
    if java_beats.needs_full_check(member.consumer.member_id for member in client.members):
        java_members.forget_client(java_id)
        return None
    if not has_versions:
        return None
    return None if holds.has_changed(client.generations) else client


def _record_quiet_poll(quiet_client: _QuietClient) -> None:
    for member in quiet_client.members:
        handles.remember(member.consumer)
    java_beats.note(
        {member.consumer.member_id: member.version for member in quiet_client.members}
    )


def _wait_for_quiet_client(
    call: Call, quiet_client: _QuietClient, versions: Mapping[str, int]
) -> dict[str, Any]:
    """Wait for news as _wait_for_news(), for a quiet client: only that it polls is
    recorded.
    """
    java_id, members = quiet_client.members[0].java_id, quiet_client.members
    ids = [member.consumer.member_id for member in members]
    _record_quiet_poll(quiet_client)

    def is_over() -> bool:
        return java_beats.needs_full_check(ids) or call.has_hung_up()

    with holds.waiting_place(f"poll {java_id}", call.actor) as max_wait_s:
        until = time.monotonic() + min(
            _hold_s(java_id, members) - call.waited_s(), max_wait_s
        )
        holds.wait(quiet_client.generations, until, is_over=is_over)
        has_changed = holds.has_changed(
            quiet_client.generations
        ) or java_beats.needs_full_check(ids)
        if not has_changed or call.has_hung_up():
            return {}
        java_members.forget_client(java_id)
        return _record_heartbeats(java_id, _find_members(java_id, versions), versions)[0]


def _record_heartbeats(
    java_id: int, members: Iterable[JavaMember], versions: Mapping[str, int]
) -> tuple[dict[str, Any], dict[int, int]]:
    """Record a heartbeat of each member. Return the news by group name, and the generation
    by group id.
    """
    news, generations = {}, {}
    for member in members:
        member_news = assignment.heartbeat(member, versions[member.group])
        generations[member.consumer.group_id] = member_news.generation
        if member_news.group is not None:
            news[member.group] = member_news.group
            # A higher `rbVersion` makes the client stop and start.
            # The versions also differ after a full refresh, or an answer that got lost.
            if (
                member_news.member.last_answer.rb_version > member.last_answer.rb_version
                or versions[member.group] != member.version
            ):
                _starting[java_id, member.group] = START_ANSWERS
    return news, generations


def _hold_s(java_id: int, members: Iterable[JavaMember]) -> float:
    """Return the time to hold the poll, and count an answer to a client that starts."""
    hold_s = _max_hold_s(members)
    for member in members:
        remaining = _starting.get((java_id, member.group), 0)
        if remaining:
            # It starts to read after START_ANSWERS answers, so these must come quickly.
            hold_s = min(hold_s, START_HOLD_S)
            _starting[java_id, member.group] = remaining - 1
            if remaining == 1:
                del _starting[java_id, member.group]
    return hold_s


def _max_hold_s(members: Iterable[JavaMember]) -> float:
    """Return the longest time to hold a poll: the next poll must come within each session
    timeout.
    """
    return min(HOLD_S, *(member.session_timeout_ms / 2000 for member in members))
