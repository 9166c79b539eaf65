"""POST consumer/getConsumerGroupPolling: a Java client polls for news of its groups.

A client names its groups, and the version of each that it has. The broker answers with the
groups that have a newer version: their assignments, which are queues to own with settings.
One poll goes through these steps (`Poll.answer_to`):

1. Find the client's memberships. A client that lacks a membership must register again.
2. A full refresh (all versions 0) is answered with all groups at once. It records no
   heartbeat.
3. Any other poll records a heartbeat of each membership. It is held back until one of the
   groups has news, because the client calls again the moment it is answered. A hold ends when
   the generation of one of the groups rises, which a commit with `flag` 1 also causes
   (reading.py).
4. A client without news becomes *quiet* for up to SETTLED_S. Until something changes, its next
   polls use the cached memberships, and their heartbeats are written in batches (java_beats).
   A repeat of the same request may then be held by the server, without a thread
   (`_RepeatedPoll`).

A client starts to read after its fourth answer, so while it starts, a poll is held back only
shortly (`_answers_until_start`).

Besides its polls, a client sends *heartbeat calls* from a thread of its own (joining.py). They
bring no news, and count only while the client also polls. In this module a heartbeat is the
record that a poll makes, and a heartbeat call is always called so.

The versions of a group must rise from answer to answer, also after its deletion and after a new
registration:

* A membership begins with the time of the client's registration (ms since 1970) as its
  version. Each answer with news adds 1.
* A deleted group is answered with the time of its deletion as its version. That is above the
  versions of all earlier answers, which are fewer than one per ms since the registration.
* For a new group of the same name the client registers again, later, so its versions are above
  that of the deleted group.

Three modules do the work around a poll. java_beats.py notes heartbeats of quiet clients in
memory, and writes them in batches. It also knows which members need a full check: those whose
heartbeat could not be written, because they are gone or have a newer answer. holds.py makes a
thread wait, if a place for waiting is free. handles.py keeps the consumer id of each member,
because later pulls and commits of these clients name only the member.
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

# Longest hold of a poll. The clients wait 10 s for an answer, and some of them also for the
# end of this call when they stop.
HOLD_S = 7.0
# A client starts to read after START_ANSWERS answers; until then a poll is held this long.
START_HOLD_S = 0.3
START_ANSWERS = 4
# Heartbeats that arrive within a tick are recorded together. A tick is the shorter of TICK_S
# and the session timeout / TICKS_PER_SESSION.
TICK_S = 1.0
TICKS_PER_SESSION = 8
# Only clients with at least this session timeout become quiet: the polls of a quiet client are
# recorded up to a second late.
MIN_QUIET_SESSION_MS = 6_000
# A refusal is held back this long: a client that is refused at once calls again at once.
ERROR_HOLD_S = 1.5
MOST_STARTING = 10_000
# Of a client's groups without a membership, how many are looked up among the deleted groups.
MOST_DELETED = 100

# After a poll, heartbeat calls need not be recorded for this time; see has_just_polled().
RECENT_S = 8.0
MOST_CLIENTS = 20_000


class _QuietClient(NamedTuple):
    """A client that has the newest version of each of its groups.

    Valid until a time, and only while the groups have these generations and the snapshot of
    the metadata has this version.
    """

    until: float  # time.monotonic()
    members: tuple[JavaMember, ...]
    generations: Mapping[int, int]  # by group id
    snapshot_version: tuple[Any, ...]


# By client (java_id).
_last_poll_at = BoundedDict[int, float](MOST_CLIENTS)  # time.monotonic()
_quiet_clients = BoundedDict[int, _QuietClient](MOST_CLIENTS)
# By client and group name. Clients that have started have no entry.
_answers_until_start = BoundedDict[tuple[int, str], int](MOST_STARTING)


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
        # Step 1: the memberships.
        quiet_client = _find_quiet_client(java_id, versions)
        members = (
            _find_members(java_id, versions)
            if quiet_client is None
            else quiet_client.members
        )
        # A group without a membership was deleted, or the client's membership has expired.
        missing = sorted(versions.keys() - {member.group for member in members})
        deleted = groups.deletion_times(missing[:MOST_DELETED]) if missing else {}
        # Each group that the poll names must have a membership or be deleted. If a group has
        # neither, its membership has expired. Without any membership, all groups are deleted
        # or expired: there is nothing to poll for.
        if not members or len(members) + len(deleted) < len(versions):
            return _require_registration(call, java_id, members)
        for member in members:
            # At every poll: a right may have been revoked since the client joined.
            check_right(call, member.consumer.group_id)
        # A client gets the news of a deleted group once. After that, its version of the group is
        # the time of the deletion.
        deleted_news = {
            name: assignment.deleted_group(name, at_ms)
            for name, at_ms in deleted.items()
            if versions[name] < at_ms
        }
        try:
            # Step 2: a full refresh.
            if _is_full_refresh(members, versions):
                return _answer(_full_assignment(java_id, members, versions) | deleted_news)
            # Steps 3 and 4: heartbeats, and a hold until there is news.
            _note_poll(java_id)
            if quiet_client is None:
                news = _wait_for_news(call, members, versions, deleted_news)
            else:
                news = _wait_for_quiet_client(call, quiet_client, versions)
            _last_poll_at[java_id] = time.monotonic()  # the end of a hold counts, too
            # Looked up again: the client may have become quiet in this poll, or have ceased to
            # be quiet while it waited.
            if not news and (client := _find_quiet_client(java_id, versions)) is not None:
                call.repeat = _RepeatedPoll(java_id, versions, client)
            return _answer(news)
        except Gone:
            return _require_registration(call, java_id, members)

    def refused(self, call: Call, error: Exception) -> HttpResponse:
        """Hold the refusal back, because the client calls again at once. Return the refusal.

        A Forbidden client, whose address is not admitted or whose right was revoked, is held
        among the strangers (holds.py), of whom only a few are held at the same time.
        """
        answer = refusal(call, error)
        if isinstance(error, Forbidden):
            holds.pause_stranger(call.request.META.get("REMOTE_ADDR", ""))
            answer.status_code = HTTPStatus.FORBIDDEN
            return answer
        holds.pause(f"refused {id(call)}", call.actor, ERROR_HOLD_S)
        # After 200 the client polls this broker again. After any other status it tries the next
        # broker, so those are for a broker that stops or has a bug.
        is_ordinary_refusal = isinstance(error, CatmqError) and not draining.must_not_wait()
        answer.status_code = HTTPStatus.OK if is_ordinary_refusal else answer.status_code
        return answer


def _answer(news: Mapping[str, Any], *, deleted: bool = False) -> dict[str, Any]:
    """Return the fields of an answer with news by group name. `deleted` makes the client
    register again.
    """
    return {
        "sleepTime": 0,
        "consumerDeleted": int(deleted),
        "brokerMetaMode": 0,
        "consumerGroups": news,
        # The two kinds of clients spell this field differently.
        "consumerGroupSubEnvMap": {},
        "consumerGroupoSubEnvMap": {},
    }


def _find_members(java_id: int, versions: Mapping[str, int]) -> list[JavaMember]:
    """Return the client's memberships in the groups that its poll names."""
    return [
        member
        for member in java_members.memberships_of_client(java_id, versions=versions)
        if member.group in versions
    ]


def _find_quiet_client(java_id: int, versions: Mapping[str, int]) -> _QuietClient | None:
    """Return the quiet client if it sends the versions that it had when it became quiet,
    and nothing can have changed since. Return None otherwise, and for other clients.
    """
    client = _quiet_clients.get(java_id)
    if (
        client is None
        or client.until < time.monotonic()
        or client.snapshot_version != snapshot.current().version
    ):
        return None
    # A batch did not write the heartbeat of a member (java_beats.flush): usually the membership
    # has ended, or another broker has answered it under a newer version. The cached memberships
    # are dropped, so that this poll reads them from the database and records full heartbeats.
    if java_beats.needs_full_check(member.consumer.member_id for member in client.members):
        java_members.forget_client(java_id)
        return None
    if versions != {member.group: member.version for member in client.members}:
        return None
    return None if holds.has_changed(client.generations) else client


def _require_registration(
    call: Call, java_id: int, members: Sequence[JavaMember]
) -> dict[str, Any]:
    """Make a client that lacks a membership register again. Return the answer to its poll.

    The client registers when its next heartbeat call is answered with `deleted`.
    """
    _last_poll_at.pop(java_id, None)
    if members:
        java_beats.require_full_check(member.consumer.member_id for member in members)
        java_members.require_rejoin(java_id)
    # The client polls again at once, while its next heartbeat call is seconds away.
    holds.pause(f"poll {java_id}", call.actor, ERROR_HOLD_S)
    return _answer({}, deleted=True)


def _is_full_refresh(members: Sequence[JavaMember], versions: Mapping[str, int]) -> bool:
    """Return True if the poll is a full refresh: the client sends version 0 for all groups,
    to compare the answer with its own state.

    A new client sends version 0 too, until its first answer. So only memberships that have had
    an answer make a full refresh.

    A separate thread of the client does so every two minutes, in parallel with the other
    polls. In some clients this thread survives the threads that poll, for example when a
    broker stops. So a full refresh must record no heartbeat: it would keep a client alive
    that no longer reads.
    """
    return all(member.has_answer and not versions[member.group] for member in members)


def _full_assignment(
    java_id: int, members: Sequence[JavaMember], versions: Mapping[str, int]
) -> dict[str, Any]:
    """Return the assignments of all members by group name, for a full refresh."""
    assignments = _read_assignments(members)
    # An assignment is missing if another broker has answered the client since its membership
    # was cached here. The new answer is in the database.
    if len(assignments) < len(members):
        assignments |= _read_assignments(
            member
            for member in _find_members(java_id, versions)
            if member.group not in assignments
        )
    # Before its first poll here, a client may still be starting: it sends version 0 then, too,
    # and looks like a full refresh if another broker has answered it before.
    if not java_members.has_polled(java_id):
        for member in members:
            _answers_until_start[java_id, member.group] = START_ANSWERS
    return assignments


def _read_assignments(members: Iterable[JavaMember]) -> dict[str, Any]:
    news = ((member.group, assignment.read_assignment(member).group) for member in members)
    return {name: group_news for name, group_news in news if group_news is not None}


def _wait_for_news(
    call: Call,
    members: Sequence[JavaMember],
    versions: Mapping[str, int],
    deleted_news: Mapping[str, Any],
) -> dict[str, Any]:
    """Record heartbeats, then wait until one of the groups has news. Return the news by
    group name.

    There are up to two waits. A client that expects no news waits for the end of the tick
    (phase 1), its heartbeat is recorded (2), it becomes quiet (3), and the poll is held (4).
    After a change, a second heartbeat gets the news (5). A client that may have news starts
    with phase 2, and is held only if there is none.
    """
    java_id = members[0].java_id
    # The queue ids in an answer contain only the number of the member. Its pulls and commits
    # find the consumer id here, without a query.
    for member in members:
        handles.remember(member.consumer)
    # A client that has started and has the newest versions most likely gets no news.
    expects_no_news = not deleted_news and all(
        versions[member.group] == member.version
        and (java_id, member.group) not in _answers_until_start
        for member in members
    )
    # The server's event loop has held this request already, as a repeat of an earlier poll, and
    # something has changed since (_RepeatedPoll). So it is answered at once.
    was_held = call.was_held()
    until = time.monotonic() + (
        0 if was_held else _count_down_and_choose_hold_s(java_id, members)
    )
    with holds.waiting_place(f"poll {java_id}", call.actor) as max_wait_s:
        # Phase 1: wait for the end of the tick before the heartbeat, so that a single statement
        # records the heartbeats of many clients. A change of a group ends this wait.
        if expects_no_news and not was_held:
            known_generations = holds.read_generations(
                member.consumer.group_id for member in members
            )
            tick_s = min(
                TICK_S,
                *(
                    member.session_timeout_ms / 1000 / TICKS_PER_SESSION
                    for member in members
                ),
            )
            # Ticks end at the multiples of `tick_s` on the clock, which all threads share. So the
            # threads whose clients have the same session timeout wake up together.
            now = time.monotonic()
            holds.wait(known_generations, now + min(tick_s - now % tick_s, max_wait_s))
        # Phase 2: heartbeats, which also find the news. The version of the snapshot is read
        # before them: a later change has another version, and ends the quiet.
        snapshot_version = snapshot.current().version
        news, generations = _record_heartbeats(java_id, members, versions)
        # Phase 3: the client becomes quiet, before the hold. If nothing changes, its next poll
        # needs no query, and its repeats are held without a thread.
        if (
            expects_no_news
            and not news
            and all(member.session_timeout_ms >= MIN_QUIET_SESSION_MS for member in members)
        ):
            java_beats.note_present(member.consumer.member_id for member in members)
            _quiet_clients[java_id] = _QuietClient(
                time.monotonic() + SETTLED_S, tuple(members), generations, snapshot_version
            )
        # Phase 4: without news, hold the poll until a generation rises or the time is over.
        if not news and not deleted_news and not draining.must_not_wait():
            holds.wait(
                generations,
                min(until, time.monotonic() + max_wait_s),
                is_over=call.has_hung_up,
            )
            # Phase 5: a second heartbeat gets the news. The memberships are read again, because
            # the change may have ended or renewed them.
            if holds.has_changed(generations) and not call.has_hung_up():
                news, _ = _record_heartbeats(
                    java_id, _find_members(java_id, versions), versions
                )
    return {**news, **deleted_news}


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
            # `rb_version` is a second number in each answer. It rises when the client gets other
            # queues, or another number of threads for a queue (assignment.py). The client then
            # stops all its queues and starts them again, which takes START_ANSWERS answers.
            # `member` has the last answer before this heartbeat, `member_news.member` has the
            # answer of now.
            # A client whose version is not that of the last answer has missed it: the answer was
            # lost, or it went to a full refresh. It may have missed such a rise, too.
            if (
                member_news.member.last_answer.rb_version > member.last_answer.rb_version
                or versions[member.group] != member.version
            ):
                _answers_until_start[java_id, member.group] = START_ANSWERS
    return news, generations


def _wait_for_quiet_client(
    call: Call, quiet_client: _QuietClient, versions: Mapping[str, int]
) -> dict[str, Any]:
    """Wait for news as _wait_for_news() does, but note the heartbeats only in memory."""
    java_id, members = quiet_client.members[0].java_id, quiet_client.members
    ids = [member.consumer.member_id for member in members]
    _record_quiet_poll(quiet_client)

    # Also over if the noted heartbeat could not be written: the client must then learn that its
    # membership has ended, or get the newer answer.
    def is_over() -> bool:
        return java_beats.needs_full_check(ids) or call.has_hung_up()

    with holds.waiting_place(f"poll {java_id}", call.actor) as max_wait_s:
        # The client's own timeout runs since it sent the request. The server may have held the
        # request before this call began, and that time is subtracted.
        until = time.monotonic() + min(
            _count_down_and_choose_hold_s(java_id, members) - call.waited_s(), max_wait_s
        )
        holds.wait(quiet_client.generations, until, is_over=is_over)
        has_changed = holds.has_changed(
            quiet_client.generations
        ) or java_beats.needs_full_check(ids)
        if not has_changed or call.has_hung_up():
            return {}
        java_members.forget_client(java_id)
        return _record_heartbeats(java_id, _find_members(java_id, versions), versions)[0]


def _record_quiet_poll(quiet_client: _QuietClient) -> None:
    """Note the heartbeats of a quiet client in memory. A loop writes them in batches."""
    for member in quiet_client.members:
        handles.remember(member.consumer)
    java_beats.note(
        {member.consumer.member_id: member.version for member in quiet_client.members}
    )


class _RepeatedPoll(Unchanged):
    """The repeat of a quiet client's poll, which the server holds without a thread."""

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
        if any((self._java_id, group) in _answers_until_start for group in self._versions):
            return False
        _note_poll(self._java_id)
        _record_quiet_poll(quiet_client)
        return True

    def is_still_valid(self) -> bool:
        return (
            not java_beats.needs_full_check(self._member_ids) and super().is_still_valid()
        )

    def answered(self) -> None:
        super().answered()
        _last_poll_at[self._java_id] = time.monotonic()


def _count_down_and_choose_hold_s(java_id: int, members: Iterable[JavaMember]) -> float:
    """Return how long to hold a poll, in s. If the client is starting, count its answer."""
    hold_s = _max_hold_s(members)
    for member in members:
        remaining = _answers_until_start.get((java_id, member.group), 0)
        if remaining:
            # The client reads nothing before its last start answer, so these come quickly.
            hold_s = min(hold_s, START_HOLD_S)
            _answers_until_start[java_id, member.group] = remaining - 1
            if remaining == 1:
                del _answers_until_start[java_id, member.group]
    return hold_s


def _max_hold_s(members: Iterable[JavaMember]) -> float:
    """Return the longest time to hold a poll, in s. It is at most half of each session
    timeout, because the next poll must come before that ends.
    """
    return min(HOLD_S, *(member.session_timeout_ms / 2000 for member in members))


def _note_poll(java_id: int) -> None:
    # Without polls, the heartbeat calls of a client do not count.
    java_beats.note_poll(java_id)
    _last_poll_at[java_id] = time.monotonic()


def has_just_polled(java_id: int) -> bool:
    """Return True if a poll of the client arrived or ended here within RECENT_S.

    A heartbeat call then has nothing to record: the poll has recorded heartbeats.
    """
    return time.monotonic() - _last_poll_at.get(java_id, float("-inf")) < RECENT_S
