"""Merged runs: the blind tests and the copies of a lineup run in the same sandbox.

If a patch passes a blind run that leaves tests unsettled, a lineup follows (`examination`). It costs about as much as
the tests, most of it for the start of a sandbox and of the tests. A merged run is both at once. It decides if the
result is clear: the tests passed, all right copies passed and all decoys failed; or one of the task's tests failed.
Otherwise the tests and the lineup run separately, as if there had been no merged run.

A patch learns from the copies only what a lineup shows anyway: the tests beside them do not contain what is examined
(`Language.make_merged`), and there is no order of runs to count. Screening may miss a patch that reads. So nothing is
merged if a copy would contain a value of more than two bits that a blind run hides. If a run without expected values
has to find readers, it follows the merged run, and the merged run counts only if the patch passes it. A patch with
means of forgery, or means to read, that the gold patch does not have is never graded by a merged run.

Whether the tests of a task can be merged is found out once, after a patch has passed (for slow tests, after the third),
and stored beside the record of its blind tests: the gold patch must pass the merged tests with the same proof as the
separate ones, and hardly more slowly, so that patches that fail do not cost more.
"""

from __future__ import annotations

import dataclasses
import json
import re
import secrets
import threading
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from swegym_env.grading.blind import BlindTests
from swegym_env.grading.examination import MOST_COPIES, Copied, Examination, Probe, Shares, drawn, shares_of
from swegym_env.grading.findings import place_to_read, write_finding
from swegym_env.grading.task_tests import Run, TaskTests
from swegym_env.grading.verdict import NO_TEST, Verdict, names_by_outcome
from swegym_env.languages import CHANCE, Blinded, Copy, ExpectedValue, Merged, Scrutiny, language_of
from swegym_env.long_work import begins
from swegym_env.repo.patches import added_lines
from swegym_env.sandbox.layers import LayerStore
from swegym_env.tasks.task import Task

__all__ = ["MergedTests", "known_merged_tests", "learn_merged_tests", "may_merge", "run_merged"]

_NOTHING = "/tmp/.nothing-is-sent"
_MOST_LONGER, _MOST_LONGER_S = 0.25, 0.3  # of the time of the blind tests, and seconds
_TIMED = 3
_FAR_LONGER = 3.0  # times the blind tests: no other work on the machine explains so much
# Tests that take longer are merged from the third patch on that passes: finding out takes up to six runs of them, and
# each verdict after it takes one run less.
_SLOW_S, _FEW_PASSED = 10.0, 2
_GUESSED_BITS = 2.0  # a value of so many is guessed about as well as it is found among its decoys
_MOST_BITS_OF_A_TEST = 3.0  # of all hidden values of a test: they may follow from one another


@dataclass(frozen=True)
class MergedTests:
    """How the tests of a task run in a merged run.

    Attributes:
        files: path → text of the test files as the task has them.
        names: of FAIL_TO_PASS that the gold patch passes.
        probe: of the task.
        numbers: indices of the expectations that are examined; none if the tests cannot be merged.
        computed: tests that a run without expected values settled, for the patch with which this was found out.
        sent: place of each condition of computed values → what the gold patch sends there, see `Run.computed`.
    """

    files: Mapping[str, str]
    names: tuple[str, ...]
    probe: Probe
    numbers: frozenset[int] = frozenset()
    computed: frozenset[str] = frozenset()
    sent: Mapping[str, frozenset[str]] = field(default_factory=dict)

    def rewritten(self, task: Task, blind: BlindTests) -> Blinded:
        """The blind tests of one run; if nothing can be blind, tests that send nothing."""
        return blind.rewritten(task) if blind.pairs else Blinded({}, {}, _NOTHING, {}, {})

    def merge(self, task: Task, blinded: Blinded, sure: frozenset[str]) -> tuple[Merged | None, Shares]:
        """The merged tests of one run, with a new random selection of copies, and what they examine.

        Args:
            sure: see `BlindTests.sure`.
        """
        deciding = tuple(one for one in self.probe.deciding if one.number in self.numbers)
        deciding = drawn(deciding, MOST_COPIES // 4, sure)
        shares = shares_of(deciding, Scrutiny(CHANCE), one_by_one=self.probe.one_by_one, most_copies=MOST_COPIES)
        added, seed = added_lines(task.test_patch), secrets.randbits(64)
        make = language_of(task).make_merged
        return make(self.files, blinded, self.names, added, shares, seed, sure=sure), shares


def may_merge(tests: TaskTests, patch: str, blind: BlindTests, merged: MergedTests, scrutiny: Scrutiny) -> bool:
    """Whether to grade a patch by a merged run: as far as screening knows, it can neither forge nor read.

    It must not keep state either, since more tests share a process here. The words of a patch need not show that it
    reads: if a run without expected values has to show it, that run is made in any case, and if it also settles what
    the copies examine, they are not needed.
    """
    task = tests.task
    if scrutiny.required or scrutiny.reads or not merged.numbers:
        return False
    if language_of(task).keeps_state(patch, tests.workspace.base, task.patch):
        return False
    if scrutiny.chance >= 1 or not blind.inside:
        return True
    return any(not one.names <= merged.computed for one in merged.probe.deciding if one.number in merged.numbers)


def run_merged(
    tests: TaskTests, patch: str, blind: BlindTests, merged: MergedTests
) -> tuple[Run, Verdict, Copied | None] | None:
    """Run the tests blind with copies beside them, if they can run so.

    Returns:
        As `BlindTests.run`, and the results of the copies if the tests passed. None if the result is not clear.
    Raises:
        InfrastructureError: as `TaskTests.run`.
    """
    task = tests.task
    if not merged.numbers:
        return None
    blinded = merged.rewritten(task, blind)
    beside, shares = merged.merge(task, blinded, blind.sure)
    if beside is None:
        return None
    blinded = dataclasses.replace(blinded, files=beside.files)
    copies = [copy.name for copy in beside.copies]
    shown = blind.beside(blinded, beside)
    # What a test checks itself too, it contains anyway.
    hidden = {name: pair.own_bits for name, pair in blind.pairs.items() if not pair.is_beside}
    lost: dict[str, float] = defaultdict(float)
    for name, bits in hidden.items():
        shown_bits = shown.pairs[name].own_bits
        if bits > max(_GUESSED_BITS, shown_bits):
            return None
        for test in blind.pairs[name].names:
            lost[test] += bits - shown_bits
    if max(lost.values(), default=0.0) > _MOST_BITS_OF_A_TEST:
        return None
    run, verdict = shown.run(tests, patch, blinded, copies)
    run = dataclasses.replace(run, files=merged.files)
    passed = language_of(task).copies_passed(beside, verdict.tests)
    if verdict.failure_reason not in ("", NO_TEST) or run.compares_itself:
        return None
    # The tests beside the copies do not check what these examine.
    sent = {place: run.computed.get(place) for place in beside.removed}
    if verdict.resolved and any(merged.sent.get(place, "") != contents for place, contents in sent.items()):
        return None
    rights: dict[ExpectedValue, set[bool]] = {}
    for copy in beside.copies:
        if copy.right and not copy.expectation.of_inputs:
            rights.setdefault(copy.expectation, set()).add(passed.get(copy, False))
    whole = _as_a_whole(task, verdict, beside, passed)
    if not whole.resolved:
        # Only some of a value's copies failed: they may have a reason of their own.
        is_clear = not verdict.resolved or {False} in rights.values()
        with_copies = frozenset[str]().union(*(copy.expectation.names for copy in beside.copies))
        known = (*task.fail_to_pass, *task.pass_to_pass)
        _, failed = names_by_outcome(known, whole.tests, task.eval_type, "strict")
        if with_copies and with_copies.isdisjoint(failed):  # the copies may have left something behind
            return None
        return (run, whole, None) if is_clear else None
    if any(passed.get(copy, False) != copy.right for copy in beside.copies):
        return None
    decided = {copy.expectation for copy in beside.copies if not copy.right}
    shares = {one: share for one, share in shares.items() if one in decided}
    chances = {name: 2.0**-bits for name, bits in run.bits.items() if name in run.covered}
    # What a run without expected values settled for another patch, it need not settle for this one.
    open_ = frozenset[str]().union(*(one.names for one in merged.probe.deciding if one.number not in merged.numbers))
    return run, whole, Copied(shares, (frozenset(chances) - open_).union(*(one.names for one in shares)), chances)


def _as_a_whole(task: Task, verdict: Verdict, merged: Merged, passed: Mapping[Copy, bool]) -> Verdict:
    """The verdict without the copies: a test has failed if one of its right copies failed."""
    known = {*task.fail_to_pass, *task.pass_to_pass}
    copies = re.compile("|".join(re.escape(copy.name) for copy in merged.copies))
    statuses = {name: status for name, status in verdict.tests.items() if not (merged.copies and copies.search(name))}
    failed: set[str] = set()
    for copy in merged.copies:
        if not copy.right or passed.get(copy, False):
            continue
        # Of a test with parameters, only those that failed.
        own = {name: status for name, status in verdict.tests.items() if copy.name in name and status != "PASSED"}
        tests = {name.replace(copy.name, copy.name.rpartition("_")[0]) for name in own}
        failed |= tests if tests and tests <= known else copy.expectation.names
    statuses |= {name: "FAILED" for name in failed if statuses.get(name) in ("PASSED", "XFAIL")}
    outcomes = [
        names_by_outcome(each, statuses, task.eval_type, "strict") for each in (task.fail_to_pass, task.pass_to_pass)
    ]
    resolved = verdict.resolved and not failed
    note = (
        f"\n{len(merged.copies)} copies of tests ran beside them, some with wrong expected values, which must fail.\n"
    )
    return dataclasses.replace(
        verdict,
        resolved=resolved,
        tests=statuses,
        fail_to_pass=(len(outcomes[0][0]), len(task.fail_to_pass)),
        pass_to_pass=(len(outcomes[1][0]), len(task.pass_to_pass)),
        proof=verdict.proof if resolved else "none",
        proof_bits=verdict.proof_bits if resolved else 0.0,
        proof_tests=verdict.proof_tests if resolved else (),
        forgery_chance=verdict.forgery_chance if resolved else None,
        log=verdict.log + (f"\n{note}\n" if merged.copies else ""),
    )


_locks: dict[str, threading.Lock] = {}
_passed: Counter[str] = Counter()  # store and task → patches that passed in this process, until it is made
_lock = threading.Lock()


def known_merged_tests(tests: TaskTests, gold: str, store: LayerStore | None) -> MergedTests | None:
    """The stored result of `learn_merged_tests` for a task on this machine; None if there is none.

    The task's probe is loaded with it.
    """
    place = place_to_read(tests.task, store, "merged")
    try:
        merged = _read(place, place.stat().st_mtime_ns)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if merged is not None:
        _examination(tests, gold, merged.files, merged.names, tests.timeout_s).remember(merged.probe)
    return merged


@lru_cache(maxsize=256)
def _read(place: Path, _changed: int) -> MergedTests | None:
    data = json.loads(place.read_text(encoding="utf-8"))
    deciding = tuple(ExpectedValue(frozenset(names), *more) for names, *more in data["deciding"])
    probe = Probe(deciding, data["one_by_one"], frozenset(data["examined"]), data["copy_s"], data["alone"])
    numbers, computed = (frozenset(data[name]) for name in ("numbers", "computed"))
    sent = {place: frozenset(contents) for place, contents in data["sent"].items()}
    return MergedTests(data["files"], tuple(data["names"]), probe, numbers, computed, sent)


def learn_merged_tests(
    tests: TaskTests,
    gold: str,
    blind: BlindTests,
    files: Mapping[str, str],
    names: tuple[str, ...],
    store: LayerStore | None,
    test_s: float,
    computed: frozenset[str],
    apart: tuple[Run, Verdict] | None = None,
) -> None:
    """Find out, with at most six runs of the gold patch, whether the tests of a task can be merged; store the result.

    It is called for each patch that passes. For slow tests the first two calls do nothing.

    Args:
        gold: what is graded of the gold patch.
        files: path → text of the test files as the task has them.
        names: of FAIL_TO_PASS that the gold patch passes.
        test_s: seconds that the tests took.
        computed: tests that a run without expected values settled.
        apart: a blind run of the gold patch, if one was just made.
    Raises:
        InfrastructureError: as `TaskTests.run`.
    """
    place = f"{(store or LayerStore()).root} {tests.task.digest}"
    with _lock:
        lock = _locks.setdefault(place, threading.Lock())
    with lock:
        if known_merged_tests(tests, gold, store) is not None:
            return
        _passed[place] += 1
        if test_s > _SLOW_S and _passed[place] <= _FEW_PASSED:
            return
        if any("\udc80" <= letter <= "\udcff" for text in files.values() for letter in text):
            return  # not UTF-8: would not survive being kept
        begins()
        merged = _learned(tests, gold, blind, files, names, test_s, computed, apart)
        probe = merged.probe
        data = {
            "files": dict(files),
            "names": names,
            "deciding": [[sorted(one.names), *dataclasses.astuple(one)[1:]] for one in probe.deciding],
            "one_by_one": probe.one_by_one,
            "examined": sorted(probe.names),
            "copy_s": probe.copy_s,
            "alone": probe.alone,
            "numbers": sorted(merged.numbers),
            "computed": sorted(merged.computed),
            "sent": {place: sorted(contents) for place, contents in merged.sent.items()},
        }
        write_finding(tests.task, store, "merged", json.dumps(data))


def _learned(
    tests: TaskTests,
    gold: str,
    blind: BlindTests,
    files: Mapping[str, str],
    names: tuple[str, ...],
    test_s: float,
    computed: frozenset[str],
    apart: tuple[Run, Verdict] | None,
) -> MergedTests:
    probe = _examination(tests, gold, files, names, test_s).probe()
    not_merged = MergedTests(files, names, probe, computed=computed)
    # Tests that a repair settles need no copies.
    settled = {name for name in names if blind.may_settle(name) and name not in blind.inside} | computed
    numbers = frozenset(one.number for one in probe.deciding if not one.names <= settled)
    if not numbers:
        return not_merged
    merged = dataclasses.replace(not_merged, numbers=numbers)
    examined = frozenset().union(*(one.names for one in probe.deciding if one.number in numbers))
    for _ in range(_TIMED):  # a busy machine is slow now and then
        run, verdict = apart or (blind.run(tests, gold) if blind.pairs else _plain(tests, gold))
        apart = None
        # What is not the same in every run, or of no known type, would say nothing.
        merged = dataclasses.replace(
            merged, sent={place: all_ for place, all_ in run.computed.items() if "" not in all_}
        )
        found = run_merged(tests, gold, blind, merged)
        if found is None or found[2] is None or not found[2].names >= examined:
            return not_merged
        if not found[0].covered >= run.covered & settled - computed:
            return not_merged
        known = (*tests.task.fail_to_pass, *tests.task.pass_to_pass)
        same = all(found[1].tests.get(name) == verdict.tests.get(name) for name in known)
        if not same or found[1].proof != verdict.proof:
            return not_merged
        took_s, alone_s = found[1].test_duration_s, verdict.test_duration_s
        if took_s <= alone_s * (1 + _MOST_LONGER) + _MOST_LONGER_S:
            return merged
        if took_s > _FAR_LONGER * (alone_s + _MOST_LONGER_S):
            return not_merged
    return not_merged


def _plain(tests: TaskTests, patch: str) -> tuple[Run, Verdict]:
    run = tests.run(patch)
    return run, tests.verdict(run)


def _examination(
    tests: TaskTests, gold: str, files: Mapping[str, str], names: tuple[str, ...], test_s: float
) -> Examination:
    return Examination(tests, language_of(tests.task), gold, gold, files, names, test_s)
