"""JavaScript and TypeScript: logs of mocha, Jest, Vitest, Karma and QUnit."""

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
    Recipe,
    RunnerReport,
    Scrutiny,
    Twins,
)
from swegym_env.languages.changed import parts_without_means, scrutiny_by_means
from swegym_env.languages.javascript.blind import make_blind
from swegym_env.languages.javascript.controls import control_files, make_control
from swegym_env.languages.javascript.logs import PARSERS, REPOSITORY_PARSERS, parser_of_command, runner_report
from swegym_env.languages.javascript.project import find_test, project_commands, without_tests
from swegym_env.languages.javascript.screening import added_means
from swegym_env.languages.javascript.setup import find_recipe
from swegym_env.languages.javascript.source import TSX, TYPESCRIPT
from swegym_env.languages.javascript.state import keeps_state
from swegym_env.languages.javascript.twins import copies_passed, given_tests, make_twins
from swegym_env.languages.mutations import KINDS, injected_bugs
from swegym_env.tasks.task import Task

__all__ = ["JavaScript"]

_SUFFIX = r"\.[cm]?[jt]sx?"
_CONFIGURED = r"jest|vitest|vite|mocha|karma|babel|ava|jasmine|nyc|playwright|cypress|rollup|webpack|esbuild|tsup|swc"
# Configuration files of test runners, compilers and package managers: names with a leading dot, "….config.js" and
# similar ones.
_CONFIGURATION = (
    rf"^\.({_CONFIGURED})|^({_CONFIGURED})([.-]\w+)*[.-](config|conf|preset|setup|transform|workspace)\b"
    r"|^(package(-lock)?\.json|npm-shrinkwrap\.json|yarn\.lock|pnpm-(lock|workspace)\.yaml|(lerna|nx|turbo|jasmine)\.json"
    r"|[tj]sconfig.*\.json|bunfig\.toml|deno\.jsonc?|(gulp|grunt|jake)file.*|\.(npm|yarn|pnp|env|tap|node|nvm).*)$"
)


class JavaScript(Language):
    """See the module."""

    name = "javascript"
    suffixes = (".js", ".jsx", ".mjs", ".cjs", ".ts", ".tsx", ".mts", ".cts", ".vue")
    # JSX in JavaScript is also parsed by the grammar of TSX, because the grammar of JavaScript fails on it.
    grammars = MappingProxyType(
        {
            **dict.fromkeys((".js", ".mjs", ".cjs"), (TSX, TYPESCRIPT)),
            **dict.fromkeys((".jsx", ".tsx"), (TSX,)),
            **dict.fromkeys((".ts", ".mts", ".cts"), (TYPESCRIPT,)),
        }
    )
    bug_kinds = KINDS
    parsers = PARSERS
    repository_parsers = REPOSITORY_PARSERS
    reporting_runners = re.compile(
        r"^(?!.*(?:\||--json|\btimeout\b)).*\b(?:jest|vitest|mocha|karma start|qunit|node .*--test-reporter[= ]tap)\b"
    )
    installing_lines = re.compile(r"(npm|yarn|pnpm|corepack) (ci|i|install|enable)\b|yarn$|make bootstrap|apt(-get)? ")
    protected_files = re.compile(
        rf"(?i)[._-](test|tests|spec|e2e){_SUFFIX}$|^(tests?|spec|(setup-?tests?|test-?setup)){_SUFFIX}$"
        rf"|{_CONFIGURATION}|\.(snap|node|wasm|so)$"
    )
    protected_directories = re.compile(r"__snapshots__|__mocks__|__fixtures__|\.yarn|\.nyc_output|\.cache|cypress|e2e")

    def find_recipe(self, task: Task) -> Recipe | None:
        return find_recipe(task)

    def parser_of_command(self, command: str) -> LogParser:
        return parser_of_command(command)

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
        return copies_passed(lineup, tests)

    def keeps_state(self, patch: str, base: Path, gold: str = "") -> bool:
        return keeps_state(patch, base, gold)

    def given_tests(
        self, files: Mapping[str, str], names: Iterable[str], rewritten: Mapping[str, str] | None = None
    ) -> frozenset[str]:
        return given_tests(files, names, rewritten)

    def make_twins(self, files: Mapping[str, str], names: Iterable[str], seed: int, twins: int) -> Twins:
        return make_twins(files, names, seed, twins)

    def injected_bugs(self, path: str, content: bytes) -> Iterator[Bug]:
        return injected_bugs(self.grammars[PurePosixPath(path).suffix][0], content)

    def project_commands(self, files: Mapping[str, bytes]) -> ProjectCommands:
        return project_commands(files)

    def without_tests(self, path: str, content: bytes, names: Collection[str]) -> bytes:
        return without_tests(path, content, names)

    def find_test(self, path: str, content: bytes, name: str) -> str:
        return find_test(path, content, name)

    def make_blind(
        self, files: Mapping[str, str], names: Iterable[str], left: frozenset[str], seed: int, *, computed: bool = False
    ) -> Blinded | None:
        return make_blind(files, names, left, seed, computed=computed)

    def runner_report(self, log: str, parser: LogParser) -> RunnerReport | None:
        return runner_report(log, parser)
