"""A dataset family: rows with whole files in the place of patches, and the function that makes a task of one."""

import difflib

from swegym_env.tasks.adapters import Adapter
from swegym_env.tasks.rows import CheckedRow
from swegym_env.tasks.task import Task


def patch(before: dict[str, str], after: dict[str, str]) -> str:
    """The git diff from some files to others."""
    lines: list[str] = []
    for path, text in after.items():
        old = before.get(path)
        lines.append(f"diff --git a/{path} b/{path}\n" + ("" if old is not None else "new file mode 100644\n"))
        source = f"a/{path}" if old is not None else "/dev/null"
        lines += difflib.unified_diff((old or "").splitlines(True), text.splitlines(True), source, f"b/{path}")
    return "".join(lines)


def adapt(row: CheckedRow) -> Task:
    """The task of a row; `CheckedRow` raises an error that names row and field where a value is wrong."""
    files, tests = row.files("files"), row.files("tests")
    return Task(
        instance_id=row.text("acme_id", required=True),
        repo="acme/scripts",
        base_commit="",
        problem_statement=row.text("issue", required=True),
        patch=patch(files, row.files("solution")),
        test_patch=patch({}, tests),
        fail_to_pass=tuple(tests),
        files=files,
        test_command="sh run_tests.sh",
    )


ADAPTER = Adapter(frozenset({"acme_id", "issue", "files", "solution", "tests"}), adapt)
