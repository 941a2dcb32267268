"""Languages: everything that set-up, grading and certification need to know about a programming language.

A language is one module (or package) with a `Language` in it, and one line in `LANGUAGES`. No other part of the package
knows a test runner, its logs or its configuration files.
"""

from __future__ import annotations

import hashlib
import random
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache, lru_cache
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any, Literal, Protocol

from swegym_env.errors import ConfigurationError, install_hint
from swegym_env.languages.official import official_parser, official_parsers
from swegym_env.registry import resolve, with_installed
from swegym_env.repo.patches import touched_paths
from swegym_env.sandbox.layers import LayerStore
from swegym_env.tasks.task import Task

__all__ = [
    "CHANCE",
    "LANGUAGES",
    "Blinded",
    "Bug",
    "Compared",
    "ComparedObjects",
    "Comparison",
    "Control",
    "Copy",
    "Expectation",
    "ExpectedValue",
    "Installation",
    "Language",
    "Lineup",
    "LogParser",
    "Merged",
    "Placeholder",
    "ProjectCommands",
    "Recipe",
    "RunnerReport",
    "Scrutiny",
    "Splice",
    "Status",
    "Toolchain",
    "Variation",
    "all_languages",
    "digest_with_setup",
    "drawn_word",
    "language_of",
    "log_parser",
]

_BUILT_IN = {
    "python": "swegym_env.languages.python:Python",
    "c": "swegym_env.languages.c:C",
    "javascript": "swegym_env.languages.javascript:JavaScript",
    "go": "swegym_env.languages.go:Go",
    "rust": "swegym_env.languages.rust:Rust",
    "java": "swegym_env.languages.java:Java",
}

LANGUAGES: Mapping[str, str] = with_installed("swegym_env.languages", _BUILT_IN)
"""Name → "module:attribute" of each `Language`. The first one is taken for tasks whose files have an unknown suffix."""

Status = Literal["PASSED", "FAILED", "ERROR", "SKIPPED", "XFAIL"]
LogParser = Callable[[str], dict[str, str]]
"""Log of the tests → name of each test and its `Status`."""


@dataclass(frozen=True)
class Installation:
    """How a task is installed, as `languages.setup_layers` carries it out.

    Attributes:
        layers: layers with the toolchain (an interpreter, a compiler), bottom first.
        env: environment variables of the commands and of every sandbox of the task.
        environment: bash commands that install what all commits of a version share.
        repository: bash commands in `/testbed` that install the repository: once for the version, and again for each
            base commit.
        key: part of the name of the layers, besides the image, the repository and `env`.
        submodules: paths of the repository's git submodules that the commands need.
    """

    layers: tuple[Path, ...]
    env: Mapping[str, str]
    environment: tuple[str, ...]
    repository: tuple[str, ...]
    key: tuple[str, ...]
    submodules: tuple[str, ...] = ()


@dataclass(frozen=True)
class Toolchain:
    """A toolchain of the machine that a recipe needs.

    Attributes:
        name: with its version.
        problem: why the machine does not have it; empty if it has it.
    """

    name: str
    problem: str = ""


class Recipe(Protocol):
    """How the repository of a task is installed and its tests are run; its `repr` tells it from other ones."""

    def toolchain(self) -> Toolchain:
        """The interpreter or compiler of this machine that the recipe uses. Cheap: nothing is fetched or built."""

    def installation(self, task: Task, store: LayerStore) -> Installation:
        """Plan the installation. Raises LayerError: the machine lacks the toolchain."""

    def tests_of(self, task: Task) -> str:
        """The command that runs the tests of the task; empty if the recipe has none."""


@dataclass(frozen=True)
class RunnerReport:
    """What a test runner reports at the end of its log.

    Attributes:
        passed_at_most: the largest number of tests that can have passed.
        success: whether it reports neither a failure nor an error.
        statuses: test → status as its summary lists them; None if it lists none.
    """

    passed_at_most: int
    success: bool
    statuses: Mapping[str, str] | None = None


@dataclass(frozen=True)
class Scrutiny:
    """How closely grading examines a patch that passes the tests.

    Attributes:
        chance: the chance to pass by forgery that may be left at most; 1: the patch cannot reach the test runner.
        reads: whether the patch may read, while the tests run, what they expect.
        required: whether the patch has means of forgery that the gold patch does not have; with more than `chance` left
            it is then `unproven`.
        harmless: whether nothing needs to be examined: the patch cannot change how values compare either.
        is_edit: whether the patch only edits expressions, and so cannot read what the tests expect.
    """

    chance: float
    reads: bool = False
    required: bool = False
    harmless: bool = False
    is_edit: bool = False


@dataclass(frozen=True)
class ExpectedValue:
    """One expected value in a hidden test, that can be changed for decoys.

    Attributes:
        names: names of the examined tests that contain it.
        number: its index among all expectations of the files.
        text: source of the expected value; equal for values that a reader would recognise as the same.
        decoys: number of available decoys that look alike.
        last_resort: whether it is not a value, but only that the test runs to its end.
        usual: minimum number of decoys, if there are as many.
        guess: the chance that a patch that answers what tests usually expect answers this value.
        read: the chance that a reader who sees it among any number of decoys finds it.
        alike: for a condition, a key of all conditions that one guess answers together; else empty.
        rule: the chance that code without this value answers it by a simple rule, such as returning its argument.
        of_inputs: whether its copies have other inputs, drawn anew, which a repair may happen to answer alike.
        place: of the condition that contains it, as in `Expectation.place`; empty if it is in none.
    """

    names: frozenset[str]
    number: int
    text: str
    decoys: int
    last_resort: bool = False
    usual: int = 3
    guess: float = 0.0
    read: float = 0.0
    alike: str = ""
    rule: float = 0.0
    of_inputs: bool = False
    place: str = ""


@dataclass(frozen=True)
class Copy:
    """A copy of a hidden test that checks a single expectation.

    Attributes:
        name: name of its function, unique in the files.
        expectation: the expectation that it checks.
        right: whether it expects the right value; otherwise it expects a decoy, and an honest patch fails it.
    """

    name: str
    expectation: ExpectedValue
    right: bool


@dataclass(frozen=True)
class Lineup:
    """Test files in which tests are replaced by copies, some with right values and some with decoys.

    Attributes:
        files: path → text.
        copies: all copies.
    """

    files: Mapping[str, str]
    copies: tuple[Copy, ...]

    def passed(self, statuses: Mapping[str, Collection[str]]) -> Mapping[Copy, bool]:
        """The copies that ran, and whether each passed whenever it did; `statuses`: name of a copy → its statuses."""
        ran = [made for made in self.copies if made.name in statuses]
        return {made: all(status == "PASSED" for status in statuses[made.name]) for made in ran}


@dataclass(frozen=True)
class Twins:
    """Test files with copies of tests, each beside twins: the same statements with other values, which check nothing.

    Attributes:
        lineup: the files and the copies. A right copy is the test as it is, or with another value of a constant that it
            both gives and expects, if the gold patch passes it. Other copies expect what only a twin gives.
        open: tests that may give what they expect in other ways, or have no twins.
        number: number of twins of each copy.
    """

    lineup: Lineup
    open: frozenset[str]
    number: int


@dataclass(frozen=True)
class Control:
    """A negative control: test files with wrong expected values, to run instead of the task's.

    Attributes:
        files: path → text, only of the files that differ from the task's own.
        names: tests of FAIL_TO_PASS that were changed, each of which must fail. If empty, the changed tests could not
            be matched to names, and at least one of FAIL_TO_PASS must fail.
        without_value: the tests among `names` in which no expected value was changed, but a condition was inverted or
            added: they prove less.
        guesses: test → chance that a patch that has seen nothing answers everything that it expects.
    """

    files: Mapping[str, str]
    names: frozenset[str]
    without_value: frozenset[str] = frozenset()
    guesses: Mapping[str, float] = field(default_factory=dict)


Comparison = Literal[
    "asked",
    "eq",
    "is",
    "in",
    "of",
    "count",
    "rows",
    "approx",
    "close",
    "almost",
    "search",
    "start",
    "end",
    "json",
    "same",
    "lines",
    "outcomes",
    "gold",
    "raised",
]
"""How the value that a test sends compares with the expected one; `grading.comparisons` defines each."""


@dataclass(frozen=True)
class Expectation:
    """A comparison in a hidden test whose expected value stays outside of the sandbox.

    Attributes:
        place: file, line and column of the assertion; the same in every rewriting.
        kind: kind of the comparison.
        names: tests of FAIL_TO_PASS that contain it, or call a function that does.
        function: the name of the function that contains it.
        constant: whether `value` is the expected value; otherwise the sent placeholder identifies it.
        value: the expected value, of builtin types.
        options: tolerances, by name.
        readable: parts of `value` that the rewritten tests still contain.
    """

    place: str
    kind: Comparison
    names: frozenset[str]
    function: str
    constant: bool
    value: Any
    options: Mapping[str, float]
    readable: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Placeholder:
    """A placeholder for an expected value in the rewritten tests.

    Attributes:
        place: file, line and column of the value.
        value: the value, of builtin types.
        text: the value in the name of a test, as the test runner writes it; None if the placeholder is in no name.
    """

    place: str
    value: Any
    text: str | None


def drawn_word(choice: random.Random) -> str:
    """A random name that no file of a repository contains; an identifier in every language."""
    return "k" + "".join(choice.choices("bcdfghjkmnpqrstvwxz23456789", k=11))


@dataclass(frozen=True)
class Blinded:
    """Hidden tests rewritten without their expected values.

    Attributes:
        files: path → text, only of the files that differ from the task's own.
        support: absolute path in the sandbox → text of the module with which the tests send values.
        output: absolute path of the file to which records are appended.
        expectations: random key, new in each rewriting → the comparison.
        placeholders: random name, new in each rewriting → its placeholder.
        open: tests of FAIL_TO_PASS with assertions that are not rewritten.
    """

    files: Mapping[str, str]
    support: Mapping[str, str]
    output: str
    expectations: Mapping[str, Expectation]
    placeholders: Mapping[str, Placeholder]
    open: frozenset[str] = frozenset()


COMPARISONS_AT_LINE = 1_000_000
"""No line makes more comparisons that are recorded."""


@dataclass(frozen=True)
class Content:
    """What an object consists of.

    Attributes:
        kind: its class; "" for a value of a builtin class.
        text: as JSON.
        made: the call of its class after which it has this content, as such a text too; "" if it is not known.
    """

    kind: str
    text: str
    made: str = field(default="", compare=False)


@dataclass(frozen=True)
class Compared:
    """Two objects that a test has compared.

    Attributes:
        path: of the test file.
        function: the function of this file that compares, directly or by others.
        method: the class of the first object, with the method.
        answer: what the method has answered.
        pair: the content of both, as JSON; "" in a question about `contents` that were not compared so.
        contents: the content of each.
        is_sent: whether the test sends them as well.
        is_whole: whether the content says all of both.
        places: numbers of the comparisons of the function that are this one: each stands for a line, see `line_of`, and
            for how many comparisons it has made before.
        is_elsewhere: of a question, whether it is asked at other comparisons, since there is none with these numbers.
    """

    path: str
    function: str
    method: str
    answer: bool
    pair: str
    contents: tuple[Content, Content]
    is_sent: bool
    is_whole: bool
    places: tuple[int, ...] = ()
    is_elsewhere: bool = False


def line_of(place: int) -> int:
    """The line of the function that makes the comparison with this number (`Compared.places`)."""
    return place // COMPARISONS_AT_LINE


@dataclass(frozen=True)
class ComparedObjects:
    """What a run of `Language.record_comparisons` has shown.

    Attributes:
        by_test: test → what it has compared.
        answers: number of a question → the answers where the test made this comparison, else where it made its first
            one: None if the objects of the pair could not be made, or compared; and whether their content is whole.
        more: tests that have compared more, which is not known.
        inside: if the code under test compares objects for the tests (`points.index(point)`), the functions that its
            comparisons and the constructors of these objects run or may run, by file and name; "" is the name of code
            outside of functions.
    """

    by_test: Mapping[str, frozenset[Compared]] = field(default_factory=dict)
    answers: Mapping[int, frozenset[tuple[bool | None, bool]]] = field(default_factory=dict)
    more: frozenset[str] = frozenset()
    inside: frozenset[tuple[str, str]] = frozenset()


@dataclass(frozen=True)
class Splice:
    """Replaces the bytes `start` up to `stop` of a file by `text`."""

    start: int
    stop: int
    text: str


@dataclass(frozen=True)
class Bug:
    """One way to inject a bug into a source.

    Attributes:
        kind: kind of the mistake.
        splices: the edits.
        function: the name of the function that it is in; empty outside of functions.
    """

    kind: str
    splices: tuple[Splice, ...]
    function: str


@dataclass(frozen=True)
class ProjectCommands:
    """How a project is installed and tested, according to its own files.

    Attributes:
        test: the command that runs all its tests; empty if its files name none.
        install: commands that install what the tests need; run once, with network.
    """

    test: str
    install: tuple[str, ...] = ()


@dataclass(frozen=True)
class Merged(Lineup):
    """Blind tests and copies in the same files; `files` are those that differ from the task's.

    A test with copies passes if it and its right copies pass.

    Attributes:
        readable: constants and names in the copies, as source, without those that show nothing more there than in the
            blind tests.
        removed: places of the conditions of computed values that the blind tests do not check beside their copies.
    """

    readable: frozenset[str]
    removed: frozenset[str]


@dataclass(frozen=True)
class Variation:
    """Files and variables with which a sandbox runs the same tests under other conditions.

    Attributes:
        files: absolute path in the sandbox → text. They have no effect without `env`.
        env: all variables of the sandbox.
    """

    files: Mapping[str, str]
    env: Mapping[str, str]


CHANCE = 1 / 1000
"""The most that is left of the chance to pass by forgery where it can be made as small: see docs/verdict_rules.md."""

_NEVER_GRADED = frozenset({".gitattributes", ".gitmodules", "Makefile", ".env", ".envrc", ".travis.yml"})


class Language(ABC):
    """One programming language: everything that differs between languages.

    Methods that are not abstract have safe defaults: no negative controls, no other orders of the tests, and the
    closest examination of every patch.

    Attributes:
        name: its key in `LANGUAGES`.
        suffixes: suffixes of its source files.
        parsers: name → parser of test logs.
        repository_parsers: repository → name of the log parser that the SWE-bench harness uses.
        nested_logs: repositories whose own tests print logs of test runners; a report in such a log proves nothing.
        reporting_runners: matches the test commands whose runner always ends its log with a report (`runner_report`).
        installing_lines: matches lines of an official evaluation script that install the project; they are skipped if a
            set-up layer did so.
        test_directories: directories of tests, which no patch may change.
        protected_files: matches names of other files that no patch may change: tests, configuration of the test runner,
            files that are loaded before the code under test.
        protected_directories: matches names of directories of installed packages, caches and the like.
        deterministic_env: environment variables that make programs of the language deterministic.
        is_compiled: whether tests of a missing feature cannot even be built.
        suspects_state: whether `keeps_state` also reports patches that only may keep state; without twins they are not
            rejected.
        grammars: suffix → tree-sitter grammars as "package:function", one of which parses such a file.
        bug_kinds: the kinds of mistakes that `injected_bugs` knows.
        unreached: what the set-up needs and this project cannot install, such as "Rust and crates.io", for the error;
            empty if the table of set-up commands may have the repository.
    """

    name: str
    suffixes: tuple[str, ...]
    parsers: Mapping[str, LogParser]
    repository_parsers: Mapping[str, str] = MappingProxyType({})
    nested_logs: frozenset[str] = frozenset()
    reporting_runners: re.Pattern[str]
    installing_lines: re.Pattern[str]
    test_directories: frozenset[str] = frozenset({"test", "tests", "__tests__", "testcases"})
    protected_files: re.Pattern[str]
    protected_directories: re.Pattern[str]
    deterministic_env: Mapping[str, str] = MappingProxyType({})
    is_compiled: bool = False
    suspects_state: bool = False
    grammars: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    bug_kinds: tuple[str, ...] = ()
    unreached: str = ""

    @abstractmethod
    def find_recipe(self, task: Task) -> Recipe | None:
        """How to install `task`; None if neither the task nor the language's table defines it.

        Raises:
            ConfigurationError: the table is malformed.
        """

    @abstractmethod
    def parser_of_command(self, command: str) -> LogParser:
        """The parser for the log of a test command."""

    @abstractmethod
    def runner_report(self, log: str, parser: LogParser) -> RunnerReport | None:
        """The report of the test runner at the end of `log`; None if it did not reach its end."""

    def imported_once(self, command: str) -> tuple[str, ...]:
        """Modules that the test runner may import once for all sandboxes: the one that `command` runs, and others.

        Only modules that no repository can replace. Empty if the command is not known.
        """
        return ()

    def is_protected(self, path: str, base: Path, command: str = "") -> bool:
        """Whether a change of `path` could change the verdict instead of the code.

        Args:
            path: relative to the repository.
            base: the repository at the base commit.
            command: the test command; the files that it names are protected too.
        """
        parts = path.split("/")
        if ".git" in (part.lower() for part in parts) or ".." in parts or path.startswith("/"):
            return True
        if parts[-1] in _NEVER_GRADED or "node_modules" in parts or self.test_directories.intersection(parts):
            return True
        if self.protected_files.search(parts[-1]) or any(map(self.protected_directories.fullmatch, parts)):
            return True
        if path in {word.removeprefix("./") for word in re.split(r"[\s;&|()<>'\"=]+", command)}:
            return True
        return self.shadows_module(parts, base)

    def shadows_module(self, parts: list[str], base: Path) -> bool:
        """Whether a new file at this path (its parts) hides a module that the test runner needs."""
        return False

    def test_machinery(self, task: Task, base: Path) -> frozenset[str]:
        """Test machinery: files and directories (with a slash at the end) of the product that the tests judge with."""
        return frozenset()

    def scrutiny_of(self, patch: str, base: Path, gold: str = "") -> Scrutiny:
        """How closely to examine `patch` if it passes.

        Args:
            patch: what is graded of the agent's patch.
            base: the repository at the base commit.
            gold: the gold patch: what it uses too is not suspect.
        """
        return Scrutiny(CHANCE, reads=True)

    def may_have_many_answers(self, files: Mapping[str, str], names: Iterable[str]) -> bool:
        """Whether one of the tests `names` has a condition that more than one answer of the code under test passes.

        If so, an edit of expressions is examined too.

        Args:
            files: path → text of the test files as the task has them.
            names: of tests, as the log parser gives them.
        """
        return False

    def without_means(self, patch: str, base: Path, gold: str = "") -> tuple[str, ...]:
        """Parts of a patch, without its files that have means of forgery.

        If the tests pass with such a part, they do not pass because of the files that it leaves out.

        Args:
            patch, base, gold: as of `scrutiny_of`.
        Returns:
            The smallest part first: without all such files, without those that the patch adds. Empty parts are left
            out, and the whole patch.
        """
        return ()

    def control_files(self, task: Task) -> tuple[str, ...]:
        """Paths of the test files that a control may change."""
        return ()

    def make_control(
        self,
        files: Mapping[str, str],
        names: Iterable[str],
        added_lines: Mapping[str, frozenset[int]],
        seed: int,
    ) -> Control | None:
        """Change one expected value, or invert a condition, in each of the tests, so that no honest patch passes them.

        Args:
            files: path → text of the test files as the task has them.
            names: of the tests to change, as the log parser gives them.
            added_lines: path → numbers of the lines that the test patch adds; they identify tests that `names` do not.
            seed: of the random choices.
        Returns:
            None if there is no test that can be changed.
        """
        return None

    def expectations(
        self, files: Mapping[str, str], names: Iterable[str], added_lines: Mapping[str, frozenset[int]]
    ) -> tuple[ExpectedValue, ...]:
        """All expectations that a lineup can examine. Arguments as in `make_control`."""
        return ()

    def unexamined(
        self, files: Mapping[str, str], names: Iterable[str], added_lines: Mapping[str, frozenset[int]]
    ) -> frozenset[str]:
        """Tests that compare something which no lineup examines, as far as is known. Arguments as in `make_control`."""
        return frozenset()

    def record_comparisons(
        self,
        files: Mapping[str, str],
        names: Iterable[str],
        senders: Iterable[str] = (),
        questions: Sequence[Compared] = (),
        known: Collection[Compared] = (),
    ) -> Blinded | None:
        """Rewrite tests so that they record which objects they compare, see `compared_objects`.

        Args:
            files: path → text of the test files.
            names: of the tests.
            senders: absolute paths of the modules with which the tests send values (`Blinded.support`).
            questions: pairs that the code under test is to compare too, where the tests do.
            known: comparisons that show which attributes the objects of a class have: in these pairs, other attributes
                are left out, and those that are missing have a value that equals no other one.

        Returns:
            None if objects of this language have no comparison of their own, or there is no test.
        """
        return None

    def compared_objects(self, files: Mapping[str, str], names: Iterable[str], sent: bytes) -> ComparedObjects:
        """What was recorded in a run of `record_comparisons`.

        Args:
            files, names: as there.
            sent: the content of its output.
        """
        return ComparedObjects()

    def changed_functions(self, patch: str, base: Path) -> Collection[tuple[str, str]]:
        """The functions that a patch changes, by file and name.

        The name is "" for code outside of functions, and for functions that the base commit lacks, if their name occurs
        in the file. Comments do not count, nor do imports and assignments of names that do not occur there.

        Args:
            patch, base: as of `scrutiny_of`.
        """
        return ()

    def vary_compared(
        self, one: Compared, like: Compared | None, seed: int, number: int
    ) -> Sequence[tuple[Compared, Compared]]:
        """Variations of a comparison, to find out whether a patch compares as the gold patch does.

        Args:
            one: that the patch makes.
            like: that the gold patch makes in its place. A side that the same call made (`Content.made`), or else one
                with the same content, is varied. None: the calls that made both sides are.
            seed: of the random choices.
            number: of variations that are wanted.

        Returns:
            Questions for the patch, with those for the gold patch; fewer if there are not so many.
        """
        return ()

    def make_lineup(
        self,
        files: Mapping[str, str],
        names: Iterable[str],
        added_lines: Mapping[str, frozenset[int]],
        shares: Mapping[ExpectedValue, tuple[int, int]],
        seed: int,
    ) -> Lineup:
        """Replace all tests of the files by copies.

        Args:
            files, names, added_lines: as in `expectations`.
            shares: expectation → number of decoys, and number of copies with each candidate.
            seed: of the random choices.
        """
        raise NotImplementedError(f"{self.name} has no expectations")

    def copies_passed(self, lineup: Lineup, tests: Mapping[str, str]) -> Mapping[Copy, bool]:
        """Copy → whether it passed, from the log's tests and their status; copies that did not run are absent."""
        return {}

    def keeps_state(self, patch: str, base: Path, gold: str = "") -> bool:
        """Whether a patch keeps state that neither its files before the patch nor the gold patch keep.

        Such a patch may answer with what a test gives it (`given_tests`).

        Args:
            patch, base, gold: as of `scrutiny_of`.
        """
        return False

    def given_tests(
        self, files: Mapping[str, str], names: Iterable[str], rewritten: Mapping[str, str] | None = None
    ) -> frozenset[str]:
        """Tests among `names` that may give the code under test what they expect, outside of the judged call.

        Args:
            files: path → text of the test files as the task has them.
            names: of tests, as the log parser gives them.
            rewritten: the same files without expected values, in which to look for what the tests of `files` expect.
        """
        return frozenset(names)

    def written_values(self, files: Mapping[str, str]) -> Mapping[str, Sequence[Any]]:
        """Name of each function in test files → values that are written in it, and their parts."""
        return {}

    def make_twins(self, files: Mapping[str, str], names: Iterable[str], seed: int, twins: int) -> Twins | None:
        """Replace all tests of the files by copies, each beside twins that give other values.

        Args:
            files: path → text of the test files as the task has them.
            names: of the tests, as the log parser gives them.
            seed: of the random choices.
            twins: number of twins of each copy.
        """
        return None

    def make_blind(
        self, files: Mapping[str, str], names: Iterable[str], left: frozenset[str], seed: int, *, computed: bool = False
    ) -> Blinded | None:
        """Rewrite tests: they send the values that they compare with constants, and no longer contain these.

        Args:
            files: path → text of the test files as the task has them.
            names: of the tests to rewrite, as the log parser gives them.
            left: places of comparisons and values that are not rewritten; with "~" appended, a place where the other
                side of a computed comparison is sent.
            seed: seed of keys and placeholders.
            computed: rewrite conditions of computed values and expected errors too. Their expected value is what the
                gold patch sends (kinds "gold", "raised"); the rewritten tests do not check them. Other tests, and what
                these tests do not use, are removed.
        Returns:
            None if nothing can be rewritten.
        """
        return None

    def only_tests(self, files: Mapping[str, str], names: Iterable[str]) -> Mapping[str, str] | None:
        """Test files without the tests that `names` does not mean; everything else in them stays.

        Args:
            files: path → text.
            names: of tests, as the log parser gives them.
        Returns:
            None if the language cannot do this, or does not find one of these tests.
        """
        return None

    def without_tests_beside(self, files: Mapping[str, str], kept: Collection[str]) -> Mapping[str, str]:
        """Test files that are not in `kept`, without their tests; those from which nothing is removed are left out.

        Args:
            files: path → text.
            kept: paths.
        """
        return {}

    def injected_bugs(self, path: str, content: bytes) -> Iterator[Bug]:
        """All ways to inject one bug into a source file, for `making`; none if the language does not support it.

        Raises:
            ConfigurationError: the grammar of such files is not installed.
        """
        return iter(())

    def project_commands(self, files: Mapping[str, bytes]) -> ProjectCommands:
        """How a project with these files is installed and tested, for `making`."""
        return ProjectCommands("")

    def without_tests(self, path: str, content: bytes, names: Collection[str]) -> bytes:
        """A test file without the tests with these names in logs, for `making`; unchanged if none is found."""
        return content

    def find_test(self, path: str, content: bytes, name: str) -> str:
        """The source text of the test with this name in logs; empty if it is not found."""
        return ""

    def make_merged(
        self,
        files: Mapping[str, str],
        blinded: Blinded,
        names: Iterable[str],
        added_lines: Mapping[str, frozenset[int]],
        shares: Mapping[ExpectedValue, tuple[int, int]],
        seed: int,
        *,
        sure: frozenset[str],
    ) -> Merged | None:
        """Add copies of tests to the blind tests, which then check only what they send.

        Args:
            files, names, added_lines, shares, seed: as in `make_lineup`.
            blinded: the same tests, rewritten.
            sure: places of comparisons that need no copies.
        Returns:
            None if the tests would show which copies are right, or cannot be separated.
        """
        return None

    def vary(self, env: Mapping[str, str], *, order: str, seed: int, busy: int) -> Variation:
        """How to run the same tests under other conditions.

        Args:
            env: variables of the sandbox.
            order: order of the tests: "own", "reversed" or "shuffled".
            seed: seed of hashes, and of the shuffled order.
            busy: number of processes that keep the machine busy while the tests run.
        """
        return Variation({}, env)


@cache
def all_languages() -> tuple[Language, ...]:
    """One object of every registered language, in the order of the registry."""
    return tuple(resolve(place, "language")() for place in LANGUAGES.values())


def language_of(task: Task) -> Language:
    """The language that knows the repository; else that of most files of the test patch, else of the gold patch.

    The tests of an interpreter are written in the language that it runs (MicroPython's in Python), so a known
    repository comes first. If no suffix is known either, it is the first language.
    """
    return _language_of(task.repo, task.test_patch, task.patch)


def digest_with_setup(task: Task) -> str:
    """A hash of the task and of how it is set up: what is found out about its tests holds for both.

    With another set-up, other tests may pass.

    Raises:
        ConfigurationError: as `Language.find_recipe`.
    """
    known = task.digest, language_of(task).find_recipe(task)
    return hashlib.sha256(repr(known).encode()).hexdigest()[: len(task.digest)]


@lru_cache(maxsize=1024)
def _language_of(repo: str, *patches: str) -> Language:
    for language in all_languages():
        if repo in language.repository_parsers:
            return language
    for patch in patches:
        suffixes = Counter(PurePosixPath(path).suffix for path in touched_paths(patch))
        counts = {language: sum(suffixes[suffix] for suffix in language.suffixes) for language in all_languages()}
        if any(counts.values()):
            return max(counts, key=lambda language: counts[language])
    return all_languages()[0]


def log_parser(task: Task) -> LogParser:
    """The parser for the log of a task's tests.

    It is the one that the task names; else, if the task has no test command of its own, the one that the SWE-bench
    harness uses for the repository; else the one for the test command. Parsers that are not built in are taken from the
    package `swebench`.

    Raises:
        ConfigurationError: the named parser is neither built in nor in the installed `swebench`.
    """
    languages = all_languages()
    name = task.log_parser
    if not name and not task.test_command:
        known = [language.repository_parsers.get(task.repo, "") for language in languages]
        name = next(filter(None, known), "") or official_parsers().get(task.repo, "")
    if not name:
        return language_of(task).parser_of_command(task.test_command)
    for language in languages:
        if name in language.parsers:
            return language.parsers[name]
    official = official_parser(name, repo=task.repo, instance_id=task.instance_id)
    if official is None:
        built_in = sorted({name for language in languages for name in language.parsers})
        near = get_close_matches(name, built_in, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"built in are {', '.join(built_in)}."
        raise ConfigurationError(f"no parser named {name!r} for test logs; {hint} {install_hint('swebench')}")
    return official
