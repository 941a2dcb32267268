"""The progress display of an evaluation."""

from __future__ import annotations

import io
import re

import pytest

from swe_trainers.evaluation.table import Tally, dollars, duration, showing


class Terminal(io.StringIO):
    """As a person would look at it."""

    def isatty(self) -> bool:
        return True


def _row(name: str, resolved: bool | None, cost: float | None = 0.25, **more: object) -> dict[str, object]:
    row = {
        "instance_id": name,
        "sample": 0,
        "resolved": resolved,
        "valid": resolved is not None,
        "turns": 3,
        "cost": cost,
    }
    rest = {"requests": 3, "prompt_tokens": 900, "completion_tokens": 100, "seconds": 4.0, "end_reason": "submitted"}
    return row | rest | {"failure_reason": "it burns"} | more


def test_tally_counts_and_estimates_remaining_time(monkeypatch):
    now = 100.0
    monkeypatch.setattr("swe_trainers.evaluation.table.time.monotonic", lambda: now)
    tally = Tally(10, [_row("a", True), _row("b", False)])
    assert tally.rest_s is None and "to go" not in tally.line()
    tally.running["d", 0] = now
    now = 130.0
    for row in (_row("c", True), _row("d", None), _row("e", True)):
        tally.add(row)
    # Three in 30 s, five are left; what earlier runs played took none of it.
    assert tally.line() == "resolved 3 · failed 1 · invalid 1 · running 1 · 5.0k tokens · $1.25 · 50 s to go"
    tally.add(_row("f", True, cost=None))
    assert tally.cost is None and "$" not in tally.line()


def test_terminal_shows_a_table(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "120")
    output, tally = Terminal(), Tally(3)
    tally.running["running-1", 0] = 0.0
    with showing(tally, title="m on mini", as_json=False, output=output) as ended:
        for row in (_row("a-1", True), _row("a-2", None, sample=2)):
            tally.add(row)
            ended(row)
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", output.getvalue())
    last = [line.rstrip() for line in shown[shown.rindex("m on mini") :].splitlines()]
    assert last[0] == "m on mini  2/3"
    assert set(last[1]) <= set("━╸╺ ") and last[2].startswith("resolved 1 · failed 0 · invalid 1 · running 1")
    assert last[4].split() == ["resolved", "a-1", "3", "1.0k", "4.0", "s", "submitted"]
    assert last[5].split()[:3] == ["invalid", "a-2", "#2"] and last[5].endswith("it burns")
    assert last[6].split()[:2] == ["running", "running-1"]


def test_log_shows_lines():
    output, tally = io.StringIO(), Tally(20)
    with showing(tally, title="m", as_json=False, output=output) as ended:
        tally.add(_row("a-1", False))
        ended(_row("a-1", False))
    assert output.getvalue().startswith("[ 1/20] failed   a-1  3 turns, 4.0 s, submitted  (resolved 0 · failed 1")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "0.0 s"), (42, "42 s"), (421, "7 min"), (11_100, "3 h 05 min"), (360_000, "100 h 00 min")],
)
def test_duration_format(seconds, text):
    assert duration(seconds) == text


@pytest.mark.parametrize(("cost", "text"), [(0.0, "$0.00"), (0.00123, "$0.0012"), (12.345, "$12.35"), (0.5, "$0.50")])
def test_cost_format(cost, text):
    assert dollars(cost) == text


def test_lines_come_at_most_once_a_second_but_for_the_last_one_and_those_of_invalid_episodes():
    output, tally = io.StringIO(), Tally(40)
    with showing(tally, title="m", as_json=False, output=output) as ended:
        for number in range(40):
            row = {**_row(f"episode-{number:05d}", number % 2 == 0), "task_id": f"task-{number}"}
            if number == 20:
                row |= {"valid": False, "resolved": None, "failure_reason": "it burns"}
            tally.add(row)
            ended(row)
    lines = output.getvalue().splitlines()
    assert [line.split("]")[0] + "]" for line in lines] == ["[ 1/40]", "[21/40]", "[40/40]"]
    assert [line.split("] ")[1].split()[:2] for line in lines] == [
        ["resolved", "task-0"],
        ["invalid", "task-20"],
        ["failed", "task-39"],
    ]
