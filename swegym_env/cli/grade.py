"""`swegym grade`: verdicts on patches, from the command line."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from swegym_env.cli.options import (
    DATASETS,
    add_command,
    add_dataset_arguments,
    add_instances,
    add_jobs,
    add_repos,
    add_sandbox,
    add_test_timeout,
    chosen_instances,
    load_chosen,
    require_at_least,
    require_seconds,
    show_progress,
)
from swegym_env.errors import ConfigurationError, GradingError, UnknownTaskError
from swegym_env.grading.grading import grade_many
from swegym_env.grading.reports import RunDirectory, differences, explanation, run_report, verdict_row, write_output
from swegym_env.grading.verdict import FORGED, Policy
from swegym_env.tasks.task import Task

__all__ = ["add_parser", "read_predictions", "run"]


def add_parser(commands: Any) -> None:
    """Add `grade` to the commands of `swegym`."""
    parser = add_command(
        commands,
        "grade",
        run,
        "run the tests of tasks on patches",
        "swegym grade --dataset x.jsonl --predictions preds.jsonl --repos clones/ -j 4 --output out/",
        more=(
            ", each in a fresh sandbox. Exit code: 0 if every verdict is valid, resolved or not; 2 if a patch could "
            "not be graded or the request is wrong; 130 after Ctrl-C; 141 if standard output is closed."
        ),
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
        help="official: grade as the SWE-bench harness does; both: grade twice and report the differences",
    )
    parser.add_argument(
        "--max-forgery-chance",
        type=float,
        metavar="P",
        help="strict: reject patches with means of forgery if forgery_chance is above this (default: 0.001)",
    )
    add_test_timeout(parser)
    parser.add_argument(
        "--official", action="store_true", help="the official images, if available, instead of set-up layers"
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="DIR",
        help="write reports in the format of the harness here, and resume an earlier run",
    )
    parser.add_argument("--logs", type=Path, metavar="DIR", help="write the log of each instance here")
    parser.add_argument("--json", action="store_true", help="print one JSON object per instance")


def run(options: argparse.Namespace) -> int:
    """Grade the chosen patches; 0 if every verdict is valid, resolved or not.

    Raises:
        ConfigurationError: an argument or a file is invalid, or the results cannot be written.
        GradingError: some patches could not be graded; their verdicts have been printed like the others.
    """
    require_at_least(options, jobs=1)
    require_seconds(options, "timeout")
    _require_chance(options)
    patches, dataset_ids = _patches(options)
    if options.repos is not None and all(task.files for task, _ in patches):
        raise ConfigurationError(
            f"--repos {options.repos}: has no effect: the tasks of {options.dataset} contain their own files"
        )
    if options.logs is not None:  # an error is reported now, not after the first hour
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
        different = differences(rows["strict"], rows["official"])
        if directory is not None:
            directory.close("differences.json", different)
        if not options.json:
            print(f"the policies differ on {len(different)} of the instances")
            for row in different:
                excluded = f"not graded: {', '.join(row['set_aside'])}" if row["set_aside"] else "skipped tests"
                reason = row["reason"] or excluded
                print(f"{row['instance_id']:44} strict {row['strict']}, official {row['official']}: {reason}")
    everything = [row for policy in policies for row in rows[policy]]
    invalid = [row for row in everything if not row["valid"]]
    if len(everything) == 1 and invalid:
        raise GradingError(invalid[0]["failure_reason"])
    if invalid:
        raise GradingError(
            f"{len(invalid)} of {len(everything)} could not be graded; "
            f"the first, {invalid[0]['instance_id']}: {invalid[0]['failure_reason']}"
        )
    return 0


def _require_chance(options: argparse.Namespace) -> None:
    chance = options.max_forgery_chance
    if chance is not None and not 0 < chance < 1:
        raise ConfigurationError(f"--max-forgery-chance: expected more than 0 and less than 1, got {chance:g}")
    if chance is not None and options.policy == "official":
        raise ConfigurationError(f"--max-forgery-chance {chance:g}: has no effect with --policy official")


def _grade_all(
    options: argparse.Namespace,
    patches: list[tuple[Task, str]],
    policy: Policy,
    directory: RunDirectory | None,
    several: bool,
) -> list[dict[str, Any]]:
    """The rows of all verdicts under one policy, in order; each is printed and stored once it is known."""
    known = directory.finished() if directory is not None else {}
    chance = options.max_forgery_chance if policy == "strict" else None
    keys = [RunDirectory.key(task, patch, policy, options.timeout, chance) for task, patch in patches]
    rows = {task.instance_id: known[key] for (task, _), key in zip(patches, keys, strict=True) if key in known}
    todo = {task.instance_id: (task, patch, key) for (task, patch), key in zip(patches, keys, strict=True)}
    for name in rows:
        del todo[name]

    width = max([8, *(len(task.instance_id) for task, _ in patches)])
    headings = iter([] if options.json else [_heading(width)])  # before the first row: an error has no table

    def show(row: Mapping[str, Any]) -> None:
        for heading in headings:
            print(heading)
        shown = {name: value for name, value in row.items() if name not in ("key", "format")} | (
            {"policy": policy} if several else {}
        )
        print(json.dumps(shown) if options.json else _line(row, width), flush=True)

    for row in rows.values():
        show(row)
    with show_progress(len(todo), "grading") as advance:
        found = grade_many(
            [(task, patch) for task, patch, _ in todo.values()],
            jobs=options.jobs,
            on_verdict=advance,
            repos=options.repos,
            backend=options.sandbox,
            timeout_s=options.timeout,
            policy=policy,
            max_forgery_chance=chance,
            ordered=False,  # a task that takes an hour holds no other verdict back
        )
        for verdict in found:
            task, patch, key = todo[verdict.instance_id]
            row = verdict_row(verdict) | explanation(task, verdict, policy)
            if directory is not None:
                row = directory.add(key, task, patch, verdict, policy)
            if options.logs is not None:
                write_output(options.logs / f"{task.instance_id}.log", verdict.log, option="--logs")
            rows[verdict.instance_id] = row
            show(row)
    ordered = [rows[task.instance_id] for task, _ in patches]
    if not options.json and len(ordered) > 1:
        print(_totals(ordered, policy, len(ordered) - len(todo)))
    return ordered


def _totals(rows: list[dict[str, Any]], policy: Policy, kept: int) -> str:
    """The last lines of the table: counts, and how the time was spent."""
    forged = sum(row["failure_reason"].startswith(FORGED) for row in rows)
    seconds, tests, again = (
        sum(row[name] for row in rows) for name in ("duration_s", "test_duration_s", "control_duration_s")
    )
    words = f"resolved {sum(row['resolved'] for row in rows)} of {len(rows)}"
    details = [f"{forged} forged"] * (forged > 0) + [f"{kept} known from before"] * (kept > 0) + [f"policy {policy}"]
    return (
        f"{words} ({', '.join(details)})\n"
        f"{seconds:.1f} s: tests {tests:.1f} s, controls {again:.1f} s, set-up, sandboxes and screening "
        f"{seconds - tests - again:.1f} s"
    )


def read_predictions(path: Path) -> dict[str, str]:
    """Patches by instance from a predictions file: JSONL, a JSON list, or a JSON object of id → entry.

    An entry is an object with `model_patch` (and `instance_id`), or the patch itself; null is the empty patch.

    Raises:
        ConfigurationError: the file cannot be read, has no entry, or has a malformed one; the message names it.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(
            f"{path}: predictions cannot be read: {getattr(error, 'strerror', None) or error}"
        ) from error
    found: dict[str, str] = {}
    for where, entry in _entries(path, text):
        if not isinstance(entry, dict) or not isinstance(entry.get("instance_id"), str):
            raise ConfigurationError(f"{where}: field 'instance_id': expected text")
        patch = entry.get("model_patch", _MISSING)
        if patch is not None and not isinstance(patch, str):
            got = "nothing" if patch is _MISSING else type(patch).__name__
            raise ConfigurationError(f"{where} ({entry['instance_id']}): field 'model_patch': expected text, got {got}")
        if entry["instance_id"] in found:
            raise ConfigurationError(f"{where}: field 'instance_id': {entry['instance_id']!r} comes twice")
        found[entry["instance_id"]] = patch or ""
    if not found:
        raise ConfigurationError(f"{path}: has no predictions")
    return found


def _entries(path: Path, text: str) -> Iterator[tuple[str, Any]]:
    try:
        if path.suffix == ".jsonl":
            for number, line in enumerate(text.split("\n"), 1):  # a text in JSON may hold other ends of lines
                if line.strip():
                    yield f"{path} line {number}", json.loads(line)
            return
        data = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
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
    """The tasks and patches to grade, and the ids of the whole dataset."""
    tasks = load_chosen(options, options.dataset, official_images="auto" if options.official else False)
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


_MISSING = object()
_SHOWN = 3


def _heading(width: int) -> str:
    titles = f"{'FAIL_TO_PASS':>12}  {'PASS_TO_PASS':>12}  {'seconds':>7}  {'controls, s':>11}"
    return f"{'instance':{width}}  {'verdict':10}  {titles}  why"


def _line(row: Mapping[str, Any], width: int) -> str:
    word = "resolved" if row["resolved"] else "unresolved" if row["valid"] else "invalid"
    counts = "  ".join(f"{passed:>8}/{total:<3}" for passed, total in (row["fail_to_pass"], row["pass_to_pass"]))
    controls = f"{row['control_duration_s']:.1f}" if row["control_duration_s"] >= 0.05 else ""
    text = f"{row['instance_id']:{width}}  {word:10}  {counts}  {row['duration_s']:>7.1f}  {controls:>11}"
    if row["set_aside"]:
        text += f"  not graded: {', '.join(row['set_aside'])}"
    lines = [f"{text}  {row['failure_reason']}".rstrip()]
    if failing := row.get("failing_tests", ()):
        more = row["failing"] - len(failing[:_SHOWN])
        lines.append(f"    failing: {', '.join(failing[:_SHOWN])}" + (f", and {more} more" if more else ""))
    lines += [f"    log: {line[:200]}" for line in row.get("log_end", ())[-_SHOWN:]]
    return "\n".join(lines)
