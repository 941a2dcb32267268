"""Layers are built once and published atomically; what a failed or killed builder leaves is never used."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from benchmarks.waiting import wait_until
from swegym_env.errors import LayerError
from swegym_env.sandbox import layers
from swegym_env.sandbox.identity import sandbox_user
from swegym_env.sandbox.layers import LayerStore, Provenance, disk_bytes
from swegym_env.sandbox.linux.files import remove_tree
from swegym_env.sandbox.linux.processes import descendants

KEY = ("kind", "a", "b")


def test_a_layer_is_built_once_for_many_threads(store: LayerStore) -> None:
    builds = []

    def build(layer: Path) -> None:
        builds.append(threading.get_ident())
        (layer / "file").write_text("x")

    with ThreadPoolExecutor(8) as pool:
        paths = set(pool.map(lambda _: LayerStore(store.root).get_or_build(KEY, build), range(24)))
    assert len(builds) == 1
    assert {(path / "file").read_text() for path in paths} == {"x"}
    assert paths == {store.path_of(KEY)}
    assert store.path_of(KEY).stat().st_uid == sandbox_user()[0]


def test_key_parts_are_hashed_with_their_boundaries(store: LayerStore) -> None:
    assert store.path_of(("kind", "ab", "c")) != store.path_of(("kind", "a", "bc"))


def test_a_builder_that_fails_publishes_nothing_and_the_next_one_may_succeed(store: LayerStore) -> None:
    def fail(layer: Path) -> None:
        (layer / "half").write_text("x")
        raise ValueError("no luck")

    with pytest.raises(ValueError, match="no luck"):
        store.get_or_build(KEY, fail)
    assert not store.path_of(KEY).exists()
    assert list((store.root / ".building").iterdir()) == []
    path = store.get_or_build(KEY, lambda layer: (layer / "whole").touch())
    assert [entry.name for entry in path.iterdir()] == ["whole"]


def test_a_removed_layer_is_built_again(store: LayerStore) -> None:
    path = store.get_or_build(KEY, lambda layer: (layer / "one").touch())
    remove_tree(path)
    again = store.get_or_build(KEY, lambda layer: (layer / "two").touch())
    assert [entry.name for entry in again.iterdir()] == ["two"]


_BUILDER = """
import sys
from pathlib import Path
from swegym_env.sandbox import layers

layers._LEASE_S, layers._HEARTBEAT_S = map(float, sys.argv[2:])
with layers.LayerStore(Path(sys.argv[1])).building("name") as temporary:
    (temporary / "half").write_text("x")
    print("building", flush=True)
    sys.stdin.read()
"""
# A process namespace of its own stands for another machine: neither can look up the other's processes.
_AS_USER = () if os.geteuid() == 0 else ("--user", "--map-current-user")
_ON_ANOTHER_MACHINE = ("unshare", *_AS_USER, "--pid", "--fork", "--kill-child", "--mount-proc")


@pytest.fixture
def short_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers, "_LEASE_S", 0.6)
    monkeypatch.setattr(layers, "_HEARTBEAT_S", 0.1)


def builder(store: LayerStore, *before: str) -> subprocess.Popen[str]:
    """Another process that builds under the lock "name" until its standard input ends."""
    store.root.mkdir(exist_ok=True)
    process = subprocess.Popen(
        [*before, sys.executable, "-c", _BUILDER, str(store.root), str(layers._LEASE_S), str(layers._HEARTBEAT_S)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "building\n"
    return process


def kill(process: subprocess.Popen[str]) -> None:
    """Kill it while it holds the lock, and wait until the process within a namespace has gone too."""
    below = descendants(process.pid)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert wait_until(lambda: not any(os.path.exists(f"/proc/{pid}/exe") for pid in below), 10)


def test_one_thread_builds_at_a_time(store: LayerStore) -> None:
    inside, most = 0, 0
    mutex = threading.Lock()

    def turn(_: int) -> None:
        nonlocal inside, most
        with store.building("name"):
            with mutex:
                inside += 1
                most = max(most, inside)
            time.sleep(0.001)
            with mutex:
                inside -= 1

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(turn, range(16)))
    assert most == 1
    assert [list((store.root / place).iterdir()) for place in (".locks", ".building")] == [[], []]


@pytest.mark.usefixtures("short_lease")
@pytest.mark.parametrize("before", [(), _ON_ANOTHER_MACHINE], ids=["this machine", "another machine"])
def test_a_lock_that_is_renewed_is_waited_for_beyond_its_lease(store: LayerStore, before: tuple[str, ...]) -> None:
    with builder(store, *before) as other, ThreadPoolExecutor(1) as pool:

        def wait() -> float:
            with store.building("name"):
                return time.monotonic()

        acquired = pool.submit(wait)
        time.sleep(1.0)
        assert not acquired.done()
        assert store.collect_garbage() == ()
        released = time.monotonic()
        other.communicate()
        assert acquired.result(timeout=10) >= released


def test_a_killed_builder_of_this_machine_is_replaced_at_once(store: LayerStore) -> None:
    with builder(store) as other:
        kill(other)
    assert list((store.root / ".locks").iterdir()) != []
    (garbage,) = store.collect_garbage()
    assert garbage.name.startswith("name.")
    assert [list((store.root / place).iterdir()) for place in (".locks", ".building")] == [[], []]
    with store.building("name"):
        pass


@pytest.mark.usefixtures("short_lease")
def test_a_killed_builder_of_another_machine_is_replaced_when_its_lease_ends(store: LayerStore) -> None:
    with builder(store, *_ON_ANOTHER_MACHINE) as other:
        kill(other)
    assert store.collect_garbage() == ()  # this machine cannot look up that owner
    began = time.monotonic()
    with store.building("name"):
        assert time.monotonic() - began >= 0.5
    assert len(store.collect_garbage()) == 1


@pytest.mark.usefixtures("short_lease")
def test_a_builder_whose_lock_was_taken_over_does_not_release_it(store: LayerStore) -> None:
    with builder(store) as other:
        (store.root / ".locks" / "name").unlink()  # as a waiting builder does when the lease has ended
        with store.building("name"):
            other.communicate()
            assert (store.root / ".locks" / "name").exists()


def test_an_empty_lock_file_is_left_alone_while_it_is_new(store: LayerStore) -> None:
    lock = store.root / ".locks" / "name"
    lock.parent.mkdir(parents=True)
    lock.touch()
    store.collect_garbage()
    assert lock.exists()
    os.utime(lock, (1_000_000_000, 1_000_000_000))
    store.collect_garbage()
    assert not lock.exists()


def test_a_builder_waits_for_an_empty_lock_file_no_longer_than_it_is_new(
    store: LayerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layers, "_UNWRITTEN_S", 0.5)
    lock = store.root / ".locks" / store.path_of(KEY).name
    lock.parent.mkdir(parents=True)
    lock.touch()
    waiting = threading.Thread(target=lambda: store.get_or_build(KEY, lambda _: None), daemon=True)
    waiting.start()
    waiting.join(10)
    assert store.path_of(KEY).is_dir()


def test_a_lock_of_another_machine_that_was_not_renewed_for_a_day_is_garbage(store: LayerStore) -> None:
    with builder(store, *_ON_ANOTHER_MACHINE) as other:
        kill(other)
    assert store.collect_garbage() == ()
    (lock,) = (store.root / ".locks").iterdir()
    os.utime(lock, (1_000_000_000, 1_000_000_000))
    assert len(store.collect_garbage()) == 1
    assert [list((store.root / place).iterdir()) for place in (".locks", ".building")] == [[], []]


def test_layers_not_used_for_long_are_removed_on_request(store: LayerStore) -> None:
    old = store.get_or_build(("kind", "old"), lambda layer: (layer / "f").touch())
    new = store.get_or_build(("kind", "new"), lambda layer: (layer / "f").touch())
    os.utime(store.root / ".uses" / old.name, (1_000_000_000, 1_000_000_000))
    unused = store.unused_for(7 * 24 * 3600)
    assert [layer.path for layer in unused] == [old]
    assert old.is_dir()
    store.remove(unused)
    assert store.unused_for(7 * 24 * 3600) == []
    assert new.is_dir()
    assert not old.exists()


def test_a_layer_that_is_used_after_it_was_listed_is_not_removed(store: LayerStore) -> None:
    path = store.get_or_build(KEY, lambda layer: (layer / "f").touch())
    os.utime(store.root / ".uses" / path.name, (1_000_000_000, 1_000_000_000))
    unused = store.unused_for(7 * 24 * 3600)
    LayerStore(store.root).get_or_build(KEY, lambda _: None)
    assert store.remove(unused) == []
    assert (path / "f").exists()


def test_adding_up_the_bytes_of_a_layer_is_no_use(store: LayerStore) -> None:
    path = store.get_or_build(KEY, lambda layer: (layer / "f").touch())
    (store.root / ".uses" / path.name).unlink()  # of a layer that is older than these notes
    os.utime(path, (1_000_000_000, 1_000_000_000))
    unused = store.unused_for(7 * 24 * 3600)
    assert disk_bytes(path) > 0
    assert store.remove(unused) == unused
    assert not path.exists()


def test_several_may_list_and_remove_layers_at_once(store: LayerStore) -> None:
    def build(layer: Path) -> None:
        for number in range(20):
            (layer / str(number)).mkdir()

    def turn(_: int) -> None:
        for number in range(30):
            mine = LayerStore(store.root)
            mine.get_or_build(("kind", str(number % 3)), build)
            for layer in mine.layers():
                disk_bytes(layer.path)
            mine.remove(mine.layers())

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(turn, range(4)))
    assert store.layers() == []


def test_what_is_known_of_a_layer_outlives_the_removal_of_the_one_before(store: LayerStore) -> None:
    key = ("repository", "some/thing")

    def build_many(layer: Path) -> None:
        for number in range(20_000):
            (layer / str(number)).touch()

    path = store.get_or_build(key, build_many, Provenance())
    with ThreadPoolExecutor(1) as pool:
        removed = pool.submit(store.remove, store.layers())
        assert wait_until(lambda: not path.is_dir(), 10)
        store.get_or_build(key, lambda layer: (layer / "f").touch(), Provenance())
        removed.result()
    assert store.record(path.name) is not None


def test_a_record_that_a_crash_cut_off_is_written_again(store: LayerStore) -> None:
    path = store.get_or_build(("repository", "a"), lambda _: None, Provenance())
    (store.root / ".records" / f"{path.name}.json").write_text("")
    LayerStore(store.root).get_or_build(("repository", "a"), lambda _: None, Provenance())
    assert store.travelling() == [path.name]


def test_other_directories_in_the_store_are_no_layers(store: LayerStore) -> None:
    path = store.get_or_build(KEY, lambda _: None)
    (store.root / "lost+found").mkdir()  # where a file system is mounted
    os.utime(store.root / "lost+found", (1_000_000_000, 1_000_000_000))
    assert [layer.path for layer in store.layers()] == [path]
    assert store.unused_for(7 * 24 * 3600) == []


def test_what_is_known_of_layers_that_are_gone_is_garbage(store: LayerStore) -> None:
    paths = [store.get_or_build(("repository", name), lambda _: None, Provenance()) for name in "ab"]
    remove_tree(paths[0])
    store.collect_garbage()
    assert [place.stem for place in (store.root / ".records").iterdir()] == [paths[1].name]
    assert [place.name for place in (store.root / ".uses").iterdir()] == [paths[1].name]


def test_using_a_layer_keeps_it_from_being_collected(store: LayerStore) -> None:
    path = store.get_or_build(KEY, lambda layer: (layer / "f").touch())
    for user in (LayerStore(store.root), store):  # one that finds it on disk, and one that knows it
        os.utime(store.root / ".uses" / path.name, (1_000_000_000, 1_000_000_000))
        user.get_or_build(KEY, lambda _: None)
        assert store.unused_for(7 * 24 * 3600) == []


def test_a_store_that_cannot_be_written_is_a_layer_error(store: LayerStore) -> None:
    store.root.parent.joinpath("file").write_text("")
    with pytest.raises(LayerError, match=r"cannot be (built|made)|Not a directory"):
        LayerStore(store.root.parent / "file" / "layers").get_or_build(KEY, lambda _: None)


@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user cannot mount a file system: run as root")
def test_a_layer_of_a_store_that_cannot_be_written_any_more_is_used(store: LayerStore) -> None:
    store.root.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755", "none", store.root], check=True)
    try:
        path = store.get_or_build(("repository", "a"), lambda layer: (layer / "f").touch(), Provenance())
        (store.root / ".records" / f"{path.name}.json").unlink()
        subprocess.run(["mount", "-o", "remount,ro", store.root], check=True)
        assert LayerStore(store.root).find(("repository", "a"), Provenance()) == path
    finally:
        subprocess.run(["umount", "--lazy", store.root], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user: run as root")
def test_a_layer_of_a_store_that_another_user_keeps_private_is_used(store: LayerStore) -> None:
    path = store.get_or_build(("repository", "a"), lambda layer: (layer / "f").touch(), Provenance())
    for place in (".records", ".uses"):  # as with umask 077
        (store.root / place).chmod(0o700)
    os.seteuid(65534)
    try:
        assert LayerStore(store.root).get_or_build(("repository", "a"), lambda _: None, Provenance()) == path
    finally:
        os.seteuid(0)


@pytest.mark.skipif(os.geteuid() != 0, reason="who is not root is the sandboxes' user too; run as root to see it")
def test_a_store_closed_to_the_sandbox_user_is_a_layer_error(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    with pytest.raises(LayerError, match="chmod o"):
        LayerStore(tmp_path / "layers").get_or_build(KEY, lambda _: None)


def test_bytes_of_a_layer_count_a_linked_file_once(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    empty = disk_bytes(tmp_path)
    (tmp_path / "a/file").write_bytes(b"x" * 100_000)
    once = disk_bytes(tmp_path)
    assert 100_000 <= once - empty <= 110_000
    (tmp_path / "again").hardlink_to(tmp_path / "a/file")
    assert disk_bytes(tmp_path) == once
    assert disk_bytes(tmp_path, {(status.st_dev, status.st_ino) for status in [(tmp_path / "again").stat()]}) < once
