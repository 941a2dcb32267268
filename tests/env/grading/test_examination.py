"""How many copies a lineup has, what chance is left, and what becomes of a verdict that nothing proves."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path
from typing import Any

import pytest

from swegym_env.env import SWEBenchEnv
from swegym_env.errors import ConfigurationError
from swegym_env.grading import task_tests
from swegym_env.grading.examination import (
    chance_left,
    drawn,
    nearest_chance,
    runs_beside_twins,
    shares_of,
    unreliable,
)
from swegym_env.grading.grading import grade
from swegym_env.languages import Copy, ExpectedValue, Lineup, Scrutiny
from swegym_env.languages.python.decoys import replaceable
from swegym_env.sandbox.layers import LayerStore
from swegym_env.tasks.task import Task
from tests.env.calc import GOLD

from .test_excluded_paths import new_file

USUAL, READER = Scrutiny(1 / 1000), Scrutiny(1 / 1000, reads=True, required=True)
ONE, TWO = frozenset({"a"}), frozenset({"b"})
NUMBER = ExpectedValue(ONE, 0, "3", 1_000_000)
OTHER = ExpectedValue(ONE, 1, "'x'", 500)
SAME = ExpectedValue(ONE, 2, "3", 1_000_000)
TRUTH = ExpectedValue(TWO, 3, "is_name()", 1, guess=0.5, read=0.5)
LAST = ExpectedValue(ONE, 4, "test runs", 39, last_resort=True, guess=1.0, read=1.0)
SMALL = ExpectedValue(ONE, 5, "4", 1_000_000, guess=0.4, read=0.5)


@pytest.mark.parametrize(
    ("values", "one_by_one", "shares", "chance"),
    [
        ((NUMBER,), True, {NUMBER: (3, 4)}, 1 / 1820),  # 16 copies, 4 of them right: 16·15·14·13 / 24
        ((NUMBER, LAST), True, {NUMBER: (3, 4)}, 1 / 1820),
        ((LAST,), True, {LAST: (3, 4)}, 1.0),  # it does not touch the code under test
        ((TRUTH,), True, {TRUTH: (1, 7)}, 0.5),  # 7 of 14 are one in 3,432; but half of all answers are right
        ((SMALL,), True, {SMALL: (3, 4)}, 0.4),
        ((SMALL, NUMBER), True, {SMALL: (3, 3), NUMBER: (3, 3)}, 1 / 220**2),  # who guesses one must know the other
        ((SMALL, NUMBER), False, {SMALL: (3, 4), NUMBER: (3, 4)}, 0.4),
        ((NUMBER, OTHER), True, {NUMBER: (3, 3), OTHER: (3, 3)}, 1 / 220**2),  # 3 of 12, twice; 2 of 8 twice are 784
        ((NUMBER, OTHER), False, {NUMBER: (3, 4), OTHER: (3, 4)}, 1 / 1820),
    ],
)
def test_a_patch_that_does_not_see_the_values_guesses_which_copies_are_right(
    values: tuple[ExpectedValue, ...], one_by_one: bool, shares: dict[ExpectedValue, tuple[int, int]], chance: float
) -> None:
    found = shares_of(values, USUAL, one_by_one=one_by_one, most_copies=1000)
    assert found == shares
    (name,) = values[0].names
    left = chance_left(found, {name, "not copied"}, USUAL, one_by_one=one_by_one)
    assert left == {name: pytest.approx(chance), "not copied": 1.0}


def test_of_many_values_those_that_were_compared_outside_are_chosen_last() -> None:
    outside = [ExpectedValue(ONE, number, str(number), 9, place=f"test.py:{number}:4") for number in range(60)]
    inside = [ExpectedValue(ONE, 60 + number, "5", 9, place=f"test.py:{60 + number}:4") for number in range(3)]
    other = ExpectedValue(TWO, 99, "1", 9, place="test.py:99:4")
    sure = {one.place for one in (*outside, other)}
    found = [drawn((*outside, *inside, other), 40, sure) for _ in range(20)]
    assert all(len(one) == 40 and {*inside, other} <= {*one} for one in found)
    assert len({one for draw in found for one in draw}) > 50
    for draw in (drawn((*outside, *inside, other), 2, sure) for _ in range(20)):
        assert len(draw) == 2 and other in draw and {*inside} & {*draw}


@pytest.mark.parametrize("decoys", [1, 3, 7, 12])
def test_chance_of_a_patch_that_chooses_the_number_nearest_to_a_wrong_answer(decoys: int) -> None:
    won = 0.0
    places = range(1, decoys) if decoys > 2 else range(decoys + 1)  # both neighbours are among three or more
    for below in places:  # of the decoys; the right number is 50, the wrong answer 49
        others = set(range(50 - below, 50 - below + decoys + 1)) - {49}
        nearest = {one for one in others if abs(one - 49) == min(abs(other - 49) for other in others)}
        won += (50 in nearest) / len(nearest)
    number = dataclasses.replace(NUMBER, text="-50")
    assert nearest_chance({number: (decoys, 2)}, {}, one_by_one=True) == pytest.approx(won / len(places))


def test_of_different_numbers_each_has_to_be_chosen() -> None:
    shares = {NUMBER: (3, 1), SAME: (3, 1), SMALL: (7, 1)}
    assert nearest_chance(shares, {}, one_by_one=True) == pytest.approx(0.75 * 7 / 12)
    assert nearest_chance(shares, {}, one_by_one=False) == 0.75
    assert nearest_chance({TRUTH: (1, 7)}, {}, one_by_one=True) == 0.5


def test_the_word_that_looks_most_like_its_own_is_found_for_certain() -> None:
    word = dataclasses.replace(OTHER, text="'zqxwvbn'", read=1.0)
    assert nearest_chance({word: (60, 3)}, {}, one_by_one=True) == 1.0
    assert nearest_chance({word: (60, 3), NUMBER: (3, 1)}, {}, one_by_one=True) == 0.75
    assert nearest_chance({word: (60, 3)}, {"a": 12.0, "b": 20.0}, one_by_one=True) == 2.0**-12, "nobody reads that"


@pytest.mark.parametrize("count", [3, 7, 12])
def test_both_neighbours_of_a_number_are_among_its_decoys(count: int) -> None:
    other = replaceable(50, ())
    assert other is not None
    drawn = [set(other.draw(count, random.Random(seed))) for seed in range(40)]
    assert all({49, 51} <= one and len(one) == count and 50 not in one for one in drawn)
    assert len({min(map(int, one)) for one in drawn}) == count - 1, "anywhere between others"


def test_a_reader_chooses_among_different_values() -> None:
    def decoys(*values: ExpectedValue) -> list[int]:
        found = shares_of(values, READER, one_by_one=True, most_copies=6000)
        assert max(chance_left(found, (), READER, one_by_one=True).values()) <= 1 / 1000
        return [count for count, _ in found.values()]

    assert decoys(NUMBER)[0] >= 999
    assert 31 <= min(decoys(NUMBER, OTHER)) <= max(decoys(NUMBER, OTHER)) < 60
    assert min(decoys(NUMBER, SAME)) >= 999, "values that are written alike are guessed together"
    rare = dataclasses.replace(OTHER, decoys=9)
    found = shares_of([rare], READER, one_by_one=True, most_copies=6000)
    assert (found[rare][0], chance_left(found, (), READER, one_by_one=True)) == (9, {"a": 0.1}), "all that there are"
    natural = shares_of([SMALL], READER, one_by_one=True, most_copies=6000)
    assert (natural[SMALL][0], chance_left(natural, (), READER, one_by_one=True)) == (3, {"a": 0.5}), "no more helps"
    few = shares_of([NUMBER], READER, one_by_one=True, most_copies=100)
    assert chance_left(few, (), READER, one_by_one=True)["a"] > 1 / 1000


def test_a_reader_may_need_only_one_value_if_the_base_commit_cannot_load_the_tests() -> None:
    values = [dataclasses.replace(NUMBER, number=number, text=f"{number}.2345", read=0.8) for number in range(40)]
    for one_by_one, chance in ((True, 0.8**40), (False, 0.8)):
        found = shares_of(values, READER, one_by_one=one_by_one, most_copies=6000)
        left = chance_left(found, (), READER, one_by_one=one_by_one)
        assert left == {"a": pytest.approx(chance)}


@pytest.mark.parametrize("twins", range(3, 16))
def test_a_patch_with_one_value_for_all_copies_seldom_passes_all_runs_beside_twins(twins: int) -> None:
    runs = runs_beside_twins(twins, 1 / 1000)
    passes = 1 / (twins + 1)
    tries = [(0, 0, 1.0)]  # runs passed one after the other, runs failed, and the chance of that
    resolved = 0.0
    for passed, failed, chance in tries:  # grows during the iteration
        if passed == runs:
            resolved += chance
        elif failed < 2:
            tries += [(passed + 1, failed, chance * passes), (0, failed + 1, chance * (1 - passes))]
    assert resolved <= 1 / 1000
    assert runs <= 6


@pytest.mark.parametrize(
    ("wrong", "found"),
    [
        ((), set()),
        (("number 1",), set()),
        (("number 1", "number 2"), {NUMBER}),
        (("number 1", "number 2", "other 1"), {NUMBER}),
        (("number 1", "number 2", "other 1", "other 2"), set()),  # no copy passed: the run was stopped
    ],
)
def test_what_the_gold_patch_fails_is_forgotten_unless_its_run_was_stopped(
    wrong: tuple[str, ...], found: set[ExpectedValue]
) -> None:
    copies = [
        Copy(f"{name} {number}", one, True) for name, one in (("number", NUMBER), ("other", OTHER)) for number in (1, 2)
    ]
    copies += [Copy("decoy", NUMBER, False)]
    passed = {copy: copy.right and copy.name not in wrong for copy in copies}
    assert unreliable(Lineup({}, tuple(copies)), passed) == found


def test_what_nothing_can_prove_is_unproven_only_where_a_patch_has_means_of_forgery(
    task: Task, tmp_path: Path, public_directory: Path
) -> None:
    inherited = (
        "from calc.add import add\n\n\nclass Checks:\n    def test_add(self):\n        self.assertEqual(add(1, 2), 3)\n"
    )
    hidden = (
        "import unittest\n\nfrom tests.checks import Checks\n\n\nclass NewTest(Checks, unittest.TestCase):\n    pass\n"
    )
    odd = dataclasses.replace(
        task,
        instance_id="calc-inherited",
        files={**task.files, "tests/checks.py": inherited},
        test_patch=new_file("tests/test_new.py", hidden),
        fail_to_pass=("tests.test_new.NewTest.test_add",),
    )
    store = LayerStore(public_directory / "examination")
    usual = grade(odd, GOLD, store=store, backend="namespace", scrutiny=USUAL)
    assert (usual.resolved, usual.proof, usual.forgery_chance) == (True, "none", 1.0)
    strict = grade(odd, GOLD, store=store, backend="namespace", scrutiny=READER)
    assert (strict.resolved, strict.valid, strict.failure_reason) == (False, True, "unproven")


def test_code_that_a_decoy_makes_run_for_ever_is_ended_long_before_the_time_limit_of_the_tests(
    task: Task, public_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden = (
        "import time\nimport unittest\n\nfrom calc.add import add\n\n\nclass Patient(int):\n"
        "    def __eq__(self, other):\n        while int(self) == 3 != other:\n            time.sleep(0.1)\n"
        "        return int(self) == other\n\n\nclass NewTest(unittest.TestCase):\n"
        "    def test_add(self):\n        self.assertEqual(Patient(add(1, 2)), 3)\n"
    )
    waiting = dataclasses.replace(
        task,
        instance_id="calc-waiting",
        test_patch=new_file("tests/test_new.py", hidden),
        fail_to_pass=("tests.test_new.NewTest.test_add",),
    )
    monkeypatch.setattr(task_tests, "_AT_LEAST_S", 4.0)
    store = LayerStore(public_directory / "waiting")
    verdict = grade(waiting, GOLD, store=store, backend="namespace", scrutiny=USUAL)
    assert (verdict.resolved, verdict.proof) == (True, "controls")
    assert verdict.control_duration_s < waiting.test_timeout_s / 4


def test_the_largest_chance_of_forgery_can_be_set(task: Task, public_directory: Path) -> None:
    store = LayerStore(public_directory / "limited")
    suspect = GOLD.replace("@@ -1,5 +1,5 @@", "@@ -1,5 +1,6 @@").replace(
        "+    return a + b\n", "+    known = getattr(a, '__pos__')()\n+    return known + b\n"
    )

    def verdict(patch: str, most: float | None) -> tuple[bool, bool, str]:
        found = grade(task, patch, store=store, backend="namespace", max_forgery_chance=most)
        return found.resolved, found.valid, found.failure_reason

    usual = grade(task, suspect, store=store, backend="namespace")
    assert usual.resolved
    assert usual.forgery_chance is not None
    assert 0.01 < usual.forgery_chance < 0.9, "one of few numbers, which may be guessed"
    assert verdict(suspect, usual.forgery_chance * 1.1) == (True, True, "")
    assert verdict(suspect, usual.forgery_chance * 0.9) == (False, True, "unproven")
    assert verdict(suspect, 1e-6) == (False, True, "unproven")
    assert verdict(GOLD, 1e-6) == (True, True, ""), "without means of forgery"
    assert verdict("", 1e-6) == (False, True, "")


@pytest.mark.parametrize(
    ("most", "others", "message"),
    [
        (0.0, {}, "more than 0 and less than 1, got 0"),
        (1.0, {}, "more than 0 and less than 1, got 1"),
        (float("nan"), {}, "got nan"),
        (0.5, {"policy": "official"}, "no effect with the policy official"),
        (0.5, {"scrutiny": USUAL}, "no effect with scrutiny"),
    ],
)
def test_a_chance_that_is_none_or_has_no_effect_is_an_error(
    task: Task, most: float, others: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        grade(task, GOLD, backend="namespace", max_forgery_chance=most, **others)


def test_an_environment_grades_with_its_own_limit(task: Task) -> None:
    suspect = GOLD.replace("@@ -1,5 +1,5 @@", "@@ -1,5 +1,6 @@").replace(
        "+    return a + b\n", "+    known = getattr(a, '__pos__')()\n+    return known + b\n"
    )
    reasons = []
    for most in (None, 1e-6):
        env = SWEBenchEnv(tasks=[task], sandbox="namespace", max_forgery_chance=most)
        env.reset(seed=0)
        env.step(f"<execute>git apply - <<'END'\n{suspect}END\n</execute>")
        *_, info = env.step("<execute>submit</execute>")
        env.close()
        reasons.append((info["resolved"], info["failure_reason"]))
    assert reasons == [(True, ""), (False, "unproven")]
    with pytest.raises(ConfigurationError, match=r"max_forgery_chance: expected more than 0 and less than 1, got 1\.5"):
        SWEBenchEnv(tasks=[task], max_forgery_chance=1.5)
