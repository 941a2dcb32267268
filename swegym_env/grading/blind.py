"""Blind runs: tests whose expected values are outside of the sandbox, and what such a run proves.

`Language.make_blind` rewrites the tests so that they send the values that they compare. A blind run puts the rewritten
tests into a fresh sandbox in place of the task's own, which never enter it: neither files nor the test patch. After the
run, this process compares what was sent with the expected values. A test fails if one of its comparisons does not hold
or was not sent. Inside the sandbox, a test continues after a comparison as if it held.

Whether the rewritten tests behave like the original ones is measured once per task and stored (`calibrate`): with the
gold patch all of them must pass and every comparison must hold; other comparisons are not rewritten. With the empty
patch the tests of FAIL_TO_PASS must fail. A comparison counts only if the empty patch does not send the expected value;
`grading.bits` computes its bits.

If negative controls leave a patch unproven, the tests run blind once more, and conditions of computed values are
rewritten too (`computed`). Their expected value is what the gold patch sends, in the canonical form of known types, if
it is the same in two runs. A repair may send something else there; then nothing is proved, and nothing is rejected.

Otherwise such conditions, and errors that are not builtin, stay in the tests, which send what they compare in addition
(`Pair.is_beside`). If the patch sends the same as the gold patch, controls could show nothing more; if not, controls
examine the test. This is not a proof by bits: the test contains what it expects.

A verdict has the proof "blind" if the counted comparisons have at least 20 bits, and each test of FAIL_TO_PASS has one
that the empty patch fails, or one of at least 8 bits that it does not reach, and nothing that is compared inside
decides. With fewer bits it has this proof if each of these tests is settled (`BlindTests.settled`) and the patch has no
means of forgery. A comparison counts in a run if it holds, if each of its tests reached it as often as with the gold
patch, and if a searched text is not much longer, and has no more answers, than with the gold patch. A test with a
comparison that does not count is not covered.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import json
import math
import os
import re
import secrets
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swegym_env.grading.answers import SEARCHES, answers, more_answers
from swegym_env.grading.bits import GIVEN_BITS, Given, Knowledge, Ledger, leaves, pieces
from swegym_env.grading.comparisons import (
    Foreign,
    Record,
    as_base,
    as_lists,
    canonical,
    error_class,
    holds,
    opened,
    plain_value,
    read_records,
)
from swegym_env.grading.findings import place_to_read, write_finding
from swegym_env.grading.tables import Tables, count_names, is_name
from swegym_env.grading.task_tests import Run, TaskTests
from swegym_env.grading.verdict import FORGED, UNPROVEN, Verdict, names_by_outcome
from swegym_env.languages import Blinded, Expectation, Merged, language_of
from swegym_env.long_work import begins
from swegym_env.repo.patches import parse_patch
from swegym_env.sandbox.layers import LayerStore
from swegym_env.tasks.task import Task

__all__ = ["ERROR_BITS", "PROOF_BITS", "BlindTests", "Pair", "calibrate", "known_blind_tests"]

PROOF_BITS = 20.0
_UNREACHED_BITS = 8.0
_ROUNDS = 5
_OF_GOLD = ("gold", "raised")  # what is expected is known by the gold patch alone
ERROR_BITS = 1.0  # of which error is expected: some are far more common than others, and one may be two at once
_STRICT_SEARCHES = ("in", "search")  # what is searched is sent whole
# Comparisons that hold for one value of a known type only, or for numbers near it.
_OF_ONE_VALUE = frozenset({"eq", "is", "of", "rows", "count", "approx", "almost", "close", "raised"})
_MOST_LONGER, _MOST_CHARS = 4, 400
_GUESSES = 2  # answers more than the gold patch sends
_HALF_A_GUESS = 0.5  # one answer more
_FILE_BYTES, _REPOSITORY_BYTES = 1 << 20, 256 << 20
_PASSED = ("PASSED", "XFAIL")


@dataclass(frozen=True)
class Pair:
    """A comparison and one of its expected values, as the gold patch and the empty patch showed them.

    Attributes:
        names: the tests that reach it with the gold patch.
        kind: kind of the comparison.
        bits: bits of the expected value; 0 if the empty patch sends it, or if another pair has counted them.
        shows: whether it shows the repair: the empty patch sends another value, or it sends none and the expected value
            has at least 8 bits.
        forms: `canonical` of what the gold patch sends, if it is not a builtin value; see `holds`.
        counts: test → how often it reaches the comparison with the gold patch, for tests with a known name.
        length: length of the longest text that the gold patch sends.
        own_bits: `bits` as if there were no other pair.
        pieces: pieces of a searched text, see `grading.bits`.
        decides: whether the empty patch sends another value, or none.
        is_strict: whether a control could show nothing more: only one value passes, or the search needs more than a
            guess; and the test does not give the patch what it expects.
        is_beside: whether the test itself checks it too; it then neither rejects nor proves a patch.
        is_loose: whether more than one value may pass, and the test asks for one of them.
        asks_objects: for a question: whether the gold patch sends an object that may decide its own answers.
        is_keyed: whether the sent value has a key under which a value is expected.
        most_alike: how many keys, this one included, have the same value with the gold patch.
        companions: for a search for a name: other names in the same tables, or that other tests search for.
        most_companions: how many of them the gold patch sends.
        expected_part: index of the expected side of a condition of two computed values: the gold patch leaves it as it
            is at the base commit, and repairs the other side; -1 if there is none.
        expected_forms: `canonical` of that side, with tuples as lists.
        expects_object: whether that side contains an object.
        answers: for a search: the largest numbers of answers that the gold patch sends, see `grading.answers`.
        comparing: classes that define how the objects compare that the gold patch sends.
    """

    names: tuple[str, ...]
    kind: str
    bits: float
    shows: bool
    forms: tuple[str, ...]
    counts: Mapping[str, int]
    length: int
    own_bits: float = 0.0
    pieces: int = 1
    decides: bool = False
    is_strict: bool = False
    is_beside: bool = False
    is_loose: bool = False
    asks_objects: bool = True
    is_keyed: bool = False
    most_alike: int = 0
    companions: tuple[str, ...] = ()
    most_companions: int = 0
    expected_part: int = -1
    expected_forms: tuple[str, ...] = ()
    expects_object: bool = False
    answers: tuple[int, ...] = ()
    comparing: tuple[str, ...] = ()

    @property
    def sure_bits(self) -> float:
        """`bits`, less what the longest text that counts may contain by accident, with each piece anywhere in it."""
        return self._sure(self.bits)

    @property
    def own_sure_bits(self) -> float:
        """The same for `own_bits`."""
        return self._sure(self.own_bits)

    def _sure(self, bits: float) -> float:
        return max(0.0, bits - self.met_by_chance(self.longest_text)) if self.kind in SEARCHES else bits

    @property
    def is_sure(self) -> bool:
        """Whether it decides a test, and no control could show more about it."""
        return self.is_strict and self.decides and not self.is_beside and self.own_sure_bits >= 1

    def changes_what_is_expected(self, sent: Iterable[_Sent]) -> bool:
        """Whether another value is sent for the expected side of a condition of two computed values."""
        parts = [_sides_of(one) for one in sent] if self.expected_part >= 0 else []
        values = [each[self.expected_part] for each in parts if len(each) > self.expected_part]
        return any(_contradicts(value, self.expected_forms, is_object=self.expects_object) for value in values)

    def asks_others(self, sent: Iterable[_Sent]) -> bool:
        """Whether a question asks an object that may decide its own answers, unlike with the gold patch."""
        is_question = self.kind == "asked" and not self.is_keyed
        return is_question and not self.asks_objects and any(one.record.foreign for one in sent)

    def has_one_key(self, sent: Iterable[_Sent]) -> bool:
        """Whether the expected value is under no more keys than with the gold patch, if it is under a key."""
        if not self.is_keyed or {canonical(one.record.value) for one in sent} <= {*self.forms}:
            return True
        return all(0 < _alike(one) <= self.most_alike for one in sent)

    @property
    def longest_text(self) -> int:
        """Characters of the longest text in which a search counts; a repair may return more than the gold patch."""
        return _MOST_LONGER * self.length + _MOST_CHARS

    def more_answers(self, sent: Iterable[_Sent]) -> int:
        """How many more answers than with the gold patch are in what is searched."""
        if self.kind not in SEARCHES:
            return 0
        found = (answers(self.kind, one.expected, one.record.value) for one in sent)
        return max((more_answers(counts, self.answers) for counts in found), default=0)

    def guessed(self, sent: Iterable[_Sent]) -> float:
        """The chance that the sent answers include the right one, if there are more than with the gold patch.

        For names of a table, or names that several tests search for, it is the share of them that was sent. An object
        that a question asks, with another content than the gold patch's, may check what it is asked for instead of
        computing it.
        """
        sent = tuple(sent)
        if self.kind == "asked" and self.asks_objects and not self.is_keyed:
            return 0.0 if {canonical(one.record.value) for one in sent} <= {*self.forms} else 1.0
        found = max((count_names(self.companions, one.record.value) for one in sent), default=0)
        more = found - self.most_companions
        share = (1 + more) / (1 + len(self.companions)) if more > 0 else 0.0
        return max(share, _HALF_A_GUESS if self.more_answers(sent) else 0.0)

    def met_by_chance(self, length: int) -> float:
        """The bits that a search loses in a text of this length."""
        return self.pieces * math.log2(max(1, length))


@dataclass(frozen=True)
class BlindTests:
    """How the tests of a task run blind; without pairs they cannot.

    Attributes:
        files: path → text of the test files as the task has them.
        left: places in the tests that are not rewritten.
        pairs: name → each comparison with one of its expected values, which must be sent.
        open: tests of FAIL_TO_PASS with assertions that are not, or only partly, compared outside.
        computed: whether conditions of computed values are rewritten too.
        inside: tests of FAIL_TO_PASS in which something that is compared inside decides, or may decide.
    """

    files: Mapping[str, str]
    left: frozenset[str]
    pairs: Mapping[str, Pair]
    open: frozenset[str] = frozenset()
    computed: bool = False
    inside: frozenset[str] = frozenset()

    @property
    def sure(self) -> frozenset[str]:
        """Places of the comparisons that decide a test and of which no control could show more."""
        return frozenset(name.partition("|")[0] for name, pair in self.pairs.items() if pair.is_sure)

    def rewritten(self, task: Task) -> Blinded:
        """The tests of the task with new random keys and placeholders."""
        blinded = _blinded(task, self.files, self.left, computed=self.computed)
        assert blinded is not None, "tests with pairs can be rewritten"
        return blinded

    def run(
        self, tests: TaskTests, patch: str, blinded: Blinded | None = None, copies: Iterable[str] = ()
    ) -> tuple[Run, Verdict]:
        """Run the tests blind on a patch. Raises as `TaskTests.run`.

        Args:
            blinded: the rewritten tests; None: they are rewritten with new keys.
            copies: names of tests whose records do not count.
        """
        blinded = blinded or self.rewritten(tests.task)
        tests = _alone(tests) if self.computed else tests
        run = tests.run(patch, blinded=blinded)
        verdict = tests.verdict(run)
        result = run.result
        if result is not None:
            seen = _observed(blinded, run.sent, frozenset(copies))
            seen = self._as_of_gold(seen) if self.computed else seen
            verdict, covered = self._judged(tests.task, verdict, seen)
            foreign = any(one.record.foreign and not one.is_beside for sent in seen.values() for one in sent)
            computed = {sent[0].expectation.place: _contents_of(sent) for sent in seen.values() if _is_of_gold(sent)}
            covered = frozenset() if foreign and not self.computed else covered  # what no test is left to compare by
            bits = _sure_bits(self.pairs, seen)
            run = dataclasses.replace(run, covered=covered, bits=bits, has_foreign=foreign, computed=computed)
            run = dataclasses.replace(run, compares_itself=self._compares_itself(seen), guessed=self._guessed(seen))
            if result.timed_out and not verdict.resolved:
                verdict = tests.explained(verdict, result)
        return dataclasses.replace(run, files=self.files), verdict

    def failing_after_others(self, tests: TaskTests, gold: str) -> frozenset[str]:
        """The tests of `inside` in which the base commit fails something only if the other tests run before it.

        Copies, and runs without expected values, have no other tests beside them: they do not show that this is
        repaired. The runs are blind, two or three once for a task and process: what is compared outside counts as if it
        held. Tests that the gold patch does not pass without the others show nothing.

        Raises:
            InfrastructureError: as `TaskTests.run`.
        """
        if not self.pairs or not self.inside:
            return frozenset()
        task = tests.task
        key = f"{self.computed} {task.digest}"
        with _lock:
            known = _after_others.get(key)
        if known is None:
            blinded, known = self.rewritten(task), frozenset[str]()
            only = language_of(task).only_tests({**self.files, **blinded.files}, task.fail_to_pass)
            if only is not None:
                fewer, apart = _alone(tests), dataclasses.replace(blinded, files=only)
                among, alone = tests.run("", blinded=blinded), fewer.run("", blinded=apart)
                passed = [
                    {name for name, status in tests.verdict(run).tests.items() if status in _PASSED}
                    for run in (among, alone)
                ]
                known = self.inside & ((passed[1] - passed[0]) | self._differing(task, blinded, among, alone))
                if known and not fewer.verdict(fewer.run(gold, blinded=apart)).resolved:
                    known = frozenset()
            with _lock:
                _after_others[key] = known
        return known

    def _differing(self, task: Task, blinded: Blinded, run: Run, other: Run) -> set[str]:
        """The tests of FAIL_TO_PASS that reach a comparison in one of two runs only, or that differ in what they check.

        Records of other tests do not count: these may call the same helpers.
        """
        known = (*task.fail_to_pass, *task.pass_to_pass)
        found: list[dict[tuple[str, str], bool]] = []
        for each in (run, other):
            held: dict[tuple[str, str], bool] = {}
            for name, sent in _observed(blinded, each.sent).items():
                if (pair := self.pairs.get(name)) is None:
                    continue
                for one in sent:
                    holds_here = not pair.is_beside or one.holds(frozenset(pair.forms))
                    for test in _names_of(one.record, known, one.texts).intersection(task.fail_to_pass):
                        held[name, test] = held.get((name, test), True) and holds_here
            found.append(held)
        first, second = found
        return {key[1] for key in first.keys() | second.keys() if first.get(key) != second.get(key)}

    def _guessed(self, seen: Mapping[str, list[_Sent]]) -> float:
        """`Run.guessed`; several searches of one test may each be guessed."""
        return max((pair.guessed(seen.get(name, ())) for name, pair in self.pairs.items()), default=0.0)

    def beside(self, blinded: Blinded, merged: Merged) -> BlindTests:
        """These tests for a run with copies: a value that a copy contains is no proof."""
        expected = {each.place: each.value for each in blinded.expectations.values() if each.constant}
        held = {each.place: each.value for each in blinded.placeholders.values()}
        pairs = dict(self.pairs)
        for name, pair in self.pairs.items():
            place, _, placed = name.partition("|")
            if any(_stands_in(leaf, merged) for leaf in leaves(held.get(placed) if placed else expected.get(place))):
                pairs[name] = dataclasses.replace(pair, bits=0.0, own_bits=0.0, shows=False)
        return dataclasses.replace(self, pairs=pairs)

    def _judged(self, task: Task, verdict: Verdict, seen: Mapping[str, list[_Sent]]) -> tuple[Verdict, frozenset[str]]:
        """The verdict, and the tests whose comparisons all count and of which the base commit fails at least one."""
        known = (*task.fail_to_pass, *task.pass_to_pass)
        failed: set[str] = set()
        unsent = 0
        others: list[_Sent] = []
        bits = 0.0
        shown: set[str] = set()
        deciding: set[str] = set()
        uncovered: set[str] = set()
        for name, pair in self.pairs.items():
            sent = seen.get(name, [])
            if pair.is_keyed:  # where many have it, controls decide
                uncovered |= set(pair.names) if not pair.has_one_key(sent) else set()
                continue
            if pair.is_beside:
                is_known = pair.decides or not any(one.record.foreign for one in sent)
                if not is_known or not self._sent_as_by_gold(pair, sent):
                    uncovered |= set(pair.names)
                elif pair.decides:
                    deciding |= set(pair.names)
                continue
            wrong = [one for one in sent if not one.holds(frozenset(pair.forms))]
            same = pair.kind not in _OF_GOLD or {canonical(one.record.value) for one in sent} == {*pair.forms}
            if not same and not self.computed:  # an error that is derived from the expected one, and from others
                wrong = [one for one in sent if not (one.is_expected_error or one.is_checked)]
                uncovered |= set(pair.names)
            elif not same:
                wrong = sent
            unsent += not sent
            others += wrong
            if wrong or not sent:
                named = frozenset().union(*(_names_of(one.record, pair.names, one.texts) for one in wrong))
                failed |= named or set(pair.names)
                continue
            longest = max(_length(plain_value(one.record.value)) for one in sent)
            counts = _counts(sent, pair.names)
            short = {test for test, count in pair.counts.items() if counts.get(test, 0) < count}
            if pair.kind in SEARCHES and (pair.more_answers(sent) or longest > pair.longest_text):
                short |= set(pair.names)  # such a text holds anything
            uncovered |= short
            if short:
                continue
            bits += max(0.0, pair.bits - (pair.met_by_chance(longest) if pair.kind in SEARCHES else 0.0))
            shown |= set(pair.names) if pair.shows else set()
            deciding |= set(pair.names) if pair.decides else set()
            if self.computed and not pair.decides and any(one.record.foreign for one in sent):
                uncovered |= set(pair.names)  # how such objects compare may be what was to be repaired
        for name in seen.keys() - self.pairs.keys():
            wrong = [one for one in seen[name] if not one.holds()]
            others += wrong
            failed |= {test for one in wrong for test in one.expectation.names}
        statuses = {**verdict.tests, **{name: "FAILED" for name in failed if verdict.tests.get(name) in _PASSED}}
        outcomes = [
            names_by_outcome(names, statuses, task.eval_type, "strict")
            for names in (task.fail_to_pass, task.pass_to_pass)
        ]
        log = verdict.log + (_failed_outside(failed) if others else "")
        reason = self._reason(seen, unsent, others) if verdict.resolved else verdict.failure_reason
        resolved = verdict.resolved and not reason and not failed.intersection(known)
        proved = tuple(name for name in task.fail_to_pass if resolved and name in shown - uncovered - self.inside)
        proof_bits = round(bits, 1) if resolved else 0.0
        is_proof = resolved and proof_bits >= PROOF_BITS and len(proved) == len(task.fail_to_pass) > 0
        verdict = dataclasses.replace(
            verdict,
            resolved=resolved,
            failure_reason=reason,
            tests=statuses,
            fail_to_pass=(len(outcomes[0][0]), len(task.fail_to_pass)),
            pass_to_pass=(len(outcomes[1][0]), len(task.pass_to_pass)),
            proof="blind" if is_proof else "none",
            proof_bits=proof_bits,
            proof_tests=proved,
            forgery_chance=max(map(self._guess, task.fail_to_pass)) if is_proof else None,
            log=log,
        )
        return verdict, frozenset(deciding - uncovered)

    def _reason(self, seen: Mapping[str, list[_Sent]], unsent: int, wrong: list[_Sent]) -> str:
        """Why a patch is not resolved although the tests pass and no sent value is wrong; else empty."""
        if unsent:
            return f"{FORGED}the tests passed without {unsent} of the comparisons that they make"
        if wrong:  # the tests may know that such an object equals the expected value
            return UNPROVEN if all(_holds_foreign(one.record.value) for one in wrong) else ""
        guesses = any(pair.more_answers(seen.get(name, ())) >= _GUESSES for name, pair in self.pairs.items())
        changes = {
            test
            for name, pair in self.pairs.items()
            if pair.is_beside
            and (pair.changes_what_is_expected(seen.get(name, ())) or pair.asks_others(seen.get(name, ())))
            for test in pair.names
            if not self._decides_outside(test)
        }
        # A patch that sends several answers sends a right one without knowing which it is; an object may answer every
        # question with yes; and two computed values may be equal and both wrong.
        return UNPROVEN if guesses or changes else ""

    def _decides_outside(self, name: str) -> bool:
        """Whether another comparison of the test `name` shows the repair, outside of the sandbox and for one value."""
        return any(pair.is_sure for pair in self.pairs.values() if name in pair.names)

    @staticmethod
    def _sent_as_by_gold(pair: Pair, sent: list[_Sent]) -> bool:
        """Whether each test sends what it sends with the gold patch, as often."""
        counts = _counts(sent, pair.names)
        often = all(counts.get(test, 0) >= count for test, count in pair.counts.items())
        return often and {canonical(one.record.value) for one in sent} == {*pair.forms}

    def _as_of_gold(self, seen: Mapping[str, list[_Sent]]) -> dict[str, list[_Sent]]:
        """The records, with objects of a subclass of the gold patch's class as objects of that class.

        In a run without expected values, an object that compares differently cannot know what to equal, so its content
        counts.
        """
        forms = {name: pair.forms for name, pair in self.pairs.items()}
        return {name: [one.as_base(forms.get(name, ())) for one in sent] for name, sent in seen.items()}

    def _compares_itself(self, seen: Mapping[str, list[_Sent]]) -> bool:
        """Whether a condition compares another value than with the gold patch, by methods of the patch's classes.

        Such an object may pass without being right: it learns what it is compared with, and can check that.
        """
        known = {name for pair in self.pairs.values() for name in pair.comparing}
        others = [
            sent
            for name, pair in self.pairs.items()
            if pair.is_beside and not (pair.is_keyed or self._sent_as_by_gold(pair, sent := seen.get(name, [])))
        ]
        return any(one.record.comparing - known for sent in others for one in sent)

    def proves(self, verdict: Verdict, names: Iterable[str]) -> bool:
        """Whether a blind run proves each of these tests: nothing else in them decides."""
        return verdict.proof == "blind" and all(
            name in verdict.proof_tests
            and sum(pair.sure_bits for pair in self.pairs.values() if name in pair.names) >= PROOF_BITS / 2
            for name in names
        )

    def settled(self, run: Run, verdict: Verdict) -> dict[str, float]:
        """Tests of FAIL_TO_PASS in which a blind run leaves nothing to examine → the chance to guess their values.

        For each comparison outside, only one value of a known type passes, or 20 bits are searched for that the test
        does not contain: no assertion can be weakened. What is compared inside, the patch computes as the gold patch
        does, before the code under test gets what the test expects. A control could show nothing more.
        """
        found: dict[str, float] = {}
        if not verdict.resolved:
            return found
        for name in run.covered:
            pairs = [pair for pair in self.pairs.values() if name in pair.names]
            if name not in self.open and all(pair.is_strict for pair in pairs):
                found[name] = self._guess(name)
        return found

    def _guess(self, name: str) -> float:
        """The chance to guess the values of the test `name`; another test may have the same."""
        pairs = [pair for pair in self.pairs.values() if name in pair.names]
        bits = max(sum(pair.sure_bits for pair in pairs), *(pair.own_sure_bits for pair in pairs))
        return 2.0 ** -min(bits, 1000.0)

    def least_guess(self, name: str) -> float:
        """The chance to guess what decides the test `name`, if only comparisons outside decide; else 0.

        A patch that sends these values passes all copies too.
        """
        if not self.hides(name):
            return 0.0
        pairs = [one for one in self.pairs.values() if name in one.names and one.decides and not one.is_beside]
        bits = max(sum(pair.bits for pair in pairs), *(pair.own_bits for pair in pairs))
        return 2.0 ** -min(bits, 1000.0)

    def differing(self, run: Run, other: Run) -> frozenset[str]:
        """The tests in which conditions of computed values sent something in `run` and not in `other`."""
        places = {
            place
            for place, contents in run.computed.items()
            if place in other.computed and not contents - {""} <= other.computed[place]
        }
        pairs = [pair for name, pair in self.pairs.items() if name.partition("|")[0] in places]
        return frozenset(test for pair in pairs for test in pair.names)

    def may_settle(self, name: str) -> bool:
        """Whether the test `name` is settled by a patch that sends what the gold patch sends."""
        pairs = [pair for pair in self.pairs.values() if name in pair.names]
        return name not in self.open and any(pair.decides for pair in pairs) and all(pair.is_strict for pair in pairs)

    def chance(self, name: str) -> float:
        """The chance to send everything that the test `name` compares without the repair, if the verdict is resolved.

        1 if the base commit sends the same, or if something that is not compared outside could be forged.
        """
        if name in self.inside:
            return 1.0
        bits = sum(pair.sure_bits for pair in self.pairs.values() if name in pair.names)
        return 2.0 ** -min(bits, 1000.0)

    def asks(self, name: str) -> bool:
        """Whether the test `name` asks for one of several values that may pass: a forgery could give all of them."""
        return any(pair.is_loose for pair in self.pairs.values() if name in pair.names)

    def hides(self, name: str) -> bool:
        """Whether the test `name` decides only by expected values that it does not contain."""
        return name not in self.inside and any(
            name in pair.names and pair.decides and not pair.is_beside for pair in self.pairs.values()
        )


@dataclass(frozen=True)
class _Sent:
    """A record, and the pair that it belongs to."""

    record: Record
    expectation: Expectation
    expected: Any
    texts: Mapping[str, str]
    is_expected_error: bool = False

    @property
    def is_checked(self) -> bool:
        """Whether the test itself checks it too."""
        return "checked" in self.expectation.options

    @property
    def is_beside(self) -> bool:
        """Whether it belongs to a condition of the test that is not rewritten."""
        return "beside" in self.expectation.options

    def as_base(self, forms: Collection[str]) -> _Sent:
        """See `comparisons.as_base`."""
        return dataclasses.replace(
            self, record=dataclasses.replace(self.record, value=as_base(self.record.value, forms))
        )

    def holds(self, forms: frozenset[str] = frozenset()) -> bool:
        return holds(self.expectation, self.expected, self.record.value, forms)


def _blinded(task: Task, files: Mapping[str, str], left: frozenset[str], *, computed: bool) -> Blinded | None:
    return language_of(task).make_blind(files, task.fail_to_pass, left, secrets.randbits(64), computed=computed)


def _alone(tests: TaskTests) -> TaskTests:
    """Restricted to FAIL_TO_PASS: in a run without expected values no other tests run."""
    return dataclasses.replace(tests, task=dataclasses.replace(tests.task, pass_to_pass=()))


def _failed_outside(names: Iterable[str]) -> str:
    listed = "".join(f"  {name}\n" for name in sorted(names))
    return f"\nThese tests only send what they compare, and pass above. Compared outside, they failed:\n{listed}"


def _pair_name(blinded: Blinded, key: str, placeholder: str | None) -> str:
    value = f"|{blinded.placeholders[placeholder].place}" if placeholder else ""
    return blinded.expectations[key].place + value


def _sure_bits(pairs: Mapping[str, Pair], seen: Mapping[str, list[_Sent]]) -> dict[str, float]:
    """`Run.bits`, if the tests passed."""
    found: dict[str, float] = {}
    many = {test for name, pair in pairs.items() if not pair.has_one_key(seen.get(name, ())) for test in pair.names}
    for name, pair in pairs.items():
        sent = seen.get(name, ())
        # An object counts only if its content is compared with the gold patch's: its own equality proves nothing.
        is_of_gold = pair.kind == "same" and pair.decides and not pair.is_beside and pair.own_sure_bits >= 1
        is_sure = is_of_gold or (pair.is_sure and not any(one.record.foreign for one in sent))
        counts = _counts(sent, set(pair.names) - many) if is_sure else {}
        if counts and all(counts.get(test, 0) >= count for test, count in pair.counts.items() if test not in many):
            found |= {test: max(found.get(test, 0.0), pair.own_sure_bits) for test in counts}
    return found


def _stands_in(value: Any, merged: Merged) -> bool:
    """Whether a copy contains an expected value, or a text that contains it."""
    is_text = isinstance(value, str | bytes)
    return repr(value) in merged.readable or (is_text and any(repr(value)[1:-1] in text for text in merged.readable))


def _observed(blinded: Blinded, content: bytes, copies: frozenset[str] = frozenset()) -> dict[str, list[_Sent]]:
    """Name of each pair → its records; records with unknown keys and placeholders are skipped.

    Records of `copies` are skipped too: copies call helpers that send.
    """
    texts = {name: mark.text for name, mark in blinded.placeholders.items() if mark.text is not None}
    found: dict[str, list[_Sent]] = {}
    for record in read_records(content):
        expectation = blinded.expectations.get(record.key)
        if expectation is None or expectation.constant != (record.placeholder is None):
            continue
        if copies and copies.intersection((record.function, *re.findall(r"\w+", record.test))):
            continue
        if record.placeholder is not None and record.placeholder not in blinded.placeholders:
            continue
        expected = blinded.placeholders[record.placeholder].value if record.placeholder else expectation.value
        is_error = isinstance(record.value, list) and f"builtins.{expected}" in record.value
        if expectation.kind == "raised":
            record = dataclasses.replace(record, value=error_class(record.value, expected))
        name = _pair_name(blinded, record.key, record.placeholder)
        found.setdefault(name, []).append(_Sent(record, expectation, expected, texts, is_error))
    return found


def _compared_inside(blinded: Blinded, content: bytes) -> frozenset[str]:
    """The tests in which a comparison met no placeholder."""
    keys = {record.key for record in read_records(content) if record.placeholder == ""}
    return frozenset().union(*(blinded.expectations[key].names for key in keys & blinded.expectations.keys()))


def _names_of(record: Record, names: Iterable[str], texts: Mapping[str, str]) -> frozenset[str]:
    """The tests among `names` that a record belongs to, by the test that it names; none if no name fits."""
    test = record.test.rpartition(" (")[0]
    for placeholder, text in texts.items():
        test = test.replace(placeholder, text)
    exact = {name for name in names if test and name == (test.split() or [""])[0]}
    if exact or not record.function:
        return frozenset(exact)
    here = f"{record.owner}.{record.function}"
    return frozenset(
        name
        for name in names
        if (there := _dotted(name)) and (f".{here}".endswith(f".{there}") or f".{there}".endswith(f".{here}"))
    )


def _dotted(name: str) -> str:
    """The name of a test as module.Class.function, with the parts that it has; empty if it has none."""
    plain = name.partition("[")[0]
    if match := re.fullmatch(r"(\w+) \(([\w.]+)\)", plain):
        return match[2] if match[2].endswith(f".{match[1]}") else f"{match[2]}.{match[1]}"
    path, _, inner = plain.partition("::")
    dotted = f"{path.removesuffix('.py').replace('/', '.')}.{inner.replace('::', '.')}" if inner else plain
    return dotted if re.fullmatch(r"[\w.-]+", dotted) else ""


def _counts(sent: Iterable[_Sent], names: Iterable[str]) -> dict[str, int]:
    """Test → how many of these records belong to it."""
    known = tuple(names)
    counts: dict[str, int] = {}
    for one in sent:
        for name in _names_of(one.record, known, one.texts):
            counts[name] = counts.get(name, 0) + 1
    return counts


def _length(value: Any) -> int:
    """Characters of the texts in a value, each other item as one."""
    if isinstance(value, str | bytes):
        return len(value)
    if isinstance(value, dict):
        return sum(_length(key) + _length(item) for key, item in value.items())
    return sum(map(_length, value)) if isinstance(value, list | tuple | set | frozenset) else 1


_locks: dict[str, threading.Lock] = {}
_lock = threading.Lock()
_after_others: dict[str, frozenset[str]] = {}  # task → `BlindTests.failing_after_others`


def known_blind_tests(task: Task, store: LayerStore | None, *, computed: bool = False) -> BlindTests | None:
    """The stored result of `calibrate` for a task; None if there is none."""
    place = place_to_read(task, store, "computed" if computed else "blind")
    try:
        return _read(place, place.stat().st_mtime_ns)
    except (OSError, ValueError, KeyError, TypeError):
        return None


@functools.lru_cache(maxsize=256)
def _read(place: Path, _changed: int) -> BlindTests:
    data = json.loads(place.read_text(encoding="utf-8"))
    pairs: dict[str, Pair] = {}
    for name, held in data["pairs"].items():
        fields: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in held.items()
        }
        pairs[name] = Pair(**fields)
    unread, inside = frozenset(data["open"]), frozenset(data["inside"])
    return BlindTests(data["files"], frozenset(data["left"]), pairs, unread, data["computed"], inside)


def calibrate(tests: TaskTests, gold: str, store: LayerStore | None, *, computed: bool = False) -> BlindTests:
    """Find out which comparisons of a task can be blind, with runs of the gold patch and the empty patch.

    The result is stored for later verdicts, see `findings`.

    Raises:
        InfrastructureError: the machine failed, or the task's own tests cannot run.
    """
    kind = "computed" if computed else "blind"
    with _lock:
        lock = _locks.setdefault(f"{(store or LayerStore()).root} {kind} {tests.task.digest}", threading.Lock())
    with lock:
        known = known_blind_tests(tests.task, store, computed=computed)
        if known is not None:
            return known
        begins()
        found = _calibrated(_alone(tests) if computed else tests, gold, computed=computed)
        pairs = {name: dataclasses.asdict(pair) for name, pair in found.pairs.items()}
        files = dict(found.files) if pairs else {}
        left, unread, inside = sorted(found.left), sorted(found.open), sorted(found.inside)
        data = {"files": files, "left": left, "pairs": pairs, "open": unread, "computed": computed, "inside": inside}
        write_finding(tests.task, store, kind, json.dumps(data))
        return found


def _calibrated(tests: TaskTests, gold: str, *, computed: bool) -> BlindTests:
    task = tests.task
    none = BlindTests({}, frozenset(), {}, computed=computed)
    files = tests.read_files("", language_of(task).control_files(task))
    if any("\udc80" <= letter <= "\udcff" for text in files.values() for letter in text):
        return none  # not UTF-8: would not survive being kept
    left: frozenset[str] = frozenset()
    for turn in range(2):
        found = _behaving(tests, gold, files, left, computed=computed)
        if found is None:
            return none
        blinded, seen, left, compared = found
        forms = {name: _forms(sent) for name, sent in seen.items()}
        # All tests run: what the base commit fails may be what other tests leave behind.
        empty = tests.run("", blinded=blinded)
        before, base = tests.verdict(empty), _observed(blinded, empty.sent)
        same = {name for name, sent in base.items() if name in seen and all(one.holds(forms[name]) for one in sent)}
        # The side of an equality that the base commit computes as well is the expected one.
        other = {seen[name][0].expectation.place for name in same if "sides" in seen[name][0].expectation.options}
        if turn or not other:
            break
        left |= {f"{place}~" for place in other}
    undone: set[str] = set()
    for test in task.fail_to_pass:
        places = {e.place for e in blinded.expectations.values() if test in e.names}
        shows = any(name not in same for name in seen if name.partition("|")[0] in places)
        if before.tests.get(test) in _PASSED and not shows:  # it fails where it holds its expected values
            left |= places
            undone.add(test)
    kept = {name: sent for name, sent in seen.items() if not {*name.split("|")} & left}
    if not kept:
        return none
    pairs = _pairs(tests, blinded, files, kept, base, forms, computed=computed)
    last = _blinded(task, files, left, computed=computed)
    unread = last.open | compared if last is not None else frozenset()
    # Comparisons outside of the sandbox count as if they held. A test that the base commit passes then is decided by
    # these comparisons alone.
    checked = {test for pair in pairs.values() if pair.is_beside and pair.decides for test in pair.names}
    checked |= {test for name, pair in pairs.items() if kept[name][0].is_checked for test in pair.names}
    met = {test for test, status in before.tests.items() if status in _PASSED} - undone
    # These tests still contain an expected value that decides: either the test itself compares with it, although it
    # continues as if the comparison held, or code of the patch may read it there.
    held = {
        test
        for name, pair in pairs.items()
        if (pair.is_beside or computed) and pair.decides and "held" in kept[name][0].expectation.options
        for test in pair.names
    }
    inside = ((unread | checked) - met | held).intersection(task.fail_to_pass)
    return BlindTests(files, left, pairs, unread, computed, inside)


def _behaving(
    tests: TaskTests, gold: str, files: Mapping[str, str], left: frozenset[str], *, computed: bool
) -> tuple[Blinded, dict[str, list[_Sent]], frozenset[str], frozenset[str]] | None:
    """The tests, rewritten so that the gold patch passes them; None if that is impossible.

    Returns:
        The tests, what the gold patch sends, the places that are not rewritten, and the tests that compare inside too.
    """
    task = tests.task
    for _ in range(_ROUNDS):
        blinded = _blinded(task, files, left, computed=computed)
        if blinded is None:
            return None
        run = tests.run(gold, blinded=blinded)
        verdict = tests.verdict(run)
        seen = _observed(blinded, run.sent)
        more = _breaking(seen, computed=computed)
        if not verdict.resolved and not more:  # a comparison that goes on as if it held breaks its test
            passed = {name for name, status in verdict.tests.items() if status in _PASSED}
            failed = {name for name in (*task.fail_to_pass, *task.pass_to_pass) if name not in passed}
            more |= {
                e.place
                for e in blinded.expectations.values()
                if e.names & failed or any(re.search(rf"\b{re.escape(e.function)}\b", name) for name in failed)
            }
        elif computed and not more:  # what gold computes has to be the same once more
            forms = {name: _forms(sent) for name, sent in seen.items()}
            again = _observed(blinded, tests.run(gold, blinded=blinded).sent)
            more = {
                name
                for name, sent in seen.items()
                if sent[0].expectation.kind in _OF_GOLD and _forms(again.get(name, [])) != forms[name]
            }
        if not more:
            break
        left |= more
    else:
        return None
    if not verdict.resolved:
        return None
    # Comparisons that the gold patch does not reach say nothing.
    reached = {name.partition("|")[0] for name in seen}
    left |= {e.place for e in blinded.expectations.values() if e.place not in reached}
    return blinded, seen, left, _compared_inside(blinded, run.sent)


def _breaking(seen: Mapping[str, list[_Sent]], *, computed: bool) -> set[str]:
    """The places of comparisons that do not hold with the gold patch."""
    forms = {name: _forms(sent) for name, sent in seen.items()}
    wrong = {name for name, sent in seen.items() if not all(one.holds(forms[name]) for one in sent)}
    wrong |= {
        name
        for name, sent in seen.items()
        if sent[0].expectation.kind == "raised" and not computed
        if not all(one.is_expected_error or one.is_checked for one in sent)
    }
    return {name.partition("|")[2] or name for name in wrong}


def _is_of_gold(sent: list[_Sent]) -> bool:
    return sent[0].expectation.kind in _OF_GOLD


def _contents_of(sent: list[_Sent]) -> frozenset[str]:
    """`canonical` of all values of a condition of computed values."""
    options = sent[0].expectation.options
    is_one = sent[0].expectation.kind == "raised" or "sides" in options or "one" in options
    return frozenset(canonical(part) for one in sent for part in ([one.record.value] if is_one else _parts_of(one)))


def _forms(sent: list[_Sent]) -> frozenset[str]:
    """`canonical` of the gold patch's values that are not builtin, or that a question asks."""
    if sent and sent[0].expectation.kind == "asked":
        return frozenset(filter(None, (canonical(one.record.value) for one in sent)))
    return frozenset(
        form
        for one in sent
        if one.expectation.kind in ("same", *_OF_GOLD)
        or (one.expectation.kind == "eq" and _holds_foreign(one.record.value))
        if not one.holds() and (form := canonical(one.record.value))
    )


def _expected(sent: list[_Sent]) -> Any:
    """The expected value of a comparison, or the gold patch's values."""
    if sent[0].expectation.kind in _OF_GOLD:
        return [opened(one.record.value) for one in sent]
    return sent[0].expected


def _is_strict(pair: Pair, sent: list[_Sent], base: list[_Sent]) -> bool:
    """Whether a control could show nothing more about this comparison if it holds; see `BlindTests.settled`.

    Args:
        sent: what the gold patch sends.
        base: what the base commit sends.
    """
    options = sent[0].expectation.options
    if pair.is_keyed:
        return True  # says whether another comparison is strict
    if pair.is_beside:
        if "given" in options or not _tell_more_than_truth(sent):
            return False
        return "either" not in options or (bool(base) and _later_parts(base) == _later_parts(sent))
    if "loose" in options:
        return False
    return pair.kind in _OF_ONE_VALUE or (pair.kind in _STRICT_SEARCHES and pair.own_sure_bits >= PROOF_BITS)


_ExpectedSide = tuple[int, tuple[str, ...], bool]  # `Pair.expected_part`, `expected_forms` and `expects_object`


def _expected_sides(
    seen: Mapping[str, list[_Sent]], base: Mapping[str, list[_Sent]]
) -> Iterator[tuple[str, _ExpectedSide]]:
    """For each condition of two computed values: the side that the base commit computes as the gold patch does.

    Conditions of which it computes both sides so, or none, are left out.

    Args:
        seen: what the gold patch sends: both sides in one record ("equal"), or each in its own ("side").
        base: what the base commit sends.
    """
    for name, sent in seen.items():
        options = sent[0].expectation.options
        if "equal" in options:
            sides = [(name, 0), (name, 1)]
        elif "side" in options:  # an object may have other parts after a repair
            sides = [(f"{name[:-1]}{number}", 0) for number in range(2)] if all(map(_is_plain, sent)) else []
        else:
            sides = []
        if not sides or any(one not in seen or one not in base for one, _ in sides):
            continue
        forms = [
            [{canonical(part) for one in of[key] for part in _sides_of(one)[number:][:1]} for of in (seen, base)]
            for key, number in sides
        ]
        same = [side for side, (gold, before) in zip(sides, forms, strict=True) if gold == before and "" not in gold]
        if len(same) == 1 and same[0][0] == name:
            number = same[0][1]
            expected = [_sides_of(one)[number] for one in sent]
            own_forms = {canonical(as_lists(one)) for one in expected}
            yield name, (number, tuple(sorted(own_forms)), any(map(_holds_foreign, expected)))


def _sides_of(sent: _Sent) -> list[Any]:
    """The sides of a condition in a record: one, or all."""
    return [sent.record.value] if "side" in sent.expectation.options else _parts_of(sent)


def _contradicts(value: Any, forms: Collection[str], *, is_object: bool) -> bool:
    """Whether a value certainly differs from these canonical forms.

    An object may have another class and other attributes: a repair may write its classes differently. It may also
    return a tuple instead of a list: the two sides of the condition must be equal anyway.

    Args:
        forms: canonical forms, with tuples as lists.
        is_object: whether they are or contain objects.
    """
    if canonical(as_lists(value)) in forms:
        return False
    if not _holds_foreign(value):
        return True
    if not is_object or not isinstance(value, Foreign) or not value.content:
        return False
    own = _public_attributes(value.content)
    others = [
        _public_attributes(form.partition(":")[2])
        for form in forms
        if form.partition(":")[0] in (value.name, *value.bases)
    ]
    return bool(others) and all(any(own.get(name, held) != held for name, held in other.items()) for other in others)


def _public_attributes(content: str) -> dict[str, Any]:
    """The public attributes of an object, from its content; another kind of content counts as one attribute."""
    try:
        held = json.loads(content)
    except ValueError:
        return {}
    if isinstance(held, list) and held and isinstance(held[0], list):
        return {str(name): value for name, value in held if not str(name).startswith("_")}
    return {"": held}


def _alike(sent: _Sent) -> int:
    """How many keys of a builtin container have the value of the expected key; 0 if this is not known."""
    held, key = plain_value(sent.record.value), sent.expected
    if isinstance(held, dict):
        values = list(held.values())
        own = [value for other, value in held.items() if type(other) is type(key) and other == key]
    elif isinstance(held, list | tuple | str) and isinstance(key, int) and -len(held) <= key < len(held):
        values, own = list(held), [held[key]]
    else:
        return 0
    if not own or not (form := canonical(own[0])):
        return 0
    return sum(canonical(value) == form for value in values)


def _tell_more_than_truth(sent: list[_Sent]) -> bool:
    """Whether no part of a condition is only a truth value."""
    return all(part is not None and not isinstance(part, bool) for one in sent for part in _parts_of(one))


def _later_parts(sent: list[_Sent]) -> set[str]:
    """The parts of a condition after the first one, which is computed before them."""
    return {canonical(_parts_of(one)[1:]) for one in sent}


def _parts_of(sent: _Sent) -> list[Any]:
    return sent.record.value if isinstance(sent.record.value, list) else [None]


def _holds_foreign(value: Any) -> bool:
    return any(isinstance(leaf, Foreign) for leaf in leaves(value))


def _pairs(
    tests: TaskTests,
    blinded: Blinded,
    files: Mapping[str, str],
    seen: Mapping[str, list[_Sent]],
    base: Mapping[str, list[_Sent]],
    forms: Mapping[str, frozenset[str]],
    *,
    computed: bool,
) -> dict[str, Pair]:
    task = tests.task
    inside = [*{**files, **blinded.files}.values()]
    inside += [str(leaf) for e in blinded.expectations.values() for leaf in leaves(list(e.readable))]
    patched = [part.text for part in parse_patch(task.test_patch) if not part.paths & blinded.files.keys()]
    values = [_expected(sent) for sent in seen.values()]
    wanted = _searched_names(seen)
    tables = Tables({text for text, _ in wanted.values()})
    contents = tables.reading(_contents(tests.workspace.base))
    knowledge = Knowledge(values, [task.problem_statement, *inside, *patched], contents)
    for _ in contents if wanted else ():  # what a reader does not need to read may still hold a table
        pass
    companions = _companions(wanted, tables)
    sent_by_base = [leaf for sent in base.values() for one in sent for leaf in leaves(one.record.value)]
    searching = knowledge.with_sent(sent_by_base)
    readable = [value for sent in seen.values() for value in sent[0].expectation.readable]
    written = language_of(task).written_values(blinded.files)
    given = {function: {_leaves_of(value) for value in each} for function, each in written.items()}
    given_bits: dict[str, float] = {}
    rules = {function: Given(leaf for value in each for leaf in leaves(value)) for function, each in written.items()}
    unspent = {function: copy.copy(rule) for function, rule in rules.items()}
    ledgers: dict[str, Ledger] = {}
    known = (*task.fail_to_pass, *task.pass_to_pass)
    pairs: dict[str, Pair] = {}
    expected_sides = dict(_expected_sides(seen, base))
    for name, sent in sorted(seen.items()):
        kind, expected, options = sent[0].expectation.kind, _expected(sent), sent[0].expectation.options
        # What one test holds counts for this test alone, or once for all tests together.
        owner = sent[0].expectation.function if computed else ""
        ledger = ledgers.setdefault(owner, Ledger(knowledge, sent_by_base, readable, searching))
        named = frozenset().union(*(_names_of(one.record, known, one.texts) for one in sent))
        counts = _counts(sent, named)
        alone = bool(named) or len(sent[0].expectation.names) == 1
        named = named or sent[0].expectation.names
        differs = any(not one.holds(forms[name]) for one in base.get(name, ()))
        bits, own, shows = 0.0, 0.0, False
        may_show = kind != "asked" and bool(named & {*task.fail_to_pass})
        is_beside, is_checked = sent[0].is_beside, sent[0].is_checked
        is_error = kind == "raised" or "error" in options
        if (differs or name not in base) and may_show:
            function = sent[0].expectation.function
            # A repair of one answer has to change that answer, so only wrong answers of the base commit count.
            changed = [
                leaf
                for one in base.get(name, ())
                if not one.holds(forms[name])
                for leaf in leaves(opened(one.record.value))
            ]
            if not is_checked:  # the test contains the value if it checks it itself, so the patch can read it
                bits = ledger.add(kind, expected, options, changed, unspent.get(function))
            own_ledger = Ledger(knowledge, sent_by_base, readable, searching)
            own = own_ledger.add(kind, expected, options, changed, copy.copy(rules.get(function)))
            bits, own = (min(bits, ERROR_BITS), min(own, ERROR_BITS)) if is_error else (bits, own)
            if _is_given(kind, expected, given.get(function, set())):
                own = min(own, GIVEN_BITS)
                counted = given_bits.get(function, 0.0)
                bits = min(bits, GIVEN_BITS - counted)
                given_bits[function] = counted + bits
            shows = alone and own > 0 and (differs or own >= _UNREACHED_BITS) and not is_checked
        # Objects may differ in how they compare only, where the base commit has not sent another content.
        if (is_beside or computed) and not differs and any(one.record.foreign for one in sent):
            own = 0.0
        length = max(_length(plain_value(one.record.value)) for one in sent)
        pairs[name] = Pair(
            tuple(sorted(named)),
            kind,
            round(bits, 2),
            shows,
            tuple(sorted(forms[name])),
            counts,
            length,
            round(own, 2),
            pieces(kind, expected),
            alone and own > 0,
            is_strict=False,
            is_beside=is_beside,
            is_loose="loose" in options,
            asks_objects=any(one.record.foreign for one in sent),
            is_keyed="keyed" in options,
            most_alike=max(map(_alike, sent)) if "keyed" in options else 0,
            companions=companions.get(name, ()),
            most_companions=max(count_names(companions.get(name, ()), one.record.value) for one in sent),
            answers=_most_answers(kind, sent),
        )
        strict = _is_strict(pairs[name], sent, base.get(name, []))
        comparing = tuple(sorted({each for one in sent for each in one.record.comparing}))
        part, expected_forms, is_object = expected_sides.get(name, (-1, (), False))
        pairs[name] = dataclasses.replace(
            pairs[name],
            is_strict=strict,
            comparing=comparing,
            expected_part=part,
            expected_forms=expected_forms,
            expects_object=is_object,
        )
    return pairs


def _leaves_of(value: Any) -> tuple[str, ...]:
    return tuple(f"{type(leaf).__name__} {leaf!r}" for leaf in leaves(opened(value)))


def _is_given(kind: str, expected: Any, given: Collection[tuple[str, ...]]) -> bool:
    """Whether the test also writes out the expected value in a place where the code under test gets it.

    Args:
        expected: see `_expected`.
        given: `_leaves_of` everything that is written there.
    """
    if kind not in _OF_GOLD:
        return _leaves_of(expected) in given
    sides = [side for value in expected for side in (value if isinstance(value, list) else [])]
    return all(_leaves_of(value) in given for value in expected) or bool(
        sides and all(_leaves_of(side) in given for side in sides)
    )


def _searched_names(seen: Mapping[str, list[_Sent]]) -> dict[str, tuple[str, str]]:
    """Name of each search for a name of a table → that name, and the function that searches."""
    return {
        name: (str(sent[0].expected), sent[0].expectation.function)
        for name, sent in seen.items()
        if sent[0].expectation.kind == "in" and is_name(sent[0].expected)
    }


def _companions(wanted: Mapping[str, tuple[str, str]], tables: Tables) -> dict[str, tuple[str, ...]]:
    """Name of each search for a name → other names that a patch could return with it; see `grading.tables`."""
    beside = tables.companions()
    found: dict[str, tuple[str, ...]] = {}
    for name, (text, function) in wanted.items():
        here = {other for other, where in wanted.values() if where == function}
        elsewhere = {other for other, where in wanted.values() if where != function}
        # Names that one test searches for together are no guesses of each other.
        found[name] = tuple(sorted((beside[text] | elsewhere) - here))
    return found


def _is_plain(sent: _Sent) -> bool:
    """Whether a value has no parts to which a repair may add something."""
    return not sent.record.foreign and not any(isinstance(part, dict) for part in _items(sent.record.value))


def _items(value: Any) -> Iterator[Any]:
    yield value
    for item in value if isinstance(value, list | tuple) else ():
        yield from _items(item)


def _most_answers(kind: str, sent: list[_Sent]) -> tuple[int, ...]:
    """The largest numbers of answers in what the gold patch sends; empty if they cannot be counted consistently."""
    found = [answers(kind, one.expected, one.record.value) for one in sent] if kind in SEARCHES else []
    if not found or len({len(counts) for counts in found}) > 1:
        return ()
    return tuple(map(max, zip(*found, strict=True)))


def _contents(base: Path) -> Iterator[bytes]:
    """The contents of the files of a repository, without its history."""
    total = 0
    for directory, folders, names in os.walk(base):
        folders[:] = sorted(folder for folder in folders if folder != ".git")
        for name in sorted(names):
            path = Path(directory, name)
            try:
                if path.is_symlink() or not path.is_file() or path.stat().st_size > _FILE_BYTES:
                    continue
                content = path.read_bytes()
            except OSError:
                continue
            total += len(content)
            if total > _REPOSITORY_BYTES:
                return
            yield content
