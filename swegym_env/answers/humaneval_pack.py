"""HumanEvalPack (bigcode/humanevalpack), Python: functions with a bug, an explanation and tests, for `KodCode-v0`.

Columns: `task_id`, `declaration`, `canonical_solution`, `buggy_solution` (bodies that follow the declaration),
`entry_point`, `test` (a function `check`, and a call of it), `docstring` or `instruction`, `bug_type`.
"""

from __future__ import annotations

import re

from swegym_env.answers.kodcode import FunctionTask
from swegym_env.answers.python_tests import runnable_tests
from swegym_env.errors import TaskFormatError
from swegym_env.tasks.adapters import Adapter
from swegym_env.tasks.rows import CheckedRow

__all__ = ["ADAPTER"]

_COLUMNS = frozenset({"task_id", "declaration", "canonical_solution", "buggy_solution", "entry_point", "test"})


def _adapt(row: CheckedRow) -> FunctionTask:
    """The buggy function of a row, to be corrected."""
    instance_id = row.name("task_id", text="")
    if not instance_id.lower().startswith("python"):
        raise TaskFormatError(f"{row.where}: field 'task_id': expected a task in Python, got {instance_id!r}")
    declaration = row.text("declaration", "the function's first lines", required=True)
    entry_point = row.text("entry_point", "the function's name", required=True)
    test = row.text("test", "a function `check` and its call", required=True)
    body = re.sub(rf"^check\({re.escape(entry_point)}\)\s*$", "", test, flags=re.MULTILINE).strip()
    imports = f"from solution import *\nfrom solution import {entry_point}\n"
    tests = f"{imports}\n{body}\n\n\ndef test_{entry_point}():\n    check({entry_point})\n"
    runnable_tests(tests, where=row.where, column="test")
    setup = row.text("test_setup")
    question = row.text("instruction") or row.text("docstring", "what the function does", required=True)
    return FunctionTask(
        instance_id=instance_id,
        question=question,
        entry_point=entry_point,
        solution=declaration + row.text("canonical_solution", "the body", required=True),
        broken=declaration + row.text("buggy_solution", "the body with a bug", required=True),
        tests=f"{setup}\n{tests}" if setup.strip() else tests,
        subset=row.text("bug_type"),
    )


ADAPTER = Adapter(_COLUMNS, _adapt)
