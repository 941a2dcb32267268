"""The output directory of a grading run, in the formats of the SWE-bench harness, from which a run can resume.

report.json                 of the whole run (`schema_version` 2 of the harness, `format` of this program)
INSTANCE/report.json        of one instance, with the status of each test
INSTANCE/test_output.txt    its log
INSTANCE/patch.diff         the graded patch
results.jsonl               one line per verdict, as `--json` prints it; these are not graded again
differences.json            with `--policy both`: the instances on which the two policies disagree
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from swegym_env.errors import ConfigurationError
from swegym_env.files import append_json_line, read_json_lines, write_atomically
from swegym_env.grading.verdict import Policy, Verdict, names_by_outcome
from swegym_env.tasks.task import Task, task_to_row

__all__ = ["RunDirectory", "differences", "explanation", "instance_report", "run_report", "verdict_row", "write_output"]

_FORMAT = 1
"""Of a line of `results.jsonl`, and of `report.json`; those of version 0.1 may have none."""
_FAILING_TESTS, _LOG_LINES = 10, 10


def verdict_row(verdict: Verdict) -> dict[str, Any]:
    """A verdict as JSON: everything but the log and the statuses of single tests."""
    fields = {field.name: getattr(verdict, field.name) for field in dataclasses.fields(verdict)}
    del fields["log"], fields["tests"]
    return fields


def explanation(task: Task, verdict: Verdict, policy: Policy) -> dict[str, Any]:
    """Why a patch has failed, as part of its row: the first failing tests, how many there are, and the end of the log.

    Empty for a patch that resolves its task, and for a verdict that is not valid.
    """
    if verdict.resolved or not verdict.valid:
        return {}
    names = (*task.fail_to_pass, *task.pass_to_pass)
    _, failed = names_by_outcome(names, verdict.tests, task.eval_type, policy)
    end = [line.rstrip() for line in verdict.log.splitlines() if line.strip()][-_LOG_LINES:]
    return {"failing": len(failed), "failing_tests": failed[:_FAILING_TESTS], "log_end": end}


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
    """The harness's report of a whole run, with the version of its format as `format`.

    Args:
        dataset_ids: all instances of the dataset.
        patches: instance → submitted patch; empty ones are counted as neither resolved nor unresolved.
        rows: `verdict_row` of each graded instance.
    """
    by_id = {row["instance_id"]: row for row in rows}
    empty = {name for name, patch in patches.items() if not patch}
    completed = {name for name, row in by_id.items() if row["valid"]} - empty
    resolved = {name for name in completed if by_id[name]["resolved"]}
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
        "format": _FORMAT,
    }


def differences(strict: Iterable[Mapping[str, Any]], official: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The instances with different verdicts under the two policies, and the reason of `strict`."""
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
        ConfigurationError: it cannot be written, or holds results of another kind or of a later version.
    """

    def __init__(self, place: Path) -> None:
        self.place = place
        self._results = place / "results.jsonl"
        for report in (place / "report.json", place / "report.official.json"):  # what may be replaced
            if report.is_file():
                _check_format(report, _read_report(report))
        write_output(place / ".writable", "").unlink()  # an error is reported now, not after the first hour

    def finished(self) -> dict[str, dict[str, Any]]:
        """Key → row of every valid verdict of earlier runs; a line that was cut off is skipped."""
        found: dict[str, dict[str, Any]] = {}
        for row in read_json_lines(self._results):
            if not isinstance(row, dict) or "key" not in row:
                raise ConfigurationError(f"{self._results}: no results of swegym grade. Try: another --output")
            _check_format(self._results, row)
            if row["valid"]:
                found[row["key"]] = row
        return found

    def add(self, key: str, task: Task, patch: str, verdict: Verdict, policy: Policy) -> dict[str, Any]:
        """Write the files of one verdict; the line in `results.jsonl`, which marks it as finished, comes last."""
        place = self.place / task.instance_id / ("" if policy == "strict" else policy)
        write_output(place / "report.json", json.dumps(instance_report(task, patch, verdict, policy), indent=4))
        write_output(place / "test_output.txt", verdict.log)
        write_output(place / "patch.diff", patch)
        row = {
            "key": key,
            "format": _FORMAT,
            "policy": policy,
            **verdict_row(verdict),
            **explanation(task, verdict, policy),
        }
        try:
            append_json_line(self._results, row)
        except OSError as error:
            raise _unwritable(self._results, error) from error
        return row

    def close(self, name: str, report: Any) -> None:
        """Write a report of the whole run."""
        write_output(self.place / name, json.dumps(report, indent=4))

    @staticmethod
    def key(
        task: Task, patch: str, policy: Policy, timeout_s: float | None, max_forgery_chance: float | None = None
    ) -> str:
        """A digest of all that a verdict depends on: equal keys need no second grading."""
        settings = [policy, timeout_s] + ([max_forgery_chance] if max_forgery_chance is not None else [])
        text = json.dumps([task_to_row(task), patch, *settings], sort_keys=True)
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:24]


def _read_report(path: Path) -> dict[str, Any]:
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigurationError(f"{path}: no report of swegym grade: {error}. Try: another --output") from error
    if not isinstance(report, dict) or "resolved_ids" not in report:
        raise ConfigurationError(f"{path}: no report of swegym grade. Try: another --output")
    return report


def _check_format(path: Path, content: Mapping[str, Any]) -> None:
    """Refuse what a later version wrote; version 0.1 wrote no format at first."""
    if (found := content.get("format", _FORMAT)) != _FORMAT:
        raise ConfigurationError(f"{path}: of format {found!r}, this version reads {_FORMAT}. Try: another --output")


def write_output(path: Path, text: str, *, option: str = "--output") -> Path:
    """Write a file atomically; an error names the option that chose its place."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return write_atomically(path, text)
    except OSError as error:
        raise _unwritable(path, error, option) from error


def _unwritable(path: Path, error: OSError, option: str = "--output") -> ConfigurationError:
    return ConfigurationError(f"{option} {path}: cannot be written: {error.strerror or error}")
