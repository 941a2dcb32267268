"""An audit of a task: variants of its gold patch that its tests must fail, and rewrites that must resolve.

Two kinds of variants are wrong, or at least different: mutants of the lines that the gold patch adds (the operators of
`making.operators`), and the gold patch without one of its changes. One that passes all of the task's tests is a
*survivor*: the tests would accept it from an agent too. A survivor may be equivalent to the gold patch (mutation
testing cannot decide that), so each is shown with its difference from gold. Rewrites (`auditing.rewrites`) are
equivalent by construction; one that `strict` refuses is a *false reject*.

Trials are stored in `work_dir()/audits`, so that an interrupted audit continues and one of more mutants adds to a
smaller one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import hashlib
import os
import random
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from swegym_env.auditing.gold import GoldPatch
from swegym_env.auditing.rewrites import REWRITES, rewrite
from swegym_env.certifying.campaign import for_each_task
from swegym_env.errors import ConfigurationError
from swegym_env.files import append_json_line, read_json_lines
from swegym_env.grading.grading import exclude_paths, grade
from swegym_env.grading.task_tests import TaskTests
from swegym_env.grading.verdict import names_by_outcome
from swegym_env.languages import digest_with_setup, language_of
from swegym_env.making.candidates import mutations
from swegym_env.paths import work_dir
from swegym_env.prepare import prepare_locally
from swegym_env.repo.patches import parse_patch
from swegym_env.sandbox.layers import LayerStore
from swegym_env.tasks.task import Task

__all__ = ["Audit", "Variant", "audit", "audit_many"]

Kind = Literal["gold", "mutant", "partial", "rewrite"]
_HUNK = re.compile(r"@@ -(?P<old>\d+)(?:,\d+)? \+(?P<new>\d+)(?:,\d+)? @@")
_LEAST_TIMEOUT_S = 30.0
_SLOWER = 10  # times the gold patch's duration: what takes longer does not end


@dataclass(frozen=True)
class Variant:
    """A variant of the gold patch, and whether it resolved its task.

    Attributes:
        kind: "mutant" or "partial", which should fail; "rewrite", which should resolve; "gold" itself.
        name: the mistake (a key of `making.operators.OPERATORS`), the change that is left out, or the rewrite.
        key: twelve hex digits of its patch.
        resolved: by the tests alone; for a rewrite, by `grade` under `strict`.
        reason: why a rewrite is not resolved, or what ended the tests of another variant.
        change: its difference from the gold patch, as lines of a diff; empty for a rewrite.
        test_duration_s: of the tests.
    """

    kind: Kind
    name: str
    key: str
    resolved: bool = False
    reason: str = ""
    change: str = ""
    test_duration_s: float = 0.0


@dataclass(frozen=True)
class Audit:
    """What was found out about one task.

    Attributes:
        instance_id: of the task.
        variants: all that were tried, gold first.
    """

    instance_id: str
    variants: tuple[Variant, ...]

    @property
    def is_broken(self) -> bool:
        """Whether the gold patch itself fails: nothing else was tried then."""
        return not self.variants[0].resolved

    @property
    def survivors(self) -> tuple[Variant, ...]:
        """Mutants and partial patches that passed all tests: false accepts, unless they are equivalent to gold."""
        return tuple(one for one in self.variants if one.kind in ("mutant", "partial") and one.resolved)

    @property
    def false_rejects(self) -> tuple[Variant, ...]:
        """Rewrites that did not resolve."""
        return tuple(one for one in self.variants if one.kind == "rewrite" and not one.resolved)

    @property
    def mutation_score(self) -> float | None:
        """The fraction of mutants and partial patches that the tests fail; None if there are none."""
        tried = self.count("mutant") + self.count("partial")
        return 1 - len(self.survivors) / tried if tried else None

    def count(self, kind: Kind) -> int:
        """The number of variants of one kind."""
        return sum(one.kind == kind for one in self.variants)


def audit(
    task: Task,
    *,
    mutants: int = 20,
    seed: int = 0,
    repos: str | os.PathLike[str] | None = None,
    backend: str = "auto",
    store: LayerStore | None = None,
    timeout_s: float | None = None,
    place: Path | None = None,
) -> Audit:
    """Try variants and rewrites of a task's gold patch.

    Args:
        mutants: at most so many, drawn by `seed` from all that there are.
        place: the folder of stored trials; None: `work_dir()/audits`.
    Raises:
        ConfigurationError: the task has no gold patch, or is not in Python, the language of the mutation operators.
        InfrastructureError: the machine failed; the trials made so far are stored.
    """
    if not task.patch:
        raise ConfigurationError(f"{task.instance_id}: an audit needs a gold patch, and the row has none")
    if language_of(task).name != "python":
        raise ConfigurationError(
            f"{task.instance_id}: an audit needs mutation operators, which are there for Python; "
            f"its language is {language_of(task).name}"
        )
    store = store or LayerStore()
    workspace = prepare_locally(task, repos=repos, store=store, backend=backend)
    tests = TaskTests(task, workspace, "strict", backend, task.test_timeout_s if timeout_s is None else timeout_s)
    gold = GoldPatch.of(task.patch, workspace.base)
    path = (place or work_dir() / "audits") / f"{digest_with_setup(task)}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    known: dict[tuple[str, str], Variant] = {}
    for row in read_json_lines(path):
        with contextlib.suppress(TypeError):  # a row of another version
            variant = Variant(**row)
            known[variant.kind, variant.key] = variant

    def carry_out(plan: Variant, run: Callable[[Variant], Variant]) -> Variant:
        if (plan.kind, plan.key) not in known:
            known[plan.kind, plan.key] = found = run(plan)
            append_json_line(path, dataclasses.asdict(found))
        return known[plan.kind, plan.key]

    def by_tests(patch: str, tests: TaskTests) -> Callable[[Variant], Variant]:
        return lambda plan: _tested(plan, patch, tests)

    def by_grading(patch: str) -> Callable[[Variant], Variant]:
        return lambda plan: _graded(plan, patch, task, repos, backend, store, timeout_s)

    done = [carry_out(Variant("gold", "gold", _key(task.patch)), by_tests(task.patch, tests))]
    if not done[0].resolved:
        return Audit(task.instance_id, tuple(done))
    slowest_s = max(_LEAST_TIMEOUT_S, _SLOWER * done[0].test_duration_s)
    hurried = dataclasses.replace(tests, timeout_s=min(tests.timeout_s, slowest_s))
    for plan, patch in [*_partial(gold), *_mutants(gold, mutants, seed)]:
        done.append(carry_out(plan, by_tests(patch, hurried)))
    for how in REWRITES:
        patch = rewrite(gold, how)
        if patch:
            done.append(carry_out(Variant("rewrite", how, _key(patch)), by_grading(patch)))
    return Audit(task.instance_id, tuple(done))


def audit_many(
    tasks: Iterable[Task],
    *,
    jobs: int = 1,
    on_audit: Callable[[Audit | str], None] | None = None,
    **arguments: Any,
) -> Iterator[tuple[Task, Audit | str]]:
    """Audit tasks, `jobs` at a time, in their order; for an infrastructure failure its text is returned.

    Args:
        on_audit: called for each task as soon as it is done, for progress.
        arguments: see `audit`.
    """
    return for_each_task(tasks, lambda task: audit(task, **arguments), jobs=jobs, on_found=on_audit, name="audit")


def _partial(gold: GoldPatch) -> Iterator[tuple[Variant, str]]:
    """The gold patch without one of its changes (lines that follow each other), where that is other code."""
    sections = parse_patch(gold.patch)
    for number, section in enumerate(sections):
        for line, change, body in _without_changes(section.body):
            parts = [one.text for one in sections]
            parts[number] = section.header + body if body else ""
            after = gold.with_part("".join(parts))
            if after:
                patch = gold.between(gold.before, after)
                if patch:
                    yield Variant("partial", f"{min(section.paths)}:{line} left out", _key(patch), change=change), patch


def _without_changes(body: str) -> Iterator[tuple[int, str, str]]:
    """The hunks of a section without one change: its line in the former file, its lines, and what is left."""
    hunks = [part for part in re.split(r"(?m)^(?=@@ )", body) if part.startswith("@@ ")]
    for number, hunk in enumerate(hunks):
        header, *lines = hunk.splitlines(keepends=True)
        match = _HUNK.match(header)
        assert match is not None, header
        start = int(match["old"])
        for begin, end in _runs(lines):
            kept = lines[:begin]
            kept += [" " + line[1:] for line in lines[begin:end] if line.startswith("-")]
            kept += lines[end:]
            counts = [sum(not line.startswith((other, "\\")) for line in kept) for other in "+-"]
            is_empty = not any(line.startswith(("+", "-")) for line in kept)
            left = "" if is_empty else f"@@ -{start},{counts[0]} +{match['new']},{counts[1]} @@\n{''.join(kept)}"
            at = start + sum(line.startswith((" ", "-")) for line in lines[:begin])
            yield at, "".join(lines[begin:end]).rstrip("\n"), "".join([*hunks[:number], left, *hunks[number + 1 :]])


def _runs(lines: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Where each run of removed and added lines begins and ends."""
    begin = None
    for number, line in enumerate([*lines, " "]):
        is_changed = line.startswith(("+", "-", "\\"))
        if is_changed and begin is None:
            begin = number
        elif not is_changed and begin is not None:
            if not all(line.startswith("\\") for line in lines[begin:number]):
                yield begin, number
            begin = None


def _mutants(gold: GoldPatch, number: int, seed: int) -> Iterator[tuple[Variant, str]]:
    """Mutants of the lines that the gold patch adds, drawn from all of them."""
    contents = {path: content for path, (_, content) in gold.sources.items()}
    found = list(mutations(contents, gold.lines, seed=seed))
    random.Random(f"{seed} mutants").shuffle(found)
    for candidate in found[:number]:
        files = {path: (gold.after[path][0], content or b"") for path, content in candidate.files.items()}
        patch = gold.with_files(files)
        change = "\n".join(_difference(path, contents[path], files[path][1]) for path in files)
        yield Variant("mutant", candidate.kind, _key(patch), change=change), patch


def _difference(path: str, before: bytes, after: bytes) -> str:
    old, new = (content.decode("utf-8", "replace").splitlines() for content in (before, after))
    lines = difflib.unified_diff(old, new, path, path, n=0, lineterm="")
    return "\n".join(line for line in lines if not line.startswith("---"))


def _tested(plan: Variant, patch: str, tests: TaskTests) -> Variant:
    kept, _ = exclude_paths(tests.task, patch, tests.workspace.base, "strict", tests.evaluation.tests)
    verdict = tests.verdict(tests.run(kept))
    return dataclasses.replace(
        plan,
        resolved=verdict.resolved,
        reason=verdict.failure_reason,
        test_duration_s=round(verdict.test_duration_s, 3),
    )


def _graded(
    plan: Variant,
    patch: str,
    task: Task,
    repos: str | os.PathLike[str] | None,
    backend: str,
    store: LayerStore,
    timeout_s: float | None,
) -> Variant:
    verdict = grade(task, patch, repos=repos, backend=backend, store=store, timeout_s=timeout_s)
    reason = verdict.failure_reason
    if not verdict.resolved and not reason:
        names = (*task.fail_to_pass, *task.pass_to_pass)
        _, failed = names_by_outcome(names, verdict.tests, task.eval_type, "strict")
        reason = f"fails {', '.join(failed[:3])}"
    return dataclasses.replace(
        plan, resolved=verdict.resolved, reason=reason, test_duration_s=round(verdict.test_duration_s, 3)
    )


def _key(patch: str) -> str:
    return hashlib.sha256(patch.encode("utf-8", "surrogateescape")).hexdigest()[:12]
