"""The generated family: what its tasks promise holds when their code is run."""

import random
import subprocess
import sys

import pytest

from swegym_env.errors import UnknownTaskError
from swegym_env.tasks.data import mini_edit


def _failing_tests(folder, patches):
    for patch in patches:
        subprocess.run(["git", "apply", "-"], input=patch.encode(), cwd=folder, check=True)
    run = subprocess.run(
        [sys.executable, "-B", "-m", "unittest", "-v"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return {line.split()[0] for line in run.stderr.splitlines() if line.endswith(("... FAIL", "... ERROR"))}, run


def _write(task, folder):
    for path, text in task.files.items():
        (folder / path).write_text(text)


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize("seed", range(5))
def test_bug_fails_only_its_test_and_gold_patch_fixes_it(tmp_path, split, seed):
    task = mini_edit.generate(seed, split=split)
    broken, cured = tmp_path / "broken", tmp_path / "cured"
    for folder in (broken, cured):
        folder.mkdir()
        _write(task, folder)
    failing, _ = _failing_tests(broken, [task.test_patch])
    assert failing == {name.rpartition(".")[2] for name in task.fail_to_pass}
    failing, run = _failing_tests(cured, [task.patch, task.test_patch])
    assert not failing
    assert run.returncode == 0


@pytest.mark.parametrize("seed", range(3))
def test_only_the_right_operator_passes(tmp_path, seed):
    task = mini_edit.generate(seed)
    path, source = next(iter(task.files.items()))
    passing = []
    for n, command in enumerate(
        {tuple(mini_edit.demonstration(task, random.Random(i), skill=0.5)) for i in range(200)}
    ):
        folder = tmp_path / str(n)
        folder.mkdir()
        _write(task, folder)
        subprocess.run(command[1], shell=True, cwd=folder, check=True)
        assert (folder / path).read_text() != source
        failing, _ = _failing_tests(folder, [task.test_patch])
        if not failing:
            passing.append(command)
    assert len(passing) == 1


def test_tasks_are_reproducible_and_differ_between_seeds():
    assert mini_edit.generate(7) == mini_edit.generate(7)
    assert (
        len({str(mini_edit.generate(seed).files) + mini_edit.generate(seed).problem_statement for seed in range(200)})
        > 195
    )


def test_held_out_functions_never_appear_in_training_files():
    def names(task):
        return {
            line[4 : line.index("(")]
            for text in task.files.values()
            for line in text.splitlines()
            if line[:4] == "def "
        }

    trained = set().union(*(names(task) for task in mini_edit.load("train", count=1000)))
    for task in mini_edit.load("test", count=200):
        broken = task.fail_to_pass[0].rpartition(".test_")[2]
        assert broken not in trained


def test_demonstrations_are_right_with_the_given_probability():
    rng = random.Random(0)
    right = 0
    for seed in range(400):
        task = mini_edit.generate(seed)
        added = next(line for line in task.patch.splitlines() if line.startswith("+ "))
        right += f"|{added.split()[3]}|" in mini_edit.demonstration(task, rng, skill=0.25)[1]
    assert 70 <= right <= 130  # 100 ± 3.5 standard deviations


def test_task_is_found_by_its_instance_id():
    assert mini_edit.task_by_id("mini-edit__test-12") == mini_edit.generate(12, split="test")
    for wrong in ("mini-edit__test-x", "mini-edit__dev-3", "other"):
        with pytest.raises(UnknownTaskError):
            mini_edit.task_by_id(wrong)
