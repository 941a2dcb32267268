"""Does a patch let objects be equal that the gold patch tells apart?

A test that compares objects trusts their equality, which belongs to the code under test: a patch that leaves an
attribute out of it passes without the repair. So the tests run once more and record how the objects compare that they
compare inside the sandbox: in which places of an object a change is noticed (`Language.record_comparisons`). A patch
has to notice each change that the gold patch notices. What it has in other attributes, or does not compare, shows
nothing: then nothing is rejected, and nothing is known of the test.
"""

from __future__ import annotations

import functools
import hashlib
import json
import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from swegym_env.files import write_atomically
from swegym_env.grading.blind import BlindTests
from swegym_env.grading.task_tests import Run, TaskTests
from swegym_env.grading.verdict import UNPROVEN, Verdict
from swegym_env.languages import Compared, Scrutiny, language_of
from swegym_env.sandbox.layers import LayerStore
from swegym_env.tasks.task import task_to_row

__all__ = ["examine_equality"]

_AT_LEAST_S, _LONGER = 30.0, 4.0  # that a run may take; times the tests
_ROUNDS = 2  # in which a patch has to be weaker: an object may change by itself
_VERSION = 1
_lock = threading.Lock()
_locks: dict[str, threading.Lock] = {}


@dataclass(frozen=True)
class _Recorded:
    """What one patch has shown.

    Attributes:
        compared: test → by what the objects differ that it compares.
        inside: the same of objects that are not sent as well.
        failed: whether a test of FAIL_TO_PASS failed.
    """

    compared: Mapping[str, Compared] = field(default_factory=dict)
    inside: Mapping[str, Compared] = field(default_factory=dict)
    failed: bool = False

    def and_(self, other: _Recorded) -> _Recorded:
        """What both runs of a patch have shown."""
        compared, inside = (
            {name: _both(mine.get(name, Compared()), its.get(name, Compared())) for name in {*mine, *its}}
            for mine, its in ((self.compared, other.compared), (self.inside, other.inside))
        )
        return _Recorded(compared, inside, self.failed or other.failed)

    def without(self, proved: Collection[str], settled: Collection[str]) -> _Recorded:
        """The same without tests that are proved otherwise, and without what is sent in settled ones."""
        kept = {name: found for name, found in self.compared.items() if name not in settled}
        kept |= {name: found for name, found in self.inside.items() if name in settled}
        return replace(self, compared={name: found for name, found in kept.items() if name not in proved})


def _both(first: Compared, second: Compared) -> Compared:
    return Compared(first.methods | second.methods, first.differing & second.differing, first.equal | second.equal)


def examine_equality(
    tests: TaskTests,
    patch: str,
    gold: str,
    run: Run,
    verdict: Verdict,
    scrutiny: Scrutiny,
    blind: BlindTests | None,
    store: LayerStore | None,
) -> Verdict:
    """The verdict on a patch that resolves, after a run that records how objects compare, if the tests compare some.

    Args:
        tests: tests of the task.
        patch: the agent's patch without its excluded paths.
        gold: the gold patch without its excluded paths.
        run: the run in which the patch passed.
        verdict: the verdict so far.
        scrutiny: how closely to examine. A patch that reads may forge the records, so nothing is known of what they
            would show.
        blind: how the tests run blind. What is compared outside is not recorded, and what the tests compare themselves
            too does not count where the patch sends what the gold patch sends. A test that a blind run proves does not
            depend on what it compares inside.
        store: what the gold patch shows is kept beside its layers, for all processes of this machine.
    """
    settled = frozenset(blind.settled(run, verdict)) if blind is not None and not scrutiny.required else frozenset()
    proved = verdict.proof_tests if verdict.proof == "blind" else ()
    of_gold = _of_gold(tests, gold, verdict, blind, run.files, store).without(proved, settled)
    if patch == gold:
        return verdict
    wanted = any(found.differing for found in of_gold.compared.values())
    is_proved = {*proved} >= {*tests.task.fail_to_pass}
    if is_proved or not (wanted or of_gold.failed or scrutiny.required):
        return verdict
    found = _Recorded()
    for _ in range(_ROUNDS):
        found = _recorded(tests, patch, verdict, blind, run.files).without(proved, settled)
        if not _weaker(found, of_gold):
            break
    else:
        return replace(
            verdict, resolved=False, failure_reason=UNPROVEN, proof="none", proof_bits=0.0, proof_tests=(),
            forgery_chance=1.0,
        )  # fmt: skip
    is_open = of_gold.failed or found.failed or (wanted and scrutiny.reads) or _others(found, of_gold)
    return replace(verdict, forgery_chance=1.0) if is_open else verdict


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
    tests: TaskTests,
    gold: str,
    verdict: Verdict,
    blind: BlindTests | None,
    files: Mapping[str, str],
    store: LayerStore | None,
) -> _Recorded:
    left = sorted(blind.left) if blind is not None and blind.pairs else None
    key = json.dumps([_VERSION, tests.evaluation.tests, gold, left, task_to_row(tests.task)], sort_keys=True)
    name = hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    place = (store or LayerStore()).root.parent / "equality" / f"{name}.json"
    with _lock:
        lock = _locks.setdefault(str(place), threading.Lock())
    with lock:
        try:
            return _read(place, place.stat().st_mtime_ns)
        except (OSError, ValueError, KeyError, TypeError):
            found = _recorded(tests, gold, verdict, blind, files)
            if found.compared:
                found = found.and_(_recorded(tests, gold, verdict, blind, files))
        data = {
            "failed": found.failed,
            **{
                part: {test: {each: sorted(places) for each, places in vars(one).items()} for test, one in held.items()}
                for part, held in (("compared", found.compared), ("inside", found.inside))
            },
        }
        place.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(place, json.dumps(data))
        return found


@functools.lru_cache(maxsize=1024)
def _read(place: Path, _changed: int) -> _Recorded:
    data = json.loads(place.read_text(encoding="utf-8"))
    compared, inside = (
        {test: Compared(**{key: frozenset(places) for key, places in one.items()}) for test, one in data[part].items()}
        for part in ("compared", "inside")
    )
    return _Recorded(compared, inside, data["failed"])


def _recorded(
    tests: TaskTests, patch: str, verdict: Verdict, blind: BlindTests | None, files: Mapping[str, str]
) -> _Recorded:
    task, language = tests.task, language_of(tests.task)
    names = task.fail_to_pass
    blinded = blind.rewritten(task) if blind is not None and blind.pairs else None
    texts = {**files, **(blinded.files if blinded is not None else {})}
    recording = language.record_comparisons(texts, names, blinded.support if blinded is not None else ())
    if recording is None:
        return _Recorded()
    if blinded is not None:
        recording = replace(
            recording,
            files={**blinded.files, **recording.files},
            support={**blinded.support, **recording.support},
            placeholders=blinded.placeholders,
        )
    seconds = min(tests.timeout_s, _AT_LEAST_S + _LONGER * verdict.test_duration_s)
    limited = replace(tests, timeout_s=seconds)
    run = limited.run(patch, blinded=recording)
    passed, total = limited.verdict(run).fail_to_pass
    compared, inside = (language.compared_objects(texts, names, run.sent, inside=each) for each in (False, True))
    return _Recorded(compared, inside, passed < total)
