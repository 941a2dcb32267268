"""A task whose installation is missing never gets a verdict on a patch: neither a success nor a failure."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from swegym_env.cli.main import main
from swegym_env.env import SWEBenchEnv
from swegym_env.errors import GradingError, LayerError
from swegym_env.grading.grading import grade, grade_many
from swegym_env.sandbox.layers import LayerStore
from swegym_env.tasks.adapters import task_from_row
from swegym_env.tasks.task import Task
from tests.env.calc import GOLD

from .test_excluded_paths import new_file

EVAL_SCRIPT = """\
#!/bin/bash
cd /testbed
: '>>>>> Start Test Output'
npm test
: '>>>>> End Test Output'
"""
ROW = {
    "instance_id": "chalk__chalk-1",
    "repo": "chalk/chalk",
    "base_commit": "c30252f685e8f4326722de84923fcbc8cf557f06",
    "problem_statement": "maxBodyLength",
    "patch": GOLD,
    "test_patch": "",
    "FAIL_TO_PASS": ["supports http"],
    "PASS_TO_PASS": [],
    "version": "4731",
    "eval_script": EVAL_SCRIPT,
}
NAMED = {
    "an image": {"image": "swebench/sweb.eval.x86_64.chalk_1776_chalk-1:latest"},
    "a script for an image": {},
    "an image and a test command": {"image": "hub/chalk:1", "eval_script": "", "test_command": "npm test"},
}


def row_task(values: dict[str, object], place: Path) -> Task:
    """The task of a row, whose repository does not exist: who touches it before the image fails otherwise."""
    task = task_from_row(ROW | values)
    assert isinstance(task, Task)
    return dataclasses.replace(task, repository=str(place / "no-such-clone"))


@pytest.mark.parametrize("values", NAMED.values(), ids=NAMED)
def test_row_that_needs_an_image_is_invalid_before_anything_starts(values: dict[str, object], tmp_path: Path) -> None:
    task, store = row_task(values, tmp_path), LayerStore(tmp_path / "layers")
    (verdict,) = grade_many([(task, task.patch)], store=store)
    assert not verdict.valid and not verdict.resolved
    assert f"{task.instance_id}: needs the image " in verdict.failure_reason
    assert task.official_image in verdict.failure_reason
    assert f"set-up commands for {task.repo}" in verdict.failure_reason
    assert list(tmp_path.glob("layers/[!.]*")) == []


def test_error_for_a_language_without_set_ups_names_what_they_would_need(tmp_path: Path) -> None:
    for repo, needed in (
        ("sharkdp/bat", "Rust and crates.io"),
        ("gin-gonic/gin", "Go and the modules of proxy."),
    ):
        task = row_task({**NAMED["an image"], "repo": repo}, tmp_path)
        (verdict,) = grade_many([(task, task.patch)], store=LayerStore(tmp_path / "layers"))
        assert not verdict.valid and f", or {needed}" in verdict.failure_reason
        assert "\n" not in verdict.failure_reason


def test_episode_of_such_a_row_does_not_start(tmp_path: Path) -> None:
    env = SWEBenchEnv(tasks=[row_task(NAMED["an image"], tmp_path)])
    try:
        with pytest.raises(LayerError, match="needs the image docker://swebench/"):
            env.reset(seed=0)
    finally:
        env.close()


def test_row_with_set_up_commands_is_not_refused(tmp_path: Path) -> None:
    task = row_task({**NAMED["an image"], "setup": ["true"]}, tmp_path)
    (verdict,) = grade_many([(task, "")], store=LayerStore(tmp_path / "layers"))
    assert not verdict.valid and "no-such-clone" in verdict.failure_reason  # it went on to the repository


@pytest.mark.parametrize("policy", ["strict", "official"])
@pytest.mark.parametrize("patch", [GOLD, ""], ids=["gold", "empty"])
def test_log_without_a_test_is_no_verdict(task: Task, patch: str, policy: str, backend: str) -> None:
    silent = dataclasses.replace(task, instance_id="silent-1", test_command="echo nothing to do", log_parser="pytest")
    with pytest.raises(GradingError, match="silent-1: the log of the tests names no test, without a patch either"):
        grade(silent, patch, policy=policy, backend=backend)  # type: ignore[arg-type]


def test_tests_that_only_a_repair_lets_begin_give_verdicts(task: Task, backend: str) -> None:
    """As where a model of a hidden test is refused by the checks that Django runs before any test."""
    gold = GOLD + new_file("calc/more.py", "X = 1\n")
    command = f"python3 -c 'import calc.more' && {task.test_command}"
    task = dataclasses.replace(task, instance_id="begins-1", patch=gold, test_command=command)
    for patch, resolved in (("", False), (new_file("calc/others.py", "X = 1\n"), False), (gold, True)):
        verdict = grade(task, patch, backend=backend)
        assert (verdict.valid, verdict.resolved) == (True, resolved)
        assert resolved or verdict.failure_reason == "the log names no test"


def test_patch_that_silences_the_tests_has_failed(task: Task, backend: str) -> None:
    silencing = (
        "diff --git a/calc/add.py b/calc/add.py\n--- a/calc/add.py\n+++ b/calc/add.py\n"
        "@@ -1,2 +1,4 @@\n+import os\n+os._exit(0)\n def add(a, b):\n     return a - b\n"
    )
    named = dataclasses.replace(task, instance_id="named-1")
    for _ in range(2):  # the second time without another run of the base
        verdict = grade(named, silencing, backend=backend)
        assert verdict.valid and not verdict.resolved and not verdict.tests


def test_gold_patches_of_the_real_rows_that_need_images_are_invalid(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = tmp_path / "rows.jsonl"
    jq = {"instance_id": "jqlang__jq-2839", "repo": "jqlang/jq", "image": "swebench/sweb.eval.x86_64.jq:latest"}
    rows.write_text("".join(json.dumps(row) + "\n" for row in (ROW | NAMED["an image"], ROW | jq)))
    code = main(["grade", "--dataset", str(rows), "--predictions", "gold", "--json", "--repos", str(tmp_path)])
    out, err = capsys.readouterr()
    verdicts = [json.loads(line) for line in out.splitlines()]
    assert code == 2 and [verdict["valid"] for verdict in verdicts] == [False, False]
    assert "2 of 2 could not be graded; the first, chalk__chalk-1: chalk__chalk-1: needs the image" in err
