"""KodCode (KodCode/KodCode-V1, -Light-RL): a question, a solution, and a module of tests.

Columns: `question`, `solution`, `test` (`test_code` in the first release), `question_id` (`conversation_id`),
`test_info` (a list of {function_name, function_declaration, parameter_list, docstring}; `test_entry_point` in the
first release), `subset`, `style`, `gpt_difficulty`. Sets for debugging add `broken` (or `buggy_solution`): code that
fails.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping

from swegym_env.tasks.checked_rows import CheckedRow
from swegym_env.tasks.kinds import FunctionTask
from swegym_env.tasks.test_modules import runnable_tests

__all__ = ["COLUMNS", "NAME", "adapt", "matches"]

NAME = "KodCode"
COLUMNS = frozenset({"question", "solution"})


def matches(values: Mapping[str, object]) -> bool:
    """Whether there are tests, under either name."""
    return "test" in values or "test_code" in values


def adapt(row: CheckedRow) -> FunctionTask:
    """The task of a row."""
    test_column = row.first("test", "test_code")
    tests = row.text(test_column, "a module of tests", required=True)
    solution = row.text("solution", "the code that passes", required=True)
    runnable_tests(tests, where=row.where, column=test_column)
    entry_point, declaration = _declared(row, solution)
    question = row.text("question", "what to write", required=True)
    return FunctionTask(
        instance_id=row.name("question_id", "conversation_id", "instance_id", text=f"{question}\0{solution}"),
        question=question,
        entry_point=entry_point,
        declaration=declaration,
        solution=solution,
        tests=tests,
        broken=row.text(row.first("broken", "buggy_solution")),
        subset=row.text("subset"),
        difficulty=row.text("gpt_difficulty"),
    )


def _declared(row: CheckedRow, solution: str) -> tuple[str, str]:
    """Name and first line of the function: as the row says, or that of the solution's last public function."""
    info = row.values.get("test_info")
    if isinstance(info, list | tuple) and info and isinstance(info[0], Mapping):
        found = CheckedRow(info[0], f"{row.where}, test_info")
        return found.text("function_name"), found.text("function_declaration")
    named = row.text("test_entry_point")
    try:
        body = ast.parse(solution).body
    except (SyntaxError, ValueError, RecursionError):  # a solution that does not parse declares nothing
        return named, ""
    functions = [node for node in body if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")]
    chosen = next((node for node in reversed(functions) if named in ("", node.name)), None)
    if chosen is None:
        return named, ""
    returns = f" -> {ast.unparse(chosen.returns)}" if chosen.returns else ""
    return chosen.name, f"def {chosen.name}({ast.unparse(chosen.args)}){returns}:"
