"""Does a patch let objects be equal that the gold patch tells apart?

A test that compares objects trusts their equality, which belongs to the code under test: a patch that leaves an
attribute out of it passes without the repair. So the tests run once more and record which objects they compare inside
the sandbox (`Language.record_comparisons`). If the gold patch compares others, it is asked about those of the patch:
objects with the same content are made beside the gold patch and compared there. A patch that lets objects be equal, or
orders them, otherwise than the gold patch does has not made them equal by a repair. What cannot be made there, because
the patch has other classes or attributes, shows nothing: then nothing is rejected, and nothing is known of the test.
"""

from __future__ import annotations

import functools
import hashlib
import json
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from swegym_env.files import write_atomically
from swegym_env.grading.blind import BlindTests
from swegym_env.grading.task_tests import Run, TaskTests
from swegym_env.grading.verdict import UNPROVEN, Verdict
from swegym_env.languages import Compared, ComparedObjects, Scrutiny, language_of
from swegym_env.sandbox.layers import LayerStore
from swegym_env.tasks.task import task_to_row

__all__ = ["examine_equality"]

_AT_LEAST_S, _LONGER = 30.0, 4.0  # that a run may take; times the tests
_MOST_QUESTIONS, _MOST_CONTROLS = 2000, 500
_VERSION = 8
_ORDERS = frozenset({"__lt__", "__le__", "__gt__", "__ge__"})
_lock = threading.Lock()
_locks: dict[str, threading.Lock] = {}


@dataclass(frozen=True)
class _Recorded:
    """What a run has shown.

    Attributes:
        objects: that the tests have compared.
        failed: whether a test of FAIL_TO_PASS failed.
    """

    objects: ComparedObjects = field(default_factory=ComparedObjects)
    failed: bool = False

    def of(self, name: str) -> frozenset[Compared]:
        """What a test has compared."""
        return self.objects.by_test.get(name, frozenset())


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
    """The verdict on a patch that resolves, after runs that record which objects the tests compare, if they do.

    Args:
        tests: tests of the task.
        patch: the agent's patch without its excluded paths.
        gold: the gold patch without its excluded paths.
        run: the run in which the patch passed.
        verdict: the verdict so far.
        scrutiny: how closely to examine. A patch that reads may forge the records: nothing is known of what they would
            show of tests that a blind run does not prove.
        blind: how the tests run blind. What is compared outside is not recorded, and what the tests compare themselves
            too does not count where the patch sends what the gold patch sends.
        store: what the gold patch shows is kept beside its layers, for all processes of this machine.
    """
    settled = frozenset(blind.settled(run, verdict)) if blind is not None and not scrutiny.required else frozenset()
    of_gold = _of_gold(tests, gold, verdict, blind, run.files, store)
    names = tests.task.fail_to_pass
    comparing = {name for name in names for one in of_gold.of(name) if not (one.is_sent and name in settled)}
    comparing |= of_gold.objects.more
    if patch == gold or not (comparing or of_gold.failed or scrutiny.required):
        return verdict
    found = _recorded(tests, patch, verdict, blind, run.files)
    counting = [one for name in names for one in found.of(name) if not (one.is_sent and name in settled)]
    known = {one for each in of_gold.objects.by_test.values() for one in each}
    seen = {(one.method, one.pair, one.answer) for one in known if one.is_whole}
    asked = [
        one for one in dict.fromkeys(counting) if (one.method, one.pair, one.answer) not in seen and _is_permissive(one)
    ]
    # What the gold patch has compared itself is a control: if it answers otherwise about copies, these show nothing.
    methods = {one.method for one in asked}
    controls = [one for one in known if one.method in methods][:_MOST_CONTROLS]
    questions = [*controls, *asked[:_MOST_QUESTIONS]]
    answers: Mapping[int, tuple[bool | None, bool]] = {}
    if asked:
        answers = _recorded(tests, gold, verdict, blind, run.files, questions, known).objects.answers
    others = {
        one: answers.get(number, (None, False))
        for number, one in enumerate([*controls, *asked])
        if answers.get(number, (None, False))[0] != one.answer
    }
    unsure = {one.method for one in controls if one in others}
    if any(answer is not None and is_whole and one.method not in unsure for one, (answer, is_whole) in others.items()):
        return replace(
            verdict, resolved=False, failure_reason=UNPROVEN, proof="none", proof_bits=0.0, proof_tests=(),
            forgery_chance=1.0,
        )  # fmt: skip
    is_open = (
        of_gold.failed
        or found.failed
        or any(one in others for one in asked)
        or bool(found.objects.more)
        or (scrutiny.reads and not comparing <= {*verdict.proof_tests})
    )
    return replace(verdict, forgery_chance=1.0) if is_open else verdict


def _is_permissive(one: Compared) -> bool:
    """Whether an answer lets a test pass as if the objects were equal, or one were in the other, or in any order."""
    method = one.method.rpartition(".")[2]
    return method in _ORDERS or one.answer == (method != "__ne__")


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
        data = {
            "failed": found.failed,
            "more": sorted(found.objects.more),
            "by_test": {test: [asdict(one) for one in each] for test, each in found.objects.by_test.items()},
        }
        place.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(place, json.dumps(data))
        return found


@functools.lru_cache(maxsize=64)
def _read(place: Path, _changed: int) -> _Recorded:
    data = json.loads(place.read_text(encoding="utf-8"))
    by_test = {test: frozenset(Compared(**one) for one in each) for test, each in data["by_test"].items()}
    return _Recorded(ComparedObjects(by_test, {}, frozenset(data["more"])), data["failed"])


def _recorded(
    tests: TaskTests,
    patch: str,
    verdict: Verdict,
    blind: BlindTests | None,
    files: Mapping[str, str],
    questions: Sequence[Compared] = (),
    known: Collection[Compared] = (),
) -> _Recorded:
    task, language = tests.task, language_of(tests.task)
    names = task.fail_to_pass
    blinded = blind.rewritten(task) if blind is not None and blind.pairs else None
    texts = {**files, **(blinded.files if blinded is not None else {})}
    senders = blinded.support if blinded is not None else ()
    recording = language.record_comparisons(texts, names, senders, questions, known)
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
    return _Recorded(language.compared_objects(texts, names, run.sent), passed < total)
