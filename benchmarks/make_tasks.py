"""Makes tasks from well-known packages and grades them: how many each package gives, their cost, and their validity.

    python -m benchmarks.make_tasks --archives sdists/ --work runs/make_tasks [--only humanize …] [--count 55] [-j 2]

`--archives` is a folder of source archives (`pip download --no-binary :all: --no-deps …`). All findings are kept in
`--work`, so an interrupted campaign continues. The gold patch must resolve every task, the empty patch none. Seconds
are wall-clock time, summed over validations; pytest's own time, imports and collection included, is a row of its own.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.records import Row, row, write_results
from swegym_env.grading.grading import grade_many
from swegym_env.making.maker import make_tasks
from swegym_env.making.settings import MakeSettings
from swegym_env.making.sources import read_source
from swegym_env.making.validation import Finding, Limits
from swegym_env.tasks.datasets import load_tasks
from swegym_env.tasks.task import Task


@dataclass(frozen=True)
class Package:
    """The results of one package."""

    name: str
    tasks: list[Task]
    findings: list[Finding]
    kinds: Counter[str]
    difficulties: Counter[str]
    verdicts: dict[str, dict[str, bool]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--archives", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--only", nargs="+", default=[], help="prefixes of archive names")
    parser.add_argument("--count", type=int, default=55)
    parser.add_argument("--test-seconds", type=float, default=5.0)
    parser.add_argument("-j", "--jobs", type=int, default=1)
    parser.add_argument("--sandbox", default="auto")
    parser.add_argument("--known", action="store_true", help="grade nothing: write the results so far")
    parser.add_argument("--output", type=Path, help="instead of benchmarks/results/make_tasks.json")
    options = parser.parse_args()
    archives = [
        path
        for path in sorted(options.archives.iterdir())
        if not options.only or path.name.startswith(tuple(options.only))
    ]
    packages = [_measure(path, options) for path in archives]
    write_results(
        "make_tasks",
        [row for package in packages for row in _rows(package)],
        ratios=_ratios(packages),
        packages=["gymnasium"],
        path=options.output,
    )


def _measure(archive: Path, options: argparse.Namespace) -> Package:
    source = read_source(str(archive))
    directory = options.work / archive.name.rpartition("-")[0]
    settings = MakeSettings(count=options.count, limits=Limits(test_seconds=options.test_seconds))
    if not (directory / "tasks.jsonl").exists():
        make_tasks(source, directory, settings, jobs=options.jobs, backend=options.sandbox)
    rows = [json.loads(line) for line in (directory / "tasks.jsonl").read_text(encoding="utf-8").splitlines()]
    lines = (directory / ".making" / "findings.jsonl").read_text(encoding="utf-8").splitlines()
    tasks = list(load_tasks(str(directory / "tasks.jsonl")))
    package = Package(
        archive.name.removesuffix(".tar.gz"),
        tasks,
        [Finding.from_json(json.loads(line)) for line in lines],
        Counter(entry["kind"] for entry in rows),
        Counter(entry["difficulty"] for entry in rows),
        {what: _graded(tasks, what, directory, options) for what in ("gold", "empty")},
    )
    print(f"{package.name}: {len(tasks)} tasks, {len(package.findings)} candidates, {dict(package.kinds)}", flush=True)
    for what, verdicts in package.verdicts.items():
        print(f"  {what}: {sum(verdicts.values())} of {len(verdicts)} resolved", flush=True)
    return package


def _graded(tasks: Iterable[Task], what: str, directory: Path, options: argparse.Namespace) -> dict[str, bool]:
    """Verdicts by instance; known ones are not computed again."""
    place = directory / f"{what}.jsonl"
    known: dict[str, bool] = {}
    for line in place.read_text(encoding="utf-8").splitlines() if place.exists() else []:
        known |= json.loads(line)
    missing = [(task, task.patch if what == "gold" else "") for task in tasks if task.instance_id not in known]
    if options.known:
        return known
    with place.open("a", encoding="utf-8") as file:
        for verdict in grade_many(missing, jobs=options.jobs, backend=options.sandbox):
            if verdict.valid:
                known[verdict.instance_id] = verdict.resolved
                file.write(json.dumps({verdict.instance_id: verdict.resolved}) + "\n")
                file.flush()
    return known


def _rows(package: Package) -> list[Row]:
    """The figures of one package: one value each, and one per validation for the times."""
    gold, empty = package.verdicts["gold"], package.verdicts["empty"]
    single = {
        ("tasks", "tasks"): len(package.tasks),
        ("kinds of mistakes", "kinds"): len(package.kinds),
        ("candidates validated", "candidates"): len(package.findings),
        ("gold resolved", "tasks"): sum(gold.values()),
        ("empty resolved", "tasks"): sum(empty.values()),
        ("gold graded", "tasks"): len(gold),
        ("empty graded", "tasks"): len(empty),
        **{(f"difficulty {word}", "tasks"): count for word, count in sorted(package.difficulties.items())},
    }
    rows = [row(package.name, metric, unit, [float(value)]) for (metric, unit), value in single.items()]
    beyond = [finding.seconds - finding.test_seconds for finding in package.findings]
    rows.append(row(package.name, "validation beyond the tests' own time", "s", beyond))
    rows.append(row(package.name, "the tests' own time", "s", [finding.test_seconds for finding in package.findings]))
    return rows


def _ratios(packages: Iterable[Package]) -> dict[str, float]:
    """Tasks a second of sandbox time beyond the tests' own, on two cores: two sandboxes at a time, one core each."""
    found = {}
    for package in packages:
        beyond = sum(finding.seconds - finding.test_seconds for finding in package.findings)
        found[f"{package.name}: tasks a second on 2 cores beyond the tests' own time"] = 2 * len(package.tasks) / beyond
    return found


if __name__ == "__main__":
    main()
