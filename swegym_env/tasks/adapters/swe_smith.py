"""SWE-smith (SWE-bench/SWE-smith): synthetic bugs in working repositories.

Columns: `instance_id`, `repo` (`swesmith/OWNER__NAME.COMMIT8`, the mirror), `patch`, `FAIL_TO_PASS`, `PASS_TO_PASS`,
`image_name`, `problem_statement`. The patch *introduces the bug*: the agent starts with it applied, and the gold patch
is its reverse. The tests are those of the repository itself.
"""

from __future__ import annotations

import re
import shlex

from swegym_env.repo.patches import reverse_patch
from swegym_env.tasks.adapters import Adapter, swe_bench
from swegym_env.tasks.rows import CheckedRow
from swegym_env.tasks.task import Task

__all__ = ["ADAPTER", "COLUMNS", "adapt"]

COLUMNS = frozenset({"instance_id", "repo", "patch", "FAIL_TO_PASS", "PASS_TO_PASS", "image_name"})

_MIRROR = re.compile(r"(?:[\w.-]+/)?(?P<owner>[\w.-]+?)__(?P<name>[\w.-]+)\.(?P<commit>[0-9a-f]{8})")


def adapt(row: CheckedRow) -> Task:
    """The task of a row: the original repository at its commit, with the bug in it."""
    mirror = _MIRROR.fullmatch(row.text("repo", "the mirror", required=True))
    if mirror is None:
        raise row.error("repo", "'swesmith/OWNER__NAME.COMMIT' with 8 hex digits")
    bug = row.text("patch", "the patch that introduces the bug", required=True)
    names = row.texts("FAIL_TO_PASS", required=True)
    files = sorted({name.partition("::")[0] for name in names if "::" in name})
    return Task(
        instance_id=row.name("instance_id", text=bug),
        repo=f"{mirror['owner']}/{mirror['name']}",
        base_commit=mirror["commit"],
        base_patch=bug,
        problem_statement=row.text("problem_statement")
        or "Some tests of this repository fail. Find the bug and repair it.",
        patch=reverse_patch(bug),
        fail_to_pass=names,
        pass_to_pass=tuple(name for name in row.texts("PASS_TO_PASS") if not files or name.partition("::")[0] in files),
        version=mirror["commit"],
        official_image=swe_bench.as_docker(row.text("image_name")),
        test_command=f"pytest -rA --color=no {shlex.join(files)}".rstrip(),
        log_parser="pytest",
        created_at=row.text("created_at"),
    )


ADAPTER = Adapter(COLUMNS, adapt)
