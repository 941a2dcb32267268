"""What the project's tests say of the project as it should be: which can be relied on, and which lines each reaches.

They run twice, all together and each file alone, with other hash seeds: what does not pass both times is left out. The
second run is traced, so that a broken line is later tried on the tests that reach it, and on no other.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

from swegym_env.errors import GradingError
from swegym_env.tasks.making.bench import Bench, Run, Worker, statuses
from swegym_env.tasks.making.sources import is_test_path
from swegym_env.writing import write_whole

__all__ = ["Baseline", "command_for", "measure", "read_baseline", "write_baseline"]

WHOLE_TIMEOUT_S = 900.0


@dataclass(frozen=True)
class Baseline:
    """What the tests of the clean project said.

    Attributes:
        options: pytest's options that the project needs.
        modules: what its tests import from outside the project.
        tests: those that pass every time, in order, by pytest's ids.
        durations: seconds of each.
        unstable: those that do not, with what they said.
        reached: path → line → positions in `tests` of those that reach it.
    """

    options: tuple[str, ...]
    modules: tuple[str, ...]
    tests: tuple[str, ...]
    durations: tuple[float, ...]
    unstable: Mapping[str, str]
    reached: Mapping[str, Mapping[int, Sequence[int]]]

    def covering(self, lines: Mapping[str, frozenset[int]]) -> list[str]:
        """The tests that reach one of these lines; of a line that no test reaches, those that reach its file.

        The top level of a module runs when it is imported, which no single test does.
        """
        found: set[int] = set()
        for path, numbers in lines.items():
            reached = self.reached.get(path, {})
            here = {test for number in numbers for test in reached.get(number, ())}
            found |= here or {test for tests in reached.values() for test in tests}
        return [self.tests[test] for test in sorted(found)]

    def seconds(self, tests: Sequence[str]) -> float:
        """How long these tests took."""
        known = dict(zip(self.tests, self.durations, strict=True))
        return sum(known[test] for test in tests)


def command_for(options: Sequence[str], files: Sequence[str]) -> str:
    """The command that runs test files as the tasks' own."""
    return " ".join(["python -m pytest -rA --color=no -p no:cacheprovider", *options, *sorted(files)])


def measure(
    bench: Bench, paths: Sequence[str], *, jobs: int, on_progress: Callable[[int, int], None] | None = None
) -> Baseline:
    """Measure the project in `bench`, whose `options` and `modules` are set.

    Args:
        paths: the tests to use; none: what pytest finds by itself.
    Raises:
        GradingError: no test passes.
    """
    whole = _whole(bench, paths)
    passed = {test for test, outcome in whole.outcomes.items() if outcome == "PASSED"}
    files = sorted({test.partition("::")[0] for test in passed if is_test_path(test.partition("::")[0])})
    bench.modules = tuple(whole.modules)
    alone = _each_alone(bench, files, whole, jobs, on_progress)
    said = {test: f"{outcome} among all" for test, outcome in whole.outcomes.items() if outcome in ("FAILED", "ERROR")}
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
                said[test] = f"PASSED among all, {outcome} alone"
    if not tests:
        raise GradingError(f"no test of the project passes in its sandbox: {_why(whole)}")
    _require_log(bench, tests)
    durations = tuple(whole.durations.get(test, 0.0) for test in tests)
    return Baseline(bench.options, bench.modules, tuple(tests), durations, said, reached)


def _whole(bench: Bench, paths: Sequence[str]) -> Run:
    """All tests together, with the project's own options for pytest or, where those cannot be had here, without."""
    for options in ((), ("-o", "addopts=")):
        bench.options = options
        run = bench.measure(paths, WHOLE_TIMEOUT_S)
        if run.late:
            raise GradingError(
                f"the project's tests did not end within {WHOLE_TIMEOUT_S:g} s. Try: --tests with some of them"
            )
        if any(outcome == "PASSED" for outcome in run.outcomes.values()):
            return run
    raise GradingError(f"no test of the project passes in its sandbox: {_why(run)}")


def _why(run: Run) -> str:
    """What the first failure says, of a run in which nothing passed."""
    for name, text in [*run.collection_errors.items(), *run.failures.items()]:
        lines = [line[1:].strip() for line in text.splitlines() if line.startswith("E ")]
        told = lines or [line.strip() for line in text.splitlines() if line.strip()]
        # A module that cannot be imported is named last; of a test that fails the first line tells most.
        line = (told[-1] if name in run.collection_errors else told[0]) if told else "no message"
        return f"{name}: {line[:300]}. Try: --requires PACKAGE"
    return f"pytest ended with {run.exit_code}, {len(run.outcomes)} tests ran"


def _each_alone(
    bench: Bench, files: Sequence[str], whole: Run, jobs: int, on_progress: Callable[[int, int], None] | None
) -> list[Run]:
    """Each file's tests in a process of their own, traced."""
    workers: SimpleQueue[Worker] = SimpleQueue()
    made = [Worker(bench) for _ in range(max(1, min(jobs, len(files))))]
    for worker in made:
        workers.put(worker)
    done = []

    def one(file: str) -> Run:
        worker = workers.get()
        try:
            seconds = sum(took for test, took in whole.durations.items() if test.startswith(f"{file}::"))
            return worker.run([file], trace=True, timeout_s=60 + 60 * seconds)
        finally:
            workers.put(worker)
            done.append(file)
            if on_progress is not None:
                on_progress(len(done), len(files))

    try:
        with ThreadPoolExecutor(max_workers=len(made), thread_name_prefix="measure") as pool:
            return list(pool.map(one, files))
    finally:
        for worker in made:
            worker.close()


def _require_log(bench: Bench, tests: Sequence[str]) -> None:
    """Raise GradingError where the log of the tests' command names them otherwise than pytest: graders read logs."""
    counts: dict[str, int] = defaultdict(int)
    for test in tests:
        counts[test.partition("::")[0]] += 1
    file = min(counts, key=lambda name: (counts[name], name))
    result = bench.command(command_for(bench.options, [file]), {}, timeout_s=WHOLE_TIMEOUT_S)
    known = {test.split()[0] for test in tests if test.startswith(f"{file}::")}
    found = {name for name, status in statuses(result.output).items() if "PASSED" in status}
    if not known & found:
        raise GradingError(
            f"the log of the project's tests does not name them: expected {min(known)}, "
            f"got {min(found, default=result.output.strip()[-200:])}"
        )


def write_baseline(baseline: Baseline, place: Path) -> None:
    """Write it whole or not at all."""
    write_whole(place, json.dumps(vars(baseline)))


def read_baseline(place: Path) -> Baseline | None:
    """What `write_baseline` wrote; None where there is nothing."""
    try:
        data = json.loads(place.read_text(encoding="utf-8"))
        reached = {path: {int(line): on for line, on in lines.items()} for path, lines in data["reached"].items()}
        texts = {name: tuple(data[name]) for name in ("options", "modules", "tests", "durations")}
        return Baseline(**texts, unstable=data["unstable"], reached=reached)
    except (OSError, ValueError, KeyError, TypeError):
        return None
