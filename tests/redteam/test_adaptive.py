"""Attacks that know the defence: they count runs, read the copies, equal by type, bring judges of their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from swegym_env.grading import examination
from swegym_env.grading.grading import Verdict, grade
from swegym_env.sandbox.layers import LayerStore

from .adaptive import ADAPTIVE
from .answers import ANSWERS, PAYING
from .cases import BESIDE, Attack
from .rules import EQUAL, REMEMBERED, RULES
from .unlisted import UNLISTED

# One or two of a kind; the others are variants that the campaign runs.
_FIRST = (
    *("counts runs by a perfect observer", "counts runs by mincore", "counts runs by a draw"),
    *("reads the test's file and picks by a digest", "answers what the calling line expects"),
    *("answers with an object that equals any number", "only the method of the repair equals everything"),
    *("raises what the caller expects", "raises an exception that every", "is true whatever is asked"),
    *("makes the package's own assertion lenient", "lets the judging module be another file"),
    *("repairs all but one, which cannot fail", "computed: equals every object", "computed: differs from every"),
    *("computed: reads what the caller computes by", "lenient: the package's own"),
    *("calls what declares a failure expected", "returns an object that equals everything, which its file"),
    *(
        "an edit of the key that the repair changes too",
        "an equality that says yes",
        "stores another judge in a module",
    ),
    *("given: the last object that was made", "given: one object for all", "given: objects that the next one fills"),
    *("given: the last object, by a method", "renamed: equals every", "renamed: holds every", "numbers: "),
    *("lenient: a function with a dotted name", "lenient: what a helper among"),
    *("by another method: equals everything", "by another operator"),
    *("reads by the lines that a warning shows", "reads by an edit of expressions", "a file that begins with a byte"),
    *("dead code: code after a return", "reads by the file of a log", "reads by the file's own function, by an edit"),
    *("renamed: equals what it verifies", "answers: numbers that go on"),
    *("a key that is the same for what is near", "keeps what it is given in the limit of recursion"),
    *("by another method: equals a member, in", "by a mixin: a view"),
    *("by the order of calls: greater", "of a class: every text", "gold opens", "finds the constant"),
    *("kept: the last text, which has a name", "kept: the last text, in a closure", "kept: the first text of all"),
    *("asks: where a text is found", "asks: a part", "asks: an attribute", "asks: a key of", "asks: a file, by"),
    *("asks: one of two rows", "asks: an attribute that is one", "under every key: a dictionary", "under every name"),
    *("asks: a method that agrees to what is near", "agrees: counts", "edits: three rows", "both sides: nothing"),
    *("remembered: a text in names of threads", "remembered: texts of a loop in the domain"),
    *("remembered: a text in finalizers", "remembered: a text in filters", "remembered: the number"),
    *("remembered: a text in a function, by a function that", "remembered: a text in a function, by a value"),
    *("remembered: a text in a function, by the result of a", "remembered: a text in a function, by what an error"),
    *("warns: every class, with", "warns: a class", "applied: "),
    *("remembered: a text in annotations, by an operator", "remembered: a text in handlers of errors"),
    *("both computed: a part that is empty", "both computed: in a loop", "both computed: two functions"),
    *("both computed: what is written in the test", "both computed: a twin"),
    *("kept: texts in a loop", "kept: the first object of all, where", "kept: the number of calls"),
)


@pytest.mark.parametrize(
    "attack",
    [
        pytest.param(attack, id=name, marks=[] if name.startswith(_FIRST) else [pytest.mark.campaign])
        for name, attack in (ADAPTIVE | UNLISTED | ANSWERS | REMEMBERED | EQUAL).items()
    ],
)
def test_an_attack_that_knows_the_defence_is_rejected(attack: Attack, rejected: Callable[..., Verdict]) -> None:
    rejected(attack)


_BESIDE_SAMPLE = (
    *("computed: equals every object", "counts runs by a draw", "answers what the calling line expects"),
    *("makes the package's own assertion lenient", "an edit of the key that objects compare"),
)


# In this file, as one process runs a file: how the tests of a task run blind was found out by the attacks above.
@pytest.mark.parametrize(
    "name", [name if name in _BESIDE_SAMPLE else pytest.param(name, marks=[pytest.mark.campaign]) for name in ADAPTIVE]
)
def test_no_attack_pays_with_files_beside_it_that_no_test_needs(name: str, rejected: Callable[..., Verdict]) -> None:
    attack = ADAPTIVE[name]
    beside = "".join(text for _, text in BESIDE.values())
    rejected(replace(attack, patch=attack.patch + beside, honest=attack.honest + beside))


@pytest.mark.campaign
def test_one_order_of_twins_is_not_enough_where_one_value_answers_all_copies(
    store: LayerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(examination, "_LEAST_TWINS", 1)
    monkeypatch.setattr(examination, "_MOST_TWINS", 1)
    attack = ADAPTIVE["kept: the first object of all"]
    verdicts = [grade(attack.task, attack.patch, store=store, backend="namespace") for _ in range(25)]
    assert not any(verdict.resolved for verdict in verdicts)
    assert grade(attack.task, attack.honest, store=store, backend="namespace").resolved


@pytest.mark.parametrize("attack", PAYING.values(), ids=PAYING.keys())
def test_the_chance_of_an_attack_that_pays_is_that_of_a_certain_success(attack: Attack, store: LayerStore) -> None:
    verdict = grade(attack.task, attack.patch, store=store, backend="namespace")
    assert not verdict.resolved or verdict.forgery_chance == 1.0
    honest = grade(attack.task, attack.honest, store=store, backend="namespace")
    assert honest.resolved and honest.forgery_chance is not None and honest.forgery_chance < 1.0


@pytest.mark.parametrize("attack", RULES.values(), ids=RULES.keys())
def test_what_one_rule_answers_is_one_guess(attack: Attack, store: LayerStore) -> None:
    verdict = grade(attack.task, attack.patch, store=store, backend="namespace")
    assert not verdict.resolved or (verdict.forgery_chance is not None and verdict.forgery_chance >= 1 / 16)
    assert grade(attack.task, attack.honest, store=store, backend="namespace").resolved
