"""The tools `view` and `search`, in a real sandbox."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from swegym_env.sandbox.api import Sandbox
from tests.tools.conftest import Run


def test_view_shows_a_window_of_a_file(run: Run) -> None:
    run("seq 250 | sed 's/^/line /' > long.txt")
    shown = run("view long.txt").output.splitlines()
    assert shown[0] == "long.txt, lines 1-100 of 250:" and shown[1] == "     1\tline 1"
    assert len(shown) == 102 and shown[-1] == "[150 more lines: view long.txt 101]"
    assert run("view long.txt 249").output.splitlines()[1:] == ["   249\tline 249", "   250\tline 250"]
    assert run("view long.txt 7 8").output.splitlines()[1:3] == ["     7\tline 7", "     8\tline 8"]
    assert run("view long.txt -1 -1").output.splitlines()[1:] == ["   250\tline 250"]


def test_view_lists_a_directory_two_levels_deep(run: Run) -> None:
    run("mkdir -p x/y/z; touch x/a.py x/y/b.py x/y/z/c.py .hidden")
    assert run("view x").output == "x/\n  a.py\n  y/\n    b.py\n    z/\n      [1 file]\n"
    assert ".git" not in run("view .").output and ".hidden" not in run("view .").output


def test_view_lists_links_and_what_is_below_the_second_level(run: Run) -> None:
    run("mkdir -p x/y/z/deeper/still x/y/w; touch x/y/w/1 x/y/w/2; ln -s y x/link; mkdir x/locked; chmod 0 x/locked")
    assert run("view x").output == (
        "x/\n  link -> y\n  locked/\n    [Permission denied]\n"
        "  y/\n    w/\n      [2 files]\n    z/\n      [1 directory]\n"
    )
    run("chmod 700 x/locked")


def test_view_lists_only_the_first_entries_of_a_large_directory(run: Run) -> None:
    shown = run("mkdir flat; (cd flat; seq 1000 | xargs touch); view flat").output.splitlines()
    assert len(shown) == 202 and shown[-1].startswith("[only the first 200 entries are shown")


def test_view_names_the_rest_of_a_file_so_that_it_can_be_typed(run: Run) -> None:
    assert "view 'two words.txt' 101]" in run("seq 101 > 'two words.txt'; view 'two words.txt'").output


def test_output_may_end_early(run: Run) -> None:
    run("seq 100000 > many.txt")
    for command in ("view many.txt 1 100000", "search 1 many.txt --limit=100000"):
        assert "Traceback" not in run(f"{command} | head -2").output


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("ln -s nowhere dangling; view dangling", "a symbolic link to nowhere, which does not exist"),
        ("mkfifo pipe; timeout 5 view pipe", "pipe is not a regular file"),
        ("mkdir locked; chmod 0 locked; view locked", "locked: Permission denied"),
        ("view nowhere.py", "there is no nowhere.py"),
        ("view months.py", "there is calends/months.py"),
        ("view calends/months.py 999", "has 56 lines"),
        ("view calends/months.py 9 3", "ends at line 3, before it begins at line 9"),
        ("view calends 3", "is a directory"),
        ("view calends/months.py three", "invalid int value"),
        ("view", "required: path"),
        ("printf 'a\\0' > z.bin; view z.bin", "not a file of text (2 bytes)"),
        (": > none.txt; view none.txt; false", "none.txt is empty."),
    ],
)
def test_view_errors_are_reported(run: Run, command: str, message: str) -> None:
    done = run(command)
    assert message in done.output and done.exit_code != 0
    assert "Traceback" not in done.output


def test_search_shows_path_and_line(run: Run) -> None:
    assert (
        run("search 'def is_l' calends").output
        == "calends/months.py:8:def is_leap(year):\n[1 matching line in 1 file]\n"
    )
    assert "calends/months.py: " in run("search --names 'return'").output
    shown = run("search 'def is_leap' calends --context=1").output.splitlines()
    assert shown[:3] == ["calends/months.py-7-", "calends/months.py:8:def is_leap(year):", shown[2]]
    assert shown[2].startswith("calends/months.py-9-")
    run("printf 'one\\ntwo\\n' > end.txt")
    assert run("search two end.txt --context=3").output == "end.txt-1-one\nend.txt:2:two\n[1 matching line in 1 file]\n"


def test_search_is_case_sensitive_with_capitals_and_supports_literals(run: Run) -> None:
    run("printf 'Alpha (x)\\nalpha\\n' > t.txt")
    assert "[2 matching lines" in run("search alpha t.txt").output
    assert "[1 matching line " in run("search Alpha t.txt").output
    assert "t.txt:1:Alpha (x)" in run("search --literal '(x)' t.txt").output


def test_search_skips_ignored_files_and_supports_globs(run: Run) -> None:
    run("printf 'skipped/\\n' > .gitignore; mkdir skipped kept")
    run("echo needle > skipped/a.txt; echo needle | tee kept/b.py > kept/c.txt")
    assert run("search needle").output == "kept/b.py:1:needle\nkept/c.txt:1:needle\n[2 matching lines in 2 files]\n"
    assert run("search needle --glob='*.py'").output.startswith("kept/b.py:1:needle\n[1 matching")
    assert (
        run("cd /tmp && mkdir -p plain && echo needle > plain/d.txt && search needle plain; cd /testbed").exit_code == 0
    )


@pytest.mark.parametrize(
    ("glob", "found"),
    [
        ("*.{py,js}", "a.py: 1\nsrc/b.js: 1\nsrc/deep/c.py: 1\n"),
        ("**/*.py", "a.py: 1\nsrc/deep/c.py: 1\n"),
        ("src/**/*.{js,ts}", "src/b.js: 1\n"),
        ("src/*", "src/b.js: 1\nsrc/deep/c.py: 1\n"),
    ],
)
def test_search_globs_are_those_of_other_tools(run: Run, glob: str, found: str) -> None:
    run("mkdir -p src/deep; echo needle | tee a.py src/b.js src/deep/c.py > d.txt")
    assert run(f"search needle --names --glob='{glob}'").output.startswith(found + "[")


def test_search_looks_into_what_is_named_and_into_repositories_within(run: Run) -> None:
    run("printf 'built/\n' > .gitignore; mkdir -p built/deep; echo needle > built/deep/a.txt")
    run("git init -q inner; echo skipped > inner/.gitignore; echo needle | tee inner/skipped > inner/b.txt")
    assert run("search needle built").output.startswith("built/deep/a.txt:1:needle\n[1 ")
    assert run("search needle").output == "inner/b.txt:1:needle\n[1 matching line in 1 file]\n"
    run("rm -rf inner")


def test_search_limits_and_counts_matches(run: Run) -> None:
    run("seq 500 | sed 's/^/needle /' > many.txt")
    shown = run("search needle --limit=5").output.splitlines()
    assert len(shown) == 6 and shown[-1].startswith("[500 matching lines in 1 file; the first 5 are shown")


@pytest.fixture(scope="module")
def ripgrep(box: Sandbox) -> str:
    """A directory in the sandbox that holds rg."""
    program = shutil.which("rg", path=str(Path(sys.executable).parent)) or shutil.which("rg")
    if program is None:
        pytest.skip("ripgrep is not installed (pip install ripgrep)")
    box.write("/tmp/programs/rg", Path(program).read_bytes(), mode=0o755)
    return "/tmp/programs"


@pytest.mark.parametrize(
    "words",
    [
        "def",
        "'def is_[lw]' --context=2",
        "Test --names",
        "needle",
        "'(x)' --literal",
        "'(' ",
        r"'(?<=def )is_leap'",
        r"'def is_leap.*\n'",
        "needle skipped",
        "needle link",
        "needle . kept.log .",
        "'needle$' --names",
        "return calends tests/test_months.py",
        "month --glob='test_*' --limit=3",
        "'^$' README.md",
        "café",
        "qqqqqq",
    ],
)
def test_search_output_is_the_same_with_ripgrep(run: Run, ripgrep: str, words: str) -> None:
    run("printf 'skipped/\\n' > .gitignore; mkdir -p skipped .dotted; echo needle | tee skipped/a .dotted/b > c.txt")
    run("ln -s c.txt link; echo c.txt > .ignore; printf '\\377\\376 needle\\n' > bytes.txt")
    run("echo '*.log' >> .gitignore; echo needle | tee kept.log other.log; git add -f kept.log")
    run("printf 'a (x)\\r\\nCafé needle\\n' > d.txt; printf 'needle\\0' > e.bin")
    ours = run(f"search {words} --engine=python")
    theirs = run(f"PATH={ripgrep}:$PATH search {words} --engine=ripgrep")
    if ours.exit_code == 2:
        assert (theirs.exit_code, "is no regular expression" in theirs.output) == (2, True)
    else:
        assert (theirs.exit_code, theirs.output) == (ours.exit_code, ours.output)


@pytest.mark.parametrize(
    ("command", "code", "message"),
    [
        ("search '('", 2, "is no regular expression"),
        ("search ''", 2, "the pattern is empty"),
        ("search x nowhere", 2, "there is no nowhere"),
        ("search qqqqqq", 1, "No match."),
        (r"search 'a\nb'", 1, r"\n never matches"),
        ("search x --limit=0", 2, "--limit: expected 1 or more"),
        (
            'python3 -c \'open("locked.txt", "w"); import os; os.chmod("locked.txt", 0)\'; search x locked.txt',
            2,
            "locked.txt: P",
        ),
        ("search", 2, "required: pattern"),
        ("search x --engine=ripgrep", 2, "ripgrep (rg) is not installed"),
    ],
)
def test_search_without_matches_says_why(run: Run, command: str, code: int, message: str) -> None:
    bare = 'mkdir -p /tmp/bare && ln -sf "$(command -v python3)" /tmp/bare/ && PATH=/opt/swegym/bin:/tmp/bare'
    done = run(f"({bare}; {command})")
    assert message in done.output and done.exit_code == code
    assert "Traceback" not in done.output
