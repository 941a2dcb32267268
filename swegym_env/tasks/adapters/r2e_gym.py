"""R2E-Gym (R2E-Gym/R2E-Gym-Subset, -Lite, -V1): commits turned into tasks, with generated tests.

Columns: `repo_name`, `docker_image`, `commit_hash` (the commit that solves it), `parsed_commit_content` (its diff),
`execution_result_content` (the tests, and their logs before and after), `expected_output_json` (name → outcome with the
fix), `problem_statement` (between [ISSUE] marks). The agent starts from the parent commit. Tests are named without
their file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from swegym_env.repo.patches import LineEdit, git_diff
from swegym_env.tasks.adapters import Adapter, swe_bench
from swegym_env.tasks.rows import CheckedRow
from swegym_env.tasks.task import Task

__all__ = ["ADAPTER", "COLUMNS", "REPOSITORIES", "adapt"]

COLUMNS = frozenset({"repo_name", "docker_image", "commit_hash", "parsed_commit_content", "expected_output_json"})
REPOSITORIES: Mapping[str, str] = {
    "aiohttp": "aio-libs/aiohttp",
    "bokeh": "bokeh/bokeh",
    "coveragepy": "nedbat/coveragepy",
    "datalad": "datalad/datalad",
    "networkx": "networkx/networkx",
    "numpy": "numpy/numpy",
    "orange3": "biolab/orange3",
    "pandas": "pandas-dev/pandas",
    "pillow": "python-pillow/Pillow",
    "pyramid": "Pylons/pyramid",
    "scrapy": "scrapy/scrapy",
    "statsmodels": "statsmodels/statsmodels",
    "sympy": "sympy/sympy",
    "tornado": "tornadoweb/tornado",
}

_FOLDER = "r2e_tests"
_COMMIT = re.compile(r"[0-9a-f]{40}")
_COLOUR = re.compile(r"\x1b\[\d+m")
_SIGNS = {"context": " ", "added": "+", "deleted": "-", "note": "\\ "}
_TEST_PARTS = {"tests", "Tests", "test", "Test"}


def adapt(row: CheckedRow) -> Task:
    """The task of a row: the parent of the solving commit, the diff of its source files, and the generated tests."""
    name = row.text("repo_name", "the repository's name", required=True)
    commit = row.matching("commit_hash", _COMMIT, "40 hex digits")
    expected = row.parsed("expected_output_json")
    wanted = [_plain(test) for test, outcome in expected.items() if outcome == "PASSED"]
    if not wanted:
        raise row.error("expected_output_json", "an outcome PASSED for at least one test")
    execution = CheckedRow(row.parsed("execution_result_content"), f"{row.where}, execution_result_content")
    passed_before = _passed(execution.text("old_commit_res_stdout"))
    try:
        patch = _patch(row.parsed("parsed_commit_content"))
    except (KeyError, TypeError, AttributeError):
        patch = ""
    if not patch:
        raise row.error("parsed_commit_content", "file_diffs with a change of a source file")
    issue = row.text("problem_statement", "the issue's text", required=True)
    failing = tuple(test for test in wanted if test not in passed_before)
    return Task(
        instance_id=f"{name}__{commit[:12]}",
        repo=REPOSITORIES.get(name.lower(), f"{name}/{name}"),
        base_commit=f"{commit}~1",
        problem_statement=_inside_marks(issue),
        patch=patch,
        test_patch=_tests(execution),
        fail_to_pass=failing or tuple(wanted),
        pass_to_pass=tuple(test for test in wanted if test in passed_before) if failing else (),
        version=commit[:12],
        official_image=swe_bench.as_docker(row.text("docker_image")),
        test_command=f"pytest -rA --color=no {_FOLDER}",
        log_parser="r2e_gym",
    )


def _plain(name: str) -> str:
    return _COLOUR.sub("", name).partition(" - ")[0]


def _passed(log: str) -> set[str]:
    """The tests that passed according to the summary of a log, named without their file."""
    _, _, summary = log.partition("short test summary info")
    lines = [line for line in summary.splitlines() if "PASSED" in line and "::" in line]
    return {_plain(line.partition("::")[2].replace("::", ".")) for line in lines}


def _inside_marks(text: str) -> str:
    marked = re.search(r"\[ISSUE\](.*)\[/ISSUE\]", text, re.DOTALL)
    return (marked[1] if marked else text).strip() + "\n"


def _tests(execution: CheckedRow) -> str:
    """The test patch that adds the generated tests."""
    names, codes = execution.texts("test_file_names"), execution.texts("test_file_codes")
    patch = ""
    for name, code in zip(names, codes, strict=False):
        path = f"{_FOLDER}/{name}"
        execution.check_path("test_file_names", path)
        lines = [f"{line}\n" for line in code.removesuffix("\n").split("\n")]
        body = git_diff(path, [], [LineEdit(0, 0, tuple(lines))])
        patch += body.replace(f"--- a/{path}", "--- /dev/null").replace("\n---", "\nnew file mode 100644\n---", 1)
    return patch


def _patch(commit: Mapping[str, Any]) -> str:
    """The diff of the commit's source files, assembled from its parts."""
    patch = ""
    for diff in commit.get("file_diffs") or ():
        path = diff["header"]["file"]["path"]
        parts = path.split("/")
        is_test = parts[-1].startswith("test_") or path.endswith("_test.py") or bool(_TEST_PARTS.intersection(parts))
        if is_test or not path.endswith(".py") or diff.get("is_binary_file") or not diff.get("hunks"):
            continue
        misc = diff["header"].get("misc_line")
        patch += f"diff --git a/{path} b/{path}\n" + (f"{misc}\n" if misc else "")
        patch += f"--- {diff['minus_file']['path']}\n+++ {diff['plus_file']['path']}\n"
        for hunk in diff["hunks"]:
            patch += _hunk(hunk)
    return patch


def _hunk(hunk: Mapping[str, Any]) -> str:
    place = hunk["descriptor"]
    ranges = []
    for side in ("old_range", "new_range"):
        span = place[side]
        ranges.append(f"{span['start']}" if span.get("length") is None else f"{span['start']},{span['length']}")
    section = f" {place['section'].strip()}" if place.get("section") else ""
    lines = "".join(f"{_SIGNS[line['type']]}{line['content']}\n" for line in hunk["line_group"]["all_lines"])
    return f"@@ -{ranges[0]} +{ranges[1]} @@{section}\n{lines}"


ADAPTER = Adapter(COLUMNS, adapt)
