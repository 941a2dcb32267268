"""The baseline: which tests of the clean project are stable, and which lines each of them reaches.

The tests run twice, all in one process and each file alone, with different hash seeds: a test that does not pass both
times is not used. The second run is traced, so that a bug is later tested only by the tests that reach its lines.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from swegym_env.errors import GradingError
from swegym_env.files import write_atomically
from swegym_env.making.sandboxes import Bench, Run, statuses
from swegym_env.making.sources import is_test_path

__all__ = ["Baseline", "command_for", "measure", "read_baseline", "write_baseline"]

TOTAL_TIMEOUT_S = 900.0


@dataclass(frozen=True)
class Baseline:
    """The results of the clean project's tests.

    Attributes:
        options: options for pytest that the project needs.
        modules: what its tests import from outside the project.
        tests: pytest's ids of the tests that pass every time, in order.
        durations: seconds of each.
        unstable: the other tests → their outcomes.
        reached: path → line → positions in `tests` of the tests that reach it.
    """

    options: tuple[str, ...]
    modules: tuple[str, ...]
    tests: tuple[str, ...]
    durations: tuple[float, ...]
    unstable: Mapping[str, str]
    reached: Mapping[str, Mapping[int, Sequence[int]]]

    def covering(self, lines: Mapping[str, frozenset[int]]) -> list[str]:
        """The tests that reach one of these lines; for a line that no test reaches, the tests that reach its file.

        The top level of a module runs on import, which belongs to no single test.
        """
        found: set[int] = set()
        for path, numbers in lines.items():
            reached = self.reached.get(path, {})
            here = {test for number in numbers for test in reached.get(number, ())}
            found |= here or {test for tests in reached.values() for test in tests}
        return [self.tests[test] for test in sorted(found)]

    def seconds(self, tests: Sequence[str]) -> float:
        """The summed duration of these tests."""
        known = dict(zip(self.tests, self.durations, strict=True))
        return sum(known[test] for test in tests)


def command_for(options: Sequence[str], files: Sequence[str]) -> str:
    """The test command of a task that runs these files."""
    return " ".join(["python -m pytest -rA --color=no -p no:cacheprovider", *options, *sorted(files)])


def measure(
    bench: Bench, paths: Sequence[str], *, jobs: int, on_progress: Callable[[int, int], None] | None = None
) -> Baseline:
    """Measure the clean project, and set the `options` and `modules` of its bench, which has been started.

    Args:
        paths: the tests to use; empty: those that pytest finds.
        on_progress: called with the number of test files done and of all.
    Raises:
        GradingError: no test passes, or the tests do not end.
    """
    together = _run_together(bench, paths)
    passed = {test for test, outcome in together.outcomes.items() if outcome == "PASSED"}
    files = sorted({test.partition("::")[0] for test in passed if is_test_path(test.partition("::")[0])})
    bench.modules = tuple(together.modules)

    def run_alone(file: str) -> Run:
        seconds = sum(took for test, took in together.durations.items() if test.startswith(f"{file}::"))
        with bench.worker() as worker:
            return worker.run([file], trace=True, timeout_s=60 + 60 * seconds)

    alone: list[Run] = []
    with ThreadPoolExecutor(max_workers=max(1, min(jobs, len(files))), thread_name_prefix="measure") as pool:
        for run in pool.map(run_alone, files):
            alone.append(run)
            if on_progress is not None:
                on_progress(len(alone), len(files))
    bench.end_workers()  # later ones import `modules` in advance, and have run nothing
    unstable = {
        test: f"{outcome} among all" for test, outcome in together.outcomes.items() if outcome in ("FAILED", "ERROR")
    }
    tests: list[str] = []
    reached: dict[str, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for run in alone:
        for test, outcome in sorted(run.outcomes.items()):
            if outcome == "PASSED" and test in passed:
                for path, lines in run.reached.get(test, {}).items():
                    if not is_test_path(path):
                        for line in lines:
                            reached[path][line].append(len(tests))
                tests.append(test)
            elif test in passed:
                unstable[test] = f"PASSED among all, {outcome} alone"
    if not tests:
        raise GradingError(f"no test of the project passes in its sandbox: {_why_none_passes(together)}")
    _require_log(bench, tests)
    durations = tuple(together.durations.get(test, 0.0) for test in tests)
    return Baseline(bench.options, bench.modules, tuple(tests), durations, unstable, reached)


def _run_together(bench: Bench, paths: Sequence[str]) -> Run:
    """All tests in one process, with the project's own options for pytest or, if none passes with them, without."""
    for options in ((), ("-o", "addopts=")):
        bench.options = options
        run = bench.measure(paths, TOTAL_TIMEOUT_S)
        if run.late:
            raise GradingError(
                f"the project's tests did not end within {TOTAL_TIMEOUT_S:g} s. Try: --tests with some of them"
            )
        if any(outcome == "PASSED" for outcome in run.outcomes.values()):
            return run
    raise GradingError(f"no test of the project passes in its sandbox: {_why_none_passes(run)}")


def _why_none_passes(run: Run) -> str:
    """The message of the first failure of a run in which nothing passed."""
    for name, text in [*run.collection_errors.items(), *run.failures.items()]:
        lines = [line[1:].strip() for line in text.splitlines() if line.startswith("E ")]
        lines = lines or [line.strip() for line in text.splitlines() if line.strip()] or ["no message"]
        # A module that cannot be imported is named last; of a failing test the first line says most.
        line = lines[-1] if name in run.collection_errors else lines[0]
        return f"{name}: {line[:300]}. Try: --requires PACKAGE"
    return f"pytest exited with {run.exit_code}, {len(run.outcomes)} tests ran"


def _require_log(bench: Bench, tests: Sequence[str]) -> None:
    """Raise GradingError if the log of the test command does not name the tests as pytest does: graders read logs."""
    counts: dict[str, int] = defaultdict(int)
    for test in tests:
        counts[test.partition("::")[0]] += 1
    file = min(counts, key=lambda name: (counts[name], name))
    result = bench.command(command_for(bench.options, [file]), {}, timeout_s=TOTAL_TIMEOUT_S)
    known = {test.split()[0] for test in tests if test.startswith(f"{file}::")}
    found = {name for name, status in statuses(result.output).items() if "PASSED" in status}
    if not known & found:
        raise GradingError(
            f"the log of the project's tests does not name them: expected {min(known)}, "
            f"got {min(found, default=result.output.strip()[-200:])}"
        )


def write_baseline(baseline: Baseline, place: Path) -> None:
    """Write a baseline atomically."""
    write_atomically(place, json.dumps(vars(baseline)))


def read_baseline(place: Path) -> Baseline | None:
    """The baseline in a file; None if it is missing or damaged."""
    try:
        data = json.loads(place.read_text(encoding="utf-8"))
        reached = {path: {int(line): on for line, on in lines.items()} for path, lines in data["reached"].items()}
        texts = {name: tuple(data[name]) for name in ("options", "modules", "tests", "durations")}
        return Baseline(**texts, unstable=data["unstable"], reached=reached)
    except (OSError, ValueError, KeyError, TypeError):
        return None
