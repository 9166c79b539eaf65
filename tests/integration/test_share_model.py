"""A model of share groups over two brokers: leases, put-back, recover and skip, with
answers that are lost.

Whatever happens in between, a message is finished only after an answer brought it to a
member.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from messagestore.pool import node_pools
from messagestore.shares import known_queues, run_leases
from messagestore.shares.delivering import Leased
from messagestore.shares.finishing import GrantReport
from messagestore.tables.shares import position_sql, run_sql
from metadata.cache import snapshot
from metadata.db.consumer_ids import ConsumerId
from metadata.rules.groups import sharing
from tests.support.leasing import lease, made, member, offsets, record, runs, send
from tests.support.tampering import plant

ROW_BYTES = 101  # weight of a message of one letter in an answer, see Budget
# Between two of these a broker may be held up while another one works.
VERBS = (
    "remove_offsets",
    "select_held",
    "renew_leases",
    "select_due",
    "lease_again",
    "lease_new_runs",
    "read_runs",
    "finish_runs",
    "release_run",
)
ROWS = st.sampled_from([1, 3, 100])  # that an answer has room for


class Ask(NamedTuple):
    """A member's call for messages."""

    member: int
    rows: int
    recovers: bool
    is_lost: bool


class Report(NamedTuple):
    """A member's report on one of its runs; "begin" by members that say when they begin."""

    member: int
    kind: str
    is_lost: bool


class Member:
    """What a member knows: runs by grant, with the offsets it got; `in_doubt` after an
    answer was lost.
    """

    def __init__(self, consumer: ConsumerId) -> None:
        self.id = consumer
        self.held: dict[str, Leased] = {}
        self.in_doubt = False


def ask_strategy() -> st.SearchStrategy[Ask]:
    return st.builds(Ask, st.integers(0, 1), ROWS, st.booleans(), st.booleans())


def report_strategy() -> st.SearchStrategy[Report]:
    kinds = st.sampled_from(["whole", "first", "release", "unseen", "renew", "begin"])
    return st.builds(Report, st.integers(0, 1), kinds, st.booleans())


class ShareModel(RuleBasedStateMachine):
    """Two members of one group ask two brokers, one of which may be overtaken in the middle
    of a call.
    """

    # Set by the test.
    queue = 0
    consumers: Sequence[ConsumerId] = ()
    past = ""  # a time in SQL

    def __init__(self) -> None:
        super().__init__()
        self.members = [Member(consumer) for consumer in self.consumers]
        self.seen: set[int] = set()  # offsets that an answer brought to a member
        self.tells = False  # members say when they begin
        # how often a member said of an offset that it began
        self.begun: Counter[int] = Counter()
        self.caches: list[tuple[dict[Any, Any], ...]] = [({}, {}, {}), ({}, {}, {})]
        self.base = self._position()
        self.sent = self.base

    @initialize(count=st.integers(8, 16), tells=st.booleans())
    def begin(self, count: int, tells: bool) -> None:
        self.tells = tells
        self.send(count)

    @rule(count=st.integers(1, 4))
    def send(self, count: int) -> None:
        send(*["m"] * count)
        self.sent += count

    @rule(call=ask_strategy())
    def ask(self, call: Ask) -> None:
        self._call(call, broker=0)

    @rule(
        call=ask_strategy() | report_strategy(),
        other=ask_strategy() | report_strategy(),
        verb=st.sampled_from(VERBS),
    )
    def be_overtaken(self, call: Ask | Report, other: Ask | Report, verb: str) -> None:
        """A broker is held up before a statement, until another one has served the other
        call.
        """
        with held_up(verb, lambda: self._call(other, broker=1)):
            self._call(call, broker=0)

    @rule(
        number=st.integers(0, 1),
        rows=st.tuples(ROWS, ROWS),
        verb=st.sampled_from(["remove_offsets", "renew_leases"]),
        finishes=st.booleans(),
    )
    def lose_an_answer(
        self, number: int, rows: tuple[int, int], verb: str, finishes: bool
    ) -> None:
        """A member asks again while a broker still works on the call whose answer it lost."""
        self._call(Ask(number, 100, recovers=False, is_lost=True), broker=1)
        late = Ask(number, rows[0], recovers=True, is_lost=True)
        with held_up(verb, lambda: self._call(late, broker=1)):
            self._call(Ask(number, rows[1], recovers=True, is_lost=False), broker=0)
        while finishes and self.members[number].held:
            self._call(Report(number, "whole", is_lost=False), broker=0)

    @rule(report=report_strategy())
    def report(self, report: Report) -> None:
        self._call(report, broker=1)

    @rule(times=st.integers(2, 4))
    def starve(self, times: int) -> None:
        """Members get messages that they do not begin before the lease ends, several times."""
        for n in range(times):
            self._call(Ask(n % 2, 100, recovers=False, is_lost=False), broker=0)
            self.let_leases_end()

    @rule()
    def let_leases_end(self) -> None:
        plant(self.queue, f"UPDATE share_run SET lease_until = {self.past}")
        self._forget()

    @rule()
    def pass_a_second(self) -> None:
        """Brokers read bounds and the ends of leases again."""
        self._forget()

    @rule(number=st.integers(0, 1))
    def kill_member(self, number: int) -> None:
        """A member dies, brokers end its leases, and a process that knows nothing takes its
        place.
        """
        self.members[number].held.clear()
        with node_pools.node_of(self.queue).writing() as session:
            group_id = snapshot.find_group("mails").id
            run_sql.end_leases_of_owner(
                session, group_id=group_id, owner=self.members[number].id.text
            )

    @invariant()
    def nothing_is_finished_unseen(self) -> None:
        waiting = Counter(offset for run in runs(self.queue) for offset in _left(run))
        assert all(count == 1 for count in waiting.values()), f"in two runs: {waiting}"
        finished = set(range(self.base, self._position())) - waiting.keys()
        assert finished <= self.seen, f"finished unseen: {finished - self.seen}"

    @invariant()
    def nothing_counts_that_nobody_began(self) -> None:
        for run in runs(self.queue) if self.tells else ():
            for offset in _left(run):
                # The first lease counts at once.
                assert run.deliveries <= 1 + self.begun[offset], (
                    f"{offset} counts too often: {run}"
                )

    def teardown(self) -> None:
        """Every message that is left can still be had."""
        last = self.members[0]
        while True:
            self.let_leases_end()
            with self._broker(0):
                leased = lease(last.id)
            if not leased:
                break
            self.seen |= set(offsets(leased))
            for run in leased:
                end_whole = GrantReport(
                    run.queue, run.run.first, run.run.grant.text, whole=True
                )
                assert [one.state for one in record(last.id, end_whole)] == ["ok"]
        self.nothing_is_finished_unseen()
        assert (self._position(), runs(self.queue)) == (self.sent, [])

    def _call(self, call: Ask | Report, *, broker: int) -> None:
        with self._broker(broker):
            if isinstance(call, Ask):
                self._ask(call)
            else:
                self._report(call)

    def _ask(self, call: Ask) -> None:
        asker = self.members[call.member]
        recovers = call.recovers or asker.in_doubt
        held = frozenset(asker.held) if recovers else None
        size = {"max_messages": 100, "max_bytes": call.rows * ROW_BYTES}
        leased = lease(asker.id, **size, held=held, member_reports_begin=self.tells)
        if call.is_lost:
            asker.in_doubt = True
            return
        asker.in_doubt = asker.in_doubt and not recovers
        for run in leased:
            got, skipped = offsets([run]), {o for span in run.skipped for o in range(*span)}
            assert skipped | {*got} == {*range(run.run.first, run.run.end)}
            self.seen |= set(got)
            asker.held[run.run.grant.text] = run

    def _report(self, report: Report) -> None:
        asker = self.members[report.member]
        if not asker.held:
            return
        grant, run = next(iter(asker.held.items()))
        first, rest = offsets([run])[:1], offsets([run])[1:]
        says: dict[str, dict[str, Any]] = {
            "whole": {"whole": True},
            "first": {"finished": [(first[0], first[0] + 1)]},
            "release": {"release": first},
            "unseen": {"unseen": rest},
            "renew": {"renew": True},
            "begin": {"begun": True} if self.tells else {"renew": True},
        }
        delivery = run.run.delivery_number if self.tells else 0
        if report.kind in ("begin", "release"):
            self.begun.update(offsets([run]) if report.kind == "begin" else first)
        says[report.kind]["delivery"] = delivery
        (recorded,) = record(
            asker.id, GrantReport(run.queue, run.run.first, grant, **says[report.kind])
        )
        assert recorded.state in ("ok", "lost", "gone")
        is_over = report.kind == "whole" or recorded.state != "ok"
        if is_over and not report.is_lost:
            asker.held.pop(
                grant, None
            )  # the call that overtook this one may have removed it

    @contextmanager
    def _broker(self, number: int) -> Iterator[None]:
        """Work as one of the processes: each has its own view of queues, and its own turns."""
        before = known_queues._known, known_queues._missing, run_leases._coalescers
        known_queues._known, known_queues._missing, run_leases._coalescers = self.caches[
            number
        ]
        try:
            yield
        finally:
            known_queues._known, known_queues._missing, run_leases._coalescers = before

    def _forget(self) -> None:
        for views, missing, _ in self.caches:
            views.clear()
            missing.clear()

    def _position(self) -> int:
        group_id = snapshot.find_group("mails").id
        with node_pools.node_of(self.queue).reading() as session:
            view = position_sql.read_views(session, group_id=group_id, queues=[self.queue])[
                self.queue
            ]
        return view.next_offset or 0


def _left(run: run_sql.Run) -> list[int]:
    return [
        offset
        for span in sharing.spans_of(run.unfinished_bits, first=run.first)
        for offset in range(*span)
    ]


@contextmanager
def held_up(verb: str, meanwhile: Callable[[], None]) -> Iterator[None]:
    """Before the first use of a verb on runs, let something else happen."""
    original = getattr(run_sql, verb)

    def hold_up_once(*args: Any, **kwargs: Any) -> Any:
        setattr(run_sql, verb, original)
        meanwhile()
        return original(*args, **kwargs)

    setattr(run_sql, verb, hold_up_once)
    try:
        yield
    finally:
        setattr(run_sql, verb, original)


def test_a_message_is_finished_only_after_a_member_got_it(
    node: str, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (queue,) = made()
    monkeypatch.setattr(ShareModel, "queue", queue)
    monkeypatch.setattr(
        ShareModel, "consumers", [member(name, run_messages=8) for name in ("one", "two")]
    )
    monkeypatch.setattr(ShareModel, "past", "0" if engine == "sqlite" else "'2000-01-01'")
    bounds = settings(
        max_examples=40, stateful_step_count=12, derandomize=True, database=None
    )
    run_state_machine_as_test(ShareModel, settings=bounds)
