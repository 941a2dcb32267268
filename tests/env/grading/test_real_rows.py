"""The campaign over real rows goes on where it stopped, and its results name what is not as it should be."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.real_rows import expected_s, in_order, missing
from benchmarks.real_rows_results import Entry, Key, key_of, misses, read_entries, write_results
from swegym_env.tasks.datasets import load_tasks
from swegym_env.tasks.task import Task


def entry(name: str, patch: str, *, resolved: bool, **more: Any) -> Entry:
    plain = {"instance_id": name, "repo": "a/b", "patch": patch, "run": 0, "listed_tests": 10, "reason": ""}
    return {**plain, "at_fault": [], "resolved": resolved, **more}


def whole(name: str, **more: Any) -> dict[Key, Entry]:
    proof = {"proof": "blind", "proof_bits": 20.0, "tests_s": 2.0, "controls_s": 4.0}
    entries = [
        entry(
            name, "gold", resolved=True, setup_s=10.0, layers={"environment-1": 100, f"repository-{name}": 7}, **proof
        ),
        entry(name, "empty", resolved=False, proof="none", proof_bits=0.0, tests_s=2.0, controls_s=0.0),
        entry(name, "rewrite", resolved=True, **{**proof, "controls_s": 1.0}),
    ]
    return {key_of(one): {"wall_s": 30.0, **one, **more} for one in entries}


def row(name: str, tests: int, repo: str = "a/b") -> Task:
    names = tuple(f"t{number}" for number in range(tests))
    return Task(
        name, repo=repo, base_commit="", problem_statement="p", patch="", fail_to_pass=names[:1], pass_to_pass=names[1:]
    )


def test_a_campaign_resumes_from_its_state_and_from_committed_results(tmp_path: Path) -> None:
    task = load_tasks("mini", select=":1")[0]
    common = [sys.executable, "-m", "benchmarks.real_rows", "--dataset", "mini", "--only", task.instance_id]
    common += ["--output", str(tmp_path / "results.json")]

    def run(state: str, *more: str) -> list[str]:
        command = [*common, "--state", str(tmp_path / state), *more]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
        return [line.split("] ")[1] for line in done.stdout.splitlines()]

    assert run("state", "--times", "1", "--seconds", "0") == []
    lines = run("state", "--times", "1")
    assert [line.split()[2].rstrip(":") for line in lines] == ["gold", "empty", "rewrite"]
    assert [("not resolved" in line) for line in lines] == [False, True, False]
    assert "about" in lines[0] and lines[0].endswith("h left)")
    first = json.loads((tmp_path / "results.json").read_text())
    assert first["reproduced"] == [task.instance_id] and first["not_reproduced"] == {}
    assert [one["patch"] for one in first["runs"]] == ["empty", "gold", "rewrite"]
    gold = first["runs"][1]
    assert gold["cpu_s"] > 0 and gold["tests_s"] > 0 and sum(gold["layers"].values()) > 1000
    # Another machine has the committed results alone.
    assert run("elsewhere", "--times", "1") == []
    assert len(run("elsewhere", "--times", "2")) == 3
    assert len(run("elsewhere", "--times", "1", "--again")) == 3


def test_rows_that_cost_least_come_first_by_what_their_repository_has_cost() -> None:
    small, large, other, elsewhere = row("s", 2), row("l", 500), row("o", 300), row("e", 400, "c/d")
    assert in_order([large, elsewhere, other, small], {}) == [small, other, elsewhere, large]
    slow = whole("x", wall_s=1000.0)
    assert in_order([large, elsewhere, other, small], slow) == [small, elsewhere, other, large]
    assert in_order([large, elsewhere, other, small], slow, spread=True) == [small, elsewhere, other, large]
    assert in_order([row("m", 6), large, elsewhere, small], {}, spread=True)[1] == elsewhere
    done = whole("l")
    assert missing(large, done, 1) == [] and expected_s(large, done, 1) == 0
    assert missing(large, done, 2) == [("gold", 1), ("empty", 1), ("rewrite", 1)]
    assert missing(large, {("l", "set-up", 0): entry("l", "set-up", resolved=False)}, 3) == []


def test_results_name_each_miss_and_sum_up_by_repository(tmp_path: Path) -> None:
    known = whole("good") | whole("second")
    known["good", "gold", 1] = known["good", "gold", 0] | {"run": 1, "wall_s": 20.0}
    forged, rejected, broken = whole("forged"), whole("rejected"), {}
    forged["forged", "empty", 0]["resolved"] = True
    rejected["rejected", "rewrite", 0] |= {"resolved": False, "reason": "unproven"}
    broken["broken", "set-up", 0] = entry("broken", "set-up", resolved=False, reason="set-up: no Python 3.1")
    path, state = tmp_path / "results.json", tmp_path / "state"
    assert write_results(path, known | forged | rejected | broken, 1) == "2 rows reproduced 1 times, 3 not"
    found = json.loads(path.read_text())
    assert found["reproduced"] == ["good", "second"]
    assert {name: miss["patch"] for name, miss in found["not_reproduced"].items()} == {
        "broken": "set-up", "forged": "empty", "rejected": "rewrite",
    }  # fmt: skip
    assert found["ratios"]["resolved/empty"] == 0.25 and found["ratios"]["resolved/rewrite"] == 0.75
    assert found["ratios"]["bits/at least 20"] == 1 and found["ratios"]["bits/at least 24"] == 0
    rows = {(one["case"], one["metric"]): one for one in found["rows"]}
    assert (
        rows["a/b", "runs_per_verdict/gold"]["median"] == 3 and rows["a/b", "runs_per_verdict/rewrite"]["median"] == 1.5
    )
    assert rows["a/b", "layers_of_all_rows"]["median"] == 100 + 4 * 7  # the environment is shared
    assert rows["a/b", "layers_of_a_row"]["median"] == 107
    assert rows["a/b", "gold_again_of_1_rows"]["median"] == 20
    assert read_entries(path, state) == known | forged | rejected | broken
    state.write_text(
        json.dumps({"forget": "broken"}) + "\n" + json.dumps(whole("good", tests_s=9.0)["good", "gold", 0]) + "\n"
    )
    again = read_entries(path, state)
    assert ("broken", "set-up", 0) not in again and again["good", "gold", 0]["tests_s"] == 9.0
    assert misses(known.values()) == []
