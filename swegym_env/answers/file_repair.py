"""File repair: one broken file, repaired by search/replace blocks (`FileRepair-v0`).

A row has the broken file in `source`, `buggy` or `buggy_code`, the right one in `solution`, `fixed` or `fixed_code`;
`path`, `problem_statement`, `tests` and `language` are optional. Without tests an answer can be compared but not run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from swegym_env.agent.search_replace import BlockError, read_blocks, replace_once
from swegym_env.answers.answer import Judgement, MalformedAnswerError
from swegym_env.answers.one_file import OneFileEnv, OneFileExample
from swegym_env.answers.python_tests import runnable_tests
from swegym_env.errors import TaskFormatError
from swegym_env.tasks.adapters import Adapter
from swegym_env.tasks.rows import CheckedRow

__all__ = ["ADAPTER", "FileRepair", "FileRepairEnv", "make_vector"]

_SOURCE = ("source", "buggy", "buggy_code")
_SOLUTION = ("solution", "fixed", "fixed_code")
_ENDINGS = {"python": "py", "java": "java", "c": "c", "cpp": "cpp", "c++": "cpp", "javascript": "js", "go": "go"}


@dataclass(frozen=True)
class FileRepair(OneFileExample):
    """One broken file, the complaint of its users, and the file as it should be.

    Attributes:
        instance_id: unique within the dataset.
        problem_statement: the complaint, as the agent reads it.
        path: name of the file.
        source: the broken file.
        solution: the repaired file.
        tests: a Python module of tests (unittest or pytest) that imports the file; empty where the dataset has none.
        language: of the file.
    """

    instance_id: str
    problem_statement: str
    path: str
    source: str
    solution: str
    tests: str = ""
    language: str = "python"


def _adapt(row: CheckedRow) -> FileRepair:
    source = row.text(row.first(*_SOURCE), "the broken file", required=True)
    solution = row.text(row.first(*_SOLUTION), "the repaired file", required=True)
    if source.rstrip() == solution.rstrip():
        raise TaskFormatError(
            f"{row.where}: field {row.first(*_SOLUTION)!r}: expected another text than the broken file's"
        )
    tests = row.text("tests")
    if tests.strip():
        runnable_tests(tests, where=row.where)
    language = row.text("language").lower() or ("python" if tests else "")
    path = row.text("path") or f"code.{_ENDINGS.get(language, 'txt')}"
    row.check_path("path", path)
    return FileRepair(
        instance_id=row.name("instance_id", "id", text=f"{source}\0{solution}"),
        problem_statement=row.text("problem_statement") or f"There is a bug in {path}. Find and repair it.",
        path=path,
        source=source,
        solution=solution,
        tests=tests,
        language=language,
    )


def _matches(values: Mapping[str, object]) -> bool:
    return any(name in values for name in _SOURCE) and any(name in values for name in _SOLUTION)


ADAPTER = Adapter(frozenset(), _adapt, _matches)


class FileRepairEnv(OneFileEnv[FileRepair]):
    """Repair of one file: the agent reads the complaint and the file, its answer is search/replace blocks.

    The arguments are those of `OneFileEnv`; the shipped dataset is "file-repair-mini".
    """

    example_type = FileRepair
    shipped_dataset = "file-repair-mini"
    shipped_prompt = Path(__file__).parent / "templates" / "file_repair"

    def judge(self, example: FileRepair, answer: str) -> Judgement:
        """Make the replacements of the blocks and run the tests."""
        text = example.source
        try:
            blocks = read_blocks(f"{example.path}\n{answer}")  # the first block may leave the file's name out
            if not blocks:
                raise MalformedAnswerError("No search/replace block was found. Nothing was changed.")
            for block in blocks:
                if block.path != example.path:
                    raise MalformedAnswerError(f"There is only the file {example.path}, not {block.path}.")
                text = replace_once(text, block.search, block.replace, whole_lines=True).text
        except BlockError as error:
            raise MalformedAnswerError(f"{str(error)[:1].upper()}{str(error)[1:]}") from error
        return self.grade_file(example, text)


make_vector = FileRepairEnv.make_vector
