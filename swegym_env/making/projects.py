"""What differs between projects: how one is set up, how its tests are run and read, which bugs it can get.

`PytestProject` knows pytest: which tests reach a line, and warm processes that test one bug after the other.
`LoggedProject` knows one command and its log, and what the project's language says of it; every test counts as
reaching every bug.
"""

from __future__ import annotations

import ast
import re
import shlex
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from swegym_env.errors import ConfigurationError, GradingError
from swegym_env.languages import Language
from swegym_env.languages.python.parsing import parse
from swegym_env.making.baseline import TOTAL_TIMEOUT_S, Baseline, command_for, measure
from swegym_env.making.candidates import Candidate, candidates, injected
from swegym_env.making.code import find_test, without_tests
from swegym_env.making.repository import MadeRepository
from swegym_env.making.sandboxes import Bench
from swegym_env.making.settings import MakeSettings
from swegym_env.making.sources import Source, is_test_of, source_language
from swegym_env.making.validation import Finding, too_many_fail, validate
from swegym_env.sandbox import CommandResult
from swegym_env.tasks.task import Task

__all__ = ["LoggedProject", "Project", "PytestProject", "project_of"]

_GENERATED = "/opt/testbed/generated"
# Removed from logs: durations, which differ from run to run, and messages of the compiler, which may name the bug.
_TIMES = re.compile(r"\(?\b\d+(\.\d+)? ?m?s\b\)?|\bduration_ms:? [\d.]+")
_COMPILER = re.compile(r"^\S+: (In function|At top level)|^\S+:\d+(:\d+)?: (warning|note)|^ +\d* \||^\s+at \S")
_SHOWN_LINES = 60


class Project(Protocol):
    """A project that tasks are made of."""

    fence: str
    """How its code is marked in Markdown."""

    def clean_task(self, repository: MadeRepository) -> Task:
        """The task whose sandbox holds the clean project, installed; all made tasks share its installation."""

    def warm_up(self) -> str:
        """See `Bench`."""

    def measure(self, bench: Bench, jobs: int, on_progress: Callable[[int, int], None]) -> Baseline:
        """The results of the clean project's tests, on a bench that has been started.

        Raises:
            GradingError: no test passes, or the tests do not end.
        """

    def candidates(self, repository: MadeRepository, baseline: Baseline) -> Iterator[Candidate]:
        """All bugs that it can get. Raises ConfigurationError: an unknown kind."""

    def validate(self, candidate: Candidate, baseline: Baseline, bench: Bench) -> Finding:
        """Whether a candidate is a task. Raises SandboxError: the sandbox failed, whatever the candidate."""

    def how_tested(self, baseline: Baseline, finding: Finding) -> Mapping[str, Any]:
        """The fields of a task that say how its tests are run."""

    def remaining_tests(self, candidate: Candidate, finding: Finding) -> Mapping[str, bytes]:
        """Path → content of the test files without the tests that fail with a bug."""

    def test_source(self, name: str) -> str:
        """The source of a test; empty if it is not found."""


def project_of(source: Source, settings: MakeSettings) -> Project:
    """The project in a source.

    Raises:
        ConfigurationError: a setting has no effect on such a project, or nothing says how its tests are run.
    """
    language = source_language(source.files)
    if language.name != "python":
        return LoggedProject(source, settings, language)
    if settings.test_command:
        raise ConfigurationError("--test-command: the tests of Python projects are run by pytest. Try: --tests PATH")
    return PytestProject(source, settings)


class PytestProject:
    """A project of Python whose tests pytest runs; see `Project`."""

    fence = "python"

    def __init__(self, source: Source, settings: MakeSettings) -> None:
        """Nothing is run yet."""
        self._source, self._settings = source, settings

    def clean_task(self, repository: MadeRepository) -> Task:
        """See `Project.clean_task`."""
        wanted = ("pytest", *self._source.requirements, *self._settings.requires)
        needed = " ".join(shlex.quote(one) for one in wanted)
        install = list(self._settings.install) or ["python -m pip install -q -e ."]
        # Each base commit runs these again: all but the first find the project installed (its files have not moved) and
        # only need the files that installing generated among them.
        first = " && ".join(
            [
                f"python -m pip install -q {needed}",
                *install,
                f"mkdir -p {_GENERATED}",
                f"git ls-files -z --others --exclude='*.pyc' | xargs -0r cp --parents -t {_GENERATED}",
            ]
        )
        setup = f"if [ -d {_GENERATED} ]; then cp -a {_GENERATED}/. .; else {first}; fi"
        return _clean_task(self._source, repository, setup)

    def warm_up(self) -> str:
        """See `Project.warm_up`."""
        return ""

    def measure(self, bench: Bench, jobs: int, on_progress: Callable[[int, int], None]) -> Baseline:
        """See `Project.measure`."""
        return measure(bench, self._settings.tests, jobs=jobs, on_progress=on_progress)

    def candidates(self, repository: MadeRepository, baseline: Baseline) -> Iterator[Candidate]:
        """See `Project.candidates`."""
        covered = {path: self._lines_to_change(path, lines) for path, lines in baseline.reached.items()}
        return candidates(self._source, repository, covered, seed=self._settings.seed, kinds=self._settings.kinds)

    def validate(self, candidate: Candidate, baseline: Baseline, bench: Bench) -> Finding:
        """See `Project.validate`."""
        bench.start(compile_with=baseline.tests[:1])
        return validate(candidate, baseline, bench, self._settings.limits)

    def how_tested(self, baseline: Baseline, finding: Finding) -> Mapping[str, Any]:
        """See `Project.how_tested`."""
        return {"test_command": command_for(baseline.options, finding.files), "log_parser": "pytest"}

    def remaining_tests(self, candidate: Candidate, finding: Finding) -> Mapping[str, bytes]:
        """See `Project.remaining_tests`."""
        revealing: dict[str, list[str]] = {}
        for test in finding.failing:
            path, _, inner = test.partition("::")
            revealing.setdefault(path, []).append(inner)
        return {
            path: without_tests(self._source.files[path][1], names)
            for path, names in revealing.items()
            if path not in candidate.files
        }

    def test_source(self, name: str) -> str:
        """See `Project.test_source`."""
        path, _, inner = name.partition("::")
        return find_test(self._source.files[path][1], inner) if path in self._source.files else ""

    def _lines_to_change(self, path: str, reached: Mapping[int, Sequence[int]]) -> set[int]:
        """The lines that may get a bug: those that tests reach, and the module's top level, which runs on import."""
        try:
            tree = parse(self._source.files[path][1])
        except (KeyError, SyntaxError, ValueError, RecursionError, MemoryError):  # no file that can be changed
            return set()
        inner: set[int] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                first = node.lineno + (not isinstance(node, ast.Lambda))
                inner |= set(range(first, (node.end_lineno or node.lineno) + 1))
        lines = self._source.files[path][1].count(b"\n") + 1
        return set(reached) | (set(range(1, lines + 1)) - inner)


class LoggedProject:
    """A project of another language: one command runs its tests, and its log names them; see `Project`."""

    def __init__(self, source: Source, settings: MakeSettings, language: Language) -> None:
        """Nothing is run yet. Raises ConfigurationError as `project_of` does."""
        for option, given in (("--tests", settings.tests), ("--requires", settings.requires)):
            if given:
                raise ConfigurationError(f"{option}: for pytest alone, not for {language.name}. Try: --test-command")
        self._source, self._settings, self._language = source, settings, language
        commands = language.project_commands({path: content for path, (_, content) in source.files.items()})
        self._command = settings.test_command or commands.test
        if not self._command:
            raise ConfigurationError(
                f"{source.name}: nothing in it says how its tests are run. Try: --test-command 'make check'"
            )
        self._install = settings.install or commands.install
        self._parser = language.parser_of_command(self._command)
        self._clean_log: Counter[str] = Counter()
        self.fence = language.name

    def clean_task(self, repository: MadeRepository) -> Task:
        """See `Project.clean_task`."""
        if not self._install:
            return _clean_task(self._source, repository)
        first = " && ".join(
            [
                *self._install,
                f"mkdir -p {_GENERATED}",
                f"git ls-files -z --others | xargs -0r cp -a --parents -t {_GENERATED}",
            ]
        )
        setup = f"if [ -d {_GENERATED} ]; then cp -a {_GENERATED}/. .; else {first}; fi"
        return _clean_task(self._source, repository, setup)

    def warm_up(self) -> str:
        """See `Project.warm_up`: what the command builds is built once."""
        return self._command

    def measure(self, bench: Bench, jobs: int, on_progress: Callable[[int, int], None]) -> Baseline:
        """See `Project.measure`. The tests run twice; those that do not pass both times are not used."""
        begin = time.monotonic()
        runs = []
        for number in range(2):
            result = bench.command(self._command, {}, timeout_s=TOTAL_TIMEOUT_S)
            if result.timed_out:
                raise GradingError(f"the project's tests did not end within {TOTAL_TIMEOUT_S:g} s")
            runs.append(self._parser(result.output))
            on_progress(number + 1, 2)
        seconds = (time.monotonic() - begin) / 2
        passed = [name for name in runs[0] if runs[0][name] == runs[1].get(name) == "PASSED"]
        if not passed:
            last = " ".join(result.output.split())[-300:]
            raise GradingError(
                f"no test of the project passes in its sandbox, or its log names none: {last}. "
                "Try: --install, --test-command"
            )
        unstable = {
            name: f"{status}, then {runs[1].get(name, 'absent')}"
            for name, status in runs[0].items()
            if name not in passed and status != "SKIPPED"
        }
        return Baseline((), (), tuple(passed), (seconds / len(passed),) * len(passed), unstable, {})

    def candidates(self, repository: MadeRepository, baseline: Baseline) -> Iterator[Candidate]:
        """See `Project.candidates`."""
        return injected(self._source, self._language, seed=self._settings.seed, kinds=self._settings.kinds)

    def validate(self, candidate: Candidate, baseline: Baseline, bench: Bench) -> Finding:
        """See `Project.validate`: some tests fail in two fresh sandboxes, the same ones, and all others pass."""
        bench.start()
        begin = time.monotonic()
        finding = self._validate(candidate, baseline, bench)
        seconds = time.monotonic() - begin
        return replace(finding, covering=len(baseline.tests), seconds=seconds, test_seconds=seconds)

    def _validate(self, candidate: Candidate, baseline: Baseline, bench: Bench) -> Finding:
        duration_s = baseline.seconds(baseline.tests)
        if duration_s > self._settings.limits.test_seconds:
            return Finding(candidate.key, refused="the tests take too long")
        first: CommandResult | None = None
        failing: list[str] = []
        for again in (False, True):
            result = bench.command(self._command, candidate.files, timeout_s=15 + 10 * duration_s)
            if result.timed_out:
                return Finding(candidate.key, refused="tests hang")
            tests = self._parser(result.output)
            if not any(name in tests for name in baseline.tests):
                return Finding(candidate.key, refused="it does not build, or no test runs")
            if any(name not in tests for name in baseline.tests):
                return Finding(candidate.key, refused="tests are missing from the log")
            found = [name for name in baseline.tests if tests[name] != "PASSED"]
            if again and found != failing:
                return Finding(candidate.key, refused="the tests that fail differ from run to run")
            first, failing = first or result, found
            if not failing:
                return Finding(candidate.key, refused="no test fails")
            if too_many_fail(len(failing), len(baseline.tests), self._settings.limits):
                return Finding(candidate.key, refused="too many tests fail")
        assert first is not None
        passing = tuple(name for name in baseline.tests if name not in failing)
        if not passing:
            return Finding(candidate.key, refused="no test passes")
        shown = min(failing, key=lambda name: (not self.test_source(name), len(self.test_source(name)), name))
        text = self._failure(first.output, bench)
        return Finding(candidate.key, "", tuple(failing), passing, tuple(failing), (), text, shown)

    def how_tested(self, baseline: Baseline, finding: Finding) -> Mapping[str, Any]:
        """See `Project.how_tested`."""
        return {"test_command": self._command}

    def remaining_tests(self, candidate: Candidate, finding: Finding) -> Mapping[str, bytes]:
        """See `Project.remaining_tests`."""
        contents = {
            path: (content, self._language.without_tests(path, content, finding.failing))
            for path, content in self._test_files()
            if path not in candidate.files
        }
        return {path: after for path, (before, after) in contents.items() if after != before}

    def test_source(self, name: str) -> str:
        """See `Project.test_source`."""
        found = (self._language.find_test(path, content, name) for path, content in self._test_files())
        return next(filter(None, found), "")

    def _test_files(self) -> Iterator[tuple[str, bytes]]:
        for path, (_, content) in sorted(self._source.files.items()):
            if path.endswith(tuple(self._language.grammars)) and is_test_of(self._language, path):
                yield path, content

    def _failure(self, log: str, bench: Bench) -> str:
        """The lines of a log that the clean project's has not, marked as pytest marks them."""
        if not self._clean_log:
            clean = bench.command(self._command, {}, timeout_s=TOTAL_TIMEOUT_S)
            self._clean_log = Counter(_TIMES.sub("", line) for line in clean.output.splitlines())
        left = self._clean_log.copy()
        lines = []
        for line in log.splitlines():
            plain = _TIMES.sub("", line)
            left[plain] -= 1
            if left[plain] < 0 and line.strip() and not _COMPILER.search(line):
                lines.append(f"E {line.rstrip()}")
        return "\n".join(lines[:_SHOWN_LINES])


def _clean_task(source: Source, repository: MadeRepository, *setup: str) -> Task:
    return Task(
        instance_id=f"{source.name}__clean",
        repo=f"made/{source.name}",
        base_commit=repository.clean,
        problem_statement="",
        patch="",
        version=source.version,
        environment_setup_commit=repository.clean,
        repository=str(repository.path),
        setup=setup,
    )
