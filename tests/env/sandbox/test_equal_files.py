"""Equal files of layers are stored once, and remain separate files for those who use the layers."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

import pytest

from swegym_env.repo.repositories import repository_layer
from swegym_env.sandbox import SandboxSpec, open_sandbox
from swegym_env.sandbox.equal_files import link_equal_files
from swegym_env.sandbox.layers import LayerStore
from tests.env.repo import test_repositories
from tests.env.repo.test_repositories import git

TIME_S = 1_000_000_000


def tree(place: Path, files: dict[str, str], *, mode: int = 0o644, time_s: int = TIME_S) -> Path:
    for path, text in files.items():
        file = place / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.chmod(mode)
        os.utime(file, (time_s, time_s))
    return place


def inodes(place: Path) -> dict[str, int]:
    return {str(file.relative_to(place)): file.stat().st_ino for file in place.rglob("*") if file.is_file()}


def test_equal_files_of_two_trees_are_one_file(tmp_path: Path) -> None:
    first = tree(tmp_path / "1", {"a": "same", "deep/b": "one", "empty": ""})
    second = tree(tmp_path / "2", {"other/c": "same", "deep/b": "two"})
    for place in (first, second):
        link_equal_files(place, tmp_path / "pool")
    assert (first / "a").samefile(second / "other/c")
    assert not (first / "deep/b").samefile(second / "deep/b")
    texts = {str(file.relative_to(tmp_path)): file.read_text() for file in tmp_path.rglob("*") if file.is_file()}
    texts = {path: text for path, text in texts.items() if not path.startswith("pool")}
    assert texts == {"1/a": "same", "1/deep/b": "one", "1/empty": "", "2/other/c": "same", "2/deep/b": "two"}


def test_names_as_long_as_they_may_be_are_linked(tmp_path: Path) -> None:
    first, second = (tree(tmp_path / number, {"n" * 255: "same"}) for number in "12")
    for place in (first, second):
        link_equal_files(place, tmp_path / "pool")
    assert inodes(first) == inodes(second)


def test_files_of_one_tree_are_never_one_file(tmp_path: Path) -> None:
    trees = [tree(tmp_path / name, {"a": "same", "b": "same"}) for name in "12"]
    for place in trees:
        link_equal_files(place, tmp_path / "pool")
    first, second = map(inodes, trees)
    assert len(set(first.values())) == 2
    assert set(first.values()) == set(second.values())


@pytest.mark.parametrize("other", [{"mode": 0o755}, {"time_s": TIME_S + 1}])
def test_files_with_other_permissions_or_times_are_not_equal(tmp_path: Path, other: dict[str, int]) -> None:
    first, second = tree(tmp_path / "1", {"a": "same"}), tree(tmp_path / "2", {"a": "same"}, **other)
    before = (second / "a").stat()
    for place in (first, second):
        link_equal_files(place, tmp_path / "pool")
    after = (second / "a").stat()
    assert not (first / "a").samefile(second / "a")
    assert (after.st_mode, after.st_mtime_ns) == (before.st_mode, before.st_mtime_ns)


def test_links_and_git_directories_are_left_alone(tmp_path: Path) -> None:
    place = tree(tmp_path / "1", {"a": "same", ".git/packed": "same"})
    (place / "link").symlink_to("a")
    link_equal_files(place, tmp_path / "pool")
    assert (place / "link").is_symlink()
    assert (place / ".git/packed").stat().st_nlink == 1


def test_a_file_of_the_pool_that_was_cut_off_is_replaced(tmp_path: Path) -> None:
    link_equal_files(tree(tmp_path / "1", {"a": "same"}), tmp_path / "pool")
    (pooled,) = (file for file in (tmp_path / "pool").rglob("*") if file.is_file())
    os.truncate(pooled, 2)  # as after a crash of the machine
    second, third = tree(tmp_path / "2", {"a": "same"}), tree(tmp_path / "3", {"a": "same"})
    for place in (second, third):
        link_equal_files(place, tmp_path / "pool")
    assert (third / "a").read_text() == "same"
    assert (second / "a").samefile(third / "a")


def test_a_file_with_as_many_links_as_it_may_have_is_followed_by_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    most, link = 3, os.link

    def limited(source: str, target: str) -> None:
        if os.stat(source).st_nlink >= most:
            raise OSError(errno.EMLINK, os.strerror(errno.EMLINK))
        link(source, target)

    monkeypatch.setattr(os, "link", limited)
    places = [tree(tmp_path / str(number), {"a": "same"}) for number in range(5)]
    for place in places:
        link_equal_files(place, tmp_path / "pool")
    assert [(place / "a").read_text() for place in places] == ["same"] * 5
    assert len({(place / "a").stat().st_ino for place in places}) == 3  # two, two and one


def test_without_hard_links_every_tree_keeps_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(source: str, target: str) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", refused)
    place = tree(tmp_path / "1", {"a": "same", "b": "same"})
    before = inodes(place)
    link_equal_files(place, tmp_path / "pool")
    assert inodes(place) == before


def test_commits_of_a_repository_share_files_and_no_change(
    tmp_path: Path, store: LayerStore, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clone, commits = tmp_path / "clones" / "some+thing", list[str]()
    tree(clone, {"kept.txt": "kept\n", "twin.txt": "kept\n"})
    git(clone, "init", "-q")
    for number in range(2):
        tree(clone, {"changed.txt": "x" * number})
        git(clone, "add", "-A")
        monkeypatch.setitem(test_repositories._DATED, "GIT_COMMITTER_DATE", f"200{number}-01-01T00:00:00Z")
        git(clone, "commit", "-qm", "x")
        commits.append(git(clone, "rev-parse", "HEAD").strip())
    first, second = (repository_layer("some/thing", commit, source=clone.parent, store=store) for commit in commits)
    for name in ("kept.txt", "twin.txt"):
        assert (first / "testbed" / name).samefile(second / "testbed" / name)
    assert not (first / "testbed/kept.txt").samefile(first / "testbed/twin.txt")

    with contextlib.closing(open_sandbox(SandboxSpec(layers=(first,)), backend=backend)) as sandbox:
        sandbox.start()
        done = sandbox.run("cd /testbed && git status --porcelain && cp kept.txt twin.txt && echo more >> kept.txt")
        assert (done.exit_code, done.output) == (0, "")
        assert sandbox.run("cd /testbed && git diff --stat | tail -1").output.strip().startswith("1 file changed")
    assert [(layer / "testbed/kept.txt").read_text() for layer in (first, second)] == ["kept\n"] * 2


def test_files_that_no_layer_has_are_removed_with_the_layers(tmp_path: Path, store: LayerStore) -> None:
    def build(name: str, files: dict[str, str]) -> Path:
        return store.get_or_build(("repository", name), lambda layer: tree(layer, files) and None)

    first, second = build("1", {"a": "kept", "b": "lost"}), build("2", {"a": "kept"})
    os.utime(store.root / ".uses" / first.name, (TIME_S, TIME_S))
    unused = store.unused_for(7 * 24 * 3600)
    assert [layer.path for layer in unused] == [first]
    store.remove(unused)
    (pooled,) = (file for file in (store.root / ".files").rglob("*") if file.is_file())
    assert pooled.samefile(second / "a")
