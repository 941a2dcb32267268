"""KodCode: one function to write or to debug (`KodCode-v0`; Xu et al. 2025).

Columns of KodCode/KodCode-V1 and -Light-RL: `question`, `solution`, `test` (`test_code` in the first release),
`question_id` (`conversation_id`), `test_info` (a list of {function_name, function_declaration, parameter_list,
docstring}; `test_entry_point` in the first release), `subset`, `style`, `gpt_difficulty`. Datasets for debugging add
`broken` (or `buggy_solution`): code that fails.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from swegym_env.answers.answer import Judgement, MalformedAnswerError
from swegym_env.answers.one_file import OneFileEnv, OneFileExample
from swegym_env.answers.python_tests import runnable_tests
from swegym_env.languages.python.parsing import parse
from swegym_env.tasks.adapters import Adapter
from swegym_env.tasks.rows import CheckedRow

__all__ = ["ADAPTER", "FunctionTask", "KodCodeEnv", "make_vector"]

_PATH = "solution.py"
_FENCE = re.compile(r"(`{3,})[ \t]*(\w*)")


@dataclass(frozen=True)
class FunctionTask(OneFileExample):
    """One function to write or to debug, and its tests.

    Attributes:
        instance_id: unique within the dataset.
        question: what to write, as the agent reads it.
        entry_point: name of the function that the tests call; empty where the dataset has none.
        solution: code that passes.
        tests: a Python module of tests that begins with `from solution import …`.
        declaration: the function's first line, `def name(…):`; may be empty.
        broken: code that fails, for debugging; empty where the function is to be written from scratch.
        subset: part of the dataset that it comes from.
        difficulty: as rated by the dataset.
    """

    instance_id: str
    question: str
    entry_point: str
    solution: str
    tests: str
    declaration: str = ""
    broken: str = ""
    subset: str = ""
    difficulty: str = ""

    @property
    def path(self) -> str:
        """Name of the file."""
        return _PATH

    @property
    def source(self) -> str:
        """The text of `solution.py` at the beginning: the broken code, or the declaration without a body."""
        if self.broken:
            return self.broken
        if self.declaration:
            return f"{self.declaration.strip().rstrip(':')}:\n    raise NotImplementedError\n"
        return f"# Write {self.entry_point or 'the solution'} here.\n"

    @property
    def problem_statement(self) -> str:
        """The question, and where the answer belongs, as the agent reads it."""
        named = f"`{self.entry_point}` " if self.entry_point else "The code "
        if self.broken:
            place = f"{named}in `{_PATH}` does not do this yet: correct it."
        else:
            place = f"{named}belongs in `{_PATH}`."
        return f"{self.question.rstrip()}\n\n{place}\n"


def _adapt(row: CheckedRow) -> FunctionTask:
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
        body = parse(solution).body
    except (SyntaxError, ValueError, RecursionError):  # a solution that does not parse declares nothing
        return named, ""
    functions = [node for node in body if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")]
    chosen = next((node for node in reversed(functions) if named in ("", node.name)), None)
    if chosen is None:
        return named, ""
    returns = f" -> {ast.unparse(chosen.returns)}" if chosen.returns else ""
    return chosen.name, f"def {chosen.name}({ast.unparse(chosen.args)}){returns}:"


def _matches(values: Mapping[str, object]) -> bool:
    return "test" in values or "test_code" in values


ADAPTER = Adapter(frozenset({"question", "solution"}), _adapt, _matches)


def _code_blocks(answer: str) -> Iterator[tuple[str, str]]:
    """The language and the code of each fenced block that is closed, in time linear in the answer."""
    opened: re.Match[str] | None = None
    code: list[str] = []
    for line in answer.split("\n"):
        fence = _FENCE.match(line)
        if opened is None:
            opened, code = fence, []
        elif fence and line.rstrip(" \t\r") == fence[1] and len(fence[1]) >= len(opened[1]):
            yield opened[2], "".join(code)
            opened = None
        else:
            code.append(f"{line}\n")


class KodCodeEnv(OneFileEnv[FunctionTask]):
    """One function to write or to debug: the answer is the whole of `solution.py` in a block of Python.

    The arguments are those of `OneFileEnv`; the shipped dataset is "kodcode-mini".
    """

    example_type = FunctionTask
    shipped_dataset = "kodcode-mini"
    shipped_prompt = Path(__file__).parent / "templates" / "kodcode"

    def judge(self, example: FunctionTask, answer: str) -> Judgement:
        """Take the last block of code as `solution.py` and run the tests."""
        blocks = [code for language, code in _code_blocks(answer) if language.lower() in ("python", "py", "")]
        if not blocks:
            raise MalformedAnswerError("No ```python block was found. Nothing was run.")
        if "\0" in blocks[-1]:
            raise MalformedAnswerError("The code holds a NUL character. Nothing was run.")
        return self.grade_file(example, blocks[-1])


make_vector = KodCodeEnv.make_vector
