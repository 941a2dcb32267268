"""The shipped set `mini-c`: its files, its splits, and an episode."""

from __future__ import annotations

import re

import gymnasium
import pytest

from swegym_env.errors import UnknownTaskError
from swegym_env.tasks.data import mini_c
from swegym_env.tasks.datasets import load_tasks


def test_both_splits_have_all_tasks_once_and_share_no_library() -> None:
    train, test = (load_tasks("mini-c", split=split) for split in ("train", "test"))
    assert (len(train), len(test)) == (16, 8)
    assert not {task.repo for task in train} & {task.repo for task in test}
    with pytest.raises(UnknownTaskError, match="train and test"):
        load_tasks("mini-c", split="dev")


def test_tasks_lack_the_tests_that_reveal_their_bug() -> None:
    for task in load_tasks("mini-c"):
        texts = "".join(text for path, text in task.files.items() if path.startswith("tests/"))
        functions = set(re.findall(r"^static void (test_\w+)\(void\)", texts, re.MULTILINE))
        assert functions == set(re.findall(r"RUN\((test_\w+)\)", texts)) == set(task.pass_to_pass), task.instance_id
        assert task.fail_to_pass and all(f"+    RUN({name});\n" in task.test_patch for name in task.fail_to_pass)
        assert task.files != mini_c.files(task.repo.partition("/")[2])


def test_issues_do_not_reveal_the_repair() -> None:
    titles = []
    for library in mini_c.libraries():
        for bug in mini_c.bugs(library):
            title, blank, *body = bug.issue.splitlines()
            titles.append(title)
            assert not blank and 10 <= len(title) <= 100, bug.instance_id
            assert len(" ".join(body)) >= 80 and bug.path not in bug.issue, bug.instance_id
    assert len(set(titles)) == len(titles) == 24


def test_an_episode_of_a_task_in_c_is_repaired_and_graded() -> None:
    env = gymnasium.make("SWEBench-v0", dataset="mini-c", action_format="raw", sandbox="namespace")
    try:
        env.reset(options={"instance_id": "mini-c__caldate-001"})
        observation, *_ = env.step("make test 2>&1 | tail -n 1; grep -n 'year % 100 != 0' caldate.c")
        assert "1..8" in observation and "caldate.c" not in observation
        env.step("sed -i '5s/.*/    return (year % 4 == 0 \\&\\& year % 100 != 0) || year % 400 == 0;/' caldate.c")
        _, reward, terminated, _, info = env.step("submit")
    finally:
        env.close()
    assert (reward, terminated, info["resolved"], info["valid"]) == (1.0, True, True, True)
    assert "build/" not in info["patch"]
