"""Patches are divided and read as `git apply` does it, reversed, compared and written: held against git and unidiff."""

from __future__ import annotations

import re
import subprocess
import tempfile
import time
from pathlib import Path

import pytest
import unidiff
from hypothesis import given, settings
from hypothesis import strategies as st

from swegym_env.errors import TaskFormatError
from swegym_env.repo.patches import (
    LineEdit,
    added_lines,
    apply_edits,
    count_changed_lines,
    git_diff,
    parse_patch,
    reverse_patch,
    runnable_test_files,
    similarity,
    touched_paths,
)
from tests.env.calc import GOLD
from tests.env.repo.test_repositories import git

CONFTEST = "--- /dev/null\n+++ b/conftest.py\n@@ -0,0 +1 @@\n+x\n"


def sections(patch: str) -> tuple[str, ...]:
    return tuple(part.text for part in parse_patch(patch))


def test_sections_are_found_in_git_and_plain_diffs() -> None:
    assert sections("chatter\n" + GOLD + GOLD) == (GOLD, GOLD)
    plain = GOLD.split("\n", 1)[1]
    assert sections(plain + plain) == (plain, plain)
    assert sections("") == sections("nothing here") == ()


def test_a_plain_section_after_a_git_section_is_seen() -> None:
    assert sections(GOLD + CONFTEST) == (GOLD, CONFTEST)
    assert touched_paths(GOLD + CONFTEST) == {"calc/add.py", "conftest.py"}


def test_lines_of_a_hunk_that_look_like_a_header_belong_to_the_hunk() -> None:
    patch = "--- a/x\n+++ b/x\n@@ -1,2 +1,2 @@\n--- a/conftest.py\n-q\n+++ b/conftest.py\n+z\n"
    (part,) = parse_patch(patch)
    assert part.paths == {"x"} and part.body.startswith("@@ -1,2 +1,2 @@\n--- a/conftest.py\n")
    assert added_lines(patch) == {"x": frozenset({1, 2})}
    assert count_changed_lines(patch) == (2, 2)


@pytest.mark.parametrize(
    ("section", "paths"),
    [
        ('diff --git "a/\\303\\244 b" "b/\\303\\244 b"\nold mode 100644\nnew mode 100755\n', {"ä b"}),
        ("diff --git a/x b/x\nsimilarity index 100%\nrename from x\nrename to conftest.py\n", {"x", "conftest.py"}),
        ("diff --git a/x b/x\n--- a/x\n+++ b/conftest.py\n@@ -1,3 +1,3 @@\n-x\n+y\n", {"x", "conftest.py"}),
    ],
)
def test_paths_are_read_where_unidiff_misses_some_or_fails(section: str, paths: set[str]) -> None:
    assert touched_paths(section) == paths
    try:
        read = {name for part in unidiff.PatchSet(section) for name in (part.source_file[2:], part.target_file[2:])}
    except unidiff.UnidiffParseError:
        read = set()
    assert read != paths  # the day this fails, `unidiff` can take the parser's place


PIECES = [
    *(GOLD + CONFTEST).splitlines(keepends=True),
    "\\ x\n",
    "\r\n",
    "GIT binary patch\n",
    "@@ -1,9999999999 +1 @@\n",
]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from(PIECES)))
def test_any_text_is_divided_without_loss(lines: list[str]) -> None:
    patch = "".join(lines)
    parts = sections(patch)
    assert patch.endswith("".join(parts)) and all(part.startswith(("diff --git ", "--- ")) for part in parts)


def test_a_large_patch_takes_time_linear_in_its_size() -> None:
    def seconds(count: int) -> float:
        patch = GOLD * count + CONFTEST
        start = time.process_time()
        assert len(parse_patch(patch)) == count + 1
        return time.process_time() - start

    seconds(100)
    assert seconds(8_000) < 40 * seconds(1_000)  # 64 times if it were quadratic


def edited(draw_before: list[str], draw_after: list[str]) -> str:
    """What git prints for two versions of a directory with one file."""
    with tempfile.TemporaryDirectory() as folder:
        for side, text in (("old", draw_before), ("new", draw_after)):
            (Path(folder) / side).mkdir()
            (Path(folder) / side / "f").write_text("".join(text))
        command = ["git", "diff", "--no-index", "--src-prefix=a/", "--dst-prefix=b/", "old", "new"]
        return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False).stdout


@settings(max_examples=30, deadline=None)
@given(*[st.lists(st.sampled_from(["a\n", "b\n", "-- a/f\n", "++ b/f\n", "\n", "@@ -1 +1 @@\n"]), max_size=12)] * 2)
def test_added_lines_of_git_s_own_diffs_are_those_of_unidiff(before: list[str], after: list[str]) -> None:
    patch = edited(before, after)
    expected = {
        line.target_line_no for part in unidiff.PatchSet(patch) for hunk in part for line in hunk if line.is_added
    }
    assert frozenset().union(*added_lines(patch).values()) == expected
    assert len(parse_patch(patch)) == len(unidiff.PatchSet(patch)) == (before != after)


def test_similarity_by_hand() -> None:
    assert similarity(GOLD, GOLD) == similarity("", "") == 1.0
    assert similarity("", GOLD) == similarity(GOLD, "") == 0.0
    moved = GOLD.replace("@@ -1,5 +1,5 @@", "@@ -7,5 +9,5 @@ def x():")
    assert similarity(moved, GOLD) == 1.0  # positions do not count
    near, far = GOLD.replace("a + b", "a * b"), GOLD.replace("return a + b", "raise NotImplementedError")
    assert 0 < similarity(far, GOLD) < similarity(near, GOLD) < 1
    # Another file besides the right one: the mean of 1 and 0.
    assert similarity(GOLD + GOLD.replace("calc/add.py", "calc/other.py"), GOLD) == pytest.approx(0.5)
    # Two hunks of 4 characters that share 2 of them ("@@\n" and one line each): difflib's 2 · M / T.
    a, b = ("--- a/x\n+++ b/x\n@@ -1 +1 @@\n" + text for text in ("+ab\n", "+ac\n"))
    assert similarity(a, b) == pytest.approx(2 * 6 / 14)


@settings(max_examples=50, deadline=None)
@given(st.text(max_size=300), st.text(max_size=300))
def test_similarity_accepts_any_text_and_is_a_fraction(one: str, other: str) -> None:
    assert 0.0 <= similarity(one, other) <= 1.0
    patch = "--- a/x\n+++ b/x\n@@ -1 +1 @@\n"
    assert 0.0 <= similarity(patch + one, patch + other) <= 1.0


lines = st.lists(st.sampled_from(["a", "b", "c", "- d", "+ e", "@@ f", "\\ g", ""]), max_size=8)


@given(before=lines, after=lines, ends=st.tuples(st.booleans(), st.booleans()))
@settings(max_examples=40, deadline=None)
def test_a_reversed_patch_undoes_it(
    tmp_path_factory: pytest.TempPathFactory, before: list[str], after: list[str], ends: tuple[bool, bool]
) -> None:
    folder = tmp_path_factory.mktemp("patch")
    old, new = ("\n".join(text) + "\n" * end for text, end in zip((before, after), ends, strict=True))
    (folder / "old").write_text(old)
    (folder / "new").write_text(new)
    diff = subprocess.run(
        ["git", "diff", "--no-index", "--no-prefix", "old", "new"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    ).stdout
    patch = diff.replace("git old new", "git a/f b/f").replace("--- old", "--- a/f").replace("+++ new", "+++ b/f")
    (folder / "f").write_text(new)
    (folder / "back.diff").write_text(reverse_patch(patch))
    assert reverse_patch(reverse_patch(patch)) == patch
    if patch:
        git(folder, "apply", "back.diff")
    assert (folder / "f").read_text() == old


def test_removed_lines_come_before_added_ones() -> None:
    head = "diff --git a/x b/x\n--- a/x\n+++ b/x\n"
    assert (
        reverse_patch(f"{head}@@ -1,2 +1 @@ def f\n a\n-b\n-c\n+d\n") == f"{head}@@ -1 +1,2 @@ def f\n a\n-d\n+b\n+c\n"
    )


def test_headers_are_reversed_too(tmp_path: Path) -> None:
    repository = tmp_path / "r"
    repository.mkdir()
    git(repository, "init", "-q")
    (repository / "moved.txt").write_text("1\n2\n3\n4\n5\n")
    (repository / "gone.txt").write_text("x\n")
    (repository / "mode.sh").write_text("x\n")
    git(repository, "add", "-A")
    git(repository, "commit", "-qm", "before")
    git(repository, "mv", "moved.txt", "new place.txt")
    git(repository, "rm", "-q", "gone.txt")
    (repository / "made.txt").write_text("y")
    (repository / "mode.sh").chmod(0o755)
    git(repository, "add", "-A")
    git(repository, "commit", "-qm", "after")
    patch = git(repository, "diff", "-M", "HEAD~1", "HEAD")
    (tmp_path / "back.diff").write_text(reverse_patch(patch))
    git(repository, "apply", "--index", str(tmp_path / "back.diff"))
    assert git(repository, "diff", "--cached", "HEAD~1").strip() == ""
    assert reverse_patch(reverse_patch(patch)) == patch
    with pytest.raises(TaskFormatError, match="binary"):
        reverse_patch("diff --git a/x b/x\nindex 1..2 100644\nBinary files a/x and b/x differ\n")


def test_deleted_and_data_files_are_not_given_to_the_test_runner() -> None:
    parts = [
        "diff --git a/tests/b.py b/tests/b.py\n--- a/tests/b.py\n+++ b/tests/b.py\n@@ -1 +1 @@\n-1\n+2\n",
        (
            "diff --git a/tests/a.py b/tests/a.py\nnew file mode 100644\n"
            "--- /dev/null\n+++ b/tests/a.py\n@@ -0,0 +1 @@\n+2\n"
        ),
        "diff --git a/tests/gone.py b/tests/gone.py\ndeleted file mode 100644\n--- a/tests/gone.py\n+++ /dev/null\n",
        "diff --git a/data.json b/data.json\n--- a/data.json\n+++ b/data.json\n@@ -1 +1 @@\n-1\n+2\n",
    ]
    assert runnable_test_files("".join(parts)) == ["tests/a.py", "tests/b.py"]


LINES = st.lists(st.sampled_from(["a\n", "b\n", "c\n", "\n", "    x\n", "- y\n", "+ z\n", "@@ w\n"]), max_size=25)


HUNK = re.compile(
    r"^@@ -(?P<old_start>\d+),(?P<old_count>\d+) \+(?P<new_start>\d+),(?P<new_count>\d+) @@\n(?P<body>(?:[ +-].*\n)+)",
    re.MULTILINE,
)


@st.composite
def edited_files(draw: st.DrawFn) -> tuple[list[str], list[LineEdit]]:
    base = draw(LINES)
    cuts = sorted(draw(st.lists(st.integers(0, len(base)), max_size=6)))
    pairs = list(zip(cuts[::2], cuts[1::2], strict=False))
    return base, [LineEdit(start, stop, tuple(draw(LINES))) for start, stop in pairs]


@settings(max_examples=80, deadline=None)
@given(edited_files())
def test_git_applies_the_diffs_that_are_written_without_it(
    tmp_path_factory: pytest.TempPathFactory, case: tuple[list[str], list[LineEdit]]
) -> None:
    base, edits = case
    after = apply_edits(base, edits)
    patch = git_diff("dir/file.txt", base, edits)
    if not base or not after:
        return  # a file that appears or goes is another kind of diff, which this module does not write
    if not patch:
        assert after == base
        return
    for side, lines, left_out in (("old", base, "+"), ("new", after, "-")):
        for hunk in HUNK.finditer(patch):
            start, count = int(hunk[f"{side}_start"]), int(hunk[f"{side}_count"])
            shown = [line[1:] for line in hunk["body"].splitlines(keepends=True) if line[0] != left_out]
            assert shown == lines[max(start - 1, 0) if count else start :][:count], (side, patch)
    folder = tmp_path_factory.mktemp("edit")
    (folder / "dir").mkdir()
    (folder / "dir/file.txt").write_text("".join(base), newline="")
    (folder / "patch").write_text(patch, newline="")
    git(folder, "apply", "patch")
    assert (folder / "dir/file.txt").read_bytes().decode() == "".join(after)


def test_hunks_are_those_of_git(tmp_path: Path) -> None:
    base = [f"line {number}\n" for number in range(1, 31)]
    edits = [
        LineEdit(0, 1, ("first\n", "and more\n")),
        LineEdit(8, 10, ("line 9\n", "ten\n")),
        LineEdit(16, 20, ()),
        LineEdit(30, 30, ("last\n",)),
    ]
    for folder, lines in (("a", base), ("b", apply_edits(base, edits))):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "file.txt").write_text("".join(lines))
    command = ["git", "-c", "core.pager=cat", "diff", "--no-index", "--no-color", "a/file.txt", "b/file.txt"]
    printed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False).stdout
    by_git = re.sub(r"^(@@ .* @@).*$", r"\1", printed[printed.index("@@") :], flags=re.MULTILINE)
    by_us = git_diff("file.txt", base, edits)
    assert by_us[by_us.index("@@") :] == by_git


def test_edits_out_of_order_are_refused() -> None:
    with pytest.raises(ValueError, match="out of order"):
        apply_edits(["a\n", "b\n"], [LineEdit(1, 2, ()), LineEdit(0, 1, ())])
