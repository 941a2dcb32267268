"""Negative controls: could a patch that passed the tests have passed without the repair?

The code under test shares a process with the tests and can make them pass in many ways. It cannot know which expected
values are right. So the tests run once more, in a fresh sandbox, as a lineup (`Language.make_lineup`): copies of the
tests of FAIL_TO_PASS, each with one expected value, right in some copies and a decoy in the others. A repair passes the
right copies and fails the decoys. A forgery has to guess for every copy. It may learn from the page cache or a clock
which run this is, but that does not help: doing nothing fails the right copies.

The lineup has only expected values that decide. A probe shows which these are, once for a task: the gold patch runs on
one right copy and one decoy of each value, and must pass the right copy and fail the decoy. The base commit runs on the
right copies of these values, and must fail them. See docs/verdict_rules.md for all rules and for what is not proved.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import re
import secrets
import threading
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from swegym_env.grading.task_tests import Run, TaskTests
from swegym_env.grading.verdict import FORGED, UNPROVEN, Verdict
from swegym_env.languages import CHANCE, Copy, ExpectedValue, Language, Lineup, Scrutiny, language_of
from swegym_env.repo.patches import added_lines

__all__ = [
    "MOST_COPIES",
    "Copied",
    "Examination",
    "Probe",
    "chance_left",
    "drawn",
    "examine",
    "examine_given",
    "nearest_chance",
    "rule_chance",
    "runs_beside_twins",
    "shares_of",
    "unreliable",
]

MOST_COPIES = 160
"""Copies of a lineup for a patch without means of forgery."""
_MOST_COPIES_REQUIRED = 6000
_STATED = 1 / 16  # a value that the problem statement has
_LINEUPS = 2  # a test may fail for a reason of its own, once
_LEAST_COPIES, _LEAST_COPIES_REQUIRED = 64, 2500  # however long the tests take: enough for one in 1,000
_ENDING = 0.7  # of the time that the tests may take
_COPIES_S = 5.0  # for copies, beside as many seconds as the tests take
_LONGER = 4.0  # times the tests, that a run with decoys and without copies may take
_SEPARATE_RUNS, _SEPARATE_RUNS_REQUIRED = 2, 14  # half of them with a wrong value
_MOST_PROBES = 4096
_LEAST_TWINS, _MOST_TWINS, _COPIES_WITH_TWINS = 3, 15, 12
_probes: dict[str, Probe] = {}
_lock = threading.Lock()

Shares = dict[ExpectedValue, tuple[int, int]]  # how many decoys, and how many copies with each of the values


@dataclass(frozen=True)
class Probe:
    """Results of the gold patch and the base commit in a lineup.

    Attributes:
        deciding: expectations that the gold patch meets and the base commit does not, and whose decoys the gold patch
            fails.
        one_by_one: whether the base commit could run the tests; then each expectation is known to decide by itself.
        names: names of all tests that must be examined.
        copy_s: seconds per copy, from the difference of the two runs; 0: not measurable, or the tests have no copies.
        alone: whether copies run without the tests of other files; not if the gold patch passes no right copy so.
    """

    deciding: tuple[ExpectedValue, ...]
    one_by_one: bool
    names: frozenset[str]
    copy_s: float = 0.0
    alone: bool = True


@dataclass(frozen=True)
class Copied:
    """Copies of a merged run in which the patch behaved like a repair.

    Attributes:
        shares: expectation → number of decoys, and number of copies with each candidate.
        names: names of the tests that need no further lineup.
        chances: test → chance to guess a value that it sends.
    """

    shares: Mapping[ExpectedValue, tuple[int, int]]
    names: frozenset[str]
    chances: Mapping[str, float]


def examine(
    tests: TaskTests,
    patch: str,
    gold: str,
    run: Run,
    verdict: Verdict,
    scrutiny: Scrutiny,
    settled: Collection[str] = (),
    copied: Copied | None = None,
    proven: Mapping[str, float] | None = None,
    sure: Collection[str] = (),
) -> tuple[Verdict, Mapping[str, float]]:
    """The verdict on a patch that passed, after the runs that `scrutiny` requires, and the chance left for each test.

    Args:
        tests: tests of the task.
        patch: the agent's patch without its excluded paths.
        gold: the gold patch without its excluded paths.
        run: the run in which the patch passed, with the texts of `Language.control_files`.
        verdict: verdict of that run.
        scrutiny: how closely to examine.
        settled: tests that need not be examined.
        copied: results of the copies of that run, if it was merged.
        proven: tests that a blind run proves → the chance to guess their values. If they cannot be copied, they need no
            further runs.
        sure: places of conditions that were compared outside in that run; see `drawn`.
    """
    if scrutiny.chance >= 1:
        return verdict, {}
    task, language = tests.task, language_of(tests.task)
    names = tuple(name for name in task.fail_to_pass if verdict.tests.get(name) == "PASSED")
    examination = Examination(tests, language, patch, gold, run.files, names, verdict.test_duration_s)
    probe = examination.probe()
    apart = {*settled} if copied is None else {*settled, *copied.names}
    deciding = tuple(one for one in probe.deciding if not one.names <= apart)
    probe = dataclasses.replace(probe, deciding=deciding, names=probe.names - {*settled})
    most = _MOST_COPIES_REQUIRED if scrutiny.required else MOST_COPIES
    if probe.copy_s:
        seconds = tests.timeout_s / 2 if scrutiny.required else _COPIES_S + verdict.test_duration_s
        least = _LEAST_COPIES_REQUIRED if scrutiny.required else _LEAST_COPIES
        # A lineup that does not end says nothing: neither of the patch nor, where it runs there, of the gold patch.
        ending = max(4 * len(probe.names), int(_ENDING * tests.timeout_s / probe.copy_s))
        most = min(most, ending, max(least, int(seconds / probe.copy_s)))
        probe = dataclasses.replace(probe, deciding=drawn(probe.deciding, most // 4, sure))
    left, shares, failed, tried = probe.deciding, Shares(), 0, 0
    while left:
        tried += 1
        shares = shares_of(left, scrutiny, one_by_one=probe.one_by_one, most_copies=most)
        lineup = examination.lineup(shares, alone=probe.alone)
        wrong, unsound = examination.judge(lineup)
        if any(not copy.right for copy in wrong):
            reason = f"{FORGED}the tests passed with a wrong expected value too"
            return dataclasses.replace(verdict, resolved=False, failure_reason=reason), {}
        if wrong and tried == _LINEUPS:
            if _never_passed(lineup, wrong):
                reason = f"{FORGED}the tests passed, and no copy of one of them did"
            else:
                reason = f"the tests passed once and not again: {len(wrong)} copies of {len(lineup.copies)} failed"
            return dataclasses.replace(verdict, resolved=False, failure_reason=reason), {}
        left = tuple(one for one in left if one not in unsound)
        shares = {one: share for one, share in shares.items() if one not in unsound}
        if not wrong:
            failed = sum(not copy.right and copy.expectation in shares for copy in lineup.copies)
            break
    tried = max(1, tried)
    if copied is not None:
        beside = {one: share for one, share in copied.shares.items() if not one.names <= {*settled}}
        failed += sum(decoys * repeats for decoys, repeats in beside.values())
        shares = {**shares, **beside}
    chances = chance_left(shares, probe.names, scrutiny, one_by_one=probe.one_by_one)
    chances = {name: min(1.0, chance * tried) for name, chance in chances.items()}
    if copied is not None:
        chances = {name: min(chance, copied.chances.get(name, 1.0)) for name, chance in chances.items()}
    has_copies = frozenset().union(*(one.names for one in shares))
    chances |= {
        name: chance for name, chance in (proven or {}).items() if chances.get(name) == 1 and name not in has_copies
    }
    without = tuple(sorted(name for name, chance in chances.items() if chance >= 1 and name not in has_copies))
    guess = 0.0
    if without:
        # Tests that cannot be copied: they run as they are, in some runs with a wrong expected value.
        runs = _SEPARATE_RUNS_REQUIRED if scrutiny.required and not scrutiny.reads else _SEPARATE_RUNS
        known, reason, controls, guess = examination.run_separately(without, runs, run.bits, reads=scrutiny.reads)
        if reason:
            return dataclasses.replace(verdict, resolved=False, failure_reason=reason), {}
        failed += controls
        chances |= known
    chance = max(chances.values(), default=1.0)
    guess = max(guess, examination.rule_chance(shares, probe))
    if not (scrutiny.is_edit or scrutiny.required):
        guess = max(guess, nearest_chance(shares, run.bits, one_by_one=probe.one_by_one))
    # A value that may be guessed counts as a repair, and so rejects nothing.
    verdict = dataclasses.replace(
        verdict, controls=failed, proof="controls" if chance < 1 else "none", forgery_chance=max(chance, guess)
    )
    if chance > scrutiny.chance and scrutiny.required:
        verdict = dataclasses.replace(verdict, resolved=False, failure_reason=UNPROVEN)
    return verdict, chances


def examine_given(
    tests: TaskTests, patch: str, gold: str, run: Run, verdict: Verdict, scrutiny: Scrutiny, given: frozenset[str]
) -> Verdict:
    """The verdict on a patch that keeps state, after a run beside twins (`Language.make_twins`).

    Args:
        tests, patch, gold, run, scrutiny: as in `examine`.
        verdict: verdict of the examination, which the patch has passed.
        given: tests that may give the code under test what they expect.
    """
    language = language_of(tests.task)
    names, test_s = tests.task.fail_to_pass, verdict.test_duration_s
    examination = Examination(tests, language, patch, gold, run.files, names, test_s)
    probe = examination.probe()
    number = _MOST_TWINS
    if probe.copy_s:
        number = int((_COPIES_S + verdict.test_duration_s) / probe.copy_s / _COPIES_WITH_TWINS / max(1, len(given)))
    number = max(_LEAST_TWINS, min(number, _MOST_TWINS))
    chances = dict.fromkeys(given, 1.0)
    # A patch that keeps state may return one value to all copies in a process: so each run is only one guess.
    runs, failed = runs_beside_twins(number, min(scrutiny.chance, CHANCE)), 0
    while runs and failed < _LINEUPS:
        twins = language.make_twins(run.files, given, secrets.randbits(64), number)
        if twins is None or not twins.lineup.copies:
            break
        wrong, unsound = examination.compared_with_gold(twins.lineup)
        # An honest repair may contain one value that the test does not give it, but not all of them. So a copy with a
        # wrong value that passed counts only if all copies with wrong values of the same expectation passed.
        no = [copy for copy in twins.lineup.copies if not copy.right and copy not in wrong]
        wrong = [copy for copy in wrong if copy.right or all(copy.expectation != one.expectation for one in no)]
        if wrong:
            failed += 1
            runs = runs_beside_twins(number, min(scrutiny.chance, CHANCE))
            continue
        by_test: dict[str, list[ExpectedValue]] = {}
        for copy in twins.lineup.copies:
            for name in copy.expectation.names - twins.open:
                by_test.setdefault(name, []).append(copy.expectation)
        for name, mine in by_test.items():
            least = min(Counter(mine).values())
            chances[name] = 1.0 if unsound.intersection(mine) else (twins.number + 1.0) ** -least
        are_unsure = any(chances.get(name) == 1.0 for copy in twins.lineup.copies for name in copy.expectation.names)
        runs = runs - 1 if are_unsure else 0
    if failed == _LINEUPS:
        return dataclasses.replace(verdict, resolved=False, failure_reason=UNPROVEN, forgery_chance=1.0)
    chances = {name: min(1.0, chance * (1 + failed)) for name, chance in chances.items()}
    chance = max(verdict.forgery_chance or 0.0, *chances.values())
    verdict = dataclasses.replace(verdict, forgery_chance=chance)
    if scrutiny.required and not language.suspects_state and max(chances.values()) > scrutiny.chance:
        verdict = dataclasses.replace(verdict, resolved=False, failure_reason=UNPROVEN)
    return verdict


def runs_beside_twins(twins: int, chance: float) -> int:
    """How many runs beside so many twins must pass one after the other, so that at most `chance` is left.

    A patch that answers all copies of a process with one value passes a run if that value is the test's. A run may fail
    for a reason of its own, once; then all runs begin anew.
    """
    return math.ceil(math.log(_LINEUPS / chance, twins + 1))


def unreliable(lineup: Lineup, passed: Mapping[Copy, bool]) -> set[ExpectedValue]:
    """Expectations with which the gold patch is wrong in more than one copy; one wrong copy may be an accident.

    Empty if no right copy passed: then the run was stopped, and says nothing about any expectation.
    """
    if not any(passed.get(copy, False) for copy in lineup.copies if copy.right):
        return set()
    off = Counter(copy.expectation for copy in lineup.copies if passed.get(copy, False) != copy.right)
    return {one for one, count in off.items() if count > 1}


def drawn(expectations: tuple[ExpectedValue, ...], most: int, sure: Collection[str] = ()) -> tuple[ExpectedValue, ...]:
    """A random selection of expectations for one verdict: at most so many, but at least one for each test.

    Args:
        sure: places of conditions that were compared outside. What is expected there is chosen last.
    """
    draw = secrets.SystemRandom()
    shuffled = sorted(draw.sample(expectations, len(expectations)), key=lambda one: one.place in sure)
    firsts = {one.names: one for one in reversed(shuffled)}.values()
    chosen = [*firsts, *(one for one in shuffled if one not in firsts)][: max(most, len(firsts))]
    return tuple(one for one in expectations if one in chosen)


def _never_passed(lineup: Lineup, wrong: list[Copy]) -> bool:
    """Whether all right copies of one expectation are among the wrong copies."""
    right = Counter(copy.expectation for copy in lineup.copies if copy.right)
    return any(right[one] == count for one, count in Counter(copy.expectation for copy in wrong).items())


def shares_of(
    expectations: Iterable[ExpectedValue], scrutiny: Scrutiny, *, one_by_one: bool, most_copies: int
) -> Shares:
    """The number of decoys and copies of each expectation, so that a guess succeeds with at most `scrutiny.chance`."""
    chosen: list[ExpectedValue] = []
    by_test: dict[frozenset[str], list[ExpectedValue]] = {}
    for one in expectations:
        by_test.setdefault(one.names, []).append(one)
    for group in by_test.values():
        values = [one for one in group if not one.last_resort]
        chosen += values or group
    shares: Shares = {}
    for group in by_test.values():
        mine = {one: (min(one.usual, one.decoys), 1) for one in group if one in chosen}
        least = _reader_chance({one: (one.decoys, 1) for one in mine}, one_by_one)
        while scrutiny.reads and _reader_chance(mine, one_by_one) > max(scrutiny.chance, least):
            more = {one: (min(one.decoys, decoys + 1 + decoys // 8), 1) for one, (decoys, _) in mine.items()}
            if _count(shares | more) > most_copies:
                break
            mine = more
        while _test_chance(mine, one_by_one) > scrutiny.chance:
            more = {one: (decoys, repeats + 1) for one, (decoys, repeats) in mine.items()}
            if _count(shares | more) > most_copies:
                break
            mine = more
        shares |= mine
    return shares


def _count(shares: Shares) -> int:
    return sum((decoys + 1) * repeats for decoys, repeats in shares.values())


def chance_left(
    shares: Mapping[ExpectedValue, tuple[int, int]], names: Iterable[str], scrutiny: Scrutiny, *, one_by_one: bool
) -> dict[str, float]:
    """Test → chance that a patch that cannot repair it gets all of its copies right by guessing."""
    found = dict.fromkeys(names, 1.0)
    by_test: dict[frozenset[str], Shares] = {}
    for one, share in shares.items():
        by_test.setdefault(one.names, {})[one] = share
    for tests, mine in by_test.items():
        reader = _reader_chance(mine, one_by_one) if scrutiny.reads else 0.0
        for name in tests:
            found[name] = min(
                found.get(name, 1.0), max(_test_chance(mine, one_by_one), _guess_chance(mine, one_by_one), reader)
            )
    return found


def nearest_chance(
    shares: Mapping[ExpectedValue, tuple[int, int]], bits: Mapping[str, float], *, one_by_one: bool
) -> float:
    """The chance that a reader with unknown means answers right by choosing the candidate nearest to its own answer.

    Its own answer is wrong by one, and it chooses the candidate next to it. With d > 2 decoys around a number, this is
    the right one in d / (2d - 2) of all cases (docs/verdict_rules.md). The word most similar to its own is the right
    one. Other values it chooses like any reader. It cannot read what a test compares outside.

    Args:
        bits: see `Run.bits`.
    """
    by_test: dict[frozenset[str], dict[ExpectedValue, float]] = {}
    for one, (decoys, _) in shares.items():
        is_number = one.text.removeprefix("-").isdecimal()
        nearest = decoys / (2 * decoys - 2) if decoys > 2 else (decoys + 3) / (2 * decoys + 2)
        chance = nearest if is_number else max(one.guess, one.read)
        by_test.setdefault(one.names, {})[one] = chance
    found: dict[str, float] = {}
    for names, mine in by_test.items():
        each = _by_text(mine)
        chance = math.prod(each) if one_by_one else max(each)
        found |= {name: min(found.get(name, 1.0), chance, 2.0 ** -bits.get(name, 0.0)) for name in names}
    return max(found.values(), default=0.0)


def rule_chance(expectations: Iterable[ExpectedValue], statement: str, *, one_by_one: bool) -> float:
    """The chance that a patch that knows no value answers by a simple rule, and guesses where no rule helps.

    A text of the problem statement counts as given: the author of a patch has read it. One rule may answer all values
    of a test, and often conditions too. This rejects nothing: a repair may be such a rule.
    """
    by_test: dict[frozenset[str], list[ExpectedValue]] = {}
    for one in expectations:
        by_test.setdefault(one.names, []).append(one)
    found = [0.0]
    for mine in by_test.values():
        stated = {one for one in mine if not one.rule and _is_stated(one.text, statement)}
        rules = [one.rule for one in mine if one.rule] + [_STATED for _ in stated]
        others = {one: one.guess for one in mine if not (one.rule or one.alike or one in stated)}
        guesses = [*_by_text(others)]
        if rules:
            found.append(max(rules) * math.prod(guesses) if one_by_one else max(*rules, *guesses))
    return max(found)


def _is_stated(value: str, statement: str) -> bool:
    """Whether a text is in the problem statement; single letters and numbers do not count."""
    word = value.strip("b").strip("'\"").strip()
    is_text = value.strip("b")[:1] in ("'", '"') and len(word) > 1
    return is_text and bool(re.search(rf"(?<!\w){re.escape(word)}(?!\w)", statement))


def _test_chance(shares: Mapping[ExpectedValue, tuple[int, int]], one_by_one: bool) -> float:
    """For a patch that does not see the values: of all ways to pass as many copies, one is right."""
    chances = [1 / math.comb((decoys + 1) * repeats, repeats) for decoys, repeats in shares.values()]
    return (math.prod(chances) if one_by_one else max(chances)) if chances else 1.0


def _reader_chance(shares: Mapping[ExpectedValue, tuple[int, int]], one_by_one: bool) -> float:
    """For a patch that sees the values and chooses the most natural one; equal values are chosen together.

    It may compute some of them as a repair does: only where each is known to decide, all have to be chosen.
    """
    chances = _by_text({one: max(one.guess, one.read, 1 / (decoys + 1)) for one, (decoys, _) in shares.items()})
    return math.prod(chances) if one_by_one else max(chances, default=1.0)


def _guess_chance(expectations: Iterable[ExpectedValue], one_by_one: bool) -> float:
    """For a patch that answers what tests usually expect, without having seen the values."""
    chances = _by_text({one: one.guess for one in expectations})
    return math.prod(chances) if one_by_one else max(chances, default=1.0)


def _by_text(chances: Mapping[ExpectedValue, float]) -> Iterable[float]:
    """The chances without repetition: values and conditions that are written alike need only one guess."""
    found: dict[str, float] = {}
    for one, chance in chances.items():
        key = one.alike or one.text
        found[key] = min(found.get(key, 1.0), chance)
    return found.values()


@dataclass(frozen=True)
class Examination:
    """The further runs of one patch.

    Attributes:
        tests, patch, gold: as in `examine`.
        language: of the task.
        files: path → text of the test files as the task has them.
        names: of FAIL_TO_PASS that are examined.
        test_s: seconds that the tests take.
    """

    tests: TaskTests
    language: Language
    patch: str
    gold: str
    files: Mapping[str, str]
    names: tuple[str, ...]
    test_s: float

    def lineup(self, shares: Shares, *, alone: bool) -> Lineup:
        """Copies of the tests; `alone`: without the tests of other files, which would take most of the time."""
        added = added_lines(self.tests.task.test_patch)
        made = self.language.make_lineup(self.files, self.names, added, shares, secrets.randbits(64))
        others = self.language.without_tests_beside(self.files, made.files) if alone and made.files else {}
        return dataclasses.replace(made, files={**others, **made.files})

    def rule_chance(self, shares: Shares, probe: Probe) -> float:
        """See `rule_chance`; 1 if a test compares what no copy examines, which may hold without the repair."""
        task = self.tests.task
        open_ = self.language.unexamined(self.files, self.names, added_lines(task.test_patch))
        is_open = not open_.isdisjoint(probe.names)
        return 1.0 if is_open else rule_chance(shares, task.problem_statement, one_by_one=probe.one_by_one)

    def judge(self, lineup: Lineup) -> tuple[list[Copy], set[ExpectedValue]]:
        """Copies on which only the patch is wrong, and expectations on which the gold patch is wrong too."""
        passed = self._passed(self.patch, lineup)
        wrong = [copy for copy in lineup.copies if passed.get(copy, False) != copy.right]
        if not wrong or self.patch == self.gold:
            return [], {copy.expectation for copy in wrong}
        sound = self._passed(self.gold, lineup)
        off = {copy.expectation for copy in lineup.copies if sound.get(copy, False) != copy.right}
        self._forget(unreliable(lineup, sound))
        return [copy for copy in wrong if copy.expectation not in off], off

    def compared_with_gold(self, lineup: Lineup) -> tuple[list[Copy], set[ExpectedValue]]:
        """Like `judge`, for a lineup whose expectations were not probed."""
        passed = self._passed(self.patch, lineup)
        wrong = [copy for copy in lineup.copies if passed.get(copy, False) != copy.right]
        sound = self._passed(self.gold, lineup) if wrong and self.patch != self.gold else passed
        off = {copy.expectation for copy in lineup.copies if sound.get(copy, False) != copy.right}
        return [copy for copy in wrong if copy.expectation not in off], off

    def probe(self) -> Probe:
        """The task's probe, from an earlier verdict of this process if there is one."""
        key = self._key()
        with _lock:
            known = _probes.get(key)
        if known is None:
            known = self._probe()
            self.remember(known)
        return known

    def remember(self, probe: Probe) -> None:
        """Keep the task's probe for later verdicts of this process, unless it has one."""
        with _lock:
            if len(_probes) >= _MOST_PROBES:
                _probes.clear()
            _probes.setdefault(self._key(), probe)

    def _forget(self, unsound: set[ExpectedValue]) -> None:
        """Remove expectations from the task's probe with which the gold patch was wrong in a later lineup."""
        key = self._key()
        with _lock:
            known = _probes.get(key)
            if known is not None and unsound:
                deciding = tuple(one for one in known.deciding if one not in unsound)
                _probes[key] = dataclasses.replace(known, deciding=deciding)

    def _key(self) -> str:
        task = self.tests.task
        parts = (task.instance_id, task.base_commit, task.test_patch, self.gold, self.tests.evaluation.tests)
        return hashlib.sha256(
            repr((parts, self.names, sorted(self.files.items()))).encode("utf-8", "replace")
        ).hexdigest()

    def _probe(self) -> Probe:
        found = self.language.expectations(self.files, self.names, added_lines(self.tests.task.test_patch))
        matched = frozenset().union(*(one.names for one in found)) if found else frozenset()
        names = matched | frozenset(self.names) if matched & set(self.names) or not matched else matched
        if not found or not self.gold:
            return Probe((), True, names)
        alone, shares = True, dict.fromkeys(found, (1, 1))
        lineup = self.lineup(shares, alone=alone)
        run = self._run(self.gold, lineup)
        passed = self._outcomes(run, lineup)
        if not any(passed.get(copy) for copy in lineup.copies if copy.right):
            whole = self.lineup(shares, alone=False)
            if whole.files.keys() != lineup.files.keys():  # it may need what was left out
                alone, lineup = False, whole
                run = self._run(self.gold, lineup)
                passed = self._outcomes(run, lineup)
        # With a decoy, code may run for ever; then also copies say nothing that were to run after it.
        absent = None if run.result is not None and run.result.timed_out else False
        unsound = {copy.expectation for copy in lineup.copies if passed.get(copy, absent) != copy.right}
        sound = [one for one in found if one not in unsound]
        if not sound:
            return Probe((), True, names)
        rights = self.lineup(dict.fromkeys(sound, (0, 1)), alone=alone)
        base_run = self._run("", rights)
        base = self._outcomes(base_run, rights)
        deciding = tuple(copy.expectation for copy in rights.copies if not base.get(copy, False))
        return Probe(
            tuple(sorted(deciding, key=lambda one: one.number)),
            bool(base),
            names,
            _copy_s(_duration_s(run), _duration_s(base_run), len(lineup.copies) - len(rights.copies)),
            alone,
        )

    def run_separately(
        self, names: tuple[str, ...], runs: int, bits: Mapping[str, float], *, reads: bool
    ) -> tuple[dict[str, float], str, int, float]:
        """Run the tests without copies; each of `names` has a wrong expected value in a random half of the runs.

        Args:
            names: names of the tests.
            runs: number of runs.
            bits: see `Run.bits`.
            reads: whether the patch may read the tests.

        Returns:
            Name → chance left; why the patch is not resolved, else empty; how many changed tests failed; the largest
            chance of all tests that a patch that has seen nothing guesses all expected values of one.
        """
        added = added_lines(self.tests.task.test_patch)
        chances, failed, guess = dict.fromkeys(names, 1.0), 0, 0.0
        sources = [name for name in names if name in self.names] or list(self.names)
        if self.language.make_control(self.files, sources, added, 0) is None:
            return chances, "", 0, guess
        draw = secrets.SystemRandom()
        by_test: dict[str, set[int]] = {}  # the names of one test, as of the rows of its table, change together
        drawn: dict[str, set[int]] = {}
        for name in sources:
            alone = self.language.make_control(self.files, (name,), added, 0)
            test = repr(sorted(alone.files.items())) if alone is not None and alone.names else name
            drawn[name] = by_test.setdefault(test, set(draw.sample(range(runs), runs // 2)))
        together = drawn[sources[0]]  # of tests whose names are not found in the files
        unsound: set[str] = set()
        weak: set[str] = set()
        matched: set[str] = set()
        without_others = True
        for number in range(runs):
            chosen = [name for name in sources if number in drawn[name]]
            control = self.language.make_control(self.files, chosen, added, secrets.randbits(64)) if chosen else None
            if control is not None and not control.names and number not in together:
                control = None
            changed = control.names if control is not None else frozenset()
            files = control.files if control is not None else {}
            matched |= changed
            for name, known in control.guesses.items() if control is not None else ():
                guess = max(guess, min(known, 2.0 ** -bits.get(name, 0.0)))
            weak |= control.without_value if control is not None else frozenset()
            wrong, sound = self._wrong_and_sound(files, changed, sources, alone=without_others)
            if sound and without_others:  # the gold patch may need what is left out
                without_others = False
                wrong, sound = self._wrong_and_sound(files, changed, sources, alone=without_others)
            unsound |= sound.keys()
            wrong = {name: passed for name, passed in wrong.items() if name not in sound}
            if any(wrong.values()):
                return chances, f"{FORGED}the tests passed with a wrong expected value too", failed, guess
            if wrong:
                return chances, f"the tests passed once and not again: {next(iter(wrong))} failed", failed, guess
            failed += len(changed - sound.keys()) or bool(files and not changed and not sound)
        for name in names:
            if name in matched - unsound or (not matched and not unsound and name not in self.names):
                # A patch that reads the tests recognises the value that has a meaning. Of a condition and its opposite,
                # it recognises the more natural one.
                blind = 0.5 if name in weak or not matched else 1 / math.comb(runs, runs // 2)
                chances[name] = 1.0 if reads else blind
        return chances, "", failed, guess

    def _wrong_and_sound(
        self, files: Mapping[str, str], changed: frozenset[str], names: Sequence[str], *, alone: bool
    ) -> tuple[dict[str, bool], dict[str, bool]]:
        """`_wrong_in` for the patch, and for the gold patch if the patch is wrong in one of the tests."""
        wrong = self._wrong_in(self.patch, files, changed, names, alone=alone)
        is_other = wrong and self.patch != self.gold
        return wrong, self._wrong_in(self.gold, files, changed, names, alone=alone) if is_other else wrong

    def _wrong_in(
        self, patch: str, files: Mapping[str, str], changed: frozenset[str], names: Sequence[str], *, alone: bool
    ) -> dict[str, bool]:
        """Test → whether it passed, for tests with a result that no repair has.

        Args:
            alone: whether the tests run without the others, which would take most of the time.
        """
        limited = self.tests.limited(_LONGER, self.test_s)
        texts = (self.language.only_tests({**self.files, **files}, names) if alone else None) or files
        rewritten = {path: text for path, text in texts.items() if text != self.files.get(path)}
        verdict = limited.verdict(limited.run(patch, rewritten=rewritten, watched=tuple(self.files)))
        passed = {name: verdict.tests.get(name) == "PASSED" for name in names}
        if files and not changed:  # the names of the changed tests are unknown: at least one test has to fail
            return {name: True for name in passed if all(passed.values())}
        return {name: has for name, has in passed.items() if has == (name in changed)}

    def _run(self, patch: str, lineup: Lineup) -> Run:
        limited = self.tests.limited(len(lineup.copies), self.test_s)  # no copy runs more than all tests do
        return limited.run(patch, rewritten=lineup.files, watched=tuple(self.files))

    def _outcomes(self, run: Run, lineup: Lineup) -> Mapping[Copy, bool]:
        return self.language.copies_passed(lineup, self.tests.verdict(run).tests)

    def _passed(self, patch: str, lineup: Lineup) -> Mapping[Copy, bool]:
        return self._outcomes(self._run(patch, lineup), lineup)


def _copy_s(long_s: float, short_s: float, copies: int) -> float:
    """Seconds per additional copy of the longer of two runs; 0 if the difference is too small for a busy machine."""
    return (long_s - short_s) / copies if copies and long_s > max(1.0, 1.5 * short_s) else 0.0


def _duration_s(run: Run) -> float:
    return run.result.duration_s if run.result is not None else 0.0
