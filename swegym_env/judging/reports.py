"""What a grading run leaves in its directory, in the forms of the SWE-bench harness, and how it goes on where it was.

report.json                 of the whole run (`schema_version` 2)
INSTANCE/report.json        of one instance, with the status of each test
INSTANCE/test_output.txt    its log
INSTANCE/patch.diff         what was graded
results.jsonl               a line a verdict, as `--json` prints it; what is there already is not graded again
differences.json            with `--policy both`: where the two policies disagree
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from swegym_env.errors import ConfigurationError
from swegym_env.judging.log_verdict import names_by_outcome
from swegym_env.judging.policy import Policy
from swegym_env.judging.verdict import Verdict
from swegym_env.tasks.rows import task_to_row
from swegym_env.tasks.task import Task
from swegym_env.writing import write_whole

__all__ = ["RunDirectory", "differences", "instance_report", "run_report", "verdict_row", "write_output"]


def verdict_row(verdict: Verdict) -> dict[str, Any]:
    """A verdict as JSON has it: everything but the log and the single tests."""
    fields = {field.name: getattr(verdict, field.name) for field in dataclasses.fields(verdict)}
    del fields["log"], fields["tests"]
    return fields


def instance_report(task: Task, patch: str, verdict: Verdict, policy: Policy) -> dict[str, Any]:
    """The harness's `report.json` of one instance."""
    status: dict[str, Any] = {}
    for kind, names in (("FAIL_TO_PASS", task.fail_to_pass), ("PASS_TO_PASS", task.pass_to_pass)):
        passed, failed = names_by_outcome(names, verdict.tests, task.eval_type, policy)
        status[kind] = {"success": passed, "failure": failed}
    status |= {kind: {"success": [], "failure": []} for kind in ("FAIL_TO_FAIL", "PASS_TO_FAIL")}
    return {
        task.instance_id: {
            "patch_is_None": False,
            "patch_exists": bool(patch),
            "patch_successfully_applied": verdict.patch_applied,
            "resolved": verdict.resolved,
            "tests_status": status,
        }
    }


def run_report(
    dataset_ids: Sequence[str], patches: Mapping[str, str], rows: Iterable[Mapping[str, Any]]
) -> dict[str, Any]:
    """The harness's report of a whole run.

    Args:
        dataset_ids: all instances of the dataset that was graded from.
        patches: instance → patch, of those submitted; an empty one is listed as such and as neither resolved nor not.
        rows: what `verdict_row` gives, of those graded.
    """
    of = {row["instance_id"]: row for row in rows}
    empty = {name for name, patch in patches.items() if not patch}
    completed = {name for name, row in of.items() if row["valid"]} - empty
    resolved = {name for name in completed if of[name]["resolved"]}
    lists = {
        "completed": completed,
        "resolved": resolved,
        "unresolved": completed - resolved,
        "empty_patch": empty,
        "error": patches.keys() - empty - completed,
    }
    return {
        "total_instances": len(dataset_ids),
        "submitted_instances": len(patches),
        **{f"{name}_instances": len(ids) for name, ids in lists.items()},
        "submitted_ids": sorted(patches),
        "incomplete_ids": sorted(set(dataset_ids) - patches.keys()),
        **{f"{name}_ids": sorted(ids) for name, ids in lists.items()},
        "schema_version": 2,
    }


def differences(strict: Iterable[Mapping[str, Any]], official: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Where the two policies give an instance different verdicts, and why `strict` gives its own."""
    other = {row["instance_id"]: row for row in official}
    return [
        {
            "instance_id": row["instance_id"],
            "strict": row["resolved"],
            "official": other[row["instance_id"]]["resolved"],
            "reason": row["failure_reason"],
            "set_aside": list(row["set_aside"]),
        }
        for row in strict
        if row["resolved"] != other[row["instance_id"]]["resolved"]
    ]


class RunDirectory:
    """The directory of one grading run; see the module.

    Raises:
        ConfigurationError: it cannot be written, or holds results of another kind.
    """

    def __init__(self, place: Path) -> None:
        self.place = place
        self._results = place / "results.jsonl"
        write_output(place / ".writable", "").unlink()  # found out now, not after the first hour
        if self._results.exists() and not self._results.read_bytes().endswith(b"\n"):
            self._append("\n")  # a line that was cut off stays one of its own

    def finished(self) -> dict[str, dict[str, Any]]:
        """Key → row of every valid verdict that an earlier run left; a line that was cut off is passed over."""
        found: dict[str, dict[str, Any]] = {}
        if not self._results.exists():
            return found
        for line in self._results.read_text(encoding="utf-8").splitlines():
            with contextlib.suppress(json.JSONDecodeError):
                row = json.loads(line)
                if not isinstance(row, dict) or "key" not in row:
                    raise ConfigurationError(f"{self._results}: no results of swegym grade. Try: another --output")
                if row["valid"]:
                    found[row["key"]] = row
        return found

    def add(self, key: str, task: Task, patch: str, verdict: Verdict, policy: Policy) -> dict[str, Any]:
        """Write everything of one verdict; the line that makes it finished comes last."""
        place = self.place / task.instance_id / ("" if policy == "strict" else policy)
        write_output(place / "report.json", json.dumps(instance_report(task, patch, verdict, policy), indent=4))
        write_output(place / "test_output.txt", verdict.log)
        write_output(place / "patch.diff", patch)
        row = {"key": key, "policy": policy, **verdict_row(verdict)}
        self._append(json.dumps(row) + "\n")
        return row

    def _append(self, text: str) -> None:
        try:
            with self._results.open("a", encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            raise _unwritable(self._results, error) from error

    def close(self, name: str, report: Any) -> None:
        """Write a report of the whole run."""
        write_output(self.place / name, json.dumps(report, indent=4))

    @staticmethod
    def key(task: Task, patch: str, policy: Policy, timeout_s: float | None) -> str:
        """What a verdict depends on, in short: equal keys need no second grading."""
        text = json.dumps([task_to_row(task), patch, policy, timeout_s], sort_keys=True)
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:24]


def write_output(path: Path, text: str, *, option: str = "--output") -> Path:
    """Write a file whole or not at all; an error names the option that chose its place."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return write_whole(path, text)
    except OSError as error:
        raise _unwritable(path, error, option) from error


def _unwritable(path: Path, error: OSError, option: str = "--output") -> ConfigurationError:
    return ConfigurationError(f"{option} {path}: cannot be written: {error.strerror or error}")
