"""C and C++: the machine's compiler and make; logs of TAP, GoogleTest, doctest, CTest, Automake."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from types import MappingProxyType

from swegym_env.languages import (
    Blinded,
    Bug,
    Control,
    Copy,
    Language,
    Lineup,
    LogParser,
    ProjectCommands,
    RunnerReport,
    Scrutiny,
    Twins,
)
from swegym_env.languages.c.blind import make_blind
from swegym_env.languages.c.controls import control_files, make_control
from swegym_env.languages.c.logs import PARSERS, REPOSITORY_PARSERS, parser_of_command, runner_report
from swegym_env.languages.c.project import find_test, project_commands, without_tests
from swegym_env.languages.c.screening import added_means, system_header
from swegym_env.languages.c.setup import find_recipe
from swegym_env.languages.c.state import keeps_state
from swegym_env.languages.c.twins import given_tests, make_twins
from swegym_env.languages.changed import parts_without_means, scrutiny_by_means
from swegym_env.languages.machine import MachineRecipe
from swegym_env.languages.mutations import KINDS, injected_bugs
from swegym_env.tasks.task import Task

__all__ = ["C"]


class C(Language):
    """See the module."""

    name = "c"
    is_compiled = True
    suspects_state = True
    suffixes = (".c", ".h", ".cc", ".cpp", ".cxx", ".c++", ".hh", ".hpp", ".hxx", ".inl")
    grammars = MappingProxyType(
        {
            **dict.fromkeys(suffixes, ("tree_sitter_cpp:language",)),
            ".c": ("tree_sitter_c:language",),
            ".h": ("tree_sitter_c:language", "tree_sitter_cpp:language"),
        }
    )
    bug_kinds = tuple(kind for kind in KINDS if kind != "removed-return")  # undefined behaviour
    parsers = PARSERS
    repository_parsers = REPOSITORY_PARSERS
    reporting_runners = re.compile(r"(?!)")  # a crash of an honest program also ends its log without a report
    installing_lines = re.compile(r"apt(-get)? |autoreconf |\./configure\b|make (dist)?clean$")
    protected_files = re.compile(
        r"(?i)^(test_.*|.*[_-]tests?|tests?|unit[_-].*)\.(c|h|cc|cpp|cxx|hpp|tcl|sh)$"
        r"|^(gnu)?makefile(\..*)?$|\.(mk|mak|cmake|am|ac|m4|ninja|bazel|gn|gyp|pri|pro|spec|specs|ld|lds|map|ver)$"
        r"|^(cmakelists\.txt|cmakepresets\.json|configure(\..*)?|meson(_options)?\.(build|txt)|build|workspace|sconstruct|wscript"
        r"|\.?clang.*|compile_flags\.txt|ctest.*|\.gdbinit|libtool|config\.(site|status|cache|guess|sub|rpath)|runtest.*"
        r"|\.make-.*|test-driver|missing|depcomp|compile|install-sh|ylwrap|ar-lib|mkinstalldirs|stamp-.*)$"
        r"|\.(o|obj|a|so|so\..*|lo|la|gch|pch|pcm|s|asm|d|gcda|gcno|py|pl|sh|tcl)$"
    )
    protected_directories = re.compile(
        r"CMakeFiles|\.deps|\.libs|autom4te\.cache|build-aux|scripts|googletest|gtest|gmock|doctest|catch2?"
    )

    def find_recipe(self, task: Task) -> MachineRecipe | None:
        return find_recipe(task)

    def parser_of_command(self, command: str) -> LogParser:
        return parser_of_command(command)

    def runner_report(self, log: str, parser: LogParser) -> RunnerReport | None:
        return runner_report(log, parser)

    def shadows_module(self, parts: list[str], base: Path) -> bool:
        """Whether the path begins a new header that would be included instead of a system header."""
        path = "/".join(parts)
        return system_header(path) and not (base / path).exists()

    def scrutiny_of(self, patch: str, base: Path, gold: str = "") -> Scrutiny:
        return scrutiny_by_means(added_means, patch, base, gold)

    def without_means(self, patch: str, base: Path, gold: str = "") -> tuple[str, ...]:
        return parts_without_means(added_means, patch, base, gold)

    def control_files(self, task: Task) -> tuple[str, ...]:
        return control_files(task)

    def make_control(
        self, files: Mapping[str, str], names: Iterable[str], added_lines: Mapping[str, frozenset[int]], seed: int
    ) -> Control | None:
        return make_control(files, names, added_lines, seed)

    def copies_passed(self, lineup: Lineup, tests: Mapping[str, str]) -> Mapping[Copy, bool]:
        return lineup.passed({name: (status,) for name, status in tests.items()})

    def keeps_state(self, patch: str, base: Path, gold: str = "") -> bool:
        return keeps_state(patch, base, gold)

    def given_tests(
        self, files: Mapping[str, str], names: Iterable[str], rewritten: Mapping[str, str] | None = None
    ) -> frozenset[str]:
        return given_tests(files, names)

    def make_twins(self, files: Mapping[str, str], names: Iterable[str], seed: int, twins: int) -> Twins:
        return make_twins(files, names, seed, twins)

    def injected_bugs(self, path: str, content: bytes) -> Iterator[Bug]:
        found = injected_bugs(self.grammars[PurePosixPath(path).suffix][0], content)
        return (bug for bug in found if bug.kind in self.bug_kinds)

    def project_commands(self, files: Mapping[str, bytes]) -> ProjectCommands:
        return project_commands(files)

    def without_tests(self, path: str, content: bytes, names: Collection[str]) -> bytes:
        return without_tests(content, names)

    def find_test(self, path: str, content: bytes, name: str) -> str:
        return find_test(content, name)

    def make_blind(
        self, files: Mapping[str, str], names: Iterable[str], left: frozenset[str], seed: int, *, computed: bool = False
    ) -> Blinded | None:
        return make_blind(files, names, left, seed, computed=computed)
