"""Two evaluations, instance by instance, with figures counted by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from swe_trainers.cli.main import main_eval
from swe_trainers.evaluation.summary import compare


def _write(place: Path, outcomes: dict[str, list[bool | None]]) -> Path:
    """An evaluation's results; None is an invalid episode."""
    place.mkdir()
    rows = [
        {"instance_id": name, "sample": sample, "resolved": won, "valid": won is not None}
        for name, samples in outcomes.items()
        for sample, won in enumerate(samples)
    ]
    (place / "results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return place


def _single(text: str) -> dict[str, list[bool | None]]:
    """`+-?` to instances with one sample each."""
    return {f"i-{number:02}": [{"+": True, "-": False, "?": None}[mark]] for number, mark in enumerate(text)}


def test_comparison_uses_instances_with_a_verdict_in_both(tmp_path):
    first = _write(tmp_path / "a", _single("++++------?+"))
    second = _write(tmp_path / "b", _single("+++-+++++-+?"))
    found = compare(first, second)
    assert (found.instances, found.left_out) == (10, 2)
    assert (found.rate_first, found.rate_second, found.difference) == pytest.approx((0.4, 0.8, 0.4))
    assert (found.better_first, found.better_second, found.equal) == (1, 5, 4)
    # 2 · (C(6, 0) + C(6, 1)) / 2⁶
    assert found.p_value == pytest.approx(14 / 64) and found.test == "exact McNemar test"
    assert found.interval[0] < 0 and found.interval[1] > 0.4
    assert [each.instance_id for each in found.differences] == ["i-03", "i-04", "i-05", "i-06", "i-07", "i-08"]
    assert (found.differences[0].first, found.differences[0].second) == (1.0, 0.0)


def test_several_samples_are_compared_by_instance(tmp_path):
    first = _write(tmp_path / "a", {"x": [True, False], "y": [False, False], "z": [True, True], "w": [None, True]})
    second = _write(tmp_path / "b", {"x": [True, True], "y": [True, False], "z": [True, True], "w": [False, False]})
    found = compare(first, second)
    assert found.test == "exact sign test over instances"
    assert (found.better_first, found.better_second, found.equal) == (1, 2, 1)
    assert found.rate_first == pytest.approx((0.5 + 0 + 1 + 1) / 4) and found.difference == pytest.approx(0)
    assert found.p_value == 1.0
    # Differences ½, ½, 0, −1: mean 0, variance 1.5/3, standard error √(0.5/4).
    # Student's bound with three degrees of freedom is 3.18, so the interval is wider than all that is possible.
    assert found.interval == (-1.0, 1.0)


def test_the_command_prints_a_table_or_json(tmp_path, capsys):
    first, second = _write(tmp_path / "a", _single("++--")), _write(tmp_path / "b", _single("+---"))
    assert main_eval(["compare", str(first), str(second)]) == 0
    output = capsys.readouterr().out
    assert (
        "B − A  -25.0 points" in output
        and "p = 1 (exact McNemar test)" in output
        and "i-01       100%     0%" in output
    )
    assert main_eval(["compare", str(first), str(second), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["differences"] == [{"instance_id": "i-01", "first": 1.0, "second": 0.0}]


def test_incomparable_evaluations_are_a_one_line_error(tmp_path, capsys):
    first, other = _write(tmp_path / "a", _single("+-")), _write(tmp_path / "b", {"else": [True]})
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "results.jsonl").write_text('{"seed": 3}\n')
    for arguments, named in (
        ([first, tmp_path / "none"], "none/results.jsonl"),
        ([first, other], "no instance has a verdict in both"),
        ([first, tmp_path / "c"], "line 1: no result of swe-eval"),
    ):
        assert main_eval(["compare", *map(str, arguments)]) == 2
        err = capsys.readouterr().err
        assert err.count("\n") == 1 and named in err
