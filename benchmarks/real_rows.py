"""Grades real rows: the gold patch and a rewrite of it must resolve each one, and the empty patch none.

Rewrites are of Python's sources; rows in other languages have the gold and the empty patch alone.

    python -m benchmarks.real_rows --dataset rows.parquet --repos clones/ --output results.json [--times 1] [--spread]

Every verdict is stored in `--state`, and the results are written again, as soon as it is known; a campaign of hours can
be stopped at any moment and goes on where it stopped. What `--output` has already is not run again, so it also goes on
on another machine, from the committed file. Rows that are expected to cost least come first; `--spread` takes the
repositories in turn. `kill -STOP` and `-CONT` pause the campaign, and `--share 0/2` and `1/2` split it between two
processes; where no control group can be made, `cpu_s` then counts both.

The rewrite (`swegym_env.auditing.rewrites`) is a repair with another text. It is graded after the gold patch, when what
is found out once for a task is known: its verdict is the one whose cost is reported.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import re
import sys
import time
import traceback
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

from benchmarks.evaluation import Account
from benchmarks.real_rows_results import Entry, Key, key_of, patches_of, read_entries, seconds_of, write_results
from benchmarks.records import RESULTS, commit
from swegym_env.auditing.gold import GoldPatch
from swegym_env.auditing.rewrites import rewrite
from swegym_env.errors import SwegymError
from swegym_env.grading.grading import Verdict, grade
from swegym_env.languages import language_of
from swegym_env.prepare import LocalWorkspace, prepare_locally
from swegym_env.sandbox.client import end_all
from swegym_env.sandbox.layers import disk_bytes
from swegym_env.tasks.datasets import load_tasks
from swegym_env.tasks.task import Task

# What is expected of a row whose repository is not known yet: seconds of a row, and of each test that is listed.
_ROW_S, _TEST_S, _PRIOR_TESTS = 60.0, 1.0, 20


def main() -> int:
    """Grade the remaining runs, and write the results after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", action="append", required=True, help="a file of rows; may be given again")
    parser.add_argument("--repos", help="directory of clones")
    parser.add_argument("--times", type=int, default=3, help="how often each row is graded, each patch (default 3)")
    parser.add_argument("--only", nargs="+", default=[], metavar="ID", help="these instances alone")
    parser.add_argument("--repo", nargs="+", default=[], metavar="OWNER/NAME", help="these repositories alone")
    parser.add_argument("--beyond", type=Path, metavar="FILE", help="leave out the rows that this results file has")
    parser.add_argument(
        "--spread", action="store_true", help="the repositories in turn, the cheapest row of each first"
    )
    parser.add_argument("--share", default="0/1", metavar="I/N", help="every N-th row alone, from the I-th on")
    parser.add_argument("--again", action="store_true", help="forget what is known of the instances of --only")
    parser.add_argument("--sandbox", default="auto", help="auto, apptainer or namespace")
    parser.add_argument(
        "--state", type=Path, help="verdicts, one a line (default runs/NAME.jsonl for NAME of --output)"
    )
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no further row after so long")
    parser.add_argument("--output", type=Path, default=RESULTS / "real_rows.json")
    options = parser.parse_args()
    if options.again and not options.only:
        parser.error("--again: name the instances by --only")
    if not re.fullmatch(r"\d+/[1-9]\d*", options.share):
        parser.error(f"--share: expected I/N, such as 0/2, got {options.share!r}")
    part, of = map(int, options.share.split("/"))
    if part >= of:
        parser.error(f"--share: of {of} the parts are 0 to {of - 1}, got {part}")
    state = options.state or Path("runs") / f"{options.output.stem}.jsonl"
    state.parent.mkdir(parents=True, exist_ok=True)
    tasks = [task for dataset in options.dataset for task in load_tasks(dataset)]
    beyond = {key[0] for key in read_entries(options.beyond)} if options.beyond else set()
    chosen = [
        task
        for task in tasks
        if (not options.only or task.instance_id in options.only) and (not options.repo or task.repo in options.repo)
        if task.instance_id not in beyond
    ]
    if options.again:
        with state.open("a", encoding="utf-8") as file:
            file.writelines(f"{json.dumps({'forget': name})}\n" for name in options.only)
    known = read_entries(options.output, state)
    ordered = in_order(chosen, known, spread=options.spread)[part::of]
    began = time.monotonic()
    with contextlib.closing(Account()) as account:
        for number, task in enumerate(ordered):
            remaining = missing(task, known, options.times)
            if not remaining:
                continue
            if time.monotonic() - began > options.seconds:
                break
            workspace: LocalWorkspace | None = None
            for patch, run in remaining:
                entry, workspace = _graded(task, patch, run, workspace, account, options)
                known[key_of(entry)] = entry
                with state.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(entry) + "\n")
                # Another process may have added to the state.
                known = read_entries(options.output, state) | known
                left = sum(
                    expected_s(each, known, options.times)
                    for each in ordered[number:]
                    if missing(each, known, options.times)
                )
                print(_progress(entry, number + 1, len(ordered), left), flush=True)
                if entry["patch"] == "set-up":
                    break
            write_results(options.output, read_entries(options.output, state), options.times)
        end_all()  # their control groups are in the account's
    totals = write_results(options.output, read_entries(options.output, state), options.times)
    print(f"{totals}; {options.output}", file=sys.stderr)
    return 0


def missing(task: Task, known: Mapping[Key, Entry], times: int) -> list[tuple[str, int]]:
    """The (patch, number) of the remaining runs of a row; none where its set-up failed."""
    if (task.instance_id, "set-up", 0) in known:
        return []
    return [
        (patch, run)
        for run in range(times)
        for patch in patches_of(_facts_of(task))
        if (task.instance_id, patch, run) not in known
    ]


def in_order(tasks: Iterable[Task], known: Mapping[Key, Entry], *, spread: bool = False) -> list[Task]:
    """The rows by what they are expected to cost; with `spread` the cheapest one of each repository comes first."""
    ordered = sorted(tasks, key=lambda task: (expected_s(task, known, 1), task.instance_id))
    if not spread:
        return ordered
    by_repository: dict[str, list[Task]] = defaultdict(list)
    for task in ordered:
        by_repository[task.repo].append(task)
    return [task for turn in itertools.zip_longest(*by_repository.values()) for task in turn if task is not None]


def expected_s(task: Task, known: Mapping[Key, Entry], times: int) -> float:
    """Seconds that the remaining runs of a row are expected to take: by the rows of its repository that are known.

    A row costs a fixed time, and a time for each test that it lists, as long as the repository's other tests took.
    """
    rows: dict[str, list[Entry]] = defaultdict(list)
    for entry in known.values():
        if entry["repo"] == task.repo and entry["run"] == 0 and "wall_s" in entry:
            rows[entry["instance_id"]].append(entry)
    patches = patches_of(_facts_of(task))
    whole = [entries for entries in rows.values() if len(entries) == len(patches)]
    listed: int = _PRIOR_TESTS + sum(entries[0]["listed_tests"] for entries in whole)
    spent: float = sum(max(0.0, sum(map(seconds_of, entries)) - _ROW_S) for entries in whole)
    a_test = (_PRIOR_TESTS * _TEST_S + spent) / listed
    share = len(missing(task, known, times)) / len(patches)
    listed_here: int = _facts_of(task)["listed_tests"]
    return share * (_ROW_S + a_test * listed_here)


def _facts_of(task: Task) -> Entry:
    """What every verdict on a row is stored with."""
    listed = len(task.fail_to_pass) + len(task.pass_to_pass)
    return {
        "instance_id": task.instance_id, "repo": task.repo, "language": language_of(task).name, "listed_tests": listed,
    }  # fmt: skip


def _graded(
    task: Task,
    patch: str,
    run: int,
    workspace: LocalWorkspace | None,
    account: Account,
    options: argparse.Namespace,
) -> tuple[Entry, LocalWorkspace | None]:
    """One verdict as stored, and the row's layers."""
    entry: Entry = {
        **_facts_of(task), "patch": patch, "run": run, "commit": commit()["commit"],
        "resolved": False, "reason": "", "at_fault": [],
    }  # fmt: skip
    begin, processor = time.monotonic(), account.seconds()
    try:
        if workspace is None:
            workspace = prepare_locally(task, repos=options.repos, backend=options.sandbox)
            entry |= {
                "setup_s": round(time.monotonic() - begin, 1),
                "setup_cpu_s": round(account.seconds() - processor, 2),
                "layers": {layer.name: disk_bytes(layer) for layer in workspace.spec.layers},
            }
    except SwegymError as error:
        reason = str(error).replace(f"{options.repos}/", "")  # a local path, useless elsewhere
        return {**entry, "patch": "set-up", "run": 0, "reason": f"set-up: {reason}"}, None
    begin, processor = time.monotonic(), account.seconds()
    try:
        verdict = grade(task, _text(task, patch, workspace), repos=options.repos, backend=options.sandbox)
    except SwegymError as error:
        entry |= {"valid": False, "reason": f"machine: {error}"}
    except Exception as error:  # noqa: BLE001 a defect of ours is a miss of this row, and the campaign goes on
        traceback.print_exc()
        entry |= {"valid": False, "reason": f"defect: {type(error).__name__}: {error}"}
    else:
        entry |= _facts(task, patch, verdict)
    entry |= {
        "wall_s": round(time.monotonic() - begin, 1),
        "cpu_s": round(account.seconds() - processor, 2),
        "load": round(os.getloadavg()[0], 1),
    }
    return entry, workspace


def _text(task: Task, patch: str, workspace: LocalWorkspace) -> str:
    if patch != "rewrite":
        return task.patch if patch == "gold" else ""
    return mechanical_rewrite(task, workspace)


def mechanical_rewrite(task: Task, workspace: LocalWorkspace) -> str:
    """A repair with another text: the gold patch with other names of local variables, a comment and one more file."""
    gold = GoldPatch.of(task.patch, workspace.base)
    return rewrite(gold, "renamed-locals") or rewrite(gold, "extra-files")


def _facts(task: Task, patch: str, verdict: Verdict) -> Entry:
    facts = {
        "resolved": verdict.resolved,
        "valid": verdict.valid,
        "reason": verdict.failure_reason,
        "proof": verdict.proof,
        "proof_bits": verdict.proof_bits,
        "proof_tests": len(verdict.proof_tests),
        "forgery_chance": verdict.forgery_chance,
        "controls": verdict.controls,
        "tests_s": round(verdict.test_duration_s, 2),
        "controls_s": round(verdict.control_duration_s, 2),
    }
    if patch != "empty" and not verdict.resolved:
        names = (*task.fail_to_pass, *task.pass_to_pass)
        statuses = ((name, verdict.tests.get(name, "absent")) for name in names)
        facts["at_fault"] = [f"{name}: {status}" for name, status in statuses if status not in ("PASSED", "XFAIL")][:20]
    return facts


def _progress(entry: Entry, number: int, of: int, left_s: float) -> str:
    found = "resolved" if entry["resolved"] else "not resolved"
    proof = f", {entry['proof']} {entry['proof_bits']:g} bits" if entry["resolved"] else ""
    reason = f", {entry['reason']}" if entry["reason"] else ""
    return (
        f"[{number}/{of}] {time.strftime('%H:%M')} {entry['instance_id']} {entry['patch']}: {found}{proof}{reason} "
        f"({seconds_of(entry):.0f} s; about {left_s / 3600:.1f} h left)"
    )


if __name__ == "__main__":
    sys.exit(main())
