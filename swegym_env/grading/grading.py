"""Grading: the verdict on a patch, from its task's own tests in fresh sandboxes.

The agent's sandbox is never used: nothing that an agent left running, installed or hid takes part. The method is
`grade`, top to bottom: exclude what no patch may change, apply the rest to a fresh checkout, run the tests, read the
log. Under the policy `strict`, a patch that passes is examined, how closely depends on its changed lines
(`Language.scrutiny_of`): by blind expectations (`blind`), else by negative controls (`examination`).

What `strict` guarantees: changes to tests, to the test runner's configuration, to what is loaded before the tests and
to test machinery are not graded. A log that contradicts itself or the exit code is rejected. A patch that makes hidden
tests pass without the expected value, from a forged log to an object that equals everything, is `invalid: forged`, or
`unproven` if it may as well be a repair. docs/verdict_rules.md says what is not guaranteed: a patch that solves exactly
the hidden tests counts as a repair, and some languages have no controls. A sandbox is not a virtual machine: see
`sandbox`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import math
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

from swegym_env.errors import ConfigurationError, InfrastructureError
from swegym_env.grading.blind import BlindTests, calibrate, known_blind_tests
from swegym_env.grading.builds import Builds, builds
from swegym_env.grading.equality import examine_equality
from swegym_env.grading.examination import Copied, examine, examine_given
from swegym_env.grading.merged import known_merged_tests, learn_merged_tests, may_merge, run_merged
from swegym_env.grading.recursion import deep_trees
from swegym_env.grading.remote import grade_remotely
from swegym_env.grading.task_tests import Run, TaskTests, exclusion
from swegym_env.grading.verdict import FORGED, UNPROVEN, Policy, Verdict, grade_log
from swegym_env.languages import CHANCE, Scrutiny, language_of
from swegym_env.languages.caching import patch_cache
from swegym_env.long_work import long_work
from swegym_env.prepare import prepare_locally
from swegym_env.repo.patches import parse_patch, refusal, refused_patch, touched_paths
from swegym_env.sandbox.api import Imports
from swegym_env.sandbox.backends import find_backend
from swegym_env.sandbox.imported import MODULE
from swegym_env.sandbox.layers import LayerStore
from swegym_env.tasks.task import Task

__all__ = ["Verdict", "exclude_paths", "grade", "grade_log", "grade_many"]

_FEW_VERDICTS = 2
_counted: Counter[object] = Counter()
"""How many verdicts of this process could have shared what their test runner imports."""


@patch_cache()
def grade(
    task: Task,
    patch: str,
    *,
    repos: str | os.PathLike[str] | None = None,
    backend: str = "auto",
    store: LayerStore | None = None,
    timeout_s: float | None = None,
    policy: Policy = "strict",
    scrutiny: Scrutiny | None = None,
    max_forgery_chance: float | None = None,
) -> Verdict:
    """Grade one patch on fresh layers.

    Args:
        patch: git diff against the base commit; empty for none. A refused one (`repo.patches.refusal`) fails.
        repos: source of the repository, see `repository_layer`.
        backend: back end of the sandboxes; the address of a server: the server grades.
        store: store of the layers.
        timeout_s: timeout of the tests in seconds; by default the task's.
        policy: `strict` excludes changes of tests and of the test runner's configuration and examines what passes;
            `official` grades as the SWE-bench harness does.
        scrutiny: how closely `strict` examines; None: as closely as the patch asks for.
        max_forgery_chance: a patch with means of forgery is `unproven` if its `Verdict.forgery_chance` is above this,
            and as many negative controls run as are needed to stay below it, if there are enough. None: 1/1000 for
            controls; blind proofs have 20 bits or more in all tests together, and a guess counts as a repair.

    Raises:
        ConfigurationError: `max_forgery_chance` is not a probability, or has no effect with the other arguments.
        InfrastructureError: the machine failed, or the task's own tests cannot run without the patch either.
    """
    _check_chance(max_forgery_chance, policy, scrutiny)
    if refused := refusal(patch):
        patch = refused_patch(refused)
    server = find_backend(backend).server
    if server is not None:
        if repos is not None or store is not None or scrutiny is not None:
            raise ConfigurationError(
                f"{backend}: repos, store and scrutiny are set on the server (swegym serve --repos)"
            )
        return grade_remotely(
            task, patch, server, timeout_s=timeout_s, policy=policy, max_forgery_chance=max_forgery_chance
        )
    begin = time.monotonic()
    workspace = prepare_locally(task, repos=repos, store=store, backend=backend)
    most_s = task.test_timeout_s if timeout_s is None else timeout_s
    may_build = policy == "strict" and bool(task.eval_script)  # a test command alone has nothing before it
    with contextlib.closing(Builds(task, store)) if may_build else contextlib.nullcontext() as kept_builds:
        tests = TaskTests(task, workspace, policy, backend, most_s, kept_builds)
        tests = dataclasses.replace(tests, imports=_imports(tests))

        def grade_part(part: str) -> Verdict:
            return grade(
                task,
                part,
                repos=repos,
                backend=backend,
                store=store,
                timeout_s=timeout_s,
                max_forgery_chance=max_forgery_chance,
            )

        work = long_work(task.instance_id, "learning how its tests prove a patch, by runs of gold and empty ones")
        with work, deep_trees():
            verdict = _graded(tests, patch, scrutiny, max_forgery_chance, store, grade_part)
    return dataclasses.replace(verdict, duration_s=time.monotonic() - begin)


def _imports(tests: TaskTests) -> Imports | None:
    """What the test runner imports once for many verdicts, from the third verdict on.

    All runs of a verdict are started in the same way: nothing distinguishes a control from the tests.
    """
    evaluation, spec = tests.evaluation, tests.workspace.spec
    modules = language_of(tests.task).imported_once(evaluation.tests)
    if not modules or evaluation.settings:
        return None
    imports = Imports(MODULE, modules, environment=spec.env)
    key = spec.image, spec.layers[:-1], spec.limits, imports.modules, tuple(imports.environment.items())
    _counted[key] += 1
    return imports if _counted[key] > _FEW_VERDICTS else None


def _graded(
    tests: TaskTests,
    patch: str,
    scrutiny: Scrutiny | None,
    max_forgery_chance: float | None,
    store: LayerStore | None,
    grade_part: Callable[[str], Verdict],
) -> Verdict:
    """The verdict on a patch, see `grade`; `grade_part` grades a part of it by itself."""
    task, workspace, policy = tests.task, tests.workspace, tests.policy
    language = language_of(task)
    kept, set_aside = exclude_paths(task, patch, workspace.base, policy, tests.evaluation.tests)
    refused = refusal(patch)
    kept = tests.as_applied(kept) if policy == "strict" and not refused else kept
    by_default = policy == "strict" and scrutiny is None  # a caller that passes `scrutiny` gets exactly that
    can_be_blind = by_default and bool(task.patch and kept) and not refused
    if policy == "official":
        scrutiny = Scrutiny(1.0)
    elif scrutiny is None:
        scrutiny = _scrutiny_of(tests, kept, max_forgery_chance)
        can_be_blind = can_be_blind and not scrutiny.harmless

    watched = language.control_files(task) if scrutiny.chance < 1 or can_be_blind else ()
    blind = _blind_tests(tests, kept, store) if can_be_blind else None
    copied: Copied | None = None
    begun_at = time.monotonic()
    first, alone = _merged_first(tests, kept, blind, scrutiny, store) if can_be_blind else (None, None)
    controlled_s = time.monotonic() - begun_at
    if first is not None:
        run, verdict, copied = first
        controlled_s = alone.duration_s if alone is not None else 0.0  # the merged run itself is no further run
    elif blind is not None and blind.pairs:
        run, verdict = blind.run(tests, kept)
    else:
        run = Run(f"there is no patch: {refused}") if refused else tests.run(kept, watched=watched)
        verdict = tests.verdict(run)
    if run.result is not None and not verdict.tests:
        tests.require_named_tests(empty=not kept)

    tested_at = time.monotonic()
    if verdict.resolved and tests.builds is not None and (scrutiny.chance < 1 or can_be_blind):
        tests.builds.learn(tests, _gold(tests))
    run, verdict, blind = _compared_outside(tests, kept, run, verdict, blind, scrutiny, store, calibrates=can_be_blind)
    if run.compares_itself and by_default and verdict.resolved:
        chance = scrutiny.chance if scrutiny.chance < 1 else max_forgery_chance or CHANCE
        scrutiny = Scrutiny(chance, reads=True, required=True)
    suspect = verdict.resolved and by_default and scrutiny.required
    lesser, part = _of_a_part(
        language.without_means(kept, workspace.base, task.patch) if suspect else (),
        grade_part,
    )
    if lesser is not None:
        verdict, set_aside = lesser, tuple(sorted({*set_aside, *(touched_paths(kept) - touched_paths(part))}))
    elif verdict.resolved and (scrutiny.chance < 1 or can_be_blind):
        verdict = _examined(tests, kept, run, verdict, blind, scrutiny, store, copied, alone, can_be_blind=can_be_blind)
        verdict = (
            examine_equality(tests, kept, _gold(tests), run, verdict, scrutiny, blind, store)
            if can_be_blind and verdict.resolved
            else verdict
        )
        if verdict.resolved and run.guessed:  # the patch sent several answers, and only one is right
            verdict = verdict.with_chance(run.guessed)
        if max_forgery_chance is not None and scrutiny.required and verdict.resolved:
            verdict = _limited(verdict, max_forgery_chance)
    if lesser is None and verdict.resolved and policy == "strict":
        verdict = _without_other_expected_failures(verdict, tests)
    if patch.strip() and not kept and not set_aside and not (verdict.resolved or verdict.failure_reason):
        reason = "the patch changes no file: expected a diff in the format of git"
        verdict = dataclasses.replace(verdict, failure_reason=reason)
    controlled_s += time.monotonic() - tested_at
    return dataclasses.replace(verdict, set_aside=set_aside, control_duration_s=controlled_s)


def _merged_first(
    tests: TaskTests, patch: str, blind: BlindTests | None, scrutiny: Scrutiny, store: LayerStore | None
) -> tuple[tuple[Run, Verdict, Copied | None] | None, _Alone | None]:
    """The results of a merged run, see `run_merged`, and of the run without expected values, if it was made.

    If the latter has to show whether a patch reads, a merged run in which it passes counts only if it also passes that
    one: in the merged run, there were copies to read.
    """
    merged = known_merged_tests(tests, _gold(tests), store) if blind is not None else None
    if blind is None or merged is None or not may_merge(tests, patch, blind, merged, scrutiny):
        return None, None
    may_read = _may_need_run_alone(blind, scrutiny)
    first = run_merged(tests, patch, blind, merged)
    if first is None or first[2] is None or not may_read:
        return first, None
    alone = _run_alone(tests, patch, blind, store)
    return (None if alone is not None and alone.others else first), alone


def _blind_tests(tests: TaskTests, patch: str, store: LayerStore | None) -> BlindTests | None:
    """How the tests run blind, if this is known, or if the runs of this patch find it out.

    If the tests need a build, `Builds.learn` comes first.
    """
    blind = known_blind_tests(tests.task, store)
    if blind is None and patch == _gold(tests) and not builds(tests.evaluation.settings):
        return calibrate(tests, patch, store)
    return blind


def _scrutiny_of(tests: TaskTests, patch: str, most: float | None) -> Scrutiny:
    """How closely to examine a patch, so that the chance of a forgery is at most `most`."""
    task, language = tests.task, language_of(tests.task)
    scrutiny = language.scrutiny_of(patch, tests.workspace.base, task.patch)
    if most is not None and scrutiny.chance < 1:
        scrutiny = dataclasses.replace(scrutiny, chance=most)
    if scrutiny.harmless and patch and task.patch and _may_have_many_answers(tests):
        scrutiny = dataclasses.replace(scrutiny, harmless=False)
    return scrutiny


def _check_chance(chance: float | None, policy: Policy, scrutiny: Scrutiny | None) -> None:
    """Raise ConfigurationError if `max_forgery_chance` is not a probability, or has no effect."""
    if chance is None:
        return
    if not 0 < chance < 1:
        raise ConfigurationError(f"max_forgery_chance: expected more than 0 and less than 1, got {chance:g}")
    if policy != "strict" or scrutiny is not None:
        other = f"the policy {policy}" if policy != "strict" else "scrutiny, which sets another one"
        raise ConfigurationError(f"max_forgery_chance {chance:g}: has no effect with {other}")


def _limited(verdict: Verdict, most: float) -> Verdict:
    """The verdict on a patch with means of forgery: it resolves only if the chance of a forgery is at most `most`."""
    if verdict.forgery_chance is not None and verdict.forgery_chance <= most:
        return verdict
    return dataclasses.replace(verdict, resolved=False, failure_reason=UNPROVEN)


def _compared_outside(
    tests: TaskTests,
    patch: str,
    run: Run,
    verdict: Verdict,
    blind: BlindTests | None,
    scrutiny: Scrutiny,
    store: LayerStore | None,
    *,
    calibrates: bool,
) -> tuple[Run, Verdict, BlindTests | None]:
    """The first run, its verdict and the blind tests, after a second run (blind or plain) if one is needed.

    Args:
        calibrates: whether to find out how the tests run blind, if this is not known.
    """
    if blind is not None and blind.pairs and not verdict.resolved:
        # The log may differ from what was sent: a wrong patch, a forged log, or an object that the test knows how to
        # compare.
        if (scrutiny.required or verdict.failure_reason == UNPROVEN) and tests.verdict(run).resolved:
            verdict = _compared(tests.verdict(tests.run(patch)), verdict)
    elif blind is not None and blind.pairs and run.has_foreign:  # the tests compare by an equality of the patch's
        plain = tests.verdict(tests.run(patch))
        verdict = verdict if plain.resolved else plain
    elif verdict.resolved and calibrates and blind is None:
        blind = calibrate(tests, _gold(tests), store)
        if blind.pairs:
            run, sent = blind.run(tests, patch)
            verdict = _compared(verdict, sent) if scrutiny.required else sent
    return run, verdict, blind


def _of_a_part(parts: Iterable[str], grade_part: Callable[[str], Verdict]) -> tuple[Verdict | None, str]:
    """The verdict on the first of `parts` with which the tests pass, and this part; None if there is none.

    If the tests pass without the files with means of forgery, the rest of the patch is not suspect. It is graded like a
    patch of its own.
    """
    for part in parts:
        graded = grade_part(part)
        if graded.resolved or graded.forged or _all_passed(graded):
            return graded, part
    return None, ""


def _examined(
    tests: TaskTests,
    patch: str,
    run: Run,
    verdict: Verdict,
    blind: BlindTests | None,
    scrutiny: Scrutiny,
    store: LayerStore | None,
    copied: Copied | None,
    alone: _Alone | None,
    *,
    can_be_blind: bool,
) -> Verdict:
    """The verdict on a patch that passed, after the runs that examine its values.

    Args:
        copied: results of the copies of `run`, if it was merged.
        alone: the run without expected values, if it was made already.
    """
    task = tests.task
    settled = blind.settled(run, verdict) if blind is not None else {}
    hidden = {name for name in settled if blind is not None and blind.hides(name)}
    same: dict[str, float] = {}
    if blind is not None and _may_need_run_alone(blind, scrutiny):
        # A reader sends what the gold patch sends, if the test contains it. The words of a patch need not show that it
        # reads; a run without expected values does.
        alone = alone or _run_alone(tests, patch, blind, store)
        if alone is not None and _is_from_tests(tests, patch, blind, run, settled.keys(), alone):
            return dataclasses.replace(verdict, resolved=False, failure_reason=UNPROVEN, proof_bits=0.0, proof_tests=())
        same = alone.same if alone is not None else same
        settled = {name: chance for name, chance in settled.items() if name not in blind.inside} | same
        hidden |= same.keys()
    # If a blind run leaves nothing to examine, no controls are needed, unless the patch has means of forgery. Otherwise
    # even a small edit may change how the tests compare.
    settled = {} if scrutiny.required else settled
    language, given = language_of(task), frozenset[str]()
    if can_be_blind and language.keeps_state(patch, tests.workspace.base, task.patch):
        given = language.given_tests(run.files, task.fail_to_pass)
    settled = {name: chance for name, chance in settled.items() if name not in given}
    if settled and settled.keys() >= {*task.fail_to_pass}:
        chance = max(settled.values())
        proved = tuple(name for name in task.fail_to_pass if name in hidden)
        return dataclasses.replace(verdict, proof="blind", proof_tests=proved, forgery_chance=chance)
    scrutiny = scrutiny if scrutiny.chance < 1 else Scrutiny(CHANCE, is_edit=True)
    gold = _gold(tests)
    proven: dict[str, float] = {}
    sure = frozenset[str]()
    if blind is not None and not scrutiny.required:
        proven = {name: blind.chance(name) for name in verdict.proof_tests if blind.proves(verdict, (name,))}
        sure = blind.sure
    examined, chances = examine(tests, patch, gold, run, verdict, scrutiny, settled, copied, proven, sure)
    if can_be_blind and blind is not None:
        names = tuple(name for name in task.fail_to_pass if verdict.tests.get(name) == "PASSED")
        known = (run, verdict) if patch == gold and blind.pairs and copied is None else None
        computed = frozenset(same)
        learn_merged_tests(tests, gold, blind, run.files, names, store, verdict.test_duration_s, computed, known)
    weak = tuple(name for name, chance in chances.items() if chance > scrutiny.chance)
    is_open = can_be_blind and examined.failure_reason == UNPROVEN
    if is_open and not (blind and blind.proves(verdict, weak)):
        examined = _without_expected_values(tests, patch, gold, store, examined, chances, weak)
    else:
        examined = _with_blind_proof(verdict, examined, settled)
    if examined.resolved and scrutiny.required and blind is not None and blind.failing_after_others(tests, gold):
        examined = dataclasses.replace(
            examined, resolved=False, failure_reason=UNPROVEN, proof="none", proof_bits=0.0, forgery_chance=1.0
        )
    if examined.resolved and blind is not None and examined.forgery_chance is not None:
        examined = examined.with_chance(max(map(blind.least_guess, task.fail_to_pass), default=0.0))
    if given and examined.resolved:
        return _with_state(tests, patch, gold, store, run, examined, scrutiny, given)
    return examined


def _with_state(
    tests: TaskTests,
    patch: str,
    gold: str,
    store: LayerStore | None,
    run: Run,
    examined: Verdict,
    scrutiny: Scrutiny,
    given: frozenset[str],
) -> Verdict:
    """The verdict on a patch that keeps state and passed the examination.

    If the tests can run without giving it what they expect, it must compute what the gold patch computes. Otherwise it
    must pass beside twins.

    Args:
        run: the run in which it passed.
        given: tests that give the code under test what they expect.
    """
    task, chance = tests.task, examined.forgery_chance
    blind = calibrate(tests, gold, store, computed=True)
    blinded = language_of(task).make_blind(blind.files, task.fail_to_pass, blind.left, 0, computed=True)
    if blind.pairs and blinded is not None:
        hidden = given - language_of(task).given_tests(blind.files, given, blinded.files) - blind.open
        if hidden:
            _, verdict = blind.run(tests, patch)
            if any(verdict.tests.get(name) != "PASSED" for name in hidden):
                return dataclasses.replace(examined, resolved=False, failure_reason=UNPROVEN, forgery_chance=1.0)
            given -= hidden
            chance = max(chance or 0.0, *map(blind.chance, hidden))
    examined = dataclasses.replace(examined, forgery_chance=chance)
    return examine_given(tests, patch, gold, run, examined, scrutiny, given) if given else examined


def _all_passed(verdict: Verdict) -> bool:
    return all(passed == total for passed, total in (verdict.fail_to_pass, verdict.pass_to_pass))


def _gold(tests: TaskTests) -> str:
    """The gold patch without its excluded paths."""
    task = tests.task
    return exclude_paths(task, task.patch, tests.workspace.base, tests.policy, tests.evaluation.tests)[0]


_many_answers: dict[str, bool] = {}


def _may_have_many_answers(tests: TaskTests) -> bool:
    """Whether more than one answer passes a condition of the tests of FAIL_TO_PASS."""
    task, language = tests.task, language_of(tests.task)
    key = hashlib.sha256(repr((task.instance_id, task.base_commit, task.test_patch)).encode()).hexdigest()
    with _lock:
        known = _many_answers.get(key)
    if known is None:
        texts = tests.texts(language.control_files(task))
        known = texts is None or language.may_have_many_answers(texts, task.fail_to_pass)
        with _lock:
            _many_answers[key] = known
    return known


_expected_failures: dict[str, frozenset[str]] = {}
_lock = threading.Lock()


def _without_other_expected_failures(verdict: Verdict, tests: TaskTests) -> Verdict:
    """The verdict if XFAIL counts as passed only for tests that have this status with the gold patch too.

    The code under test can declare any failure expected. A task without a gold patch is compared with its base commit.
    """
    task = tests.task
    claimed = {name for name in (*task.fail_to_pass, *task.pass_to_pass) if verdict.tests.get(name) == "XFAIL"}
    if not claimed:
        return verdict
    gold = _gold(tests)
    key = hashlib.sha256(repr((task.instance_id, task.base_commit, task.test_patch, gold)).encode()).hexdigest()
    with _lock:
        known = _expected_failures.get(key)
    if known is None:
        found = tests.verdict(tests.run(gold)).tests
        known = frozenset(name for name, status in found.items() if status == "XFAIL")
        with _lock:
            _expected_failures[key] = known
    others = claimed - known
    if not others:
        return verdict
    passed = [
        (len([name for name in names if name not in others]), len(names))
        for names in (task.fail_to_pass, task.pass_to_pass)
    ]
    statuses = {name: "FAILED" if name in others else status for name, status in verdict.tests.items()}
    return dataclasses.replace(
        verdict,
        resolved=False,
        tests=statuses,
        fail_to_pass=passed[0],
        pass_to_pass=passed[1],
        proof="none",
        proof_bits=0.0,
        proof_tests=(),
        forgery_chance=None,
    )


def _with_blind_proof(blind: Verdict, examined: Verdict, settled: Mapping[str, float]) -> Verdict:
    """The verdict on a blind run, after the examination of all that its comparisons leave open.

    A test may have assertions that are not compared outside, and these can be forged. So a blind proof decides only
    what the examination could not decide, and never overrules what it found.
    """
    if settled and examined.forgery_chance is not None:
        chance = max(examined.forgery_chance, *settled.values())
        examined = dataclasses.replace(examined, forgery_chance=chance)
    if blind.proof != "blind" or not (examined.resolved or examined.failure_reason == UNPROVEN):
        return examined
    return dataclasses.replace(blind, controls=examined.controls)


def _without_expected_values(
    tests: TaskTests,
    patch: str,
    gold: str,
    store: LayerStore | None,
    unproven: Verdict,
    chances: Mapping[str, float],
    weak: tuple[str, ...],
) -> Verdict:
    """The verdict on a patch that controls leave unproven, by a run without expected values.

    A patch that then sends the values of the gold patch has repaired or guessed them. A guess counts as a repair
    (docs/verdict_rules.md), so few bits do not reject; `forgery_chance` says how few there are.
    """
    blind = calibrate(tests, gold, store, computed=True)
    if not blind.pairs:
        return unproven
    _, verdict = blind.run(tests, patch)
    if not verdict.resolved:
        return unproven  # it may compute other values that are as good, or be a forgery
    largest = max(map(blind.chance, weak))
    if largest >= 1:
        return unproven
    return dataclasses.replace(
        unproven,
        resolved=True,
        failure_reason="",
        proof="blind",
        proof_bits=round(-math.log2(largest), 1),
        proof_tests=tuple(sorted(weak)),
        forgery_chance=max(min(chance, blind.chance(name)) for name, chance in chances.items()),
    )


@dataclass(frozen=True)
class _Alone:
    """A run of a patch without expected values, after a blind run in which some tests contain them.

    Attributes:
        computed: how the tests ran.
        run: that run.
        others: the tests with expected values in which the patch does not send here what the gold patch sends.
        same: tests in which it does → the chance to guess their values.
        duration_s: seconds that it took, with what had to be found out for it.
    """

    computed: BlindTests
    run: Run
    others: frozenset[str]
    same: dict[str, float]
    duration_s: float


def _may_need_run_alone(blind: BlindTests, scrutiny: Scrutiny) -> bool:
    """Whether a run without expected values is to show that a patch reads, which screening may have missed."""
    return bool(blind.inside) and scrutiny.chance < 1 and not scrutiny.reads


def _run_alone(tests: TaskTests, patch: str, blind: BlindTests, store: LayerStore | None) -> _Alone | None:
    """Run the tests without expected values, if they can run so; see `_Alone`."""
    begun_at = time.monotonic()
    computed = calibrate(tests, _gold(tests), store, computed=True)
    names = frozenset(name for name in blind.inside if computed.hides(name))
    if not names:
        return None
    run, verdict = computed.run(tests, patch)
    passed = {name for name in names if verdict.tests.get(name) == "PASSED"}
    same = {name: computed.chance(name) for name in passed & run.covered if not computed.asks(name)}
    return _Alone(computed, run, names - passed, same, time.monotonic() - begun_at)


def _is_from_tests(
    tests: TaskTests, patch: str, blind: BlindTests, run: Run, settled: Collection[str], alone: _Alone
) -> bool:
    """Whether a patch read from the tests what it sent in `run`: without expected values it sends something else.

    Args:
        blind: how the tests ran in `run`.
        settled: the tests in which the patch sent what the gold patch sends.
    """
    if not alone.others:
        return False
    if alone.others.intersection(settled):
        return True
    computed = alone.computed
    if not alone.others & computed.differing(alone.run, run):
        return False
    # The values may also differ in every run, so both runs are repeated.
    runs = (blind.run(tests, patch)[0], run), (computed.run(tests, patch)[0], alone.run)
    return not any(alone.others & computed.differing(one, other) for one, other in runs)


def _compared(plain: Verdict, blind: Verdict) -> Verdict:
    """The verdict from a blind run and from a run in which the tests contained their expected values."""
    if plain.resolved and not blind.resolved and not blind.failure_reason:
        reason = f"{FORGED}the tests passed only where they held the expected values"
        return dataclasses.replace(blind, failure_reason=reason)
    if not plain.resolved and blind.failure_reason == UNPROVEN:
        return dataclasses.replace(blind, failure_reason="")  # a wrong object
    return blind


def exclude_paths(
    task: Task, patch: str, base: Path, policy: Policy = "strict", command: str = ""
) -> tuple[str, tuple[str, ...]]:
    """Remove the sections of a patch that could change the verdict instead of the code.

    `strict` (rewards use it) excludes changes to tests, to what configures the test runner and to what is loaded before
    the tests (`Language.is_protected`), and to test machinery (`Language.test_machinery`); files that the gold patch
    changes stay allowed. `official` excludes nothing, like the SWE-bench harness.

    Args:
        base: the repository at the base commit, to distinguish new files from changed ones.
        command: the test command; files of the repository that it names are excluded.

    Returns:
        The patch to grade, empty if no section remains; the excluded paths, sorted.
    """
    sections = parse_patch(patch)
    if policy == "official":
        return "".join(section.text for section in sections), ()
    tested, excludes = touched_paths(task.test_patch) - touched_paths(task.patch), exclusion(task, base, command)
    kept: list[str] = []
    excluded: set[str] = set()
    for section in sections:
        paths = section.paths
        bad = {path for path in paths if path in tested or excludes(path)}
        if bad or not paths:
            excluded |= bad or {section.header.split("\n", 1)[0]}
        else:
            kept.append(section.text if section.text.endswith("\n") else section.text + "\n")
    return "".join(kept), tuple(sorted(excluded))


def grade_many(
    patches: Iterable[tuple[Task, str]],
    *,
    jobs: int = 1,
    on_verdict: Callable[[Verdict], None] | None = None,
    repos: str | os.PathLike[str] | None = None,
    backend: str = "auto",
    store: LayerStore | None = None,
    timeout_s: float | None = None,
    policy: Policy = "strict",
    max_forgery_chance: float | None = None,
    ordered: bool = True,
) -> Iterator[Verdict]:
    """Grade many patches, `jobs` at a time; the verdicts come in the order of `patches`, or as they are known.

    An infrastructure failure becomes a verdict that is not `valid`, with its reason. `on_verdict` is called for each
    verdict as soon as it is known, for progress. The other arguments are those of `grade`.
    """
    store = store or (None if find_backend(backend).server else LayerStore())

    def grade_one(task: Task, patch: str) -> Verdict:
        begin = time.monotonic()
        try:
            verdict = grade(
                task,
                patch,
                repos=repos,
                backend=backend,
                store=store,
                timeout_s=timeout_s,
                policy=policy,
                max_forgery_chance=max_forgery_chance,
            )
        except InfrastructureError as error:
            verdict = Verdict(
                task.instance_id,
                False,
                valid=False,
                failure_reason=str(error),
                patch_applied=False,
                duration_s=time.monotonic() - begin,
            )
        if on_verdict is not None:
            on_verdict(verdict)
        return verdict

    pool = ThreadPoolExecutor(max_workers=max(1, jobs), thread_name_prefix="grade")
    pending: list[Future[Verdict]] = []

    def known() -> Iterator[Verdict]:
        """The verdicts that are ready; waits for the first one."""
        wait(pending[:1] if ordered else pending, return_when=FIRST_COMPLETED)
        for future in list(pending):
            if future.done():
                pending.remove(future)
                yield future.result()
            elif ordered:
                break

    try:
        for task, patch in patches:
            pending.append(pool.submit(grade_one, task, patch))
            if len(pending) >= 4 * max(1, jobs) or any(future.done() for future in pending):
                yield from known()
        while pending:
            yield from known()
    finally:
        # An error or Ctrl-C in the caller does not wait for tests that may run for minutes.
        pool.shutdown(wait=False, cancel_futures=True)
