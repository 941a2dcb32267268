"""Patches applied without git end as git's own application does, and what is not certain is left to git."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swegym_env.repo.applying import Checkout, PlainFile, apply_plainly
from swegym_env.repo.git import ANY_OWNER
from swegym_env.repo.objects import REPOSITORY_CONFIG
from swegym_env.tasks.datasets import load_tasks

_LINES = st.lists(
    st.sampled_from(["a", "b", "  b", "", "c\r", "é", "\x0c", "-- x", "@@ -1 +1 @@", "\\ No"]), max_size=14
)
_TEXTS = st.builds(lambda lines, end: "\n".join(lines) + end, _LINES, st.sampled_from(["", "\n"]))
_TREES = st.dictionaries(st.sampled_from(["f.py", "d/g.py", "d/e/h"]), _TEXTS, max_size=3)
_PLAIN_DIFF = """\
diff --git a/f.py b/f.py
--- a/f.py
+++ b/f.py
@@ -1,3 +1,3 @@
 one
-two
+TWO
 three
"""


def _git(directory: Path, *arguments: str, text: str = "") -> subprocess.CompletedProcess[bytes]:
    variables = {"HOME": str(directory), "PATH": os.environ["PATH"], "GIT_CONFIG_NOSYSTEM": "1", **ANY_OWNER}
    content = text.encode("utf-8", "surrogateescape")
    return subprocess.run(
        ["git", *arguments], cwd=directory, input=content, capture_output=True, check=False, env=variables
    )


def _write(directory: Path, tree: dict[str, str]) -> None:
    for path, text in tree.items():
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_bytes(text.encode())


def _made(directory: Path, tree: dict[str, str]) -> Path:
    directory.mkdir(parents=True)
    _git(directory, "init", "-q", "--template=")
    (directory / ".git" / "config").write_text(REPOSITORY_CONFIG)
    _write(directory, tree)
    _git(directory, "add", "-A")
    _git(directory, "commit", "-q", "--allow-empty", "-m", "base")
    return directory


def _files(directory: Path) -> dict[str, PlainFile]:
    return {
        path.relative_to(directory).as_posix(): PlainFile(path.read_bytes(), stat.S_IMODE(path.stat().st_mode))
        for path in directory.rglob("*")
        if path.is_file() and ".git" not in path.relative_to(directory).parts
    }


def _checkout(directory: Path, env: dict[str, str] | None = None) -> Checkout:
    return Checkout((directory.parent,), directory.name, env or {}, {})


def _agrees(directory: Path, patch: str) -> bool:
    """Whether the patch is plain; if so, git must make the same files of it."""
    before, after = _files(directory), apply_plainly(patch, _checkout(directory).read)
    if after is None:
        return False
    done = _git(directory, "apply", "--whitespace=nowarn", text=patch)
    assert done.returncode == 0, (patch, done.stderr)
    assert _files(directory) == {**before, **after}
    return True


@settings(max_examples=60, deadline=None)
@given(before=_TREES, after=_TREES, context=st.integers(0, 4), data=st.data())
def test_a_patch_that_is_applied_here_ends_as_with_git(
    tmp_path_factory: pytest.TempPathFactory,
    before: dict[str, str],
    after: dict[str, str],
    context: int,
    data: st.DataObject,
) -> None:
    directory = _made(tmp_path_factory.mktemp("applying") / "testbed", before)
    for path in before:
        (directory / path).unlink()
    _write(directory, after)
    _git(directory, "add", "-A")
    patch = _git(directory, "diff", "--cached", "--no-renames", f"-U{context}").stdout.decode()
    _git(directory, "reset", "-q", "--hard")
    lines = patch.split("\n")
    damaged = data.draw(st.booleans(), "damaged")
    if damaged:
        at = data.draw(st.integers(0, len(lines) - 1))
        lines[at : at + data.draw(st.integers(0, 2))] = data.draw(
            st.lists(st.sampled_from([*lines, "", " a", "+b"]), max_size=2)
        )
    is_plain = _agrees(directory, "\n".join(lines))
    if not damaged and context > 0:
        changed = {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}
        deleted = changed - after.keys()
        made_empty = {path for path in changed - before.keys() if not after.get(path)}
        assert is_plain == (bool(changed) and not deleted and not made_empty)


def test_gold_and_test_patches_of_a_dataset_are_plain(tmp_path: Path) -> None:
    tasks = load_tasks("mini-edit")[:10]
    for number, task in enumerate(tasks):
        directory = _made(tmp_path / str(number), dict(task.files or {}))
        assert _agrees(directory, task.patch)
        assert _agrees(directory, task.test_patch)


@pytest.mark.parametrize(
    "patch",
    [
        _PLAIN_DIFF.replace("@@ -1,3 +1,3 @@", "@@ -2,3 +2,3 @@"),  # git finds it a line before
        _PLAIN_DIFF.replace(" three\n", ""),  # the counts are wrong
        _PLAIN_DIFF.replace("-1,3 +1,3", "-1,2 +1,2").replace(" three\n", ""),  # must match at the end of the file
        _PLAIN_DIFF.replace("f.py b/f.py", "f.py b/f.py\nold mode 100644\nnew mode 100755"),
        _PLAIN_DIFF.replace("f.py", "../f.py"),
        _PLAIN_DIFF.replace("f.py", ".git/config"),
        _PLAIN_DIFF.replace("f.py", "link"),
        _PLAIN_DIFF.replace("f.py", "linked/f.py"),
        _PLAIN_DIFF + _PLAIN_DIFF,
        "From me\n" + _PLAIN_DIFF,
        _PLAIN_DIFF + "@@ garbage\n",
        _PLAIN_DIFF.replace("--- a/f.py", "--- /dev/null"),
        _PLAIN_DIFF.replace("--- a/f.py", "index 0123456..789abcd 100755\n--- a/f.py"),
    ],
)
def test_what_is_not_plain_is_left_to_git(tmp_path: Path, patch: str) -> None:
    directory = _made(tmp_path / "testbed", {"f.py": "one\ntwo\nthree\nfour\n", "d/f.py": "one\ntwo\nthree\nfour\n"})
    (directory / "link").symlink_to("f.py")
    (directory / "linked").symlink_to("d")
    assert apply_plainly(_PLAIN_DIFF, _checkout(directory).read) is not None
    assert apply_plainly(patch, _checkout(directory).read) is None


@pytest.mark.parametrize("place", [".gitattributes", ".git/info/attributes", ".git/config"])
def test_attributes_and_settings_leave_every_patch_to_git(tmp_path: Path, place: str) -> None:
    directory = _made(tmp_path / "testbed", {"f.py": "one\ntwo\nthree\n"})
    (directory / place).parent.mkdir(exist_ok=True)
    with open(directory / place, "a") as file:
        file.write("[core]\nautocrlf = true\n" if place.endswith("config") else "* text eol=crlf\n")
    assert apply_plainly(_PLAIN_DIFF, _checkout(directory).read) is None


def test_settings_of_the_image_leave_every_patch_to_git(tmp_path: Path) -> None:
    directory = _made(tmp_path / "layer" / "testbed", {"f.py": "one\ntwo\nthree\n"})
    image = tmp_path / "image"
    (image / "opt/conda/etc").mkdir(parents=True)

    def is_plain(env: dict[str, str]) -> bool:
        return apply_plainly(_PLAIN_DIFF, Checkout((image, directory.parent), "testbed", env, {}).read) is not None

    assert is_plain({}) and is_plain(ANY_OWNER)
    assert not is_plain({"GIT_DIR": "/x"}) and not is_plain({"HOME": "/x"})
    (image / "opt/conda/etc/gitconfig").write_text("[core]\nautocrlf = true\n")
    assert is_plain({"LANG": "C"}) and not is_plain({"PATH": "/opt/conda/bin:/usr/bin"})


def test_what_another_layer_has_there_is_no_new_file(tmp_path: Path) -> None:
    new = (
        _PLAIN_DIFF.split("@@", maxsplit=1)[0]
        .replace("b/f.py\n---", "b/f.py\nnew file mode 100644\n---")
        .replace("--- a/f.py", "--- /dev/null")
    )
    new += "@@ -0,0 +1 @@\n+one\n"
    directory = _made(tmp_path / "layer" / "testbed", {"g.py": ""})
    assert _checkout(directory).read("f.py") is None
    assert apply_plainly(new, _checkout(directory).read) == {"f.py": PlainFile(b"one\n", 0o644)}
    below = tmp_path / "below"
    (below / "testbed").mkdir(parents=True)
    (below / "testbed" / "f.py").write_text("built\n")
    assert apply_plainly(new, Checkout((below, directory.parent), "testbed", {}, {}).read) is None
    changed = {"f.py": PlainFile(b"", 0o644)}
    assert apply_plainly(new, Checkout((directory.parent,), "testbed", {}, changed).read) is None
