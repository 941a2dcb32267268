"""Does a patch let objects be equal that the gold patch tells apart?

A test that compares objects trusts their equality, which belongs to the code under test: a patch that leaves an
attribute out of it passes without the repair. So the tests run once more and record how the objects compare that they
compare inside the sandbox: in which places of an object a change is noticed (`Language.record_comparisons`). A patch
has to notice each change that the gold patch notices. What it has in other attributes, or does not compare, shows
nothing: then nothing is rejected, and nothing is known of the test.
"""

from __future__ import annotations

import dataclasses
import hashlib
import threading
from collections.abc import Mapping
from dataclasses import dataclass

from swegym_env.grading.blind import BlindTests
from swegym_env.grading.task_tests import TaskTests
from swegym_env.grading.verdict import UNPROVEN, Verdict
from swegym_env.languages import Compared, Scrutiny, language_of

__all__ = ["examine_equality"]

_AT_LEAST_S, _LONGER = 30.0, 4.0  # that a run may take; times the tests
_MOST_KNOWN = 4096
_known: dict[str, _Recorded] = {}
_lock = threading.Lock()


@dataclass(frozen=True)
class _Recorded:
    """What one patch has shown: test → by what the objects differ that it compares; and the tests that failed."""

    compared: Mapping[str, Compared]
    failed: frozenset[str]


def examine_equality(
    tests: TaskTests,
    patch: str,
    gold: str,
    verdict: Verdict,
    scrutiny: Scrutiny,
    blind: BlindTests | None,
    files: Mapping[str, str],
) -> Verdict:
    """The verdict on a patch that resolves, after a run that records how objects compare, if the tests compare some.

    Args:
        tests: tests of the task.
        patch: the agent's patch without its excluded paths.
        gold: the gold patch without its excluded paths.
        verdict: the verdict so far.
        scrutiny: how closely to examine. A patch that reads may forge the records, so nothing is known of what they
            would show.
        blind: how the tests run blind; what is compared outside is not recorded.
        files: path → text of the test files as the task has them.
    """
    if patch == gold:
        return verdict
    of_gold = _of_gold(tests, gold, verdict, blind, files)
    wanted = {name: found.differing for name, found in of_gold.compared.items() if found.differing}
    if not (wanted or of_gold.failed or scrutiny.required):
        return verdict
    found = _recorded(tests, patch, verdict, blind, files)
    if wanted and _weaker(found, of_gold) and _weaker(_recorded(tests, patch, verdict, blind, files), of_gold):
        return dataclasses.replace(
            verdict, resolved=False, failure_reason=UNPROVEN, proof="none", proof_bits=0.0, proof_tests=(),
            forgery_chance=1.0,
        )  # fmt: skip
    is_open = of_gold.failed or found.failed or (wanted and scrutiny.reads) or _others(found, of_gold)
    return dataclasses.replace(verdict, forgery_chance=1.0) if is_open else verdict


def _weaker(found: _Recorded, of_gold: _Recorded) -> bool:
    """Whether a patch lets a change go unnoticed in a place in which the gold patch notices each one."""
    return any(
        wanted.differing & (found.compared[name].equal - wanted.equal)
        for name, wanted in of_gold.compared.items()
        if name in found.compared
    )


def _others(found: _Recorded, of_gold: _Recorded) -> bool:
    """Whether a patch compares by other classes than the gold patch, or its objects have no such places."""
    nothing = Compared()
    return any(
        mine.methods - wanted.methods or wanted.differing - mine.differing - mine.equal
        for name in {*found.compared, *of_gold.compared}
        for mine, wanted in [(found.compared.get(name, nothing), of_gold.compared.get(name, nothing))]
    )


def _of_gold(
    tests: TaskTests, gold: str, verdict: Verdict, blind: BlindTests | None, files: Mapping[str, str]
) -> _Recorded:
    task = tests.task
    left = sorted(blind.left) if blind is not None and blind.pairs else None
    parts = (task.instance_id, task.base_commit, task.test_patch, gold, tests.evaluation.tests, left)
    key = hashlib.sha256(repr(parts).encode("utf-8", "replace")).hexdigest()
    with _lock:
        known = _known.get(key)
    if known is None:
        known = _recorded(tests, gold, verdict, blind, files)
        with _lock:
            if len(_known) >= _MOST_KNOWN:
                _known.clear()
            _known[key] = known
    return known


def _recorded(
    tests: TaskTests, patch: str, verdict: Verdict, blind: BlindTests | None, files: Mapping[str, str]
) -> _Recorded:
    task, language = tests.task, language_of(tests.task)
    names = task.fail_to_pass
    blinded = blind.rewritten(task) if blind is not None and blind.pairs else None
    texts = {**files, **(blinded.files if blinded is not None else {})}
    recording = language.record_comparisons(texts, names)
    if recording is None:
        return _Recorded({}, frozenset())
    if blinded is not None:
        recording = dataclasses.replace(
            recording,
            files={**blinded.files, **recording.files},
            support={**blinded.support, **recording.support},
            placeholders=blinded.placeholders,
        )
    seconds = min(tests.timeout_s, _AT_LEAST_S + _LONGER * verdict.test_duration_s)
    limited = dataclasses.replace(tests, timeout_s=seconds)
    run = limited.run(patch, blinded=recording)
    statuses = limited.verdict(run).tests
    failed = frozenset(name for name in names if statuses.get(name) not in ("PASSED", "XFAIL"))
    return _Recorded(language.compared_objects(texts, names, run.sent), failed)
