"""Does a patch let objects be equal that the gold patch tells apart?

A test that compares objects trusts their equality, which belongs to the code under test: a patch that leaves an
attribute out of it passes without the repair. So the tests run once more and record which objects those of FAIL_TO_PASS
compare inside the sandbox (`Language.record_comparisons`). If the gold patch compares others, it is asked about those
of the patch: objects with the same content are made beside the gold patch and compared there. A patch that lets objects
be equal, or orders them, otherwise than the gold patch does has not made them equal by a repair. What cannot be made
there, because the patch has other classes or attributes, shows nothing: then nothing is rejected, and nothing is known
of the test.

A patch may also make objects equal by losing content on both sides. So what the gold patch finds equal in a test must
occur with the patch as well: the same content, or one that the gold patch calls equal to it. If it does not, and the
base commit has it in this test, it is what the test expects, and the patch has changed it.

What the code under test compares for a test (`points.index(point)`) is not the same with every repair. If a patch
changes what such comparisons or the constructors of these objects run, nothing is known of them: `forgery_chance` is 1.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import math
import random
import secrets
import threading
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from swegym_env.grading.blind import BlindTests
from swegym_env.grading.findings import place_to_read, write_finding
from swegym_env.grading.task_tests import Run, TaskTests
from swegym_env.grading.verdict import UNPROVEN, Verdict
from swegym_env.languages import Compared, ComparedObjects, Content, Scrutiny, language_of, line_of
from swegym_env.long_work import begins
from swegym_env.sandbox.layers import LayerStore

__all__ = ["examine_equality"]

_LONGER = 4.0  # times the tests, that a run which records may take
_MOST_QUESTIONS, _MOST_CONTROLS, _MOST_MISSING, _MOST_CANDIDATES, _MOST_PLACES = 2000, 500, 100, 5, 50
_MOST_CHARACTERS = 3_000_000  # of all questions
_DRAWN, _VARIATIONS = 8, 800  # comparisons that are varied; variations of all
_FEWEST_DISTINCT, _MOST_WRONG = 8, 1 / 50  # that the gold patch must tell apart; a share of these
_ORDERS = frozenset({"__lt__", "__le__", "__gt__", "__ge__"})
_UNKNOWN = frozenset({(None, False)})
_Answers = dict[Compared, frozenset[tuple[bool | None, bool]]]
"""Question → its answers, see `ComparedObjects.answers`."""
_Place = tuple[str, str, bool, int]
"""File, function, whether it sends what it compares, and the number of a comparison."""
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


@dataclass(frozen=True)
class _Missing:
    """What the gold patch finds equal to something in a test, and the patch does not have there.

    Attributes:
        name: of the test.
        places: of the comparisons in which the gold patch has it, with its side.
        is_elsewhere: whether the patch has it in another comparison of the test.
        itself: whether this content equals itself.
        alike: whether it equals what the patch has in its place, or, if there is nothing, of its class in this test.
        called: whether it equals what the calls that made this return with the gold patch.
    """

    name: str
    places: frozenset[tuple[_Place, int]]
    is_elsewhere: bool
    itself: Compared
    alike: tuple[Compared, ...]
    called: tuple[Compared, ...]

    @property
    def questions(self) -> tuple[Compared, ...]:
        return self.itself, *self.alike, *self.called


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
    recorder = _Recorder(tests, verdict, blind, run.files, store, settled)
    names = tests.task.fail_to_pass
    of_gold = recorder.known(gold)
    if of_gold.failed:  # these tests may need what others leave behind
        recorder = replace(recorder, alone=False)
        of_gold = recorder.known(gold)
    comparing = {name for name in names if recorder.counting(of_gold, name)} | of_gold.objects.more
    if patch == gold:
        return verdict
    inside, base = of_gold.objects.inside, tests.workspace.base
    if inside and not inside.isdisjoint(language_of(tests.task).changed_functions(patch, base)):
        verdict = verdict.with_chance(1.0)
    if not (comparing or of_gold.failed or scrutiny.required):
        return verdict
    # The patch may compare otherwise after other tests, so these run beside its own; those of gold only if it does.
    found = replace(recorder, alone=False).run(patch)
    if recorder.alone and (found.failed or any(_places(found, name) != _places(of_gold, name) for name in names)):
        recorder = replace(recorder, alone=False)
        of_gold = recorder.known(gold)
    known = {one for each in of_gold.objects.by_test.values() for one in each}
    seen = {(*_asking(one), place) for one in known if one.is_whole for place in one.places}
    asked = [
        one
        for one in dict.fromkeys(one for name in names for one in recorder.counting(found, name))
        if any((*_asking(one), place) not in seen for place in one.places)
    ]
    missing = [one for name in names for one in _missing(recorder.counting(of_gold, name), name, found)]
    is_open = len(asked) > _MOST_QUESTIONS or len(missing) > _MOST_MISSING
    is_open = is_open or any(_number(recorder.counting(of_gold, name)) > _number(found.of(name)) for name in names)
    missing = missing[:_MOST_MISSING]
    # What the gold patch does not reach is asked wherever it compares in this test.
    reached: dict[tuple[str, str, bool], set[int]] = defaultdict(set)
    for one in known:
        reached[one.path, one.function, one.is_sent].update(one.places)
    asked = [_reachable(one, reached[one.path, one.function, one.is_sent]) for one in asked[:_MOST_QUESTIONS]]
    # What the gold patch has compared itself is a control: if it answers otherwise about copies, these show nothing.
    methods = {one.method for one in asked}
    controls = [one for one in known if one.method in methods][:_MOST_CONTROLS]
    answers: _Answers = {}
    again = of_gold
    if asked or missing:
        reversed_ones = [_reversed(one) for one in asked if _is_order(one)]
        about_missing = itertools.chain.from_iterable(one.questions for one in missing)
        questions = [*controls, *asked, *reversed_ones, *about_missing]
        sizes = itertools.accumulate(len(one.pair) + sum(len(side.text) for side in one.contents) for one in questions)
        most = sum(size <= _MOST_CHARACTERS for size in sizes)
        again = recorder.run(gold, questions[:most], known)
        answers = {one: again.objects.answers.get(number, _UNKNOWN) for number, one in enumerate(questions)}
    unsure = {one.method for one in controls if {answer for answer, _ in answers[one]} != {one.answer}}
    others = {one: {each for each in answers[one] if each[0] != one.answer} for one in asked}
    # Of two objects neither of which comes first, a patch may let one come first.
    others |= {one: set() for one in asked if _is_order(one) and answers[one] == answers[_reversed(one)] != _UNKNOWN}
    differing = [one for one in asked if one.method not in unsure and any(map(_is_definite, others[one]))]
    differing = [one for one in differing if not (one.is_elsewhere and (one.answer, True) in answers[one])]
    # Whether something is in a container may depend on how the container was used: what is not in it shows nothing.
    differing = [one for one in differing if _is_permissive(one) or not one.method.endswith(".__contains__")]
    lost = [one for one in missing if not any((True, True) in answers[question] for question in one.alike)]
    # The same calls make it with the gold patch: these must tell apart what the gold patch tells apart.
    made = {one: next((each for each in one.called if (True, True) in answers[each]), None) for one in lost}
    again_made = [_twice(each) for each in made.values() if each is not None]
    if differing or again_made:
        keeps_state = language_of(tests.task).keeps_state(patch, base, tests.task.patch)
        groups = (again_made, differing)
        chances = (None, None) if keeps_state else recorder.varied(patch, gold, groups, known, found)
        if differing and chances[1] is None:
            return _unproven(verdict)
        for group, chance in zip(groups, chances, strict=True):
            verdict = verdict if chance is None or not group else verdict.with_chance(chance)
        lost = [one for one in lost if made[one] is None or chances[0] is None]
        others = {one: each for one, each in others.items() if one not in differing}
    if recorder.changes_expected(lost, answers, again):
        return _unproven(verdict)
    is_open = (
        is_open
        or of_gold.failed
        or found.failed
        or any(others.values())
        or bool(lost)
        or bool(found.objects.more)
        or (scrutiny.reads and any(not recorder.proves(of_gold, name) for name in comparing))
    )
    return replace(verdict, forgery_chance=1.0) if is_open else verdict


def _unproven(verdict: Verdict) -> Verdict:
    return replace(
        verdict, resolved=False, failure_reason=UNPROVEN, proof="none", proof_bits=0.0, proof_tests=(),
        forgery_chance=1.0,
    )  # fmt: skip


def _asking(one: Compared) -> tuple[str, str, str, str, bool]:
    return one.path, one.function, one.method, one.pair, one.answer


def _places(recorded: _Recorded, name: str) -> frozenset[tuple[tuple[str, str, str, str, bool], int]]:
    """What is compared in each place of a test, and how."""
    return frozenset((_asking(one), place) for one in recorded.of(name) for place in one.places)


def _reachable(one: Compared, places: Collection[int]) -> Compared:
    if not places or not {*one.places}.isdisjoint(places):
        return one
    return replace(one, places=tuple(sorted(places)[:_MOST_PLACES]), is_elsewhere=True)


def _is_order(one: Compared) -> bool:
    return one.method.rpartition(".")[2] in _ORDERS


def _is_permissive(one: Compared) -> bool:
    """Whether an answer lets a test pass as if the objects were equal, or one were in the other, or in any order."""
    return _is_order(one) or one.answer == (not one.method.endswith(".__ne__"))


def _reversed(one: Compared) -> Compared:
    return replace(one, pair="", contents=one.contents[::-1])


def _is_definite(answer: tuple[bool | None, bool]) -> bool:
    return answer[0] is not None and answer[1]


def _by_calls(one: Compared) -> Compared:
    """A comparison of what the calls return that made both sides."""
    first, other = one.contents
    return replace(one, pair="", contents=(replace(first, text=first.made), replace(other, text=other.made)))


def _drawn(differing: Sequence[Compared]) -> Sequence[Compared]:
    return random.Random(secrets.randbits(64)).sample(differing, min(_DRAWN, len(differing)))


def _share(one: Compared, like: Compared) -> bool:
    sides = zip(one.contents, like.contents, strict=True)
    return any(content == other or content.made == other.made != "" for content, other in sides)


def _contents(recorded: _Recorded, name: str) -> frozenset[Content]:
    return frozenset(content for one in recorded.of(name) for content in one.contents)


def _missing(of_gold: Collection[Compared], name: str, found: _Recorded) -> Iterator[_Missing]:
    theirs = sorted(_contents(found, name), key=lambda content: content.text)
    at = {_place(one, place): one for one in found.of(name) for place in one.places}
    expected: dict[tuple[Content, Content | None, str], tuple[Compared, set[tuple[_Place, int]]]] = {}
    for one in of_gold:
        for number, side in itertools.product(one.places if _is_permissive(one) else (), (0, 1)):
            place = _place(one, number)
            there = None if _is_order(one) else at.get(place)
            instead = there.contents[side] if there is not None else None
            key = one.contents[side], instead, instead.made if instead is not None else ""
            expected.setdefault(key, (one, set()))[1].add((place, side))
    for (content, instead, _), (one, places) in expected.items():
        if content.kind and content != instead and (instead is not None or content not in theirs):
            method = one.method.rpartition(".")[2]
            method = "__eq__" if method.startswith("__") else method  # such as `same_as`, which may be all it has
            about = replace(one, method=f"{content.kind}.{method}", answer=True, pair="")
            alike = [instead] if instead is not None else []
            if content not in theirs:
                alike += [each for each in theirs if each.kind == content.kind and each != instead][:_MOST_CANDIDATES]
            yield _Missing(
                name,
                frozenset(places),
                content in theirs,
                replace(about, contents=(content, content)),
                tuple(replace(about, contents=(content, each)) for each in alike),
                tuple(replace(about, contents=(content, replace(each, text=each.made))) for each in alike if each.made),
            )


def _place(one: Compared, number: int) -> _Place:
    return one.path, one.function, one.is_sent, number


def _sides(recorded: _Recorded, name: str) -> dict[tuple[_Place, int], Content]:
    """What is on each side of each comparison of a test."""
    return {
        (_place(one, number), side): content
        for one in recorded.of(name)
        for number in one.places
        for side, content in enumerate(one.contents)
    }


def _number(compared: Iterable[Compared]) -> int:
    return sum(len(one.places) for one in compared)


def _twice(question: Compared) -> Compared:
    """What a call returns, compared with itself."""
    called = question.contents[1]
    return replace(question, contents=(called, called))


@dataclass(frozen=True)
class _Recorder:
    """Runs that record what the tests of a task compare; see `examine_equality` for the attributes.

    Attributes:
        alone: whether the tests of FAIL_TO_PASS run without the others, where the language can do this.
    """

    tests: TaskTests
    verdict: Verdict
    blind: BlindTests | None
    files: Mapping[str, str]
    store: LayerStore | None
    settled: frozenset[str]
    alone: bool = True

    def counting(self, recorded: _Recorded, name: str) -> list[Compared]:
        """What a test has compared, but for what it sends as well if it is settled."""
        return [one for one in recorded.of(name) if not (one.is_sent and name in self.settled)]

    def proves(self, of_gold: _Recorded, name: str) -> bool:
        """Whether a blind run proves a test, and all that it compares and the base commit does not compare so."""
        if name not in self.verdict.proof_tests or name in of_gold.objects.more or self.blind is None:
            return False
        texts = self.blind.rewritten(self.tests.task).files
        # Code that a blind test begins with may take a line.
        added = {path: text.count("\n") - self.blind.files[path].count("\n") for path, text in texts.items()}
        sent = {
            place.partition("|")[0].rpartition(":")[0] for place, pair in self.blind.pairs.items() if name in pair.names
        }
        left = {
            (_asking(one), number)
            for one in of_gold.of(name)
            for number in one.places
            if not one.is_sent and f"{one.path}:{line_of(number) - added.get(one.path, 0)}" not in sent
        }
        if not left:
            return True
        return left <= {(_asking(one), number) for one in self.known("").of(name) for number in one.places}

    def changes_expected(self, lost: Iterable[_Missing], answers: _Answers, again: _Recorded) -> bool:
        """Whether a patch has something else where the base commit and the gold patch have the same, on one side."""
        changed = [one for one in lost if one.alike and not one.is_elsewhere and answers[one.itself] == {(True, True)}]
        changed = [one for one in changed if all(answers[question] == {(False, True)} for question in one.alike)]
        for each in changed:
            before, twice = _sides(self.known(""), each.name), _sides(again, each.name)
            if any(before.get(place) == each.itself.contents[0] == twice.get(place) for place in each.places):
                return True
        return False

    def varied(
        self,
        patch: str,
        gold: str,
        groups: Sequence[Sequence[Compared]],
        known: Collection[Compared],
        found: _Recorded,
    ) -> Sequence[float | None]:
        """The chance that a patch which compares otherwise than the gold patch is a forgery; None if it shows that.

        An honest patch may repair how objects are compared where the gold patch repairs how they are made: then the
        gold patch tells its objects apart, and not those that it makes itself by the same calls. A weaker equality also
        lets objects be equal which no call of the gold patch makes equal. So both patches compare variations: of the
        arguments of these calls, or of the side of a comparison that the same call makes with both patches, or that has
        the same content.

        Args:
            patch, gold: as in `examine_equality`.
            groups: comparisons that differ; there is a chance for each group.
            known: what the gold patch has compared.
            found: what the patch has.
        """
        calls = {one: _by_calls(one) for group in groups for one in group if all(side.made for side in one.contents)}
        at = {_place(one, place): one for one in known for place in one.places}
        drawn = [_drawn([one for one in group if _is_permissive(one)]) for group in groups]
        varied = {
            one: self._variations(one, at, _VARIATIONS // len(each), by_calls=one in calls)
            for each in drawn
            for one in each
        }
        pairs = [pair for variations in varied.values() for each in variations for pair in each]
        theirs = [one for each in found.objects.by_test.values() for one in each]
        of_gold = self._answers(gold, [*calls.values(), *(question for _, question in pairs)], known)
        of_patch = self._answers(patch, [question for question, _ in pairs], theirs)
        called = {one for one, question in calls.items() if of_gold[question] == {(one.answer, True)}}

        def chance_of(group: Sequence[Compared], chosen: Sequence[Compared]) -> float | None:
            permissive = {one for one in group if _is_permissive(one)}
            if not called | permissive >= {*group}:  # what is equal for the gold patch is equal for a repair
                return None
            chance = 0.0
            for one in chosen:
                distinct, wrong = 0, 0
                for question, question_of_gold in varied[one][0 if one in called else 1]:
                    expected = {answer for answer, _ in of_gold[question_of_gold]}
                    if len(expected) == 1 and None not in expected and (_is_order(one) or expected != {one.answer}):
                        distinct += 1
                        wrong += {answer for answer, _ in of_patch[question]} != expected
                if distinct < _FEWEST_DISTINCT or wrong > (_MOST_WRONG * distinct if one in called else 0):
                    return None
                # Who lets a share p of all pairs be equal passes with a chance of p, and n variations with (1 - p)^n.
                chance = max(chance, 1.0 if wrong else 1 / (math.e * distinct))
            return chance if permissive == {*group} <= called else 1.0

        return [chance_of(group, chosen) for group, chosen in zip(groups, drawn, strict=True)]

    def _variations(
        self, one: Compared, at: Mapping[_Place, Compared], number: int, *, by_calls: bool
    ) -> tuple[Sequence[tuple[Compared, Compared]], Sequence[tuple[Compared, Compared]]]:
        """Variations of the calls that made both sides, and of a side that the gold patch has in the same place."""
        vary, seed = language_of(self.tests.task).vary_compared, secrets.randbits(64)
        of_calls = vary(replace(one, places=one.places[:1]), None, seed, number) if by_calls else ()
        likes = ((place, at.get(_place(one, place))) for place in one.places)
        place, like = next(((place, like) for place, like in likes if like and _share(one, like)), (0, None))
        if like is None:
            return of_calls, ()
        return of_calls, vary(replace(one, places=(place,)), replace(like, places=(place,)), seed, number)

    def _answers(self, patch: str, questions: Sequence[Compared], known: Collection[Compared]) -> _Answers:
        answers = self.run(patch, questions, known).objects.answers if questions else {}
        return {one: answers.get(number, _UNKNOWN) for number, one in enumerate(questions)}

    def known(self, patch: str) -> _Recorded:
        """What a patch of the task itself shows, found out once."""
        blind, task = self.blind, self.tests.task
        left = sorted(blind.left) if blind is not None and blind.pairs else None
        parts = json.dumps([self.tests.evaluation.tests, patch, left, self.alone])
        key = hashlib.sha256(parts.encode("utf-8", "surrogatepass")).hexdigest()[:32]
        with _lock:
            lock = _locks.setdefault(f"{(self.store or LayerStore()).root} {task.digest} {key}", threading.Lock())
        with lock:
            place = place_to_read(task, self.store, "equality", key)
            try:
                return _read(place, place.stat().st_mtime_ns)
            except (OSError, ValueError, KeyError, TypeError):
                begins()
                found = self.run(patch)
            data = {
                "failed": found.failed,
                "more": sorted(found.objects.more),
                "by_test": {test: [asdict(one) for one in each] for test, each in found.objects.by_test.items()},
                "inside": sorted(found.objects.inside),
            }
            write_finding(task, self.store, "equality", json.dumps(data), key)
            return found

    def run(self, patch: str, questions: Sequence[Compared] = (), known: Collection[Compared] = ()) -> _Recorded:
        """What a patch shows; see `Language.record_comparisons` for the questions."""
        task, language, blind = self.tests.task, language_of(self.tests.task), self.blind
        names = task.fail_to_pass
        blinded = blind.rewritten(task) if blind is not None and blind.pairs else None
        whole = {**self.files, **(blinded.files if blinded is not None else {})}
        texts = (language.only_tests(whole, names) if self.alone else None) or whole
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
        limited = self.tests.limited(_LONGER, self.verdict.test_duration_s)
        run = limited.run(patch, blinded=recording)
        passed, total = limited.verdict(run).fail_to_pass
        return _Recorded(language.compared_objects(texts, names, run.sent), passed < total)


@functools.lru_cache(maxsize=64)
def _read(place: Path, _changed: int) -> _Recorded:
    data = json.loads(place.read_text(encoding="utf-8"))
    by_test = {test: frozenset(map(_as_compared, each)) for test, each in data["by_test"].items()}
    inside = frozenset((path, name) for path, name in data["inside"])
    return _Recorded(ComparedObjects(by_test, {}, frozenset(data["more"]), inside), data["failed"])


def _as_compared(data: dict[str, object]) -> Compared:
    one, other = (Content(**each) for each in data["contents"])  # type: ignore[attr-defined]
    return Compared(**{**data, "contents": (one, other), "places": tuple(data["places"])})  # type: ignore[arg-type]
