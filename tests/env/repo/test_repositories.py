"""A repository layer holds one commit that git accepts, and nothing of its later history."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from swegym_env.env import SWEBenchEnv
from swegym_env.errors import ConfigurationError, RepositoryError
from swegym_env.grading.grading import grade
from swegym_env.prepare import prepare_locally
from swegym_env.repo.git import Git
from swegym_env.repo.objects import COMMIT_TIME_S, write_repository
from swegym_env.repo.repositories import files_layer, find_repository, repository_layer, submodule_layer
from swegym_env.repo.single_commit import check_single_commit
from swegym_env.sandbox.identity import sandbox_user
from swegym_env.sandbox.layers import LayerStore
from swegym_env.tasks.task import Task

_DATED = {
    f"GIT_{who}_{what}": value
    for who in ("AUTHOR", "COMMITTER")
    for what, value in (("NAME", "swegym"), ("EMAIL", "swegym@localhost"), ("DATE", f"{COMMIT_TIME_S} +0000"))
}


def git(directory: Path, *arguments: str, check: bool = True) -> str:
    env = {**os.environ, **_DATED, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1"}
    command = ["git", "-c", "safe.directory=*", "-C", str(directory), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    assert not check or done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def history(tmp_path: Path) -> tuple[Path, list[str]]:
    """A clone with three commits, each with a tag; and the commits' ids."""
    clone = tmp_path / "clones" / "some+thing"
    clone.mkdir(parents=True)
    git(clone, "init", "-q", "-b", "trunk")
    commits = []
    for number in range(3):
        (clone / "file.txt").write_text(f"{number}\n" * 5)
        (clone / f"only-{number}.sh").write_text("#!/bin/sh\n")
        (clone / f"only-{number}.sh").chmod(0o755)
        (clone / "link").unlink(missing_ok=True)
        (clone / "link").symlink_to("file.txt")
        git(clone, "add", "-A")
        git(clone, "commit", "-qm", f"commit {number}")
        commits.append(git(clone, "rev-parse", "HEAD").strip())
        git(clone, "tag", f"v{number}")
    return clone, commits


names = st.text("abcXY-_. é", min_size=1, max_size=6).filter(
    lambda name: name.strip(". ") != "" and name.lower() != ".git"
)
paths = st.lists(names, min_size=1, max_size=3).map("/".join)


def has_no_clash(tree: dict[str, str]) -> bool:
    return not any(other.startswith(f"{path}/") for path in tree for other in tree)


trees = st.dictionaries(paths, st.text(max_size=40), min_size=1, max_size=6).filter(has_no_clash)


@settings(max_examples=12, deadline=None)
@given(trees)
@example({"a/x": "1", "a.b": "2", "a-b": "3", "a0": "4"})  # a directory is ordered as if its name ended in a slash
@example({"run": "#!/bin/sh\n", "empty": ""})
def test_a_written_repository_equals_git_s(files: dict[str, str]) -> None:
    with tempfile.TemporaryDirectory() as place:
        ours, theirs = Path(place, "ours"), Path(place, "theirs")
        ours.mkdir()
        theirs.mkdir()
        commit = write_repository(ours, files)
        git(theirs, "init", "-q", "-b", "main")
        for path, text in files.items():
            (theirs / path).parent.mkdir(parents=True, exist_ok=True)
            (theirs / path).write_bytes(text.encode())
            (theirs / path).chmod(0o755 if text.startswith("#!") else 0o644)
        git(theirs, "add", "-A", "-f")
        git(theirs, "-c", "core.commentChar=;", "commit", "-qm", "Initial commit")
        assert commit == git(theirs, "rev-parse", "HEAD").strip()
        status = git(ours, "status", "--porcelain=v2", "--branch", "--ignored=no")
        assert status == f"# branch.oid {commit}\n# branch.head main\n"
        assert git(ours, "fsck", "--strict") == ""


def test_equal_files_give_the_same_commit_and_layer(store: LayerStore) -> None:
    first = files_layer({"a.py": "x\n", "b/c.py": "y\n"}, store)
    second = files_layer({"b/c.py": "y\n", "a.py": "x\n"}, store)
    other = files_layer({"a.py": "x\n", "b/c.py": "z\n"}, store)
    assert first == second != other
    assert (first / "testbed" / "b" / "c.py").read_text() == "y\n"
    assert {entry.lstat().st_uid for entry in first.rglob("*")} == {sandbox_user()[0]}


@pytest.mark.parametrize(
    "path", ["/etc/x", "../x", "a/../../x", ".git/hooks/post-checkout", "a/.GIT/config", "a//b", ""]
)
def test_paths_outside_the_repository_are_refused(store: LayerStore, path: str) -> None:
    with pytest.raises(RepositoryError, match="no path inside"):
        files_layer({path: "x"}, store)


def test_a_layer_holds_its_commit_and_no_other_object(store: LayerStore, history: tuple[Path, list[str]]) -> None:
    clone, commits = history
    testbed = repository_layer("some/thing", commits[1], source=clone.parent, store=store) / "testbed"
    assert git(testbed, "rev-parse", "HEAD").strip() == commits[1]
    assert git(testbed, "status", "--porcelain") == ""
    assert (testbed / "file.txt").read_text() == "1\n" * 5
    assert (testbed / "link").is_symlink()
    assert os.access(testbed / "only-1.sh", os.X_OK)
    assert not (testbed / "only-2.sh").exists()
    assert git(testbed, "for-each-ref", "--format=%(refname)") == "refs/heads/main\n"
    assert git(testbed, "remote") == git(testbed, "reflog") == git(testbed, "stash", "list") == ""
    reachable = {line.split()[0] for line in git(testbed, "rev-list", "--objects", "HEAD").splitlines()}
    present = set(git(testbed, "cat-file", "--batch-all-objects", "--batch-check=%(objectname)").split())
    assert present == reachable
    assert commits[2] not in present
    assert commits[0] not in present
    assert git(testbed, "log", "--all", "--format=%H").split() == [commits[1]]


def test_packs_alternates_reflogs_and_dangling_objects_are_not_copied(
    store: LayerStore, history: tuple[Path, list[str]]
) -> None:
    clone, commits = history
    borrowing = clone.parent / "other+thing"
    git(clone.parent, "clone", "-q", "--shared", str(clone), str(borrowing))
    git(borrowing, "commit", "-q", "--allow-empty", "-m", "on top")
    git(borrowing, "hash-object", "-w", "file.txt")
    git(borrowing, "reset", "-q", "--hard", commits[0])
    git(clone, "repack", "-q", "-a", "-d")
    assert (borrowing / ".git" / "objects" / "info" / "alternates").exists()
    testbed = repository_layer("other/thing", commits[1], source=clone.parent, store=store) / "testbed"
    reachable = {line.split()[0] for line in git(testbed, "rev-list", "--objects", "HEAD").splitlines()}
    assert set(git(testbed, "cat-file", "--batch-all-objects", "--batch-check=%(objectname)").split()) == reachable
    assert not (testbed / ".git" / "objects" / "info" / "alternates").exists()
    assert git(testbed, "fsck", "--unreachable", "--no-reflogs") == ""


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("git hash-object -w --stdin <<< dangling", r"1 object\(s\), the first [0-9a-f]{40}"),
        ("git commit -q --allow-empty -m later && git reset -q --hard HEAD~ && rm -r .git/logs", "object"),
        ("git tag later $(git commit-tree -m later HEAD^{tree})", "object|ref"),
        ("git reflog exists HEAD || git commit -q --amend --no-edit", "object|logs"),
        ("mkdir -p .git/objects/info && echo /nowhere > .git/objects/info/alternates", "alternates"),
    ],
)
def test_a_repository_with_more_than_one_commit_is_refused(
    history: tuple[Path, list[str]], command: str, message: str
) -> None:
    alone = history[0].parent / "alone"
    git(history[0].parent, "clone", "-q", "--depth=1", "--no-tags", f"file://{history[0]}", str(alone))
    git(alone, "remote", "remove", "origin")
    shutil.rmtree(alone / ".git" / "logs", ignore_errors=True)
    commit = history[1][2]
    inspected = Git("some/thing", alone)
    check_single_commit(inspected, alone, commit)
    environment = {**os.environ, **_DATED, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1"}
    subprocess.run(["bash", "-ec", command], cwd=alone, env=environment, check=True)
    with pytest.raises(RepositoryError, match=message):
        check_single_commit(inspected, alone, commit)


def test_the_first_git_status_reads_no_file(store: LayerStore, history: tuple[Path, list[str]]) -> None:
    clone, commits = history
    testbed = repository_layer("some/thing", commits[1], source=clone.parent, store=store) / "testbed"
    # Same size and time, other content: only reading the file could tell. So if git says clean, it did not read.
    status = (testbed / "file.txt").stat()
    (testbed / "file.txt").write_text("9\n" * 5)
    os.utime(testbed / "file.txt", ns=(status.st_atime_ns, status.st_mtime_ns))
    assert git(testbed, "status", "--porcelain") == ""


@pytest.mark.parametrize(
    "name", ["some+thing", "some+thing.git", "some/thing", "some/thing.git", "thing", "some+thing/repo"]
)
def test_clones_are_found_under_their_usual_names(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir(parents=True)
    git(tmp_path / name, "init", "-q", "--bare")
    assert find_repository("some/thing", tmp_path) == str(tmp_path / name)


def test_a_clone_a_url_and_the_default_are_sources(history: tuple[Path, list[str]]) -> None:
    assert find_repository("some/thing", history[0]) == str(history[0])
    assert find_repository("some/thing", "git@example.org:x/y.git") == "git@example.org:x/y.git"
    assert find_repository("some/thing") == "https://github.com/some/thing"


def test_errors_name_what_is_missing(
    store: LayerStore, history: tuple[Path, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clone, commits = history
    with pytest.raises(RepositoryError, match=r"no clone of other/repo under .*: looked for other\+repo"):
        repository_layer("other/repo", commits[0], source=clone.parent, store=store)
    with pytest.raises(RepositoryError, match=r"at bbbbbbbbbbbb from .*: the repository has no such commit"):
        repository_layer("some/thing", "b" * 40, source=clone.parent, store=store)
    with pytest.raises(RepositoryError, match="40 hex digits, got 'main'"):
        repository_layer("some/thing", "main", source=clone.parent, store=store)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RepositoryError, match="git is not installed"):
        repository_layer("some/thing", commits[0], source=clone.parent, store=store)
    assert [entry for entry in store.root.glob("*") if not entry.name.startswith(".")] == []


def test_a_missing_folder_of_clones_is_an_error_also_where_the_layer_is_cached(
    store: LayerStore, history: tuple[Path, list[str]], tmp_path: Path
) -> None:
    clone, commits = history
    task = Task("x", "some/thing", commits[0], "It fails.", "", test_command="true")
    layer = prepare_locally(task, repos=clone.parent, store=store).spec.layers[-1]
    assert prepare_locally(task, repos="https://example.invalid/some", store=store).spec.layers[-1] == layer
    missing = f"repos: expected a directory of clones, .*, got '{tmp_path / 'clons'}': no such directory"
    with pytest.raises(RepositoryError, match=missing):
        prepare_locally(task, repos=tmp_path / "clons", store=store)
    with pytest.raises(RepositoryError, match=missing):
        grade(task, "", repos=tmp_path / "clons", store=store)
    with pytest.raises(ConfigurationError, match=missing):
        SWEBenchEnv(tasks=[task], repos=str(tmp_path / "clons"))


@pytest.mark.parametrize("commit", ["b" * 40, f"{'b' * 40}~1"])
def test_a_server_that_cannot_be_reached_is_an_error_that_suggests_clones(store: LayerStore, commit: str) -> None:
    with closed_port() as port:
        url = f"http://127.0.0.1:{port}/some/thing"
        with pytest.raises(RepositoryError, match="unable to access") as caught:
            repository_layer("some/thing", commit, source=url, store=store)
    advice = f"Try: a folder of clones as repos= or --repos: git clone --bare {url} FOLDER/some+thing"
    assert str(caught.value).endswith(advice)


@contextmanager
def closed_port() -> Iterator[int]:
    """A port of this machine where nothing listens, and which no one else gets."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


def test_a_server_without_the_commit_is_not_advised_to_fetch(
    store: LayerStore, history: tuple[Path, list[str]], git_server: str
) -> None:
    with pytest.raises(RepositoryError, match=r"the repository has no such commit$"):
        repository_layer("some/thing", "b" * 40, source=f"{git_server}/some+thing", store=store)
    assert repository_layer("some/thing", history[1][0], source=f"{git_server}/some+thing", store=store).is_dir()


@pytest.fixture
def git_server(history: tuple[Path, list[str]]) -> Iterator[str]:
    """The address of a `git daemon` that serves the folder of clones."""
    with closed_port() as port:
        pass
    root = history[0].parent
    options = (f"--base-path={root}", "--export-all", "--reuseaddr", "--listen=127.0.0.1", f"--port={port}")
    settings = {"GIT_CONFIG_COUNT": "2", "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*"}
    settings |= {"GIT_CONFIG_KEY_1": "uploadpack.allowAnySHA1InWant", "GIT_CONFIG_VALUE_1": "true"}
    with subprocess.Popen(["git", "daemon", *options], env={**os.environ, **settings}) as daemon:
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            assert daemon.poll() is None
            time.sleep(0.05)
        yield f"git://127.0.0.1:{port}"
        daemon.terminate()


def test_a_submodule_is_a_layer_with_the_files_of_its_commit(
    store: LayerStore, history: tuple[Path, list[str]], tmp_path: Path
) -> None:
    _, commits = history
    whole = tmp_path / "clones" / "its+owner"
    whole.mkdir()
    git(whole, "init", "-q", "-b", "trunk")
    (whole / ".gitmodules").write_text(
        '[submodule "other"]\n\tpath = lib/other\n\turl = https://example.org/a/b.git\n'
        '[submodule "thing"]\n\tpath = lib/thing\n\turl = https://example.org/some/thing.git\n'
    )
    git(whole, "add", ".gitmodules")
    git(whole, "update-index", "--add", "--cacheinfo", f"160000,{commits[1]},lib/thing")
    git(whole, "commit", "-qm", "with a submodule")
    clones = tmp_path / "clones"
    repository = repository_layer("its/owner", git(whole, "rev-parse", "HEAD").strip(), source=clones, store=store)
    layer = submodule_layer("its/owner", repository, "lib/thing", source=clones, store=store)
    found = sorted(path.relative_to(layer).as_posix() for path in layer.rglob("*") if not path.is_dir())
    assert found == [f"testbed/lib/thing/{name}" for name in ("file.txt", "link", "only-0.sh", "only-1.sh")]
    assert (layer / "testbed/lib/thing/file.txt").read_text() == "1\n" * 5
    assert (layer / "testbed/lib/thing/only-1.sh").stat().st_mode & 0o777 == 0o755
    with pytest.raises(
        RepositoryError, match=r"its/owner: expected a submodule with an address in lib/other, got noth"
    ):
        submodule_layer("its/owner", repository, "lib/other", source=clones, store=store)


def test_git_configuration_and_hooks_of_the_user_have_no_effect(
    store: LayerStore, history: tuple[Path, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clone, commits = history
    (tmp_path / "hooks").mkdir()
    hook = tmp_path / "hooks" / "post-checkout"
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    hook.chmod(0o755)
    config = tmp_path / "gitconfig"
    config.write_text(f"[core]\n\tautocrlf = true\n\thooksPath = {tmp_path}/hooks\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(config))
    monkeypatch.setenv("GIT_DIR", "/nonexistent")
    testbed = repository_layer("some/thing", commits[1], source=clone, store=store) / "testbed"
    assert (testbed / "file.txt").read_bytes() == b"1\n" * 5
    assert not (tmp_path / "ran").exists()


def test_a_partial_clone_gives_a_layer_without_the_missing_files(
    store: LayerStore, history: tuple[Path, list[str]]
) -> None:
    clone, commits = history
    gone = git(clone, "rev-parse", f"{commits[1]}:file.txt").strip()
    place = clone / ".git" / "objects" / gone[:2] / gone[2:]
    kept = place.rename(clone.parent / "kept")
    testbed = repository_layer("some/thing", commits[1], source=clone, store=store) / "testbed"
    assert not (testbed / "file.txt").exists()
    assert (testbed / "only-1.sh").exists()
    assert git(testbed, "status", "--porcelain") == ""
    assert git(testbed, "log", "--all", "--format=%H").split() == [commits[1]]
    present = git(testbed, "cat-file", "--batch-all-objects", "--batch-check=%(objectname)").split()
    assert not {gone, commits[0], commits[2]}.intersection(present)
    kept.rename(place)
    whole = repository_layer("some/thing", commits[1], source=clone, store=store) / "testbed"
    assert (whole / "file.txt").read_text() == "1\n" * 5
    assert not (testbed / "file.txt").exists()  # a published layer is never written again
