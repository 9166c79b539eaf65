"""Links that cut, hold, half-close and lose answers: between brokers and nodes, brokers and
metadata, or clients and brokers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.acceptance.scenarios.schedule import Strike, planned
from tests.acceptance.scenarios.stage import Stage
from tests.acceptance.scenarios.trial import Act, prepared, wait_until
from tests.support.links import Fault, Link
from tests.support.pair import Pair
from tests.support.waiting import until

# What a request holds whose answer is to be lost: sends, commits, pulls and everything
# else.
OF_A_NODE = (b"INSERT INTO sent_batch", b"UPDATE reader", b"SELECT", b"COMMIT")
PULL = b"SELECT msg_offset, msg_key"
OF_METADATA = (b"UPDATE", b"INSERT", b"SELECT", b"COMMIT")
OF_A_BROKER = (b"/messages ", b"/commit ", b"/pull ", b"/heartbeat ", b"/acquire ")
MOST_BYTES = 60  # of an answer that is passed on before it is cut
LOSSES_S = (0.1, 0.8)  # between two lost answers
BEHIND = (0, 10)  # bytes of the next result that are passed on
SLOW_S = (0.02, 0.1, 0.3)
CUT, REFUSE, HOLD, HALF_CLOSE, SLOW = "cut", "refuse", "hold", "half-close", "slow down"
LOSE, TRUNCATE, SPLIT = "lose answers", "cut inside answers", "cut between two results"
EVERYTHING = (CUT, REFUSE, HOLD, HALF_CLOSE, SLOW, LOSE, TRUNCATE, SPLIT)
OF_HTTP = tuple(one for one in EVERYTHING if one != SPLIT)


@dataclass
class Weather:
    """The effect of strikes on some links. `faults`: those that wait for requests, with
    their names.
    """

    links: Sequence[Link]
    matches: Sequence[bytes]
    faults: list[tuple[str, Fault]] = field(default_factory=list)

    def acts(self) -> Mapping[str, Act]:
        """Return what each line of a schedule does."""
        at_once = {
            CUT: Link.cut,
            HALF_CLOSE: Link.half_close,
            REFUSE: Link.refuse,
            HOLD: Link.hold,
        }
        return {
            **{
                what: self._act(lambda link, strike, do=do: do(link))
                for what, do in at_once.items()
            },
            SLOW: self._act(
                lambda link, strike: link.slow_down(SLOW_S[strike.figure % len(SLOW_S)])
            ),
            LOSE: self._act(self._lose),
            TRUNCATE: self._act(self._truncate),
            SPLIT: self._act(self._split),
        }

    def hits(self) -> dict[str, int]:
        """Return how often each kind of fault that waits for requests has struck."""
        return {
            name: sum(one.hits for what, one in self.faults if what == name)
            for name, _ in self.faults
        }

    def _act(self, do: Callable[[Link, Strike], object]) -> Act:
        @contextmanager
        def act(strike: Strike) -> Iterator[None]:
            link = self.links[strike.target % len(self.links)]
            do(link, strike)
            try:
                yield
            finally:
                link.restore()

        return act

    def _match(self, strike: Strike) -> bytes:
        return self.matches[strike.figure % len(self.matches)]

    def _lose(self, link: Link, strike: Strike) -> None:
        self.faults.append(
            (LOSE, link.lose_answers(1 + strike.figure % 5, self._match(strike)))
        )

    def _truncate(self, link: Link, strike: Strike) -> None:
        count, after = 1 + strike.figure % 3, strike.figure % MOST_BYTES
        self.faults.append((TRUNCATE, link.cut_answer(after, count, self._match(strike))))

    def _split(self, link: Link, strike: Strike) -> None:
        after, count = 1 + strike.figure % 3, 1 + strike.figure % 20
        more = BEHIND[strike.figure % len(BEHIND)]
        self.faults.append((SPLIT, link.cut_between_results(after, more=more, count=count)))


def run_node(stage: Stage, pair: Pair, *, seconds: float) -> None:
    """Between brokers and two nodes."""
    with prepared(stage, pair, "link-node") as trial:
        weather = Weather(trial.links, OF_A_NODE)
        trial.begin()
        trial.play(planned(stage.rng, EVERYTHING, seconds=seconds), weather.acts())
        trial.finish()
        stage.say(f"faults that struck: {weather.hits()}")


def run_lost_answers(stage: Stage, pair: Pair, *, times: int) -> None:
    """Between brokers and nodes: what was done is not heard of, and what was heard ends too
    early.
    """
    with prepared(stage, pair, "lost-answers") as trial:
        trial.begin()
        for number in range(times):
            link = trial.links[number % len(trial.links)]
            faults = (
                link.lose_answers(match=OF_A_NODE[number % 2]),
                link.cut_between_results(after=1, match=OF_A_NODE[0]),
                link.cut_between_results(after=1, more=BEHIND[1], match=PULL),
            )
            for fault in faults:
                stage.note(f"line {number + 1}: {fault.kind} at {fault.match!r}")
                assert fault.hit.wait(30), f"{fault.kind} at {fault.match!r} met no request"
            trial.more(2)
        trial.finish()


def run_metadata(
    stage: Stage, pair: Pair, *, seconds: float, session_ms: int = 6_000
) -> None:
    """Between brokers and metadata, while members join and leave."""
    assert pair.links, "the pair must reach its metadata through links"
    with prepared(stage, pair, "link-metadata", session_ms=session_ms) as trial:
        weather = Weather(pair.links, OF_METADATA)
        trial.begin()
        strikes = planned(
            stage.rng, EVERYTHING, seconds=seconds, lengths_s=(0.3, 1.0, 3.0, 8.0)
        )
        newcomers = []
        for first in range(0, len(strikes), len(EVERYTHING)):
            newcomers.append(trial.crowd.join())
            part = strikes[first : first + len(EVERYTHING)]
            trial.play(
                [one._replace(at_s=one.at_s - part[0].at_s) for one in part], weather.acts()
            )
            until(lambda one=newcomers[-1]: one.is_up, limit_s=60)
            trial.crowd.leave(newcomers[-1])
        trial.finish()
        stage.say(
            f"faults that struck: {weather.hits()}; {len(newcomers)} members came and went"
        )


def run_client(
    stage: Stage, pair: Pair, *, seconds: float, session_ms: int = 6_000
) -> None:
    """Between clients, ours and bare ones, and brokers."""
    with prepared(
        stage, pair, "link-client", session_ms=session_ms, through_doors=True
    ) as trial:
        weather = Weather(trial.doors, OF_A_BROKER)
        trial.begin()
        trial.play(planned(stage.rng, OF_HTTP, seconds=seconds), weather.acts())
        trial.finish()
        stage.say(f"faults that struck: {weather.hits()}")


def run_repeats(stage: Stage, pair: Pair, *, seconds: float) -> None:
    """Bare senders lose answers and repeat through the other broker, also while the topic
    is expanded.
    """
    with prepared(stage, pair, "repeats") as trial:
        trial.begin(senders=0, raw=3)
        begun, expansions = time.monotonic(), [seconds * 0.7, seconds * 0.4]
        for strike in planned(
            stage.rng, (LOSE,), seconds=seconds, lengths_s=(0.0,), pause_s=LOSSES_S
        ):
            wait_until(begun + strike.at_s)
            if expansions and strike.at_s > expansions[-1]:
                expansions.pop()
                stage.note(f"{len(trial.crowd.ids)} queues, and {trial.expand(2)} more")
            stage.note(str(strike))
            lost = trial.doors[strike.target].lose_answers(match=OF_A_BROKER[0])
            assert lost.hit.wait(60), "no send met the door"
        trial.finish()
