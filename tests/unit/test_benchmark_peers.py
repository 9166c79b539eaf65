"""Figures, tables, options and skip reasons of script/bench peers. No system is started."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from benchmarks import task_rivals
from benchmarks.peers import programs, report, rounds, systems
from benchmarks.peers.__main__ import parse_arguments, write_page
from benchmarks.peers.report import LINES, Line, Measure, Results
from benchmarks.peers.worker import BODY, due_time, stamped

PUBLISH = next(line for line in LINES if line.name == "publish 100")
TIMED = next(line for line in LINES if line.is_timed)


def measure(rate: float, *, broker_s: float = 0.02) -> Measure:
    return Measure(1_000, rate, {"client": 0.005, "server": broker_s, "database": 0.001})


def filled(
    measures_by_system: dict[str, list[Measure | None]], line: Line = PUBLISH
) -> Results:
    results = Results({name: name.upper() for name in measures_by_system})
    for system, measures in measures_by_system.items():
        for processes in line.processes:
            for single in measures:
                results.add(system, line, processes, single)
    return results


def row_of(table: str, title: str) -> list[str]:
    (line,) = [line for line in table.splitlines() if line.startswith(f"| {title} |")]
    return [cell.strip() for cell in line.strip("|").split("|")]


def column(line: Line) -> int:
    return 1 + LINES.index(line)


def test_a_rate_is_the_median_with_the_farthest_round() -> None:
    results = filled({"a": [measure(80.0), measure(100.0), measure(150.0)]})
    cell = row_of(report.rates_table(results), "A")[column(PUBLISH)]
    assert cell == "100 ± 50 % / 100 ± 50 %"


def test_a_line_that_a_system_does_not_have_is_a_dash() -> None:
    row = row_of(report.rates_table(filled({"a": [measure(80.0)]})), "A")
    named = next(line for line in LINES if line.only_catmq)
    assert row[column(named)] == "-"


def test_a_system_whose_client_failed_in_each_round_says_so() -> None:
    results = filled({"a": [None, None]})
    assert row_of(report.rates_table(results), "A")[column(PUBLISH)] == "failed / failed"
    assert "failed" in report.cpu_table(results, 1)


def test_a_line_that_was_not_reached_before_the_run_was_stopped_is_a_dash() -> None:
    results = filled({"a": [measure(80.0)], "b": [measure(90.0)]})
    assert row_of(report.rates_table(results), "A")[column(TIMED)] == "-"
    row = row_of(report.before_table(results, [("a", "b")]), "A, 1 process: rate")
    assert row[1 + report.RATE_LINES.index(PUBLISH)] == "0.89 (0.89 - 0.89)"
    assert row[1] == "-"


def test_cpu_time_is_of_a_message_and_by_side() -> None:
    results = filled({"a": [measure(1.0, broker_s=0.01), measure(1.0, broker_s=0.03)]})
    assert "| 5.0 + 20.0 + 1.0 |" in report.cpu_table(results, 4)


def test_ratios_are_of_rounds_in_which_both_have_a_figure() -> None:
    results = filled(
        {
            "new": [measure(300.0), None, measure(120.0), measure(150.0)],
            "old": [measure(100.0), measure(1.0), measure(100.0), None],
        }
    )
    table = report.before_table(results, [("new", "old")])
    row = row_of(table, "NEW, 1 process: rate")
    assert row[1 + report.RATE_LINES.index(PUBLISH)] == "2.10 (1.20 - 3.00)"
    row = row_of(table, "NEW, 4 processes: CPU of the broker")
    assert row[1 + report.RATE_LINES.index(PUBLISH)] == "1.00 (1.00 - 1.00)"


def test_end_to_end_times_are_medians_of_the_rounds() -> None:
    measures: list[Measure | None] = [
        Measure(100, 100.0, {}, [0.001 * median] * 98 + [0.001 * slow] * 2)
        for median, slow in ((1, 9), (2, 50), (3, 10))
    ]
    table = report.rates_table(filled({"a": measures}, TIMED))
    assert row_of(table, "A")[column(TIMED)] == "2.0 / 10.0"


def test_bodies_have_the_size_that_is_documented_and_need_no_escapes() -> None:
    assert len(BODY) == len(stamped(123.456)) == 200
    assert BODY.decode().isalnum()
    assert due_time(stamped(123_456.789)) == pytest.approx(123_456.789)


def test_a_page_gets_the_tables_between_its_markers(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("a\n<!-- measured -->\nold\n<!-- /measured -->\nb\n")
    write_page(page, "new")
    assert page.read_text() == "a\n<!-- measured -->\n\nnew\n\n<!-- /measured -->\nb\n"


@pytest.mark.parametrize(
    "text", ["text", "<!-- measured -->", "<!-- /measured -->\n<!-- measured -->"]
)
def test_a_page_without_markers_is_refused_before_anything_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    page = tmp_path / "page.md"
    page.write_text(text)
    with pytest.raises(SystemExit):
        parse_arguments(["--page", str(page)])
    assert "needs lines" in capsys.readouterr().err


def test_quick_is_one_round() -> None:
    options = parse_arguments(["--quick", "--rounds", "9", "--systems", "sqlite"])
    assert (options.plan.rounds, list(options.systems)) == (1, ["sqlite"])


@pytest.mark.parametrize(
    ("names", "engine"),
    [(["sqlite", "mariadb"], "mariadb"), (["redis", "sqlite"], "sqlite")],
)
def test_an_earlier_revision_runs_on_mariadb_if_it_is_chosen(
    names: list[str], engine: str
) -> None:
    options = parse_arguments(["--before", "HEAD", "--systems", *names])
    assert options.before_engine == engine


@pytest.mark.parametrize(
    "refused",
    [
        ["--before", "HEAD", "--systems", "redis"],
        ["--rounds", "0"],
        ["--seconds", "0"],
        ["--backlog", "-1"],
        ["--systems", "rabbitmq"],
    ],
)
def test_options_that_measure_nothing_are_refused(refused: list[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        parse_arguments(refused)


def test_an_unknown_revision_is_named(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="--before no-such-revision"):
        rounds.earlier_maker("no-such-revision", "sqlite", tmp_path / "earlier")


def test_commits_with_pulls_are_compared_with_commits_of_the_earlier_revision() -> None:
    results = Results({"new": "NEW", "old": "OLD"})
    pulls = next(line for line in LINES if line.commits == "pulls")
    commits = next(line for line in LINES if line.name == pulls.earlier_name)
    for processes in pulls.processes:
        results.add("new", pulls, processes, measure(300.0))
        results.add("new", commits, processes, measure(110.0))
        results.add("old", commits, processes, measure(100.0))
    table = report.before_table(results, [("new", "old")])
    row = row_of(table, "NEW, 1 process: rate")
    assert row[1 + report.RATE_LINES.index(pulls)] == "3.00 (3.00 - 3.00)"
    assert row[1 + report.RATE_LINES.index(commits)] == "1.10 (1.10 - 1.10)"


@pytest.mark.parametrize("name", sorted(set(systems.makers(None)) - set(systems.CATMQ)))
def test_a_system_that_is_not_downloaded_is_skipped_with_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(programs, "CACHE", tmp_path / "none")
    monkeypatch.setattr(task_rivals, "CACHE", tmp_path / "none")
    plan = rounds.Plan(rounds=1, seconds=0.1, backlog=10)
    makers = {name: systems.makers(None)[name]}
    with ExitStack() as stack:
        running, skipped = rounds.start(makers, tmp_path, plan, stack)
    assert not running
    remedy = "--pgmq FILE" if name == "pgmq" else "script/bench peers --install"
    assert remedy in skipped[name]
