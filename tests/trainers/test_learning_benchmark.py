"""What the learning benchmark makes of its runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.learning import PEER, Case, cases, main, summarise, with_earlier
from benchmarks.learning_tasks import configuration
from benchmarks.records import Row, commit
from swe_trainers.config import read_config
from swe_trainers.run_config import run_config


def measured(after: float) -> dict[str, float]:
    return {"random": 0.1, "before": 0.1, "after": after, "steps": 100.0, "seconds": 1.0}


def test_a_seed_is_below_its_peer_where_the_difference_is_more_than_noise() -> None:
    done = {}
    for seed, (ours, theirs) in enumerate([(0.95, 0.2), (0.95, 0.96), (0.90, 0.95), (0.5, 0.4)]):
        done[Case("minigrid_doorkey", "ppo", seed)] = measured(ours)
        done[Case("minigrid_doorkey", PEER, seed)] = measured(theirs)
    rows, shares = summarise(done)
    assert shares == {
        "minigrid_doorkey/ppo: seeds as wanted": 0.75,
        f"minigrid_doorkey/ppo: seeds not below {PEER}": 0.75,
    }
    (after,) = (row for row in rows if row.case == f"minigrid_doorkey/{PEER}" and row.metric == "after")
    assert (after.n, after.median) == (4, pytest.approx(0.675))


def test_groups_without_a_run_keep_their_earlier_results_and_commit(tmp_path: Path) -> None:
    row = {"case": "copy/ppo", "metric": "after", "unit": "return", "median": 0.9, "p10": 0.8, "p90": 1.0, "n": 5}
    earlier = {
        "commit": "old",
        "commits": {"guess/ppo": "older"},
        "rows": [row, row | {"case": "guess/ppo"}, row | {"case": "parity/ppo"}],
        "ratios": {"copy/ppo: seeds as wanted": 1.0, "parity/ppo: seeds as wanted": 0.2},
    }
    (path := tmp_path / "learning.json").write_text(json.dumps(earlier))
    new = [Row("parity/ppo", "after", "return", 0.95, 0.9, 1.0, 3)]
    rows, shares, commits = with_earlier(new, {"parity/ppo: seeds as wanted": 1.0}, path)
    assert [(each.case, each.median) for each in rows] == [("parity/ppo", 0.95), ("copy/ppo", 0.9), ("guess/ppo", 0.9)]
    assert shares == {"copy/ppo: seeds as wanted": 1.0, "parity/ppo: seeds as wanted": 1.0}
    assert commits == {"copy/ppo": "old", "guess/ppo": "older"}


def test_earlier_results_of_this_commit_keep_all_their_rows(tmp_path: Path) -> None:
    row = {"case": "copy/ppo", "metric": "after", "unit": "return", "median": 0.9, "p10": 0.8, "p90": 1.0, "n": 5}
    rows = [row, row | {"metric": "steps"}]
    earlier = {"commit": commit()["commit"], "rows": rows, "ratios": {}}
    (path := tmp_path / "learning.json").write_text(json.dumps(earlier))
    kept, _, _ = with_earlier([Row("parity/ppo", "after", "return", 0.95, 0.9, 1.0, 3)], {}, path)
    assert [(each.case, each.metric) for each in kept[1:]] == [("copy/ppo", "after"), ("copy/ppo", "steps")]


def test_a_peer_plays_after_the_runs_whose_steps_it_takes() -> None:
    names = [case.name for case in cases()]
    for case in cases():
        if case.algorithm == PEER:
            assert names.index(case.name) > names.index(f"{case.task}/ppo/seed{case.seed}")


def test_a_peer_without_the_run_whose_steps_it_takes_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.nice", lambda _: 0)  # of the whole test process
    (tmp_path / "earlier.json").write_text('{"commit": "old", "rows": [], "ratios": {}}')
    case = f"minigrid_empty/{PEER}/seed1"
    arguments = ["--only", case, "--runs", str(tmp_path / "runs"), "--output", str(tmp_path / "earlier.json")]
    assert main(arguments) == 1
    assert "not run: minigrid_empty/ppo/seed1 is missing. Try: --only 'minigrid_empty/*'" in capsys.readouterr().out


def test_a_peers_runs_without_ours_are_compared_with_nothing() -> None:
    rows, shares = summarise({Case("minigrid_empty", PEER, 0): measured(0.9)})
    assert {row.case for row in rows} == {f"minigrid_empty/{PEER}"} and not shares


def test_recorded_runs_count_beside_new_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("os.nice", lambda _: 0)  # of the whole test process
    run, path = tmp_path / "runs/parity/ppo/seed1", tmp_path / "learning.json"
    run.mkdir(parents=True)
    (run / "result.json").write_text(json.dumps(measured(0.5) | {"commit": "new"}))
    runs = {"parity/ppo/seed0": measured(0.99) | {"commit": "old"}, "parity/ppo/seed1": measured(0.1)}
    path.write_text(json.dumps({"commit": "old", "rows": [], "ratios": {}, "runs": runs}))
    main(["--only", "nothing", "--runs", str(tmp_path / "runs"), "--output", str(path)])
    results = json.loads(path.read_text())
    assert {name: (run["after"], run.get("commit")) for name, run in results["runs"].items()} == {
        "parity/ppo/seed0": (0.99, "old"),
        "parity/ppo/seed1": (0.5, "new"),
    }
    assert results["ratios"] == {"parity/ppo: seeds as wanted": 0.5}


def test_a_task_of_an_algorithm_has_the_settings_of_its_example() -> None:
    found = configuration("taxi_legal", "grpo", 0, Path("unused"))
    example = read_config(Path("examples/configs/taxi_grpo.yaml"))
    assert found.trainer == run_config(example).trainer
    assert configuration("taxi_legal", "rloo", 0, Path("unused")).trainer.entropy_decay == "linear"
