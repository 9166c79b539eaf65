"""POST consumer/getConsumerGroupPolling: what is new in the groups of a Java client, waited
for.

The client asks again the moment it is answered, and starts to read after the fourth answer.
So an answer without news is held back, but shortly while it starts. A call ends when the
generation of one of its groups moves, which `flag` 1 of a commit does (reading.py). Beside
that it asks for everything every two minutes, to compare it with what it has; neither call
ends the other.
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

# these clients wait 10 s, some of them for the end of this call when they stop
HOLD_S = 7.0
START_HOLD_S = 0.3  # while a client counts answers before it starts
START_ANSWERS = 4
TICK_S = 1.0  # polls of that time are recorded together, …
TICKS = 8  # … and of such a part of the session timeout
SETTLED_FROM_MS = 6_000  # session timeout for which a poll may be recorded a second late
ERROR_HOLD_S = 1.5  # a client that is refused at once would ask thousands of times
MOST_STARTING = 10_000
MOST_DELETED = 100  # groups of one client that are looked for among the deleted

RECENT_S = 8.0  # a heartbeat tells nothing new of a client that polled so recently
MOST_RECENT = 20_000


class _Settled(NamedTuple):
    """A client that has the newest of everything, while its groups have these generations."""

    until: float  # time.monotonic()
    members: tuple[JavaMember, ...]
    generations: Mapping[int, int]
    metadata: tuple[Any, ...]  # version of the snapshot


_recent: dict[int, float] = {}  # client → time.monotonic() of its last poll
_starting: dict[tuple[int, str], int] = {}  # (client, group) → answers until it starts
_settled: dict[int, _Settled] = {}  # client → its last full look, if that found nothing new


class PollRequest(JavaRequest):
    consumerId: Long | None = None
    consumerGroupVersion: (
        Annotated[dict[str, Long | None], Meta(max_length=MOST_GROUPS)] | None
    ) = None


class Poll(JavaEndpoint):
    body = Body(PollRequest)

    def answer_to(self, call: Call, asked: PollRequest) -> dict[str, Any]:
        draining.check()
        java_id = asked.consumerId or 0
        versions = {
            group: version or 0
            for group, version in (asked.consumerGroupVersion or {}).items()
        }
        settled = _settled_at(java_id, versions)
        members = _members(java_id, versions) if settled is None else settled.members
        deleted = _deleted_groups(members, versions)
        if not members or len(members) + len(deleted) < len(versions):
            return _deleted(call, java_id, members)
        for member in members:
            check_right(call, member.consumer.group_id)
        ended = _ended(deleted, versions)
        try:
            if _is_check(members, versions):
                return _answer(_checked(java_id, members, versions) | ended)
            _note_poll(java_id)
            if settled is None:
                news = _news(call, members, versions, ended)
            else:
                news = _news_for_settled(call, settled, versions)
            _note_answer(java_id)
            if not news:
                call.repeat = _again(java_id, versions)
            return _answer(news)
        except Gone:
            return _deleted(call, java_id, members)

    def refused(self, call: Call, error: Exception) -> HttpResponse:
        """Hold the refusal back: what fails at once is asked again at once. A stranger has
        fewer places.
        """
        answer = refusal(call, error)
        if isinstance(error, Forbidden):
            holds.pause_stranger(call.request.META.get("REMOTE_ADDR", ""))
            answer.status_code = HTTPStatus.FORBIDDEN
            return answer
        holds.pause(f"refused {id(call)}", call.actor, ERROR_HOLD_S)
        is_known = isinstance(error, CatmqError) and not draining.must_not_wait()
        answer.status_code = HTTPStatus.OK if is_known else answer.status_code
        return answer


class _PollAgain(Unchanged):
    """A poll of a client for which nothing is new."""

    def __init__(
        self, java_id: int, versions: Mapping[str, int], settled: _Settled
    ) -> None:
        super().__init__(_longest_s(settled.members), settled.generations)
        self._java_id, self._versions = java_id, versions
        self._members = [one.consumer.member_id for one in settled.members]

    def note(self) -> bool:
        """Note that the client lives; False if it is to be looked at in full."""
        settled = _settled_at(self._java_id, self._versions)
        if settled is None or not java_members.has_polled(self._java_id):
            return False
        if any((self._java_id, group) in _starting for group in self._versions):
            return False
        _note_poll(self._java_id)
        _note_settled(settled)
        return True

    def holds(self) -> bool:
        return not java_beats.needs_full_check(self._members) and super().holds()

    def answered(self) -> None:
        super().answered()
        _note_answer(self._java_id)


def _again(java_id: int, versions: Mapping[str, int]) -> _PollAgain | None:
    """Return when the client gets the same answer again; None while it is not certain what
    it has.
    """
    settled = _settled_at(java_id, versions)
    return None if settled is None else _PollAgain(java_id, versions, settled)


def _answer(groups: Mapping[str, Any], *, deleted: bool = False) -> dict[str, Any]:
    """The fields of an answer; the two clients spell one of them differently."""
    return {
        "sleepTime": 0,
        "consumerDeleted": int(deleted),
        "brokerMetaMode": 0,
        "consumerGroups": groups,
        "consumerGroupSubEnvMap": {},
        "consumerGroupoSubEnvMap": {},
    }


def _deleted(call: Call, java_id: int, members: Sequence[JavaMember]) -> dict[str, Any]:
    """Make a client that lost a membership register again: its next heartbeat is answered
    with `deleted`.
    """
    _recent.pop(java_id, None)
    if members:
        java_beats.require_full_check(one.consumer.member_id for one in members)
        java_members.require_rejoin(java_id)
    holds.pause(f"poll {java_id}", call.actor, ERROR_HOLD_S)
    return _answer({}, deleted=True)


def has_just_polled(java_id: int) -> bool:
    """Return True if a poll of a client came or ended here a moment ago: it was recorded as
    a heartbeat.
    """
    return time.monotonic() - _recent.get(java_id, float("-inf")) < RECENT_S


def _note_poll(java_id: int) -> None:
    """Note that a client asked, which is what its heartbeats count by."""
    java_beats.note_poll(java_id)
    _note_answer(java_id)


def _note_answer(java_id: int) -> None:
    if len(_recent) >= MOST_RECENT:
        _recent.clear()
    _recent[java_id] = time.monotonic()


def _members(java_id: int, versions: Mapping[str, int]) -> list[JavaMember]:
    return [
        one
        for one in java_members.memberships_of_client(java_id, versions=versions)
        if one.group in versions
    ]


def _is_check(members: Sequence[JavaMember], versions: Mapping[str, int]) -> bool:
    """Return True for a client that compares what it was told with what there is: it asks
    for all of it anew.

    A thread of its own does so every two minutes. It goes on where those that poll have
    ended, as they do in some clients when a broker stops, so it tells nothing of them: to
    count it would keep a client alive that reads no more.
    """
    return all(one.has_answer and not versions[one.group] for one in members)


def _checked(
    java_id: int, members: Sequence[JavaMember], versions: Mapping[str, int]
) -> dict[str, Any]:
    """Return what there is, by group, at once."""
    found = _checks(members)
    if len(found) < len(members):  # another broker told the client something newer
        found |= _checks(
            one for one in _members(java_id, versions) if one.group not in found
        )
    # The check of a client that starts may be answered elsewhere before its first poll,
    # which comes here.
    if not java_members.has_polled(java_id):
        for one in members:
            _note_start(java_id, one.group)
    return found


def _checks(members: Iterable[JavaMember]) -> dict[str, Any]:
    seen = ((one.group, assignment.read_assignment(one).group) for one in members)
    return {name: group for name, group in seen if group is not None}


def _deleted_groups(
    members: Iterable[JavaMember], versions: Mapping[str, int]
) -> dict[str, int]:
    """Name → time of deletion, ms, of the groups that a client names and that were deleted."""
    missing = sorted(versions.keys() - {one.group for one in members})
    return groups.deletion_times(missing[:MOST_DELETED]) if missing else {}


def _ended(deleted: Mapping[str, int], versions: Mapping[str, int]) -> dict[str, Any]:
    """The news of deleted groups: once, as their version is the time of the deletion.

    Those of members begin at the time of their registration, so they are below it, and
    those of a group of the same name that is made later above.
    """
    return {
        name: assignment.deleted_group(name, at_ms)
        for name, at_ms in deleted.items()
        if versions[name] < at_ms
    }


def _news(
    call: Call,
    members: Sequence[JavaMember],
    versions: Mapping[str, int],
    ended: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the news of the client, by group; looked for again when one of the groups
    changes.
    """
    java_id = members[0].java_id
    for member in members:
        handles.remember(member.consumer)
    is_quiet = not ended and all(_is_quiet(one, versions) for one in members)
    was_held = call.was_held()  # until something changed, which is told now
    until = time.monotonic() + (0 if was_held else _hold_s(java_id, members))
    with holds.waiting_place(f"poll {java_id}", call.actor) as most_s:
        if is_quiet and not was_held:
            known = holds.read_generations(one.consumer.group_id for one in members)
            tick_s = min(
                TICK_S, *(one.session_timeout_ms / 1000 / TICKS for one in members)
            )
            now = time.monotonic()
            holds.wait(known, now + min(tick_s - now % tick_s, most_s))
        metadata = snapshot.current().version
        news, seen = _look(java_id, members, versions)
        if is_quiet and not news:
            _settle(java_id, members, seen, metadata)
        if not news and not ended and not draining.must_not_wait():
            holds.wait(
                seen, min(until, time.monotonic() + most_s), is_over=call.has_hung_up
            )
            if holds.has_changed(seen) and not call.has_hung_up():
                news, _ = _look(java_id, _members(java_id, versions), versions)
    return {**news, **ended}


def _is_quiet(member: JavaMember, versions: Mapping[str, int]) -> bool:
    """Return True for a member whose client most likely only says that it lives: that is
    recorded together with others, which takes less of the metadata database and of this
    process."""
    return (
        versions[member.group] == member.version
        and (member.java_id, member.group) not in _starting
    )


def _settled_at(java_id: int, versions: Mapping[str, int]) -> _Settled | None:
    """Return the last full look at a client that has these versions, if nothing can have
    changed since.
    """
    known = _settled.get(java_id)
    if (
        known is None
        or known.until < time.monotonic()
        or known.metadata != snapshot.current().version
    ):
        return None
    same = versions == {one.group: one.version for one in known.members}
    if java_beats.needs_full_check(one.consumer.member_id for one in known.members):
        java_members.forget_client(
            java_id
        )  # what is remembered of it may be older than that
        return None
    if not same:
        return None
    return None if holds.has_changed(known.generations) else known


def _settle(
    java_id: int,
    members: Sequence[JavaMember],
    generations: Mapping[int, int],
    metadata: tuple[Any, ...],
) -> None:
    if any(one.session_timeout_ms < SETTLED_FROM_MS for one in members):
        return
    java_beats.note_present(one.consumer.member_id for one in members)
    if len(_settled) >= MOST_RECENT:
        _settled.clear()
    _settled[java_id] = _Settled(
        time.monotonic() + SETTLED_S, tuple(members), generations, metadata
    )


def _note_settled(settled: _Settled) -> None:
    for one in settled.members:
        handles.remember(one.consumer)
    java_beats.note({one.consumer.member_id: one.version for one in settled.members})


def _news_for_settled(
    call: Call, settled: _Settled, versions: Mapping[str, int]
) -> dict[str, Any]:
    """The same for a client that most likely only says that it lives, which is all that is
    recorded.
    """
    java_id, members = settled.members[0].java_id, settled.members
    ids = [one.consumer.member_id for one in members]
    _note_settled(settled)

    def is_over() -> bool:
        return java_beats.needs_full_check(ids) or call.has_hung_up()

    with holds.waiting_place(f"poll {java_id}", call.actor) as most_s:
        until = time.monotonic() + min(_hold_s(java_id, members) - call.waited_s(), most_s)
        holds.wait(settled.generations, until, is_over=is_over)
        has_changed = holds.has_changed(settled.generations) or java_beats.needs_full_check(
            ids
        )
        if not has_changed or call.has_hung_up():
            return {}
        java_members.forget_client(java_id)
        return _look(java_id, _members(java_id, versions), versions)[0]


def _look(
    java_id: int, members: Iterable[JavaMember], versions: Mapping[str, int]
) -> tuple[dict[str, Any], dict[int, int]]:
    """Return the news, by group, and the generation of each group, by its id."""
    news, generations = {}, {}
    for member in members:
        seen = assignment.heartbeat(member, versions[member.group])
        generations[member.consumer.group_id] = seen.generation
        if seen.group is not None:
            news[member.group] = seen.group
            # A check, or an answer that got lost, may have told it to start.
            if (
                assignment.must_restart(member, seen.member)
                or versions[member.group] != member.version
            ):
                _note_start(java_id, member.group)
    return news, generations


def _note_start(java_id: int, group: str) -> None:
    if len(_starting) >= MOST_STARTING:
        _starting.clear()
    _starting[java_id, group] = START_ANSWERS


def _hold_s(java_id: int, members: Iterable[JavaMember]) -> float:
    """Return the time to wait, and count an answer to a client that starts."""
    hold_s = _longest_s(members)
    for member in members:
        left = _starting.get((java_id, member.group), 0)
        if left:
            hold_s = min(hold_s, START_HOLD_S)
            _starting[java_id, member.group] = left - 1
            if left == 1:
                del _starting[java_id, member.group]
    return hold_s


def _longest_s(members: Iterable[JavaMember]) -> float:
    """Return the longest wait: the next call must come within the session timeout of each
    group.
    """
    return min(HOLD_S, *(one.session_timeout_ms / 2000 for one in members))
