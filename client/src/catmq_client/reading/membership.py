"""Being a member of a group: register, heartbeat, follow the assignment, leave.

The lease counts from when the last recorded heartbeat was *sent*; without it no message is
handed out and no handler starts, so a member always stops before the broker gives its
queues away. A heartbeat goes out at once after registering, when any answer tells of a new
generation, and to confirm that revoked queues were released, those too that this member
never took up.

While no broker can record heartbeats, what they promise instead keeps the lease
(promises.py), and a queue that was on its way to another member goes on here: nobody can
take it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from catmq_client.errors import (
    AnswerLost,
    CatmqError,
    Conflict,
    ConnectFailed,
    ConsumerReplaced,
    Forbidden,
    Gone,
    InvalidRequest,
    MaxPollIntervalExceeded,
    NotFound,
    Unauthenticated,
)
from catmq_client.http.backoff import Backoff
from catmq_client.http.failure_log import FailureLog, with_hint
from catmq_client.http.transport import Transport, api_path, request_until
from catmq_client.reading.clocks import lease_clock
from catmq_client.reading.owned import OwnedQueue
from catmq_client.reading.part import Part
from catmq_client.reading.promises import Promises
from catmq_client.reading.state import GroupState
from catmq_client.reading.subscription_settings import Settings
from catmq_client.sending.ids import uuid7
from catmq_client.telemetry.process_report import ProcessReports

log = logging.getLogger("catmq.consumer")

# Answers that no repeating will change: the application has to know.
HOPELESS = (Unauthenticated, Forbidden, InvalidRequest, NotFound, Conflict)
LEAVE_WITHIN_S = 3.0
# After an answer that takes back a queue we do not hold, and that the heartbeat should have
# given back.
SOON_S = 0.2
# How long a heartbeat that releases a queue is waited for, at least: a broker says within
# it that metadata is
# away, and without that answer nobody knows whose the queue is.
RELEASE_S = 3.0
# Codes of refusals after which certainly nothing was done.
NOTHING_DONE = ("busy", "draining")


class Membership(Part):
    """Keeps one consumer registered; `run` is its thread."""

    def __init__(
        self,
        *,
        transport: Transport,
        state: GroupState,
        group: str,
        topics: list[str],
        name: str,
        sdk: str,
        group_settings: Mapping[str, Any],  # they count when this member makes the group
    ) -> None:
        super().__init__(transport=transport, state=state)
        self._group_settings = group_settings
        self._group = group
        self._topics = topics
        self._name = name
        self._sdk = sdk
        # tells this process from an earlier one of the same name
        self._incarnation = uuid7()
        self._backoff = Backoff(
            base_ms=state.options.retry_backoff_ms,
            max_ms=min(3_000, state.options.retry_backoff_max_ms),
        )
        # since when answers contradict what we know, lease clock
        self._doubt_since: float | None = None
        self._promises = Promises()
        # the broker that the next heartbeat goes to, if it is one
        self._first: str | None = None
        self._reports = ProcessReports(state)
        self._failures = FailureLog(log, f"group {group}: the heartbeat")

    def run(self) -> None:
        state = self._state
        delay_s = 0.0
        while state.wait(delay_s, state.is_heartbeat_due) and state.fatal is None:
            try:
                delay_s = self._step()
            except CatmqError as error:
                delay_s = self._after_failure(error)
            except Exception:
                log.exception(
                    "group %s: internal error in the heartbeat; continuing", self._group
                )
                delay_s = self._backoff.next_s()

    def part(self) -> None:
        """The end of a closed consumer: it leaves, or if its identity is static its queues
        wait for it.
        """
        state = self._state
        if not state.options.instance_id:
            self.leave()
            return
        with state.changed:
            consumer_id, state.consumer_id = state.consumer_id, None
            body = self._beat(o for o in state.queues.values() if o.revoked_until is None)
        if consumer_id is None or len(body["owned"]) == len(state.queues):
            return
        try:
            # What was on its way to others has no reason to wait.
            self._post(
                "consumers", consumer_id, "heartbeat", body=body, timeout_s=LEAVE_WITHIN_S
            )
        except CatmqError as error:
            log.info(
                "group %s: revoked queues move when the session ends: %s",
                self._group,
                error,
            )

    def leave(self) -> None:
        """Tell the broker that this member is gone; its queues move at once."""
        with self._state.changed:
            consumer_id, self._state.consumer_id = self._state.consumer_id, None
        if consumer_id is None:
            return
        try:
            path, limit_s = api_path("consumers", consumer_id), LEAVE_WITHIN_S
            request_until(
                self._transport, "DELETE", path, within_s=limit_s, timeout_s=limit_s
            )
        except CatmqError as error:
            log.info(
                "group %s: could not leave, queues move when the session ends: %s",
                self._group,
                error,
            )

    def handle_error(self, error: CatmqError, consumer_id: str | None) -> bool:
        """Draw the consequences of an error of any of the consumer's requests, made under
        `consumer_id`.

        False when there are none: the request may be tried again.
        """
        if isinstance(error, Gone) or error.code == "consumer_not_found":
            self.lost(error, consumer_id)
        elif isinstance(error, Unauthenticated | Forbidden | InvalidRequest):
            self._state.fail_with(error)
        else:
            return False
        return True

    def lost(self, error: CatmqError, consumer_id: str | None) -> None:
        """The broker no longer knows this member: `expired` registers again, `replaced`
        ends it.
        """
        state = self._state
        with state.changed:
            if consumer_id != state.consumer_id:
                return
            if error.code == "replaced":
                identity = state.options.instance_id or self._name
                detail = (
                    f"another process registered as {identity} in group "
                    f"{self._group}; this one stops"
                )
                state.fatal = ConsumerReplaced(detail, status=error.status)
            else:
                log.warning(
                    "group %s: the session of %s ended; it registers again",
                    self._group,
                    self._name,
                )
            state.lose_all()
            state.heartbeat_wanted = True

    def _step(self) -> float:
        """One heartbeat, or registration; the seconds until the next."""
        state = self._state
        self._check_silence()
        with state.changed:
            state.heartbeat_wanted = False
            state.asked_about = state.heard
            if state.silence is not None:
                return state.heartbeat_interval_s
            consumer_id = state.consumer_id
        if consumer_id is None:
            self._register()
            return 0.0
        return self._heartbeat(consumer_id)

    def _register(self) -> None:
        state = self._state
        if state.options.auto_offset_reset == "latest":
            self._subscribe_at_the_end()
        body: dict[str, Any] = {
            "name": self._name,
            "incarnation": self._incarnation,
            "sdk": self._sdk,
        }
        if self._topics:
            body["topics"] = self._topics
        if state.options.instance_id:
            body["instance_id"] = state.options.instance_id
        body |= self._group_settings
        answer = self._post("groups", self._group, "consumers", body=body)
        with state.changed:
            state.session_timeout_s = answer["session_timeout_ms"] / 1000
            state.heartbeat_interval_s = answer["heartbeat_interval_ms"] / 1000
            state.consumer_id = answer["consumer_id"]
            self._promises.clear()
            state.changed.notify_all()
        self._backoff.reset()
        self._failures.ended()
        log.info("group %s: registered as %s", self._group, self._name)
        if state.closed:
            self.part()

    def _subscribe_at_the_end(self) -> None:
        """Make missing subscriptions begin at the end; registering alone begins at the
        earliest message.
        """
        for topic in self._topics:
            try:
                self._subscribe(topic)
            except NotFound as error:
                if error.code != "group_not_found":
                    raise
                self._make({"name": self._group, **self._group_settings}, "groups")
                self._subscribe(topic)

    def _subscribe(self, topic: str) -> None:
        try:
            self._make(
                {"topic": topic, "start": "latest"}, "groups", self._group, "subscriptions"
            )
        except Forbidden:
            log.debug("group %s: %s is subscribed by whoever may", self._group, topic)

    def _make(self, body: dict[str, Any], *parts: str) -> None:
        """Make something, unless it is there or another member is quicker."""
        with suppress(Conflict):
            self._post(*parts, body=body)

    def _beat(self, owned: Iterable[OwnedQueue]) -> dict[str, Any]:
        holds = [{"queue": o.queue, "epoch": o.epoch} for o in owned]
        return {"generation": self._state.generation, "owned": holds}

    def _heartbeat(self, consumer_id: str) -> float:
        """One heartbeat; the seconds until the next."""
        state = self._state
        with state.changed:
            body = self._beat(state.queues.values())
            self._reports.add_to(body)
            releases = {*state.unconfirmed}
        # Short enough to try another broker before the session ends.
        timeout_s = max(RELEASE_S if releases else 1.0, state.session_timeout_s / 3)
        timeout_s = min(timeout_s, max(1.0, self._options.request_timeout_ms / 1000))
        sent_at = lease_clock()
        first, self._first = self._first, None  # once: it may be one that does not answer
        try:
            parts = "consumers", consumer_id, "heartbeat"
            answer = self._post(*parts, body=body, timeout_s=timeout_s, first=first)
        except CatmqError as error:
            if error.metadata_silent_ms is not None:
                return self._promised(consumer_id, error, sent_at)
            if self._reports.was_refused(error):
                return 0.0
            if not isinstance(error, ConnectFailed) and error.code not in NOTHING_DONE:
                self._confirm(releases)  # it may be known: they are gone for good
            raise
        self._backoff.reset()
        self._failures.ended()
        self._reports.follow(answer, body)
        with state.changed:
            if state.consumer_id != consumer_id:
                return 0.0
            self._confirm(releases)
            state.recorded(sent_at + state.session_timeout_s)
            self._promises.clear()
            self._weigh(self._follow(answer))
            state.changed.notify_all()
            return self._next_in_s(answer, sent=body["generation"])

    def _confirm(self, releases: Iterable[tuple[int, int]]) -> None:
        """The broker knows of these releases, or may."""
        with self._state.changed:
            for place in releases:
                self._state.unconfirmed.pop(place, None)

    def _promised(self, consumer_id: str, error: CatmqError, sent_at: float) -> float:
        """Go on without a recorded heartbeat, if every broker lets us; return the seconds
        until the next.

        The others are asked at once, so that all promises are of about the same time; each
        once and by name, because other threads, too, decide where requests go.
        """
        state, now, told_by = self._state, lease_clock(), error.brokers or ("",)
        brokers = getattr(self._transport, "urls", ()) or told_by
        recently = now - state.heartbeat_interval_s / 2
        with state.changed:
            if state.consumer_id != consumer_id:
                return 0.0
            is_news = self._promises.are_old(told_by, recently)
            silent_s, lease_until = (
                (error.metadata_silent_ms or 0) / 1000,
                state.lease_until,
            )
            counts = self._promises.add(
                told_by,
                sent_at=sent_at,
                heard_at=now,
                silent_s=silent_s,
                lease_until=lease_until,
            )
            self._first = (counts and self._promises.oldest(brokers)) or None
            since = self._promises.since(brokers)
            if since is not None and state.options.on_coordinator_loss != "stop":
                state.lease_until = max(state.lease_until, since + state.session_timeout_s)
                state.take_back()
                self._take_over(error.held)
                state.hold_ordered()
            state.changed.notify_all()
        self._failures.failed(error)
        others = counts and is_news and self._promises.are_old(brokers, recently)
        return 0.0 if others else state.heartbeat_interval_s

    def _take_over(self, held: Mapping[str, Any]) -> None:
        """Own what the nodes say is ours: granted before metadata went away, and not heard
        of since.
        """
        state = self._state
        new = [
            item for item in held.get("assigned", ()) if item["queue"] not in state.queues
        ]
        if new:
            told = held.get("subscriptions", {}).items()
            state.configure(
                state.settings
                | {topic: Settings.from_answer(given) for topic, given in told}
            )
            for item in new:
                self._own(item)

    def _next_in_s(self, answer: dict[str, Any], *, sent: int) -> float:
        """At once, to give back queues that were revoked before we took them up: nobody
        else releases them.

        The next heartbeat counts as their release if it tells of the generation that
        revoked them.
        """
        state = self._state
        if all(queue in state.queues for queue in answer["revoked"]):
            return state.heartbeat_interval_s
        return (
            0.0 if answer["generation"] > sent else min(SOON_S, state.heartbeat_interval_s)
        )

    def _follow(self, answer: dict[str, Any]) -> bool:
        """Take over the assignment; False when the answer contradicts what we know."""
        state = self._state
        if answer["generation"] < state.generation:
            # A broker that has not heard the news yet; the heartbeat counts all the same.
            return False
        state.generation = answer["generation"]
        state.heard = max(state.heard, state.generation)
        told = answer.get("subscriptions", {})
        state.configure(
            {topic: Settings.from_answer(given) for topic, given in told.items()}
        )
        assigned = {item["queue"]: item for item in answer["assigned"]}
        for owned in [*state.queues.values()]:
            if owned.queue not in assigned:
                owned.heir = None
                state.revoke(owned)
        known = [self._own(item) for item in assigned.values()]
        return all(known)

    def _own(self, item: dict[str, Any]) -> bool:
        """Own one assigned queue, if that is news; False when it is one we gave up."""
        state = self._state
        queue, epoch, stopped = item["queue"], item["epoch"], item.get("stopped", False)
        owned = state.queues.get(queue)
        if owned is not None and owned.epoch == epoch:
            state.set_stopped(owned, stopped)
            if owned.revoked_until is not None:
                state.keep(owned)
            return True
        if (queue, epoch) in state.released:
            return False
        topic, origin = item["topic"], item.get("origin_topic")
        granted = OwnedQueue(
            topic=topic, queue=queue, epoch=epoch, stopped=stopped, origin_topic=origin
        )
        if owned is None:
            state.add(granted)
        else:
            state.succeed(owned, granted)
        return True

    def _weigh(self, consistent: bool) -> None:
        """Contradictions pass within moments; one that stays for a session means that we
        must begin anew.

        Without this a queue could stay assigned to a member that may never take it up
        again.
        """
        now = lease_clock()
        if consistent:
            self._doubt_since = None
        elif self._doubt_since is None:
            self._doubt_since = now
        elif now - self._doubt_since > self._state.session_timeout_s:
            log.warning(
                "group %s: the broker answers with old generations: registering again",
                self._group,
            )
            self._doubt_since = None
            self._incarnation = uuid7()
            self._state.lose_all()
            self._state.heartbeat_wanted = True

    def _after_failure(self, error: CatmqError) -> float:
        """Handle a failed registration or heartbeat; return the seconds until the next try."""
        state = self._state
        consumer_id = state.consumer_id
        registered = consumer_id is not None
        if isinstance(error, Gone) or (registered and error.code == "consumer_not_found"):
            self.lost(error, consumer_id)
            return 0.0
        if isinstance(error, HOPELESS) and not error.retriable:
            state.fail_with(error)
            return 0.0
        with state.changed:
            state.heartbeat_wanted = False
            state.changed.notify_all()
        if isinstance(error, ConnectFailed | AnswerLost):
            state.on_silent_broker()
        text = with_hint(error, self._transport)
        self._failures.failed(
            text, level=logging.INFO if error.code == "draining" else logging.WARNING
        )
        # A broker that is busy with others may give a newcomer a later turn.
        asked_s = 0.0 if registered else (error.retry_after_ms or 0) / 1000
        return max(asked_s, min(self._backoff.next_s(error), state.heartbeat_interval_s))

    def _check_silence(self) -> None:
        """An application that does not come back loses its queues to members that work."""
        state = self._state
        with state.changed:
            since = state.silent_since()
            limit_s = state.options.max_poll_interval_ms / 1000
            if (
                since is None
                or state.silence
                or time.monotonic() - since < limit_s
                or not state.consumer_id
            ):
                return
            detail = f"the application did not poll for max_poll_interval_ms={limit_s * 1000:.0f}"
            state.silence = MaxPollIntervalExceeded(
                f"{detail}; its queues went to other members"
            )
        log.error("group %s: %s", self._group, state.silence)
        self.leave()
        with state.changed:
            state.lose_all()
