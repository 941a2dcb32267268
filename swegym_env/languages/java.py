"""Java: logs of Maven (Surefire), Gradle and Ant. Projects are built by the row's commands, or run in their image."""

from __future__ import annotations

import re
from types import MappingProxyType

from swegym_env.languages import Language, LogParser, RunnerReport
from swegym_env.languages.machine import MachineRecipe
from swegym_env.tasks.task import Task

__all__ = ["Java"]

_NAMED = re.compile(r"^.*-Dtest=(\S+).*$")
_BUILD = re.compile(r"^.*BUILD (SUCCESS|FAILURE)$")
_ANT = re.compile(r"^\s*\[junit\]\s+\[(PASS|FAIL|ERR)\]\s+(.*)$")
_SUREFIRE_CLASS = re.compile(
    r"^(?:\[\w+\] )?Tests run: (\d+), Failures: (\d+), Errors: (\d+), Skipped: (\d+), Time elapsed: .*?"
    r"(?: --?)? in (?:class )?(\S+)$"
)
_SUREFIRE_TEST = re.compile(
    r"^(?:\[\w+\] +)?(?P<test>[\w.$]+?)(?:\((?P<class>[\w.$]+)\))?(?: --)? +Time elapsed: .*<<< (FAILURE|ERROR)!$"
)


def parse_maven(log: str) -> dict[str, str]:
    """One result for each `mvn … -Dtest=NAME` that bash prints with `set -x`: Maven's own (`parse_log_maven`)."""
    found: dict[str, str] = {}
    name = "---NO TEST NAME FOUND YET---"  # the harness's words
    for line in log.split("\n"):
        if named := _NAMED.match(line.strip()):
            name = named[1]
        if built := _BUILD.match(line.strip()):
            found[name] = "PASSED" if built[1] == "SUCCESS" else "FAILED"
    return found


def parse_surefire(log: str) -> dict[str, str]:
    """The lines of Surefire in one run of Maven: each class, and each method that failed, as "CLASS.METHOD".

    Surefire names no method that passed.
    """
    found: dict[str, str] = {}
    for line in log.split("\n"):
        text = line.removesuffix("\r").removesuffix(" <<< FAILURE!").removesuffix(" <<< ERROR!")
        if counted := _SUREFIRE_CLASS.match(text):
            run, failures, errors, skipped = (int(counted[group]) for group in range(1, 5))
            status = "FAILED" if failures or errors else "SKIPPED" if run == skipped else "PASSED"
            found[counted[5]] = "FAILED" if found.get(counted[5]) == "FAILED" else status
        elif test := _SUREFIRE_TEST.match(line.removesuffix("\r")):
            found[f"{test['class']}.{test['test']}" if test["class"] else test["test"]] = "FAILED"
    return found


def parse_gradle_lines(log: str) -> dict[str, str]:
    """Every line that ends with PASSED or FAILED and does not begin with ">" (`parse_log_gradle_custom`)."""
    found: dict[str, str] = {}
    for line in log.split("\n"):
        text = line.strip()
        for status in ("PASSED", "FAILED"):
            name = text.removesuffix(status)
            if len(name) > 2 and name != text and name[-1].isspace() and name[0] != ">":
                found[name[:-1]] = status
    return found


def parse_gradle(log: str) -> dict[str, str]:
    """The lines of `gradle test` with `testLogging { events … }`: "CLASS > METHOD PASSED"."""
    found: dict[str, str] = {}
    for line in log.split("\n"):
        name, _, status = line.rstrip().rpartition(" ")
        if status in ("PASSED", "FAILED", "SKIPPED") and " > " in name and not name[0].isspace():
            found[name] = "FAILED" if found.get(name) == "FAILED" else status
    return found


def parse_ant(log: str) -> dict[str, str]:
    """The lines that Ant's `junit` passes on (`parse_log_ant`)."""
    found: dict[str, str] = {}
    for line in log.split("\n"):
        if match := _ANT.match(line.strip()):
            found[match[2]] = "PASSED" if match[1] == "PASS" else "FAILED"
    return found


class Java(Language):
    """See the module."""

    name = "java"
    is_compiled = True
    unreached = "a JDK and Maven Central"
    suffixes = (".java", ".kt", ".groovy", ".scala")
    grammars = MappingProxyType({".java": ("tree_sitter_java:language",)})
    parsers = {  # noqa: RUF012
        "surefire": parse_surefire,
        "gradle": parse_gradle,
        "parse_log_maven": parse_maven,
        "parse_log_gradle_custom": parse_gradle_lines,
        "parse_log_ant": parse_ant,
    }
    repository_parsers = {  # noqa: RUF012
        "apache/druid": "parse_log_maven",
        "apache/lucene": "parse_log_gradle_custom",
        "google/gson": "parse_log_maven",
        "javaparser/javaparser": "parse_log_maven",
        "projectlombok/lombok": "parse_log_ant",
        "reactivex/rxjava": "parse_log_gradle_custom",
    }
    reporting_runners = re.compile(r"(?!)")  # matches nothing: if the code under test crashes, there is no report
    installing_lines = re.compile(r"(mvn|\./mvnw) (clean )?install|apt(-get)? ")
    protected_files = re.compile(
        r"^(.*Tests?|Test.*|.*TestCase|.*IT)\.(java|kt|groovy|scala)$"
        r"|^(pom\.xml|build\.xml|(build|settings|init)\.gradle(\.kts)?|gradle\.properties|gradlew?(\.bat)?|mvnw(\.cmd)?)$"
        r"|\.(class|jar|war|so)$|^junit-platform\.properties$|^logback-test\.xml$"
    )
    protected_directories = re.compile(r"\.mvn|\.gradle|buildSrc|target")

    def find_recipe(self, task: Task) -> MachineRecipe | None:
        known = task.setup or task.files
        return MachineRecipe("a JDK", {"javac": "default-jdk"}, commands=task.setup) if known else None

    def parser_of_command(self, command: str) -> LogParser:
        return parse_gradle if re.search(r"\bgradlew?\b", command) else parse_surefire

    def runner_report(self, log: str, parser: LogParser) -> RunnerReport | None:
        return None
