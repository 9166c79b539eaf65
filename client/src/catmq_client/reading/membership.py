"""Keep a consumer a member of its group: register, send heartbeats, apply the assignment,
leave.

The lease counts from the time when the last recorded heartbeat was *sent*. Without a lease
no message is handed out and no handler starts. So a member always stops before the broker
gives its queues to others. A heartbeat is sent at once after registering, when an answer
has a new generation, and to confirm that revoked queues are released, including queues that
this member has never acquired.

While the metadata database is unavailable, no broker can record heartbeats. Members keep
their queues all the same:

* A broker answers a heartbeat with a *promise*: for a session timeout from then on it
  expires no member, even if it reaches the database again.
* Any broker can expire a member, so the lease is extended only if all brokers have promised
  (promises.py). Therefore this member sends a *round* of heartbeats in each heartbeat
  interval: to one broker after another, without a pause.
* With the lease extended, this member takes back the queues that it was releasing to other
  members. Without the database no broker can inform those members, so the queues would
  idle.
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
from catmq_client.reading.component import Component
from catmq_client.reading.owned import OwnedQueue
from catmq_client.reading.promises import Promises
from catmq_client.reading.state import GroupState
from catmq_client.reading.subscription_settings import Settings
from catmq_client.sending.ids import uuid7
from catmq_client.telemetry.process_report import ProcessReports

log: logging.Logger = logging.getLogger("catmq.consumer")

# Errors that a repeat cannot change. They end the consumer, and are raised in the
# application's thread.
PERMANENT_ERRORS = (Unauthenticated, Forbidden, InvalidRequest, NotFound, Conflict)
LEAVE_TIMEOUT_S = 3.0
# Pause before the next heartbeat if an answer revokes a queue that this member no longer
# holds, although the heartbeat should have released it. Repeating such heartbeats without a
# pause could become a loop.
RECONFIRM_S = 0.2
# Minimum timeout of a heartbeat that releases a queue. A broker needs up to this time to
# answer that metadata is unavailable, and without that answer the owner of the queue is
# unknown.
RELEASE_TIMEOUT_S = 3.0
# Error codes of requests that were certainly not executed: the broker refused them because
# it has too many requests at work, or because it shuts down.
NOT_EXECUTED_CODES = ("busy", "draining")
# Seconds until the next heartbeat, if it is due now.
AT_ONCE_S = 0.0
# Stands for the broker of a transport that has no URLs, such as a fake broker in a test.
BROKER_WITHOUT_URL = ""


class Membership(Component):
    """Keeps a consumer registered; `run` is the body of its thread."""

    def __init__(
        self,
        *,
        transport: Transport,
        state: GroupState,
        group: str,
        topics: list[str],
        name: str,
        sdk: str,
        group_settings: Mapping[str, Any],  # used only if this member creates the group
    ) -> None:
        super().__init__(transport=transport, state=state)
        self._group_settings = group_settings
        self._group = group
        self._topics = topics
        self._name = name
        self._sdk = sdk
        # distinguishes this process from an earlier process of the same name
        self._incarnation = uuid7()
        self._backoff = Backoff(
            base_ms=state.options.retry_backoff_ms,
            max_ms=min(3_000, state.options.retry_backoff_max_ms),
        )
        # since when answers have contradicted the state here, lease clock
        self._inconsistent_since: float | None = None
        self._promises = Promises()
        # the broker to send the next heartbeat to; None for any
        self._next_broker: str | None = None
        self._reports = ProcessReports(state)
        self._failures = FailureLog(log, f"group {group}: the heartbeat")

    def run(self) -> None:
        state = self._state
        delay_s = 0.0
        while state.wait(delay_s, state.is_heartbeat_due) and state.fatal is None:
            try:
                self._leave_if_not_polled()
                with state.changed:
                    # Before the heartbeat is sent, so that a request for another heartbeat that
                    # arrives meanwhile is kept.
                    state.heartbeat_wanted = False
                    # The newest generation that a pull has reported has its heartbeat now. If
                    # the heartbeat fails, that generation is no reason for another one
                    # without a pause (is_heartbeat_due).
                    state.requested_generation = state.newest_generation
                    consumer_id, has_timed_out = state.consumer_id, bool(state.poll_timeout)
                if has_timed_out:
                    # The application has to poll before the member joins again.
                    delay_s = state.heartbeat_interval_s
                elif consumer_id is None:
                    self._register()
                    delay_s = AT_ONCE_S
                else:
                    delay_s = self._heartbeat(consumer_id)
            except CatmqError as error:
                delay_s = self._after_error(error)
            except Exception:
                log.exception(
                    "group %s: internal error in the heartbeat; continuing", self._group
                )
                delay_s = self._backoff.next_s()

    def end_membership(self) -> None:
        """End the membership of a closed consumer.

        It leaves the group. With a static identity it stays a member, so that its queues
        wait for the next process; only its revoked queues are released.
        """
        state = self._state
        if not state.options.instance_id:
            self.leave()
            return
        with state.changed:
            consumer_id, state.consumer_id = state.consumer_id, None
            body = self._heartbeat_body(
                owned for owned in state.queues.values() if owned.revoked_until is None
            )
        if consumer_id is None or len(body["owned"]) == len(state.queues):
            return
        try:
            # Revoked queues have new owners already, so they need not wait for the session
            # timeout.
            self._post(
                "consumers", consumer_id, "heartbeat", body=body, timeout_s=LEAVE_TIMEOUT_S
            )
        except CatmqError as error:
            log.info(
                "group %s: revoked queues move when the session ends: %s",
                self._group,
                error,
            )

    def leave(self) -> None:
        with self._state.changed:
            consumer_id, self._state.consumer_id = self._state.consumer_id, None
        if consumer_id is None:
            return
        try:
            request_until(
                self._transport,
                "DELETE",
                api_path("consumers", consumer_id),
                within_s=LEAVE_TIMEOUT_S,
                timeout_s=LEAVE_TIMEOUT_S,
            )
        except CatmqError as error:
            log.info(
                "group %s: could not leave, queues move when the session ends: %s",
                self._group,
                error,
            )

    def handle_error(self, error: CatmqError, consumer_id: str | None) -> bool:
        """Apply an error of a pull, a commit or another request that names queues.

        Errors of registrations and heartbeats go to _after_error() instead. There NotFound
        and Conflict end the consumer, too, because they are about the group and its topics.
        Here they may be about a single queue, and the consumer continues with the others.

        `consumer_id` is the membership that the request was sent under. Return True if the
        error ends that membership or the consumer:

            expired, consumer_not_found    the member registers again
            replaced                       the consumer ends with ConsumerReplaced
            Unauthenticated, Forbidden,
            InvalidRequest                 the consumer ends with this error

        Return False for any other error: the caller decides whether to repeat the request.
        """
        if isinstance(error, Gone) or error.code == "consumer_not_found":
            self.handle_lost_session(error, consumer_id)
        elif isinstance(error, Unauthenticated | Forbidden | InvalidRequest):
            self._state.fail_with(error)
        else:
            return False
        return True

    def handle_lost_session(self, error: CatmqError, consumer_id: str | None) -> None:
        """Handle that the membership `consumer_id` has ended at the brokers.

        After the codes `expired` and `consumer_not_found` the member registers again. After
        `replaced`, another process of the same identity has taken its place, so the consumer
        ends.
        """
        state = self._state
        with state.changed:
            # The error is about an earlier membership of this consumer.
            if consumer_id != state.consumer_id:
                return
            if error.code == "replaced":
                identity = state.options.instance_id or self._name
                state.fatal = ConsumerReplaced(
                    f"another process registered as {identity} in group "
                    f"{self._group}; this one stops",
                    status=error.status,
                )
            else:
                log.warning(
                    "group %s: the session of %s ended; it registers again",
                    self._group,
                    self._name,
                )
            state.lose_all()
            state.heartbeat_wanted = True

    def _register(self) -> None:
        """Register the member. The answer has no assignment: the first heartbeat, which run()
        sends at once, brings it.
        """
        state = self._state
        if state.options.auto_offset_reset == "latest":
            # Registering creates missing subscriptions, too, but those start at the
            # earliest message.
            for topic in self._topics:
                try:
                    self._subscribe(topic)
                except NotFound as error:
                    if error.code != "group_not_found":
                        raise
                    self._create_if_missing(
                        {"name": self._group, **self._group_settings}, "groups"
                    )
                    self._subscribe(topic)
        instance_id = state.options.instance_id
        body = {
            "name": self._name,
            "incarnation": self._incarnation,
            "sdk": self._sdk,
            **({"topics": self._topics} if self._topics else {}),
            **({"instance_id": instance_id} if instance_id else {}),
            **self._group_settings,
        }
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
        # close() ran while the registration was under way, when there was no membership to end.
        if state.closed:
            self.end_membership()

    def _subscribe(self, topic: str) -> None:
        """Subscribe the group to a topic from the log end, if the API key may do that."""
        try:
            self._create_if_missing(
                {"topic": topic, "start": "latest"}, "groups", self._group, "subscriptions"
            )
        except Forbidden:
            log.debug("group %s: %s is subscribed by whoever may", self._group, topic)

    def _create_if_missing(self, body: dict[str, Any], *path: str) -> None:
        """Create an object, unless it exists or another member is quicker."""
        with suppress(Conflict):
            self._post(*path, body=body)

    def _heartbeat_body(self, owned: Iterable[OwnedQueue]) -> dict[str, Any]:
        return {
            "generation": self._state.generation,
            "owned": [{"queue": queue.queue, "epoch": queue.epoch} for queue in owned],
        }

    def _heartbeat(self, consumer_id: str) -> float:
        """Send a heartbeat and apply the answer.

        Return the seconds until the next heartbeat.
        """
        state = self._state
        with state.changed:
            body = self._heartbeat_body(state.queues.values())
            self._reports.add_to(body)
            releases = {*state.unrecorded_releases}
        # Short enough to try another broker before the session ends.
        timeout_s = max(RELEASE_TIMEOUT_S if releases else 1.0, state.session_timeout_s / 3)
        timeout_s = min(timeout_s, max(1.0, self._options.request_timeout_ms / 1000))
        # Taken before the request is sent: the broker's session starts later, so it
        # outlasts this lease.
        sent_at = lease_clock()
        # The broker that _extend_lease_on_promise chose, for this heartbeat only: it may not
        # answer, and then the next heartbeat must go to any other.
        first_broker, self._next_broker = self._next_broker, None
        try:
            answer = self._post(
                "consumers",
                consumer_id,
                "heartbeat",
                body=body,
                timeout_s=timeout_s,
                first=first_broker,
            )
        except CatmqError as error:
            # The broker cannot record heartbeats now, and has answered with a promise.
            if error.metadata_silent_ms is not None:
                return self._extend_lease_on_promise(consumer_id, error, sent_at)
            # The broker refuses the process report: the next heartbeat goes without it.
            if self._reports.was_refused(error):
                return AT_ONCE_S
            if (
                not isinstance(error, ConnectFailed)
                and error.code not in NOT_EXECUTED_CODES
            ):
                # The broker may have recorded the releases, so the queues may belong to
                # others now.
                self._mark_maybe_recorded(releases)
            raise
        self._backoff.reset()
        self._failures.ended()
        self._reports.follow(answer, body)
        with state.changed:
            if state.consumer_id != consumer_id:
                # This membership ended meanwhile: the next pass of run() registers again.
                return AT_ONCE_S
            # Here the broker has recorded them for certain.
            self._mark_maybe_recorded(releases)
            state.extend_lease(sent_at + state.session_timeout_s)
            self._promises.clear()
            self._check_consistency(self._apply_assignment(answer))
            state.changed.notify_all()
            holds_all_revoked = all(queue in state.queues for queue in answer["revoked"])
            if holds_all_revoked:
                # This member still works on the revoked queues, if there are any. It sends a
                # heartbeat at once when it has released one of them.
                return state.heartbeat_interval_s
            # The answer revokes queues that this member does not hold, and their new owners
            # wait. For the broker, a queue is released by a heartbeat that does not list it
            # and that carries the generation which revoked it, or a later one.
            if answer["generation"] > body["generation"]:
                # This heartbeat carried an earlier generation, so it released nothing. The next
                # carries the new generation.
                return AT_ONCE_S
            # This heartbeat carried the generation and should have released them.
            return min(RECONFIRM_S, state.heartbeat_interval_s)

    def _mark_maybe_recorded(self, releases: Iterable[tuple[int, int]]) -> None:
        """Note that a broker has recorded these releases, or may have.

        From then on other members may own these queues, so this member must not take them
        back when its lease is extended on promises (GroupState.reclaim_all). `releases` are
        pairs of queue and epoch.
        """
        with self._state.changed:
            for queue_and_epoch in releases:
                self._state.unrecorded_releases.pop(queue_and_epoch, None)

    def _extend_lease_on_promise(
        self, consumer_id: str, error: CatmqError, sent_at: float
    ) -> float:
        """Note the promise of a broker, and extend the lease if all brokers have promised.

        A heartbeat at `sent_at` was answered with `error`: the broker cannot reach the
        metadata database, and promises to expire no member for a session from then on. The
        lease is extended from the oldest of the promises on. It is not extended if the option
        on_coordinator_loss is "stop".

        Return the seconds until the next heartbeat: 0 while this round still lacks the promise
        of another broker.
        """
        state, now = self._state, lease_clock()
        # The last of the tried brokers has promised. The others could not be reached and count
        # as promised, too: most likely they have stopped, so they expire no member. If such a
        # broker runs and does reach the database, it may give the queues away; then the nodes
        # refuse this member's next pull or commit.
        promised_brokers = error.brokers or (BROKER_WITHOUT_URL,)
        all_brokers = getattr(self._transport, "urls", ()) or promised_brokers
        # A round takes much less than half an interval, so older promises are of an earlier
        # round.
        round_start = now - state.heartbeat_interval_s / 2
        with state.changed:
            if state.consumer_id != consumer_id:
                return AT_ONCE_S
            # False if these brokers have all promised in this round already.
            is_new_in_round = self._promises.need_renewal(promised_brokers, round_start)
            # False if the broker reached the database after the lease had ended: it may have
            # expired this member then. All promises are dropped in that case.
            is_valid = self._promises.add(
                promised_brokers,
                sent_at=sent_at,
                heard_at=now,
                silent_s=(error.metadata_silent_ms or 0) / 1000,
                lease_until=state.lease_until,
            )
            # The next heartbeat names its broker. Without that the transport would choose, and
            # other threads move it from broker to broker, too: one broker could be asked
            # twice, and another never.
            next_broker = self._promises.next_to_ask(all_brokers) if is_valid else None
            self._next_broker = next_broker or None  # BROKER_WITHOUT_URL cannot be named
            lease_start = self._promises.lease_start(all_brokers)
            if lease_start is not None and state.options.on_coordinator_loss != "stop":
                state.lease_until = max(
                    state.lease_until, lease_start + state.session_timeout_s
                )
                state.reclaim_all()
                # `held` of the error has grants, in the form of an assignment: the queues
                # that the nodes still keep for this member. Some may have been granted just
                # before the outage, in an answer that did not arrive. Own these, too.
                grants = [
                    grant
                    for grant in error.held.get("assigned", ())
                    if grant["queue"] not in state.queues
                ]
                if grants:
                    state.apply_settings(state.settings | Settings.by_topic(error.held))
                for grant in grants:
                    self._apply_grant(grant)
                state.stop_ordered_at_lease_end()
            state.changed.notify_all()
        self._failures.failed(error)
        # The round continues without a pause while each heartbeat brings a promise that is new
        # in it, and a promise is still missing. If a broker promises for the second time, all
        # brokers that answer were asked already. Without that condition, heartbeats would go
        # to them without a pause for as long as another broker does not answer.
        must_ask_others = (
            is_valid
            and is_new_in_round
            and self._promises.need_renewal(all_brokers, round_start)
        )
        return AT_ONCE_S if must_ask_others else state.heartbeat_interval_s

    def _apply_assignment(self, answer: dict[str, Any]) -> bool:
        """Apply the assignment: revoke and add queues. Return False if the answer contradicts
        the state here.
        """
        state = self._state
        if answer["generation"] < state.generation:
            # This broker has not read the newest generation yet. It has recorded the
            # heartbeat nevertheless, so the lease is extended.
            return False
        state.generation = answer["generation"]
        state.newest_generation = max(state.newest_generation, state.generation)
        state.apply_settings(Settings.by_topic(answer))
        assigned = {item["queue"]: item for item in answer["assigned"]}
        for owned in [*state.queues.values()]:
            if owned.queue not in assigned:
                owned.next_grant = None
                state.revoke(owned)
        applied = [self._apply_grant(item) for item in assigned.values()]
        return all(applied)

    def _apply_grant(self, item: dict[str, Any]) -> bool:
        """Apply the grant of a queue: the right to own it under an epoch.

        Return False if this member has released that grant already.
        """
        state = self._state
        queue, epoch, stopped = item["queue"], item["epoch"], item.get("stopped", False)
        owned = state.queues.get(queue)
        if owned is not None and owned.epoch == epoch:
            state.set_stopped(owned, stopped)
            if owned.revoked_until is not None:
                state.reclaim(owned)
            return True
        if (queue, epoch) in state.released:
            return False
        granted = OwnedQueue(
            topic=item["topic"],
            queue=queue,
            epoch=epoch,
            stopped=stopped,
            origin_topic=item.get("origin_topic"),
        )
        if owned is None:
            state.add(granted)
        else:
            state.replace_grant(owned, granted)
        return True

    def _check_consistency(self, is_consistent: bool) -> None:
        """Register again if the answers have contradicted the state for a whole session.

        A contradiction normally ends within moments, when a broker reads the newest
        generation. If it stayed, a queue could be assigned forever to a member that has
        released it for good.
        """
        now = lease_clock()
        if is_consistent:
            self._inconsistent_since = None
        elif self._inconsistent_since is None:
            self._inconsistent_since = now
        elif now - self._inconsistent_since > self._state.session_timeout_s:
            log.warning(
                "group %s: the broker answers with old generations: registering again",
                self._group,
            )
            self._inconsistent_since = None
            # A new incarnation replaces this member, so that its queues are granted under
            # new epochs.
            self._incarnation = uuid7()
            self._state.lose_all()
            self._state.heartbeat_wanted = True

    def _after_error(self, error: CatmqError) -> float:
        """Handle an error of a registration or heartbeat. Return the seconds until the next
        try.

        If the membership has ended, the member registers again (see handle_lost_session).
        PERMANENT_ERRORS end the consumer. Unlike in handle_error() they include NotFound and
        Conflict: these requests name the group and its topics, not a queue, so a repeat
        cannot help. Any other error is temporary.
        """
        state = self._state
        consumer_id = state.consumer_id
        is_registered = consumer_id is not None
        if isinstance(error, Gone) or (
            is_registered and error.code == "consumer_not_found"
        ):
            self.handle_lost_session(error, consumer_id)
            return AT_ONCE_S
        if isinstance(error, PERMANENT_ERRORS) and not error.retriable:
            state.fail_with(error)
            return AT_ONCE_S
        with state.changed:
            state.heartbeat_wanted = False
            state.changed.notify_all()
        if isinstance(error, ConnectFailed | AnswerLost):
            state.on_silent_broker()
        self._failures.failed(
            with_hint(error, self._transport),
            level=logging.INFO if error.code == "draining" else logging.WARNING,
        )
        # A busy broker may give a new member a later time. A registered member may not wait
        # that long.
        retry_after_s = 0.0 if is_registered else (error.retry_after_ms or 0) / 1000
        return max(
            retry_after_s, min(self._backoff.next_s(error), state.heartbeat_interval_s)
        )

    def _leave_if_not_polled(self) -> None:
        """Leave the group if the application has not polled within max_poll_interval_ms."""
        state = self._state
        with state.changed:
            since = state.silent_since()
            limit_s = state.options.max_poll_interval_ms / 1000
            if (
                since is None
                or state.poll_timeout
                or time.monotonic() - since < limit_s
                or not state.consumer_id
            ):
                return
            state.poll_timeout = MaxPollIntervalExceeded(
                f"the application did not poll for max_poll_interval_ms={limit_s * 1000:.0f}; "
                "its queues went to other members"
            )
        log.error("group %s: %s", self._group, state.poll_timeout)
        self.leave()
        with state.changed:
            state.lose_all()
