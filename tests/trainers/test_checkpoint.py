from __future__ import annotations

import hashlib
import json
import os
import random
import resource
import shutil
import signal
import stat
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from loguru import logger

from swe_trainers.checkpoint import Checkpoints
from swe_trainers.errors import CheckpointError, DamagedError
from tests.trainers.ranks import Forked

STATE = {
    "weights": torch.arange(6.0).view(2, 3),
    "updates": 3,
    "nested": {"rate": 0.1, "names": ["a", "b"], "none": None},
}


def test_checkpoint_round_trips_with_the_random_states(tmp_path):
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    checkpoints.save(3, STATE)
    expected = random.random(), np.random.rand(), torch.rand(1).item()
    state = checkpoints.load()
    assert torch.equal(state["weights"], STATE["weights"])
    assert {k: v for k, v in state.items() if k != "weights"} == {k: v for k, v in STATE.items() if k != "weights"}
    assert (random.random(), np.random.rand(), torch.rand(1).item()) == expected


def test_only_the_owner_can_read_a_checkpoint(tmp_path):
    path = Checkpoints(tmp_path / "checkpoints").save(1, STATE)
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in path.iterdir()} == {0o600}


def test_newest_checkpoints_are_kept_and_equal_numbers_are_replaced(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=2)
    for step in (1, 2, 10, 9):
        checkpoints.save(step, {"step": step})
    assert [path.name for path in checkpoints.complete()] == ["00000009", "00000010"]
    checkpoints.save(10, {"step": "again"})
    assert checkpoints.load() == {"step": "again"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["00000009", "00000010"]


def test_an_old_checkpoint_that_cannot_be_deleted_is_a_warning_and_the_new_one_is_written(tmp_path):
    checkpoints, lines = Checkpoints(tmp_path / "run", keep=1), []
    moved = checkpoints.save(1, {"step": 1}).rename(tmp_path / "elsewhere")
    (tmp_path / "run" / "00000001").symlink_to(moved)  # which shutil.rmtree refuses
    sink = logger.add(lines.append, level="WARNING")
    try:
        assert checkpoints.save(2, {"step": 2}).name == "00000002"
    finally:
        logger.remove(sink)
    assert len(lines) == 1 and "00000001: this old checkpoint cannot be deleted and stays: " in lines[0]
    assert checkpoints.load() == {"step": 2} and moved.exists()


def test_incomplete_checkpoints_are_skipped_and_removed(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=5)
    for step in (1, 2, 3, 4):
        checkpoints.save(step, {"step": step})
    (tmp_path / "00000004" / "manifest.json").unlink()
    with (tmp_path / "00000003" / "state.pt").open("r+b") as file:
        file.truncate(100)
    (tmp_path / ".partial-left").mkdir()
    (tmp_path / "notes").mkdir()
    assert checkpoints.latest().name == "00000002"
    assert checkpoints.load() == {"step": 2}
    checkpoints.save(5, {"step": 5})
    assert not (tmp_path / ".partial-left").exists()


def test_missing_and_unreadable_checkpoints_are_one_line_errors(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    assert checkpoints.latest() is None
    assert checkpoints.newest() is None
    with pytest.raises(CheckpointError, match="no checkpoint here"):
        checkpoints.load()
    path = checkpoints.save(1, STATE)
    (path / "state.pt").write_bytes(b"x" * (path / "state.pt").stat().st_size)
    with pytest.raises(DamagedError, match=r"state\.pt: its content is not what was written") as caught:
        checkpoints.load(path)
    assert "\n" not in str(caught.value)


def flipped(path: Path, at: float) -> None:
    content = bytearray(path.read_bytes())
    content[int(at * len(content))] ^= 4
    path.write_bytes(content)


def rewritten(path: Path, change: Callable[[dict], object]) -> None:
    manifest = json.loads(path.read_bytes())
    path.write_text(json.dumps(change(manifest)))


def flip_in(text: bytes) -> Callable[[Path, Path], None]:
    """Flips a bit in the middle of the only place where these bytes are."""

    def damage(path: Path, older: Path) -> None:
        del older
        content = (path / "state.pt").read_bytes()
        assert content.count(text) == 1
        flipped(path / "state.pt", (content.index(text) + len(text) // 2) / len(content))

    return damage


def manifest_with(**values: object) -> Callable[[Path, Path], None]:
    return lambda path, older: rewritten(path / "manifest.json", lambda manifest: {**manifest, **values})


def manifest_of(content: bytes) -> Callable[[Path, Path], None]:
    return lambda path, older: (path / "manifest.json").write_bytes(content) and None


def emptied(path: Path, older: Path) -> None:
    shutil.rmtree(path)
    path.mkdir()


def linked(path: Path, older: Path) -> None:
    shutil.move(path / "state.pt", path.parent / "elsewhere.pt")
    (path / "state.pt").symlink_to(path.parent / "elsewhere.pt")


WEIGHTS, MOMENTS = torch.arange(1000.0, 1300.0), torch.arange(2000.0, 2300.0)
ELSEWHERE = {"../../outside.pt": 5, "state.pt": 1}
DAMAGES: dict[str, Callable[[Path, Path], object]] = {
    "a flipped bit in the weights": flip_in(WEIGHTS.numpy().tobytes()),
    "a flipped bit in the optimizer's state": flip_in(MOMENTS.numpy().tobytes()),
    "a zeroed file": lambda path, _: (path / "state.pt").write_bytes(bytes((path / "state.pt").stat().st_size)),
    "a truncated file": lambda path, _: os.truncate(path / "state.pt", 1000),
    "an empty file": lambda path, _: os.truncate(path / "state.pt", 0),
    "a missing file": lambda path, _: (path / "state.pt").unlink(),
    "a longer file": lambda path, _: os.truncate(path / "state.pt", (path / "state.pt").stat().st_size + 1),
    "a folder in the place of a file": lambda path, _: ((path / "state.pt").unlink(), (path / "state.pt").mkdir()),
    "a link in the place of a file": linked,
    "a pipe in the place of a file": lambda path, _: ((path / "state.pt").unlink(), os.mkfifo(path / "state.pt")),
    "no manifest": lambda path, _: (path / "manifest.json").unlink(),
    "an empty manifest": manifest_of(b""),
    "half a manifest": lambda path, _: os.truncate(path / "manifest.json", 60),
    "a manifest that is not JSON": manifest_of(b"\xff\xfe{}"),
    "a manifest of brackets": manifest_of(b"[" * 100_000),
    "a manifest that is a list": manifest_of(b"[1, 2]"),
    "a manifest that is null": manifest_of(b"null"),
    "a manifest without keys": manifest_of(b"{}"),
    "a manifest of a number": manifest_with(size_bytes=3),
    "a manifest of a list of sizes": manifest_with(size_bytes=["state.pt"]),
    "a manifest of sizes that are texts": manifest_with(size_bytes={"state.pt": "7"}),
    "a manifest of a size that is null": manifest_with(size_bytes={"state.pt": None}),
    "a manifest of nothing": manifest_with(size_bytes={}, sha256={}),
    "a manifest without the checksums": lambda path, _: rewritten(
        path / "manifest.json", lambda found: {key: found[key] for key in ("format", "step", "size_bytes")}),
    "a manifest of other checksums' names": manifest_with(sha256={"other.pt": "0" * 64}),
    "a manifest of checksums that are numbers": manifest_with(sha256={"state.pt": 0}),
    "a manifest of a step that is a text": manifest_with(step="2"),
    "a manifest of an unknown format": manifest_with(format=99),
    "a manifest with a path outside": manifest_with(size_bytes=ELSEWHERE, sha256=dict.fromkeys(ELSEWHERE, "0" * 64)),
    "a manifest with an absolute path": manifest_with(
        size_bytes={"state.pt": 1, "/etc/hostname": 1}, sha256={"state.pt": "0" * 64, "/etc/hostname": "0" * 64}),
    "an empty folder": emptied,
    "a file in the place of the folder": lambda path, _: (shutil.rmtree(path), path.write_bytes(b"")),
    "the tensors of another checkpoint": lambda path, older: shutil.copy(older / "state.pt", path / "state.pt"),
    "the manifest of another checkpoint": lambda path, older: shutil.copy(
        older / "manifest.json", path / "manifest.json"),
    "all files of another checkpoint": lambda path, older: shutil.copytree(older, path, dirs_exist_ok=True),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_checkpoint_is_kept_aside_with_one_line_and_the_one_before_is_loaded(damage: str, tmp_path: Path):
    (tmp_path / "outside.pt").write_bytes(b"12345")
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    older = checkpoints.save(1, {"step": 1, "weights": -WEIGHTS, "moments": MOMENTS})
    path = checkpoints.save(2, {"step": 2, "weights": WEIGHTS, "moments": MOMENTS})
    DAMAGES[damage](path, older)
    with pytest.raises(DamagedError) as caught:
        checkpoints.load(path)
    assert "\n" not in str(caught.value) and str(path) in str(caught.value)
    found = checkpoints.newest()
    assert found.path == older and found.state["step"] == 1 and torch.equal(found.state["weights"], -WEIGHTS)
    (line,) = found.notes
    assert line == f"{caught.value}: resumed from 00000001; kept as 00000002.damaged"
    assert sorted(each.name for each in checkpoints.directory.iterdir() if each.name[0] == "0") == [
        "00000001", "00000002.damaged",
    ]  # fmt: skip
    assert checkpoints.newest().notes == ()
    checkpoints.save(2, {"step": "again"})
    assert checkpoints.load()["step"] == "again" and (checkpoints.directory / "00000002.damaged").exists()


def test_damaged_checkpoints_of_one_number_are_all_kept(tmp_path: Path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, STATE)
    for _ in range(3):
        os.truncate(checkpoints.save(2, STATE) / "state.pt", 3)
        assert checkpoints.newest().path.name == "00000001"
    assert sorted(each.name for each in tmp_path.iterdir()) == [
        "00000001", "00000002.damaged", "00000002.damaged-2", "00000002.damaged-3",
    ]  # fmt: skip


def test_a_file_that_the_manifest_does_not_name_changes_nothing(tmp_path: Path):
    checkpoints = Checkpoints(tmp_path)
    path = checkpoints.save(1, STATE)
    (path / "more.pt").write_bytes(b"more")
    assert checkpoints.newest().notes == () and checkpoints.load()["updates"] == 3


def test_where_every_checkpoint_is_damaged_the_run_does_not_begin_anew_and_nothing_is_moved(tmp_path: Path):
    checkpoints = Checkpoints(tmp_path)
    for step in (1, 2):
        flipped(checkpoints.save(step, STATE) / "state.pt", 0.5)
    for _ in range(2):
        with pytest.raises(CheckpointError, match=r"00000002/state\.pt: .* has 2 checkpoints, all damaged"):
            checkpoints.newest()
    assert [path.name for path in checkpoints.complete()] == ["00000001", "00000002"]


def test_a_checkpoint_that_cannot_be_read_now_is_not_taken_for_damaged(tmp_path: Path):
    checkpoints = Checkpoints(tmp_path)
    for step in (1, 2):
        checkpoints.save(step, STATE)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))  # none can be opened any more
    try:
        with pytest.raises(CheckpointError, match="Too many open files") as caught:
            Checkpoints(tmp_path).load(tmp_path / "00000002")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert not isinstance(caught.value, DamagedError)
    assert checkpoints.newest().path.name == "00000002"


def test_manifest_has_the_checksum_of_every_file_as_another_program_computes_it(tmp_path: Path):
    path = Checkpoints(tmp_path).save(3, {"weights": torch.arange(3e6), "small": torch.ones(3)})
    manifest = json.loads((path / "manifest.json").read_bytes())
    content = (path / "state.pt").read_bytes()
    assert manifest == {
        "format": 2, "step": 3, "size_bytes": {"state.pt": len(content)},
        "sha256": {"state.pt": hashlib.sha256(content).hexdigest()},
    }  # fmt: skip


def test_checkpoint_of_the_first_format_is_loaded_and_reported_as_unverified(tmp_path: Path):
    checkpoints = Checkpoints(tmp_path)
    path = checkpoints.save(1, STATE)
    rewritten(path / "manifest.json", lambda found: {key: found[key] for key in ("step", "size_bytes")})
    found = checkpoints.newest()
    assert found.state["updates"] == 3
    assert found.notes == (f"{path}: written without checksums by an older version, loaded without verification",)


def test_loading_runs_no_code(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    path = checkpoints.save(1, STATE)

    class Malicious:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "ran"),)

    torch.save({"state": Malicious(), "random": {}}, path / "state.pt")
    content = (path / "state.pt").read_bytes()  # and whoever wrote it has written its checksum too
    manifest_with(
        size_bytes={"state.pt": len(content)}, sha256={"state.pt": hashlib.sha256(content).hexdigest()}
    )(path, path)  # fmt: skip
    with pytest.raises(CheckpointError, match="cannot be read"):
        checkpoints.load(path)
    assert not (tmp_path / "ran").exists()


def test_full_disk_keeps_the_previous_checkpoint_and_no_partial_one(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, STATE)
    # A limit on the size of files fails a write in its middle, as a full disk does.
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, limits[1]))
    try:
        with pytest.raises(CheckpointError, match="checkpoint 2 was not written") as caught:
            checkpoints.save(2, {"weights": torch.zeros(10**6)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "\n" not in str(caught.value) and "File too large" in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["00000001"]
    assert checkpoints.load()["updates"] == 3


def test_path_that_is_not_a_directory_is_a_one_line_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="checkpoint 1 was not written"):
        Checkpoints(tmp_path / "file" / "checkpoints").save(1, STATE)


def save_forever(folder):
    checkpoints, step = Checkpoints(folder), 0
    while True:
        step += 1
        checkpoints.save(step, {"weights": torch.full((200_000,), float(step)), "step": step})
        sys.stdout.write(f"{step}\n")


def test_newest_checkpoint_is_complete_after_sigkill(tmp_path):
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    for round_number in range(3):
        run = Forked(save_forever, tmp_path / "checkpoints", folder=tmp_path)
        while run.running and run.output().count("\n") < round_number + 2:
            time.sleep(0.002)
        run.signal(signal.SIGKILL)
        code, output = run.wait()
        assert code == -signal.SIGKILL, output
        state = checkpoints.load()
        assert state["step"] >= int(output.splitlines()[-1])
        assert (state["weights"] == state["step"]).all()
