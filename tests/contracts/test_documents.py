"""The documents name existing files, messages, variables and keys of `info`."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from markdown.extensions.toc import slugify

from tests.contracts.documents import ROOT

PACKAGES = ("swegym_env", "swe_trainers")
OTHERS = frozenset({"address already in use", "No space left on device"})  # words of the system
# Between parts of the project alone.
INTERNAL = frozenset({"SWEGYM_LOAD", "SWEGYM_ORDER", "SWEGYM_SET_UP", "SWEGYM_BENCH_PEERS"})


def modules() -> Iterator[ast.Module]:
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            if "data" not in path.parts:
                yield ast.parse(path.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def strings() -> str:
    """Every string of the packages, one per line; placeholders are `…`."""
    found = []
    for module in modules():
        for node in ast.walk(module):
            if isinstance(node, ast.JoinedStr):
                parts = [part.value if isinstance(part, ast.Constant) else "…" for part in node.values]
                found.append("".join(map(str, parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return "\n".join(found)


def messages_of_the_troubleshooting() -> list[str]:
    """The messages in code font in the terms of the definition lists."""
    lines = (ROOT / "docs/troubleshooting.md").read_text(encoding="utf-8").split("\n")
    terms = [line for line, below in itertools.pairwise(lines) if below.startswith(":   ")]
    found = [message for term in terms for message in re.findall(r"(?<!`)(`{1,2})(?!`) ?(.+?) ?\1(?:$|[ ,])", term)]
    return [message.removeprefix("swegym: ") for _, message in found]


def fragments(message: str) -> list[str]:
    """The parts of a message that are long enough to be unique, without names and filled-in values."""
    parts = [part.strip(" .;:'`") for part in re.split(r"…|'[^']*'|[0-9()]+|: |[.;,?] ", message)]
    return [part for part in parts if len(part) >= 10 and " " in part]


def test_messages_of_the_troubleshooting_page_exist_in_the_code(strings: str) -> None:
    shown = messages_of_the_troubleshooting()
    assert len(shown) > 25
    unknown = [part for message in shown for part in fragments(message) if part not in strings and part not in OTHERS]
    assert unknown == []


def test_variables_page_lists_exactly_the_variables_that_the_code_reads(strings: str) -> None:
    page = (ROOT / "docs/reference/variables.md").read_text(encoding="utf-8")
    read = set(re.findall(r"^(SWEGYM_[A-Z_]+|SWE_[A-Z_]+)$", strings, flags=re.MULTILINE))
    assert len(read) > 10
    assert {name for name in read if f"`{name}`" not in page} - INTERNAL == set()
    shown = set(re.findall(r"`(SWEGYM_[A-Z_]+)`", page))
    everything = "\n".join(p.read_text() for p in (ROOT / "swegym_env").rglob("*.py")) + strings
    assert {name for name in shown if name not in everything} == {"SWEGYM_STATE"}  # which the tools alone read


def leads_somewhere(page: Path, link: str) -> bool:
    """Whether the file of a link exists and, if it names a heading of a document, the heading too."""
    path, _, anchor = link.partition("#")
    target = ROOT / path if path else page
    if not anchor or target.suffix != ".md":
        return target.exists()
    headings = re.findall(r"^#+ (.+)$", target.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return anchor in {slugify(heading.replace("`", ""), "-") for heading in headings}


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"])
def test_links_of_documents_exist(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    links = {link for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link}
    assert {link for link in links if not leads_somewhere(ROOT / name, link)} == set()


def test_tree_in_contributing_matches_the_repository() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    tree = re.search(r"## Where things are\n.+?```text\n(.+?)```", text, flags=re.DOTALL)
    assert tree is not None
    top, missing = Path(), []
    for line in tree[1].splitlines():
        if not line.startswith(" "):
            top = ROOT / line.split()[0]
        named = [top] if not line.startswith(" ") else [top / n for n in re.findall(r"[a-z_]+(?:/|\.py)", line)]
        missing += [
            path for path in named if not path.exists() and not (path.parent / "algorithms" / path.name).exists()
        ]
    assert missing == []
    shown = {line.split()[0].rstrip("/") for line in tree[1].splitlines() if not line.startswith(" ")}
    there = {path.name for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith(".")}
    made = {"runs", "build", "dist", "shared", "__pycache__"} | {name for name in there if name.endswith(".egg-info")}
    assert there - shown - made == set()


def test_places_of_changes_in_contributing_exist() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    table = re.findall(
        r"^\| an? .+$", text.partition("## Where a change goes\n")[2].partition("\n## ")[0], re.MULTILINE
    )
    assert len(table) >= 15
    paths = [Path(found.partition("NAME")[0]) for row in table for found in re.findall(r"`([\w/.]+/[\w/.]*)`", row)]
    assert [path for path in paths if not (ROOT / path).exists()] == []
    registries = re.findall(r"`(\w+)` in `([\w/.]+)`", "\n".join(table))
    assert len(registries) >= 10
    there = {(name, path) for name, path in registries if re.search(rf"(?m)^{name}\b", (ROOT / path).read_text())}
    assert set(registries) - there == set()


def test_hooks_call_the_tools_of_make_check() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    called = {hook["entry"].split()[0] for hook in hooks}
    checked = re.search(r"for tool in (.+?); do", (ROOT / "Makefile").read_text())
    assert checked is not None
    for program in called - {".venv/bin/python"}:
        assert program.startswith(".venv/bin/") and program.removeprefix(".venv/bin/") in checked[1]
    for path in (ROOT / ".github").rglob("*.yml"):
        assert yaml.safe_load(path.read_text()), path
