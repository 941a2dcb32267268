"""`swegym grade`: verdicts on patches, from the command line."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from swegym_env.command_line import (
    DATASETS,
    add_command,
    add_jobs,
    add_repos,
    add_sandbox,
    require_at_least,
    require_seconds,
    show_progress,
)
from swegym_env.errors import ConfigurationError, GradingError, UnknownTaskError
from swegym_env.judging.grading import grade_many
from swegym_env.judging.policy import Policy
from swegym_env.judging.reports import RunDirectory, differences, run_report, verdict_row, write_output
from swegym_env.judging.verdict import FORGED
from swegym_env.tasks.dataset_arguments import add_dataset_arguments, add_instances, chosen_instances, load_chosen
from swegym_env.tasks.task import Task

__all__ = ["add_parser", "read_predictions", "run"]


def add_parser(commands: Any) -> None:
    """Add `grade` to the subcommands of `swegym`."""
    parser = add_command(
        commands,
        "grade",
        run,
        "run the tests of tasks on patches",
        "swegym grade --dataset x.jsonl --predictions preds.jsonl --repos clones/ -j 4 --output out/",
        more=", each in a fresh sandbox.",
    )
    parser.add_argument("--dataset", default="mini", help=DATASETS)
    add_dataset_arguments(parser)
    add_instances(parser)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "--patch", help="gold, empty, or a file with the patch of the one instance (- for standard input)"
    )
    what.add_argument("--predictions", help="gold, empty, or a .jsonl or .json file with instance_id and model_patch")
    add_jobs(parser)
    add_repos(parser)
    add_sandbox(parser)
    parser.add_argument(
        "--policy",
        choices=["strict", "official", "both"],
        default="strict",
        help="official: judge as the SWE-bench harness does; both: twice, and say where the two differ",
    )
    parser.add_argument(
        "--timeout", type=float, metavar="SECONDS", help="for the tests of one instance; by default the task's own"
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="DIR",
        help="write the reports of the harness here, and go on from what an earlier run left",
    )
    parser.add_argument("--logs", type=Path, metavar="DIR", help="write the log of each instance here")
    parser.add_argument("--json", action="store_true", help="print one object for each instance")


def run(options: argparse.Namespace) -> int:
    """Grade as asked for; 0 where every verdict is valid, resolved or not.

    Raises:
        ConfigurationError: a file, an instance or a number makes no sense, or the results cannot be written.
        GradingError: some could not be graded; their verdicts have been printed like the others.
    """
    require_at_least(options, jobs=1)
    require_seconds(options, "timeout")
    patches, dataset_ids = _patches(options)
    if options.repos is not None and all(task.files for task, _ in patches):
        raise ConfigurationError(
            f"--repos {options.repos}: has no effect: the tasks of {options.dataset} bring their own files"
        )
    if options.logs is not None:  # found out now, not after the first hour
        write_output(options.logs / ".writable", "", option="--logs").unlink()
    directory = RunDirectory(options.output) if options.output is not None else None
    policies: tuple[Policy, ...] = ("strict", "official") if options.policy == "both" else (options.policy,)
    rows = {policy: _grade_all(options, patches, policy, directory, len(policies) > 1) for policy in policies}
    if directory is not None:
        submitted = {task.instance_id: patch for task, patch in patches}
        for policy in policies:
            name = "report.json" if policy == policies[0] else f"report.{policy}.json"
            directory.close(name, run_report(dataset_ids, submitted, rows[policy]))
    if len(policies) > 1:
        _tell_differences(options, differences(rows["strict"], rows["official"]), directory)
    everything = [row for policy in policies for row in rows[policy]]
    _require_valid(everything)
    return 0


def _grade_all(
    options: argparse.Namespace,
    patches: list[tuple[Task, str]],
    policy: Policy,
    directory: RunDirectory | None,
    several: bool,
) -> list[dict[str, Any]]:
    """The rows of all verdicts under one policy, in order; each is told and kept as it comes."""
    known = directory.finished() if directory is not None else {}
    keys = [RunDirectory.key(task, patch, policy, options.timeout) for task, patch in patches]
    todo = [item for item, key in zip(patches, keys, strict=True) if key not in known]
    rows: list[dict[str, Any]] = []
    if not options.json and len(patches) > 1:
        print(_HEADING)
    with show_progress(len(todo), "grading") as advance:
        found = grade_many(
            todo,
            jobs=options.jobs,
            on_verdict=advance,
            repos=options.repos,
            backend=options.sandbox,
            timeout_s=options.timeout,
            policy=policy,
        )
        for (task, patch), key in zip(patches, keys, strict=True):
            row = known.get(key)
            if row is None:
                verdict = next(found)
                row = verdict_row(verdict)
                if directory is not None:
                    row = directory.add(key, task, patch, verdict, policy)
                if options.logs is not None:
                    write_output(options.logs / f"{task.instance_id}.log", verdict.log, option="--logs")
            rows.append(row)
            shown = {name: value for name, value in row.items() if name != "key"}
            print(
                json.dumps(shown | ({"policy": policy} if several else {})) if options.json else _line(row), flush=True
            )
    if not options.json and len(rows) > 1:
        print(_totals(rows, policy, len(rows) - len(todo)))
    return rows


def _totals(rows: list[dict[str, Any]], policy: Policy, kept: int) -> str:
    """The last lines of the table: how many, and where the time went."""
    forged = sum(row["failure_reason"].startswith(FORGED) for row in rows)
    seconds, tests, again = (
        sum(row[name] for row in rows) for name in ("duration_s", "test_duration_s", "control_duration_s")
    )
    words = f"resolved {sum(row['resolved'] for row in rows)} of {len(rows)}"
    details = [f"{forged} forged"] * (forged > 0) + [f"{kept} known from before"] * (kept > 0) + [f"policy {policy}"]
    return (
        f"{words} ({', '.join(details)})\n"
        f"{seconds:.1f} s: tests {tests:.1f} s, controls {again:.1f} s, all else {seconds - tests - again:.1f} s"
    )


def _tell_differences(options: argparse.Namespace, found: list[dict[str, Any]], directory: RunDirectory | None) -> None:
    if directory is not None:
        directory.close("differences.json", found)
    if options.json:
        return
    print(f"the policies differ on {len(found)} of the instances")
    for row in found:
        aside = f"not graded: {', '.join(row['set_aside'])}" if row["set_aside"] else "skipped tests"
        why = row["reason"] or aside
        print(f"{row['instance_id']:44} strict {row['strict']}, official {row['official']}: {why}")


def _require_valid(rows: list[dict[str, Any]]) -> None:
    invalid = [row for row in rows if not row["valid"]]
    if len(rows) == 1 and invalid:
        raise GradingError(invalid[0]["failure_reason"])
    if invalid:
        raise GradingError(
            f"{len(invalid)} of {len(rows)} could not be graded; "
            f"the first, {invalid[0]['instance_id']}: {invalid[0]['failure_reason']}"
        )


def read_predictions(path: Path) -> dict[str, str]:
    """Patches by instance from a predictions file: JSONL, a JSON list, or a JSON object of id → entry.

    An entry is an object with `model_patch` (and `instance_id`), or the patch itself. A `model_patch` of null is an
    empty patch.

    Raises:
        ConfigurationError: the file cannot be read, or an entry is malformed; the text names it.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(
            f"{path}: predictions cannot be read: {getattr(error, 'strerror', None) or error}"
        ) from error
    found: dict[str, str] = {}
    for where, entry in _entries(path, text):
        if not isinstance(entry, dict) or not isinstance(entry.get("instance_id"), str):
            raise ConfigurationError(f"{where}: field 'instance_id': expected text")
        patch = entry.get("model_patch", entry)
        if patch is not None and not isinstance(patch, str):
            raise ConfigurationError(
                f"{where} ({entry['instance_id']}): field 'model_patch': expected text, got {type(patch).__name__}"
            )
        if entry["instance_id"] in found:
            raise ConfigurationError(f"{where}: field 'instance_id': {entry['instance_id']!r} comes twice")
        found[entry["instance_id"]] = patch or ""
    return found


def _entries(path: Path, text: str) -> Iterator[tuple[str, Any]]:
    try:
        if path.suffix == ".jsonl":
            for number, line in enumerate(text.splitlines(), 1):
                if line.strip():
                    yield f"{path} line {number}", json.loads(line)
            return
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigurationError(f"{path}: not JSON: {error}") from error
    if isinstance(data, Mapping):
        data = [
            {"instance_id": name, **entry}
            if isinstance(entry, Mapping)
            else {"instance_id": name, "model_patch": entry}
            for name, entry in data.items()
        ]
    if not isinstance(data, list):
        raise ConfigurationError(f"{path}: expected a list of predictions, got {type(data).__name__}")
    yield from ((f"{path} entry {number}", entry) for number, entry in enumerate(data, 1))


def _patches(options: argparse.Namespace) -> tuple[list[tuple[Task, str]], Sequence[str]]:
    """Task and patch of all that is to be graded, and the ids of the whole dataset."""
    tasks = load_chosen(options, options.dataset)
    chosen = chosen_instances(options, tasks)
    source = options.patch or options.predictions
    if source == "gold":
        return [(task, task.patch) for task in chosen], tasks.ids
    if source == "empty":
        return [(task, "") for task in chosen], tasks.ids
    if options.predictions:
        predictions = read_predictions(Path(source))
        if not options.instance:
            unknown = next((name for name in predictions if name not in tasks.ids), None)
            if unknown is not None:
                raise UnknownTaskError(f"{source}: {unknown!r} is no instance of {tasks.name}")
            chosen = [task for task in chosen if task.instance_id in predictions]
        missing = next((task.instance_id for task in chosen if task.instance_id not in predictions), None)
        if missing is not None:
            raise ConfigurationError(f"{source}: no prediction for {missing}")
        return [(task, predictions[task.instance_id]) for task in chosen], tasks.ids
    if len(chosen) != 1:
        raise ConfigurationError(
            f"--patch {source}: a patch is for one instance, and {len(chosen)} are chosen. Try: --instance ID"
        )
    try:
        content = sys.stdin.buffer.read() if source == "-" else Path(source).read_bytes()
    except OSError as error:
        raise ConfigurationError(
            f"--patch {source}: cannot be read: {error.strerror}; expected gold, empty or a file"
        ) from error
    return [(chosen[0], content.decode("utf-8", "surrogateescape"))], tasks.ids


_HEADING = f"{'instance':44} {'verdict':10}  {'FAIL_TO_PASS':>12}  {'PASS_TO_PASS':>12}  {'seconds':>7}  why"


def _line(row: Mapping[str, Any]) -> str:
    word = "resolved" if row["resolved"] else "unresolved" if row["valid"] else "invalid"
    counts = "  ".join(f"{passed:>8}/{total:<3}" for passed, total in (row["fail_to_pass"], row["pass_to_pass"]))
    text = f"{row['instance_id']:44} {word:10}  {counts}  {row['duration_s']:>7.1f}"
    if row["set_aside"]:
        text += f"  not graded: {', '.join(row['set_aside'])}"
    return f"{text}  {row['failure_reason']}".rstrip()
