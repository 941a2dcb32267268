"""Bits of the blind expectations of a dataset's rows: `python -m benchmarks.blind_bits --dataset F --repos D`.

An analysis of the syntax trees of the hidden tests at the base commit, without running them: which comparisons of the
tests of FAIL_TO_PASS can be blind, and what their expected values hold by the formula of `grading.bits`. What the empty
patch sends is not known here, so there are two bounds: `added` counts values on lines that the test patch adds, `all`
every value that a test of FAIL_TO_PASS compares. Each row is stored in `--state` at once. `--repos` has a bare or
ordinary git directory for each repository, named owner+name or owner__name.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.records import Row, row, write_results
from swegym_env.grading.bits import Knowledge, Ledger, leaves
from swegym_env.grading.blind import ERROR_BITS
from swegym_env.languages import language_of
from swegym_env.repo.patches import added_lines, parse_patch, touched_paths
from swegym_env.tasks.datasets import load_tasks
from swegym_env.tasks.task import Task

_CURVE = (1, 2, 4, 8, 12, 16, 20, 24, 32, 40, 64, 100, 200, 400)
_FILE_BYTES = 1 << 20


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", required=True)
    parser.add_argument("--repos", type=Path, required=True)
    parser.add_argument("--state", type=Path, default=Path("runs/blind_bits.jsonl"))
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no further row after so long")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    tasks = list(load_tasks(options.dataset))
    options.state.parent.mkdir(parents=True, exist_ok=True)
    lines = options.state.read_text().splitlines() if options.state.exists() else []
    known: dict[str, dict[str, Any]] = {entry["instance_id"]: entry for entry in map(json.loads, lines)}
    began = time.monotonic()
    with options.state.open("a") as state:
        for task in tasks:
            git = _git_directory(options.repos, task.repo)
            if task.instance_id in known or git is None or time.monotonic() - began > options.seconds:
                continue
            known[task.instance_id] = {"instance_id": task.instance_id, "repo": task.repo, **_analysed(task, git)}
            state.write(json.dumps(known[task.instance_id]) + "\n")
            state.flush()
    _write(tasks, known, options.output)
    return 0


def _git_directory(repos: Path, repo: str) -> Path | None:
    owner, _, name = repo.partition("/")
    for folder in (f"{owner}+{name}", f"{owner}__{name}", f"swe-bench+{owner}__{name}"):
        for place in (repos / folder / "repo", repos / folder):
            if (place / "HEAD").exists() or (place / ".git").exists():
                return place
    return None


def _analysed(task: Task, git: Path) -> dict[str, Any]:
    language = language_of(task)
    files = _test_files(task, git)
    if files is None:
        return {"problem": "the base commit is not in the clone, or the test patch does not apply"}
    blinded = language.make_blind(files, task.fail_to_pass, frozenset(), 0)
    if blinded is None:
        return {"added": 0.0, "all": 0.0, "covered": 0, "tests": len(task.fail_to_pass), "kinds": {}}
    hidden = [
        e for e in blinded.expectations.values() if "checked" not in e.options
    ]  # the others are still in the tests
    if not hidden:
        return {"added": 0.0, "all": 0.0, "covered": 0, "tests": len(task.fail_to_pass), "kinds": {}}
    values = [(e.kind, e.value, e.options, e.place) for e in hidden if e.constant]
    values += [("eq", mark.value, {}, mark.place) for mark in blinded.placeholders.values()]
    readable = [value for e in blinded.expectations.values() for value in e.readable]
    apart = [part.text for part in parse_patch(task.test_patch) if not part.paths & blinded.files.keys()]
    knowledge = Knowledge(
        [value for _, value, _, _ in values],
        [task.problem_statement, *blinded.files.values(), *apart, *(str(leaf) for leaf in leaves(readable))],
        _contents(git, task.base_commit),
    )
    added = added_lines(task.test_patch)
    whole, partial = Ledger(knowledge, (), readable), Ledger(knowledge, (), readable)
    result = {"added": 0.0, "all": 0.0}
    kinds: dict[str, int] = defaultdict(int)
    for kind, value, options, place in sorted(values, key=lambda item: item[3]):
        path, line, _ = place.rsplit(":", 2)
        kinds[kind] += 1
        most = ERROR_BITS if kind == "raised" else math.inf
        result["all"] += min(most, whole.add(kind, value, options))
        if int(line) in added.get(path, ()):
            result["added"] += min(most, partial.add(kind, value, options))
    covered = frozenset().union(*(e.names for e in hidden))
    return {
        **{name: round(bits, 1) for name, bits in result.items()},
        "covered": len(covered),
        "tests": len(task.fail_to_pass),
        "kinds": dict(kinds),
    }


def _test_files(task: Task, git: Path) -> dict[str, str] | None:
    """Path → text of the Python files of the test patch, after it."""
    with tempfile.TemporaryDirectory() as place:
        for path in touched_paths(task.test_patch):
            shown = subprocess.run(
                ["git", "-C", str(git), "show", f"{task.base_commit}:{path}"], capture_output=True, check=False
            )
            if shown.returncode == 0:
                Path(place, path).parent.mkdir(parents=True, exist_ok=True)
                Path(place, path).write_bytes(shown.stdout)
            elif b"exists on disk" not in shown.stderr and b"does not exist" not in shown.stderr:
                return None
        applied = subprocess.run(
            ["git", "apply", "--whitespace=nowarn", "-"],
            cwd=place,
            env={"GIT_CEILING_DIRECTORIES": "/", "PATH": "/usr/local/bin:/usr/bin:/bin"},
            input=task.test_patch.encode("utf-8", "surrogateescape"),
            capture_output=True,
            check=False,
        )
        if applied.returncode != 0:
            return None
        return {
            path: Path(place, path).read_bytes().decode("utf-8", "surrogateescape")
            for path in sorted(touched_paths(task.test_patch))
            if path.endswith(".py") and Path(place, path).exists()
        }


def _contents(git: Path, commit: str) -> Iterator[bytes]:
    """The contents of all files of a commit that the clone has."""
    listed = subprocess.run(
        ["git", "-C", str(git), "ls-tree", "-r", "-z", commit], capture_output=True, check=True
    ).stdout
    blobs = {entry.split(b"\t")[0].split()[2] for entry in listed.split(b"\0") if b" blob " in entry.split(b"\t")[0]}
    batch = subprocess.run(
        ["git", "-C", str(git), "cat-file", "--batch"],
        input=b"\n".join(sorted(blobs)),
        capture_output=True,
        check=False,
    ).stdout
    position = 0
    while position < len(batch):
        head, position = batch[position : batch.index(b"\n", position)].split(), batch.index(b"\n", position) + 1
        if head[1:2] == [b"blob"]:
            size = int(head[2])
            if size <= _FILE_BYTES:
                yield batch[position : position + size]
            position += size + 1


def _write(tasks: list[Task], known: dict[str, dict[str, Any]], output: Path | None) -> None:
    rows: list[Row] = []
    entries = [known[task.instance_id] for task in tasks if "all" in known.get(task.instance_id, {})]
    by_repo: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for entry in entries:
        by_repo[entry["repo"]].append(entry)
    curves: dict[str, Any] = {}
    for bound in ("added", "all"):
        for repo, found in sorted(by_repo.items()):
            rows.append(row(f"{repo}, {bound}", "bits of a row", "bit", [entry[bound] for entry in found]))
        values = np.array([entry[bound] for entry in entries])
        curves[bound] = {
            str(bits): {
                "rows": int((values >= bits).sum()),
                **{repo: int(sum(entry[bound] >= bits for entry in found)) for repo, found in sorted(by_repo.items())},
            }
            for bits in _CURVE
        }
    ratios = {
        f"rows with at least {bits} bits, {bound}, of the rows analysed": curves[bound][str(bits)]["rows"]
        / len(entries)
        for bound in curves
        for bits in (8, 20, 40)
    }
    absent = sorted({task.repo for task in tasks if task.instance_id not in known})
    write_results(
        "blind_bits",
        rows,
        ratios=ratios,
        packages=["gymnasium"],
        path=output,
        dataset_rows=len(tasks),
        rows_analysed=len(entries),
        rows_by_repository={repo: len(found) for repo, found in sorted(by_repo.items())},
        repositories_without_clone=absent,
        curve=curves,
        instances={
            entry["instance_id"]: [entry["added"], entry["all"], entry["covered"], entry["tests"]] for entry in entries
        },
    )


if __name__ == "__main__":
    raise SystemExit(main())
