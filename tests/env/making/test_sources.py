"""Archives are not trusted: outside paths are refused, links and devices skipped, and nothing is executed."""

from __future__ import annotations

import io
import tarfile
import zipfile
from pathlib import Path

import pytest

from swegym_env.errors import ConfigurationError
from swegym_env.making import sources
from swegym_env.making.sources import is_test_path, read_source


def write_tar(place: Path, members: dict[str, bytes | tarfile.TarInfo]) -> Path:
    with tarfile.open(place, "w:gz") as tar:
        for name, content in members.items():
            if isinstance(content, tarfile.TarInfo):
                tar.addfile(content)
            else:
                entry = tarfile.TarInfo(name)
                entry.size = len(content)
                entry.mode = 0o755 if content.startswith(b"#!") else 0o644
                tar.addfile(entry, io.BytesIO(content))
    return place


def special(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname = kind, target
    return entry


def test_a_source_archive_gives_name_version_and_test_requirements(tmp_path: Path) -> None:
    project = (
        b'[project]\nname = "Other"\n[project.optional-dependencies]\n'
        b'test = ["freezegun>=1", "x; python_version<\'3.9\'"]\n'
        b'docs = ["sphinx"]\n[dependency-groups]\ntests = ["numpy", {include-group = "test"}, "evil$(x)"]\n'
    )
    members: dict[str, bytes | tarfile.TarInfo] = {
        "thing-1.2/PKG-INFO": b"Metadata-Version: 2.1\nName: The.Thing\nVersion: 1.2\n\nVersion: 9\n",
        "thing-1.2/pyproject.toml": project,
        "thing-1.2/thing/__init__.py": b"x = 1\n",
        "thing-1.2/run": b"#!/bin/sh\n",
        "thing-1.2/link.py": special("thing-1.2/link.py", tarfile.SYMTYPE, "/etc/passwd"),
        "thing-1.2/hard.py": special("thing-1.2/hard.py", tarfile.LNKTYPE, "thing-1.2/run"),
        "thing-1.2/device": special("thing-1.2/device", tarfile.CHRTYPE),
        "thing-1.2/.git/config": b"[core]\n\tfsmonitor = touch /tmp/x\n",
    }
    found = read_source(str(write_tar(tmp_path / "thing-1.2.tar.gz", members)))
    assert (found.name, found.version) == ("the-thing", "1.2")
    assert found.requirements == ("numpy", "freezegun>=1", 'x; python_version<"3.9"')
    assert sorted(found.files) == ["PKG-INFO", "pyproject.toml", "run", "thing/__init__.py"]
    assert found.files["run"] == (0o100755, b"#!/bin/sh\n")
    assert found.notes == ("thing-1.2.tar.gz: 3 links and special files were skipped",)


@pytest.mark.parametrize(
    "name", ["../../evil.py", "/etc/evil.py", "a/../../evil.py", "thing-1.2/../../evil.py", "..\\e.py"]
)
def test_an_archive_with_an_outside_path_is_refused(name: str, tmp_path: Path) -> None:
    archive = write_tar(tmp_path / "thing.tar.gz", {"thing-1.2/a.py": b"", name: b"evil"})
    with pytest.raises(ConfigurationError, match="is outside the archive"):
        read_source(str(archive))
    with zipfile.ZipFile(tmp_path / "thing.zip", "w") as zipped:
        zipped.writestr("thing-1.2/a.py", "")
        zipped.writestr(name, "evil")
    with pytest.raises(ConfigurationError, match="is outside the archive"):
        read_source(str(tmp_path / "thing.zip"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["thing.tar.gz", "thing.zip"]


def test_an_archive_that_is_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "MAX_BYTES", 1 << 20)
    archive = write_tar(tmp_path / "thing.tar.gz", {"a.py": b"", "b.py": bytes(2 << 20)})
    with pytest.raises(ConfigurationError, match="expected at most 1 MiB"):
        read_source(str(archive))
    monkeypatch.setattr(sources, "MAX_FILES", 1)
    with pytest.raises(ConfigurationError, match="in 1 files"):
        read_source(str(write_tar(tmp_path / "many.tar.gz", {"a.py": b"", "b.py": b""})))


@pytest.mark.parametrize("content", [b"", b"no archive", b"\x1f\x8b\x08broken"])
def test_a_damaged_archive_is_a_one_line_error(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "thing.tar.gz").write_bytes(content)
    with pytest.raises(ConfigurationError, match="cannot be read as an archive") as caught:
        read_source(str(tmp_path / "thing.tar.gz"))
    assert "\n" not in str(caught.value)


def test_a_truncated_archive_is_refused(tmp_path: Path) -> None:
    archive = write_tar(tmp_path / "thing.tar.gz", {"a.py": bytes(range(256)) * 400, "b.py": b"x = 1\n"})
    archive.write_bytes(archive.read_bytes()[:-40])
    with pytest.raises(ConfigurationError, match="cannot be read as an archive"):
        read_source(str(archive))


def test_links_of_a_directory_are_skipped(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\n")
    (tmp_path / "secret.py").symlink_to("/etc/passwd")
    (tmp_path / "up").symlink_to("/")
    found = read_source(str(tmp_path))
    assert sorted(found.files) == ["a.py"] and len(found.notes) == 1
    (tmp_path / "a.py").unlink()
    with pytest.raises(ConfigurationError, match="no source file in it; expected one of python, c, javascript"):
        read_source(str(tmp_path))
    with pytest.raises(ConfigurationError, match="no such archive"):
        read_source(str(tmp_path / "nothing"))


def test_a_git_repository_gives_its_last_commit_and_history(project: Path) -> None:
    (project / "uncommitted.py").write_text("")
    try:
        found = read_source(str(project))
    finally:
        (project / "uncommitted.py").unlink()
    assert sorted(found.files) == [
        "README",
        "shelf.py",
        "tests/test_more.py",
        "tests/test_shelf.py",
        "tests/test_zz.py",
    ]
    assert found.name == "shelf"
    assert [commit.patch.count("diff --git") for commit in found.history] == [2, 4]
    assert read_source(str(project), history=0).history == ()
    # The oldest commit of a shallow clone seems to add everything: it cannot be reverted.
    assert [commit.patch.count("diff --git") for commit in read_source(str(project), history=1).history] == [2]


def test_test_files_are_recognized_by_their_paths() -> None:
    yes = ("tests/a.py", "a/tests/b/c.py", "test_a.py", "a_test.py", "conftest.py", "x/testing/y.py")
    no = ("a.py", "src/contest.py", "attest.py", "latest_a.py")
    assert all(map(is_test_path, yes)) and not any(map(is_test_path, no))
