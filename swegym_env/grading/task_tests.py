"""Runs of a task's tests on patches, each in a fresh sandbox that nothing else has used.

If the tests could not be run at all after a patch was applied, a run without the patch decides: if the tests can be run
then, the patch is at fault, otherwise the machine or the task. A failure before the patch is applied is never its
fault.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from swegym_env.errors import GradingError, InfrastructureError, SandboxBrokenError
from swegym_env.grading.builds import Builds, environment_lines
from swegym_env.grading.evaluation import Evaluation, evaluation_of
from swegym_env.grading.verdict import FORGED, Policy, Verdict, grade_log
from swegym_env.languages import Blinded, language_of
from swegym_env.languages.changed import ChangedFile
from swegym_env.long_work import ran_tests
from swegym_env.prepare import LocalWorkspace
from swegym_env.repo.applying import Checkout, PlainFile, apply_plainly
from swegym_env.repo.capture import capture_patch
from swegym_env.repo.patches import apply_hunks, parse_patch, refusal, touched_paths
from swegym_env.sandbox import CommandResult, Sandbox, open_sandbox
from swegym_env.sandbox.api import Imports
from swegym_env.sandbox.images import resolve_image
from swegym_env.sandbox.leases import storage_error
from swegym_env.sandbox.local import LocalSandbox
from swegym_env.tasks.task import Task

__all__ = ["Run", "TaskTests", "exclusion"]

_LOG_BYTES = 64 << 20
_PATCH = "/tmp/.swegym-patch"
_APPLY_TIMEOUT_S = 120.0
_AT_LEAST_S = 30.0
"""How long a run may take whose tests are changed."""
_NAMED: set[tuple[object, ...]] = set()
"""Tasks whose tests were named in a log without a patch in this process; such a run is not repeated."""
_NO_GIT = 69  # EX_UNAVAILABLE, which neither git nor patch exits with

# As the SWE-bench harness tries them; `git apply --3way` works on the index, so a partial application can be undone.
_APPLY = f"""\
if git apply --whitespace=nowarn {_PATCH}; then exit 0; fi
if git apply --whitespace=nowarn --3way {_PATCH}; then git reset -q; exit 0; fi
git reset -q --hard
if git apply --whitespace=nowarn --reject {_PATCH}; then exit 0; fi
git reset -q --hard
"""
_APPLY_OFFICIAL = f"""\
if git apply --verbose {_PATCH}; then exit 0; fi
if git apply --verbose --reject {_PATCH}; then exit 0; fi
"""
# `-u`: without it, patch accepts ed scripts too, which run commands.
_APPLY_FUZZY = f"patch -u --batch --fuzz=5 -p1 -i {_PATCH}"


class _NotRunnableError(GradingError):
    """The tests could not be run after the patch was applied: the patch, the task or the machine is at fault."""


@dataclass(frozen=True)
class Run:
    """The outcome of one run.

    Attributes:
        problem: why the tests did not run, if that is the patch's fault; else empty.
        result: result of the test command; None if it did not run.
        applied: whether the patch applied.
        files: path → text of the requested test files, as the task has them.
        sent: what the tests of a blind run sent, see `grading.blind`.
        covered: tests of a blind run whose comparisons all count, and of which the base commit fails at least one.
        bits: test → bits of a comparison that decides it, and that no control could examine further.
        has_foreign: whether tests sent objects that may define their own equality.
        computed: place of each condition of computed values → `canonical` of everything that it sent.
        compares_itself: whether an assertion compares another value than with the gold patch, by a class of the patch.
        guessed: the largest chance that additional answers include the right one, see `Pair.guessed`.
    """

    problem: str = ""
    result: CommandResult | None = None
    files: Mapping[str, str] = field(default_factory=dict)
    applied: bool = False
    sent: bytes = b""
    covered: frozenset[str] = frozenset()
    bits: Mapping[str, float] = field(default_factory=dict)
    has_foreign: bool = False
    computed: Mapping[str, frozenset[str]] = field(default_factory=dict)
    compares_itself: bool = False
    guessed: float = 0.0


@dataclass(frozen=True)
class TaskTests:
    """Runs the tests of one task on patches.

    Attributes:
        task: the task.
        workspace: workspace of the task.
        policy: how patches are applied and logs are read.
        backend: of the sandboxes.
        timeout_s: timeout of the tests in seconds.
        builds: kept builds of the patches; None: each run builds.
        imports: modules of the test runner that are imported once for all runs; None: each run imports them.
    """

    task: Task
    workspace: LocalWorkspace
    policy: Policy
    backend: str
    timeout_s: float
    builds: Builds | None = None
    imports: Imports | None = None

    @property
    def evaluation(self) -> Evaluation:
        """The commands that run the tests."""
        return evaluation_of(self.task, self.workspace.test_command)

    def limited(self, longer: float, tests_s: float) -> TaskTests:
        """The tests, ended after so many times as long as they take: changed ones may make code run for ever.

        Args:
            longer: how many times.
            tests_s: what they take in seconds.
        """
        return dataclasses.replace(self, timeout_s=min(self.timeout_s, _AT_LEAST_S + longer * tests_s))

    def run(
        self,
        patch: str,
        *,
        rewritten: Mapping[str, str] | None = None,
        watched: tuple[str, ...] = (),
        blinded: Blinded | None = None,
    ) -> Run:
        """Apply `patch` and the task's tests to a fresh checkout, and run the tests.

        Args:
            patch: what is graded of the agent's patch.
            rewritten: path → text of test files to run instead of the task's.
            watched: test files whose text is returned. They are written in every run, with the task's text unless
                `rewritten` has another, so that no file date distinguishes a control from the tests.
            blinded: tests to run instead of the task's, which are then never in the sandbox.

        Raises:
            InfrastructureError: the machine failed, or the task's own tests cannot run.
        """
        evaluation = self.evaluation
        try:
            with (
                self.builds.layers(self, patch) if self.builds is not None else contextlib.nullcontext(()) as built,
                self.tested(patch, blinded, built) as (sandbox, problem),
            ):
                if problem:
                    return Run(problem)
                files = _read(sandbox, watched)
                for path, text in files.items():
                    self._write_over_patch(sandbox, f"/testbed/{path}", _encoded((rewritten or {}).get(path, text)))
                for path, text in ({**blinded.files, **blinded.support} if blinded is not None else {}).items():
                    self._write_over_patch(sandbox, os.path.join("/testbed", path), _encoded(text))
                settings = environment_lines(evaluation.settings) if built else evaluation.settings
                if settings:
                    took = sandbox.run(f"cd /testbed\n{settings}", timeout_s=self.timeout_s)  # builds, too
                    if self.builds is not None:
                        self.builds.took(took.duration_s)
                result = self._run_tests(sandbox, evaluation)
                ran_tests()
                self._require_not_starved(result, "the tests", self.timeout_s)
                if result.exit_code == 127:
                    self._require_runner(sandbox)
                sent = b""
                if blinded is not None:
                    with contextlib.suppress(OSError, SandboxBrokenError):  # nothing was sent, or too much
                        sent = sandbox.read(blinded.output)
                    result = dataclasses.replace(result, output=_with_texts(result.output, blinded))
        except (_NotRunnableError, SandboxBrokenError) as failure:
            if not patch:
                raise
            try:
                self.run("", watched=watched)
            except InfrastructureError:
                raise failure from None
            return Run(f"the tests can be run without the patch, and not with it: {failure}", applied=True)
        return Run("", result, files, applied=True, sent=sent)

    def _run_tests(self, sandbox: Sandbox, evaluation: Evaluation) -> CommandResult:
        result = None
        if self.imports is not None and isinstance(sandbox, LocalSandbox):
            words = evaluation.tests.split()
            result = sandbox.run_module(words, timeout_s=self.timeout_s, output_limit_bytes=_LOG_BYTES)
        if result is None:
            script = f"(\ncd /testbed\n{evaluation.tests}\n)"
            result = sandbox.run(script, timeout_s=self.timeout_s, output_limit_bytes=_LOG_BYTES)
        return result

    def _write_over_patch(self, sandbox: Sandbox, path: str, content: bytes, mode: int = 0o644) -> None:
        try:
            sandbox.write(path, content, mode=mode)
        except OSError as error:
            reason = error.strerror or error
            raise _NotRunnableError(f"{self.task.instance_id}: {path} cannot be written: {reason}") from error

    def read_files(self, patch: str, paths: tuple[str, ...]) -> Mapping[str, str]:
        """Path → text of the task's test files after `patch`; no test runs. Raises as `run`."""
        with self.tested(patch) as (sandbox, problem):
            return {} if problem else _read(sandbox, paths)

    def texts(self, paths: tuple[str, ...]) -> Mapping[str, str] | None:
        """Path → text of the test files, without a sandbox; None if the result of the test patch is uncertain."""
        plain = self._plain_files(self.task.test_patch, {})
        if plain is None:
            return None
        found: dict[str, str] = {}
        for path in paths:
            place = self.workspace.base / path
            if path in plain:
                found[path] = plain[path].content.decode("utf-8", "surrogateescape")
            elif place.is_file() and not place.is_symlink():
                found[path] = place.read_text(encoding="utf-8", errors="surrogateescape")
        return found

    def as_applied(self, patch: str) -> str:
        """The patch, rewritten as the changes that it makes if these differ from what its sections say.

        Git and `patch` may put a hunk where another one fits too, apply several sections to one file, and find diffs in
        other formats between the sections. Screening reads sections one by one, at their line numbers.
        """
        if not patch or patch == self.task.patch or self._plain_files(patch, {}) is not None:
            return patch
        with self.patched(patch) as (sandbox, problem, _):
            if problem or _is_read_as_applied(patch, sandbox, self.workspace.base):
                return patch
            captured = capture_patch(sandbox, self.workspace.base, fresh=True)
        return patch if refusal(captured) else captured

    def verdict(self, run: Run) -> Verdict:
        """The verdict from one run."""
        task, result = self.task, run.result
        if result is None:
            return Verdict(
                task.instance_id,
                False,
                failure_reason=run.problem,
                fail_to_pass=(0, len(task.fail_to_pass)),
                pass_to_pass=(0, len(task.pass_to_pass)),
                patch_applied=run.applied,
            )
        verdict = grade_log(
            task, result.output, exit_code=result.exit_code, policy=self.policy, command=self.evaluation.tests
        )
        verdict = dataclasses.replace(verdict, test_duration_s=result.duration_s)
        return dataclasses.replace(verdict, failure_reason="") if verdict.resolved else self.explained(verdict, result)

    def explained(self, unresolved: Verdict, result: CommandResult) -> Verdict:
        """The verdict; if a limit ended its run, with this limit as the reason."""
        reason = unresolved.failure_reason
        if result.timed_out:
            reason = f"the tests did not end within {self.timeout_s:g} s"
        elif result.limit == "disk":
            reason = ": ".join(filter(None, (reason, "the tests filled the sandbox's disk")))
        return dataclasses.replace(unresolved, failure_reason=reason)

    def require_named_tests(self, *, empty: bool) -> None:
        """Raise GradingError unless the log of a run without a patch names a test: else the tests cannot run here.

        Tests of a new feature may name none at the base commit: they cannot be compiled, or the runner refuses a test
        file as a whole. Then a run of the gold patch counts.

        Args:
            empty: whether the run whose log names no test was without a patch; it then decides.
        """
        key = (self.task.instance_id, self.workspace.spec.image, self.workspace.spec.layers, self.evaluation.tests)
        if key in _NAMED:
            return
        patient = dataclasses.replace(self, timeout_s=max(self.timeout_s, self.task.test_timeout_s))
        patches = [*([] if empty else [""]), *([self.task.patch] if self.task.patch else [])]
        if not any(patient.verdict(patient.run(patch)).tests for patch in patches):
            raise GradingError(
                f"{self.task.instance_id}: the log of the tests names no test, without a patch either: they cannot run "
                f"here. Try: set-up commands for {self.task.repo} {self.task.version} that work, or the row's own image"
            )
        _NAMED.add(key)

    @contextlib.contextmanager
    def patched(
        self, patch: str, built: tuple[Path, ...] = ()
    ) -> Iterator[tuple[Sandbox, str, Mapping[str, PlainFile] | None]]:
        """A fresh sandbox with the agent's patch; why it does not apply; the changed files, if they are certain.

        Args:
            patch: what is graded of the agent's patch.
            built: layers in which it is applied and built.
        """
        spec = dataclasses.replace(self.workspace.spec, imports=self.imports)
        spec = dataclasses.replace(spec, layers=(*spec.layers, *built)) if built else spec
        sandbox = open_sandbox(spec, backend=self.backend)
        try:
            sandbox.start()
            plain = self._plain_files(patch, {})
            yield sandbox, "" if built else self._apply_agent_patch(sandbox, patch, plain), plain
        finally:
            sandbox.close()

    @contextlib.contextmanager
    def tested(
        self, patch: str, blinded: Blinded | None = None, built: tuple[Path, ...] = ()
    ) -> Iterator[tuple[Sandbox, str]]:
        """A fresh sandbox with both patches applied, and why they do not apply if that is the agent's fault.

        Files of the test patch that `blinded` contains are left out.
        """
        apart = frozenset(blinded.files if blinded is not None else ())
        with self.patched(patch, built) as (sandbox, problem, plain):
            yield sandbox, problem or self._apply_test_patch(sandbox, patch, plain, apart)

    def _plain_files(self, patch: str, changed: Mapping[str, PlainFile]) -> Mapping[str, PlainFile] | None:
        """The files that a patch changes as git would write them, if that is certain; see `repo.applying`.

        Args:
            changed: the files that were changed before.
        """
        if not patch:
            return {}
        spec = self.workspace.spec
        try:
            layers = (resolve_image(spec.image), *spec.layers)
            return apply_plainly(patch, Checkout(layers, spec.workdir.strip("/"), spec.env, changed).read)
        except OSError:
            return None

    def _apply_agent_patch(self, sandbox: Sandbox, patch: str, plain: Mapping[str, PlainFile] | None) -> str:
        """Apply the agent's patch; return why it does not apply, else "".

        Args:
            plain: the changed files, to be written; None: git applies the patch.
        """
        if not patch:
            return ""
        if plain is None:
            problem = self._apply_by_git(sandbox, patch)
            if problem or self.policy == "official":
                return problem
        else:
            for path, file in plain.items():
                _write(sandbox, f"/testbed/{path}", file.content, file.mode)
        if self.policy == "official":
            return ""
        # The files that did change count, not how the patch was read.
        excludes = self.excludes()
        beyond = [change.path for change in sandbox.changes("/testbed") if excludes(change.path)]
        return f"{FORGED}the patch changes {beyond[0]} in disguise" if beyond else ""

    def excludes(self) -> Callable[[str], bool]:
        """See `exclusion`."""
        return exclusion(self.task, self.workspace.base, self.evaluation.tests)

    def _apply_by_git(self, sandbox: Sandbox, patch: str) -> str:
        """Apply the agent's patch as the SWE-bench harness does; return why it does not apply, else ""."""
        task = self.task
        _write(sandbox, _PATCH, _encoded(patch))
        script = _APPLY if self.policy == "strict" else _APPLY_OFFICIAL
        if self.policy == "official" or ".git/" not in patch:  # git refuses to write there, patch does not
            script += _APPLY_FUZZY
        result = sandbox.run(
            f"(\ncd /testbed\ncommand -v git >/dev/null || exit {_NO_GIT}\n{script}\n)", timeout_s=_APPLY_TIMEOUT_S
        )
        self._require_not_starved(result, "the programs that apply the patch", _APPLY_TIMEOUT_S)
        if result.exit_code == _NO_GIT:
            raise GradingError(f"{task.instance_id}: image {task.image} has no git, which patches are applied with")
        if result.exit_code != 0:
            last = [line for line in result.output.splitlines() if line.strip()][-1:]
            return f"the patch does not apply: {last[0] if last else 'no message'}"
        return ""

    def _apply_test_patch(
        self, sandbox: Sandbox, agent_patch: str, plain: Mapping[str, PlainFile] | None, apart: frozenset[str]
    ) -> str:
        """Reset the test patch's files to the base commit and apply it; returns why the agent's patch prevents it.

        Args:
            plain: the files that the agent's patch changed; None: git applied it.
            apart: files of the test patch to leave out.
        """
        task, official = self.task, self.policy == "official"
        if not task.test_patch:
            return ""
        paths = sorted(touched_paths(task.test_patch))
        known = [path for path in paths if os.path.lexists(self.workspace.base / path)]
        steps = []
        if touched_paths(agent_patch).intersection(paths):
            # The harness keeps the agent's version of files that the test patch adds, and then cannot apply it.
            steps = [] if official else [f"rm -rf -- {shlex.join(paths)}"]
            steps += [f"git checkout -q HEAD -- {shlex.join(known)}"] if known else []
        sections = [part.text for part in parse_patch(task.test_patch) if not part.paths <= apart]
        test_patch = "".join(sections) if apart else task.test_patch
        tests = None if steps or plain is None else self._plain_files(test_patch, plain)
        if tests is not None:
            for path, file in tests.items():
                self._write_over_patch(sandbox, f"/testbed/{path}", file.content, file.mode)
            return ""
        if test_patch:
            self._write_over_patch(sandbox, _PATCH, _encoded(test_patch))
            steps.append(f"git apply --whitespace=nowarn {_PATCH}")
        script = "(\n" + " &&\n".join(["cd /testbed", *steps]) + f"\n) && rm -f {_PATCH}"
        result = sandbox.run(script, timeout_s=_APPLY_TIMEOUT_S)
        self._require_not_starved(result, "the programs that apply the test patch", _APPLY_TIMEOUT_S)
        if result.exit_code == 0 or (official and agent_patch):
            return ""
        if agent_patch:
            return f"the test patch does not apply over the agent's: {result.output.strip()[-300:]}"
        raise GradingError(
            f"{task.instance_id}: the task's own test patch does not apply to {task.base_commit or 'its files'}: "
            f"{result.output.strip()[-300:]}"
        )

    def _require_not_starved(self, result: CommandResult, what: str, timeout_s: float) -> None:
        """A timeout that the machine caused is no verdict."""
        if result.starved:
            raise GradingError(
                f"{self.task.instance_id}: {what} did not end within {timeout_s:g} s, and waited for a processor "
                "meanwhile: this machine is too busy. Try: fewer jobs at a time, or a longer timeout (--timeout)"
            )

    def _require_runner(self, sandbox: Sandbox) -> None:
        """Raise _NotRunnableError if there is no such command as the one that runs the tests."""
        task, last = self.task, self.evaluation.tests.splitlines()[-1]
        command = next((word for word in shlex.split(last, comments=True) if "=" not in word), "")
        if sandbox.run(f"command -v -- {shlex.quote(command)}").exit_code != 0:
            raise _NotRunnableError(
                f"{task.instance_id}: the tests cannot be run: {command}: command not found. "
                f"Try: commands that install it as `setup` of the row, or in $SWEGYM_SETUP_COMMANDS for {task.repo}"
            )


def exclusion(task: Task, base: Path, command: str) -> Callable[[str], bool]:
    """A function that tells whether a path is excluded: it could change the verdict, or is test machinery.

    Files that the gold patch changes stay allowed.

    Args:
        base: the repository at the base commit.
        command: the test command.
    """
    language, allowed = language_of(task), touched_paths(task.patch)
    machinery = language.test_machinery(task, base)
    directories = tuple(place for place in machinery if place.endswith("/"))
    return lambda path: (
        path not in allowed
        and (language.is_protected(path, base, command) or path in machinery or path.startswith(directories))
    )


def _is_read_as_applied(patch: str, sandbox: Sandbox, base: Path) -> bool:
    """Whether each file that changed in a sandbox is what one section of the patch says, at its line numbers."""
    sections = parse_patch(patch)
    of_path = {path: section for section in sections for path in section.paths}
    if sum(len(section.paths) for section in sections) > len(of_path):
        return False
    for change in sandbox.changes("/testbed"):
        section = of_path.get(change.path)
        if section is None or (change.kind == "deleted") != (change.path != section.new_path):
            return False
        if change.kind != "written" or section.body.startswith(("GIT binary patch", "Binary files ")):
            continue  # screening reads links and binary files by what they are, not by their content
        old = next((base / path for path in sorted(section.paths) if (base / path).is_file()), None)
        text = old.read_bytes().decode("utf-8", "surrogateescape") if old is not None else ""
        strict, nearest = apply_hunks(text, section.body), ChangedFile.of(section, base)
        content = sandbox.read(f"/testbed/{change.path}").decode("utf-8", "surrogateescape")
        if strict is None or nearest is None or {strict[0], nearest.after} != {content}:
            return False
    return True


def _read(sandbox: Sandbox, paths: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for path in paths:
        # Absent: a file that the test patch removes, or that was only guessed from a test's name.
        with contextlib.suppress(OSError):
            found[path] = sandbox.read(f"/testbed/{path}").decode("utf-8", "surrogateescape")
    return found


def _with_texts(log: str, blinded: Blinded) -> str:
    """A log with the original names of the tests: placeholders are replaced by their values."""
    texts = {name: mark.text for name, mark in blinded.placeholders.items() if mark.text is not None}
    if not texts:
        return log
    return re.sub("|".join(map(re.escape, texts)), lambda found: texts[found[0]], log)


def _write(sandbox: Sandbox, path: str, content: bytes, mode: int = 0o644) -> None:
    try:
        sandbox.write(path, content, mode=mode)
    except OSError as error:
        raise storage_error(error) from error


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
