"""Git on the host runs isolated, within a time limit, and fails with one line."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from swegym_env.errors import RepositoryError
from swegym_env.repo.git import Git

IDENTITY = ("-c", "user.name=a", "-c", "user.email=a@b")


@pytest.fixture
def git(tmp_path: Path) -> Git:
    """Git in a repository with one commit."""
    runner = Git("some/thing", tmp_path, *IDENTITY)
    runner.run("init", "-q", "--template=", "--initial-branch=main")
    (tmp_path / "nämé").write_bytes(b"caf\xe9\n")
    runner.run("add", "-A")
    runner.run("commit", "-q", "-m", "one")
    return runner


def test_inherited_git_variables_have_no_effect(git: Git, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = git.text("rev-parse", "HEAD")
    monkeypatch.setenv("GIT_DIR", "/nowhere")
    monkeypatch.setenv("GIT_INDEX_FILE", "/nowhere")
    monkeypatch.setenv("GIT_AUTHOR_NAME", "somebody")
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", "core.quotePath")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", "false")
    assert git.text("rev-parse", "HEAD") == expected
    assert git.text("ls-files") == '"n\\303\\244m\\303\\251"\n'
    assert git.text("log", "--format=%an %cn") == "a a\n"
    git.run("commit", "-q", "--amend", "--no-edit", "--reset-author", env={"GIT_AUTHOR_NAME": "given"})
    assert git.text("log", "--format=%an %cn") == "given a\n"


def test_output_is_bytes_or_text_with_surrogates_and_input_likewise(git: Git) -> None:
    assert git.run("cat-file", "blob", "HEAD:nämé") == b"caf\xe9\n"
    assert git.text("cat-file", "blob", "HEAD:nämé") == "caf\udce9\n"
    ids = {git.text("hash-object", "--stdin", stdin=stdin) for stdin in (b"caf\xe9\n", "caf\udce9\n")}
    assert ids == {git.text("rev-parse", "HEAD:nämé")}


def test_an_error_is_one_line_that_names_purpose_command_and_cause(git: Git) -> None:
    with pytest.raises(RepositoryError) as caught:
        git.run("checkout", "nothing")
    assert str(caught.value) == (
        "some/thing: git checkout exited with 1: error: pathspec 'nothing' did not match any file(s) known to git"
    )


def test_a_command_that_hangs_is_killed_with_its_children(git: Git, tmp_path: Path) -> None:
    hanging = Git("some/thing", tmp_path, "-c", f"alias.hang=!touch {tmp_path}/started; sleep 321.5")
    started = time.monotonic()
    with pytest.raises(RepositoryError, match=r"some/thing: git hang did not end within 0\.5 s"):
        hanging.run("hang", timeout_s=0.5)
    assert time.monotonic() - started < 100 and (tmp_path / "started").exists()
    assert b"321.5" not in subprocess.run(["ps", "-eo", "args"], capture_output=True, check=True).stdout


def test_a_missing_git_is_named(git: Git, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RepositoryError, match=r"some/thing: git is not installed\. Try: apt install git"):
        git.run("status")


def test_a_missing_directory_is_an_error_and_not_another_repository(tmp_path: Path) -> None:
    with pytest.raises(RepositoryError, match="cannot change to"):
        Git("some/thing", tmp_path / "gone").run("status")
