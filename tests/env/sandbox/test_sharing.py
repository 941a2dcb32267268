"""Layers travel through shared stores: whole and equal, or not at all, whatever the store holds and who dies when."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import fcntl
import hashlib
import json
import os
import random
import shutil
import signal
import stat
import subprocess
import sys
import urllib.parse
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from benchmarks.waiting import wait_until
from swegym_env.errors import ConfigurationError, LayerError
from swegym_env.sandbox.identity import sandbox_user
from swegym_env.sandbox.layers import LayerStore, Provenance, layer_name, mark_opaque, system_of
from swegym_env.sandbox.sharing import import_layer, open_shared_store, pack_layer, share_layer
from swegym_env.sandbox.sharing.api import Manifest
from swegym_env.sandbox.sharing.squashfs import read_tree, unpack
from tests.env.sandbox.layer_servers import running_registry, serving_files, serving_static

pytestmark = pytest.mark.skipif(
    shutil.which("mksquashfs") is None, reason="no mksquashfs: scripts/install_apptainer.sh"
)
KEY = ("environment", "some/thing", "1.0")
NAME = layer_name(KEY)
NOISE = random.Random(1).randbytes(1 << 20)
HTPASSWD = "lab:$2y$04$6AVtWGilNN02fq2tlqX/jOu7QpBhiDCWBO2CbZ/uZTji2NN.n7UJu\n"  # as `htpasswd -nbB lab secret` prints


def fill(layer: Path) -> None:
    """Everything that layers have: programs, links, whiteouts, an opaque directory, files of all sizes, odd names."""
    (layer / "opt/bin").mkdir(parents=True)
    (layer / "opt/bin/run").write_text("#!/bin/sh\n")
    (layer / "opt/bin/run").chmod(0o755)
    (layer / "opt/python").symlink_to("/usr/bin/python3")
    (layer / "opt/loop").symlink_to("loop")
    os.mknod(layer / "opt/gone", stat.S_IFCHR, os.makedev(0, 0))
    (layer / "opt/noise").write_bytes(NOISE)
    (layer / "opt/noise-and-more").write_bytes(NOISE[:300_000] + b"tail")
    os.link(layer / "opt/noise", layer / "opt/second-name")
    (layer / "opt/hole").write_bytes(bytes(1 << 20) + b"end")
    (layer / "opt/empty").touch()
    (layer / "opt/none").mkdir()
    (layer / "opt/private").mkdir(mode=0o700)
    (layer / "opt/private/key").write_text("k")
    (layer / "opt/private/key").chmod(0o600)
    (layer / "opt/line\nbreak; rm").write_text("odd")
    Path(os.fsdecode(os.fsencode(layer) + b"/opt/\xff\xfe")).write_text("bytes")
    (layer / "testbed/.git").mkdir(parents=True)
    mark_opaque(layer / "testbed/.git")
    many = layer / "opt/many"
    many.mkdir()
    for number in range(600):
        (many / f"file-{number:03}").write_text(f"{number}\n" * (number % 7))
    os.utime(layer / "opt/bin/run", (1_600_000_000, 1_600_000_000))


def described(layer: Path) -> dict[str, object]:
    """Path → all that travels of each file."""
    found: dict[str, object] = {}
    for place, names, files in os.walk(os.fsencode(layer)):
        for name in (*names, *files):
            path = os.path.join(place, name)
            status = os.lstat(path)
            content: object = None
            if stat.S_ISREG(status.st_mode):
                with open(path, "rb") as file:
                    content = hashlib.sha256(file.read()).hexdigest()
            elif stat.S_ISLNK(status.st_mode):
                content = os.readlink(path)
            elif stat.S_ISDIR(status.st_mode):
                content = "user.overlay.opaque" in os.listxattr(path)
            what = (status.st_mode, status.st_rdev, int(status.st_mtime), status.st_uid, content)
            found[os.fsdecode(os.path.relpath(path, os.fsencode(layer)))] = what
    return found


@pytest.fixture
def built(store: LayerStore) -> LayerStore:
    """A store that has built one layer."""

    def build(layer: Path) -> None:
        fill(layer)
        for place, names, files in os.walk(os.fsencode(layer)):
            for name in (*names, *files):
                os.chown(os.path.join(place, name), *sandbox_user(), follow_symlinks=False)

    store.get_or_build(KEY, build, Provenance(("below-1",), system_of("host")))
    return store


@pytest.fixture
def folder(tmp_path: Path, built: LayerStore) -> Path:
    """A shared store in a folder, with that layer."""
    shared = open_shared_store(str(tmp_path / "shared"))
    shared.create()
    share_layer(built, NAME, shared)
    return tmp_path / "shared"


@pytest.fixture
def empty(built: LayerStore) -> Path:
    """The place of another machine's store."""
    return built.root.parent / "other"


def take(address: object, empty: Path) -> Path:
    store = LayerStore(empty, shared=str(address))
    import_layer(store, open_shared_store(str(address)), NAME)
    return store.path_of(KEY)


def left_over(root: Path) -> list[str]:
    return [str(path) for kind in (".building", ".locks") for path in (root / kind).glob("*")]


def test_a_layer_is_equal_on_the_other_side_and_packs_to_the_same_digest(
    built: LayerStore, folder: Path, empty: Path, tmp_path: Path
) -> None:
    taken = take(folder, empty)
    assert described(taken) == described(built.path_of(KEY))
    assert len(described(taken)) > 600 and left_over(empty) == []
    first, second = (pack_layer(LayerStore(root), NAME, tmp_path / root.name) for root in (built.root, empty))
    assert first == second and (tmp_path / built.root.name).read_bytes() == (tmp_path / empty.name).read_bytes()
    assert first.provenance == Provenance(("below-1",), system_of("host"))
    # An independent implementation reads the same files.
    subprocess.run(
        ["unsquashfs", "-q", "-n", "-d", tmp_path / "theirs", tmp_path / empty.name], check=os.geteuid() == 0
    )
    theirs = described(tmp_path / "theirs")
    here = described(taken)
    assert theirs.keys() - here.keys() == set() and here.keys() - theirs.keys() <= {"opt/gone"}
    assert {path: theirs[path][4] for path in theirs if path != "testbed/.git"} == {  # type: ignore[index]
        path: here[path][4]
        for path in theirs
        if path != "testbed/.git"  # type: ignore[index]
    }


def test_a_store_takes_a_layer_instead_of_building_it_and_builds_what_the_shared_store_lacks(
    folder: Path, empty: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: Path) -> None:
        raise AssertionError("built")

    system = Provenance((), system_of("host"))
    monkeypatch.setenv("SWEGYM_LAYERS", str(folder))
    taken = LayerStore(empty).get_or_build(KEY, fail, system)
    assert (taken / "opt/bin/run").is_file() and LayerStore(empty).offered("environment") == [KEY]
    other = (*KEY, "other")
    with pytest.raises(LayerError, match=rf"{layer_name(other)} is not in {folder}"):
        LayerStore(empty, may_build=False).get_or_build(other, fail, system)
    assert LayerStore(empty).find(other, system) is None
    own = LayerStore(empty).get_or_build(other, lambda layer: (layer / "own").touch(), system)
    assert (own / "own").exists()
    # One for another system is left alone, and one that does not travel is never looked for.
    assert LayerStore(empty.parent / "third").find(KEY, Provenance((), "plan9 4 mips")) is None
    monkeypatch.setenv("SWEGYM_LAYERS", str(folder / "nowhere"))
    LayerStore(empty).get_or_build(("tools", "x"), lambda layer: (layer / "own").touch())
    with pytest.raises(LayerError, match="no such folder"):
        LayerStore(empty).find((*KEY, "third"), system)


def test_an_address_of_no_known_kind_is_a_configuration_error() -> None:
    with pytest.raises(ConfigurationError, match=r"gopher://x: expected .* a folder, .*oci://"):
        open_shared_store("gopher://x")
    with pytest.raises(ConfigurationError, match="oci://HOST/NAME"):
        open_shared_store("oci://only-a-host")
    for address in ("http://[::1", "oci://[::1/name"):
        with pytest.raises(ConfigurationError, match="Invalid IPv6 URL"):
            open_shared_store(address)


# Archives that are refused


def plant(folder: Path, blob: bytes, **changes: object) -> None:
    """Put a blob in the place of the layer's, with a manifest that fits to it but for `changes`."""
    text = (folder / "layers" / f"{NAME}.json").read_text()
    known = Manifest.from_json(text, NAME, "")
    place = folder / "blob"
    place.write_bytes(blob)
    counted = {"entries": 0, "unpacked_bytes": 0}
    with contextlib.suppress(LayerError):
        tree = read_tree(place)
        counted = {"entries": tree.entries, "unpacked_bytes": tree.size_bytes}
    digest = hashlib.sha256(blob).hexdigest()
    fields = {"digest": digest, "size_bytes": len(blob), "opaque": (), **counted, **changes}
    (folder / "blobs/sha256" / digest).write_bytes(blob)
    (folder / "layers" / f"{NAME}.json").write_text(dataclasses.replace(known, **fields).to_json())  # type: ignore[arg-type]


def packed(tmp_path: Path, make: Callable[[Path], None], *options: str, plain: bool = True) -> bytes:
    """A squashfs file, packed by `mksquashfs` itself; `plain`: with readable tables."""
    source, image = tmp_path / "source", tmp_path / "image"
    source.mkdir()
    make(source)
    readable = ("-noI", "-noId", "-noD", "-noF", "-noX") if plain else ()
    command = ["mksquashfs", source, image, "-noappend", "-quiet", "-no-progress", "-all-root", *readable, *options]
    subprocess.run(command, check=True, capture_output=True)
    return image.read_bytes()


def two(source: Path) -> None:
    for name in ("aa_directory", "bb_directory"):
        (source / name).mkdir()
        (source / name / "inside").write_text(name)


def renamed(to: bytes) -> Callable[[bytes], bytes]:
    return lambda blob: blob.replace(b"bb_directory", to)


def entered_twice(blob: bytes) -> bytes:
    """The second directory's entry leads to the first one's inode."""
    first, second = (blob.rindex(name) - 8 for name in (b"aa_directory", b"bb_directory"))
    return blob[:second] + blob[first : first + 2] + blob[second + 2 :]


def without_end(blob: bytes) -> bytes:
    """The second directory's entry leads to the root."""
    second = blob.rindex(b"bb_directory") - 8
    return blob[:second] + blob[32:34] + blob[second + 2 :]


def same(blob: bytes) -> bytes:
    return blob


def nothing(source: Path) -> None:
    (source / "file").write_text("x")


def with_set_uid(source: Path) -> None:
    (source / "su").write_text("x")
    (source / "su").chmod(0o4755)


def with_set_gid_directory(source: Path) -> None:
    (source / "shared").mkdir()
    (source / "shared").chmod(0o2755)


def with_opaque(source: Path) -> None:
    (source / "usr").mkdir()
    os.setxattr(source / "usr", "user.overlay.opaque", b"y")


def with_link_for_testbed(source: Path) -> None:
    (source / "testbed").symlink_to("/etc")


REFUSED = {
    "set-uid": (with_set_uid, same, (), "'su': set-uid"),
    "set-gid": (with_set_gid_directory, same, (), "'shared': set-uid or set-gid"),
    "device": (nothing, same, ("-p", "disk b 666 0 0 8 0"), "'disk': a device"),
    "memory": (nothing, same, ("-p", "mem c 666 0 0 1 1"), "'mem': a device"),
    "pipe": (lambda source: os.mkfifo(source / "pipe"), same, (), "'pipe': a pipe"),
    "attributes": (with_opaque, same, ("-xattrs",), "extended attributes"),
    "up": (two, renamed(b"../../../out"), (), "leads elsewhere"),
    "absolute": (two, renamed(b"/tmp/outside"), (), "leads elsewhere"),
    "zero": (two, renamed(b"bb\0directory"), (), "leads elsewhere"),
    "twice": (two, renamed(b"aa_directory"), (), "'aa_directory': twice in its directory"),
    "parents": (two, entered_twice, (), "'bb_directory': a directory with two parents"),
    "cycle": (two, without_end, (), "'bb_directory': a directory with two parents"),
    "testbed": (with_link_for_testbed, same, (), "'testbed' is no directory"),
    "method": (nothing, same, ("-comp", "xz"), "expected gzip"),
    "no squashfs": (nothing, lambda _: b"\x7fELF" * 1000, (), "no squashfs file of version 4.0"),
    "cut": (nothing, lambda blob: blob[:200], (), "its end is missing"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_an_archive_with_what_no_layer_has_is_refused_before_anything_is_written(
    kind: str, folder: Path, empty: Path, tmp_path: Path
) -> None:
    make, change, options, reason = REFUSED[kind]
    blob = change(packed(tmp_path, make, *options, *(() if "-xattrs" in options else ("-no-xattrs",))))
    plant(folder, blob)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(LayerError, match="refused") as raised:
        take(folder, empty)
    assert reason in str(raised.value)
    assert sorted(tmp_path.rglob("*")) == before
    assert [path.name for path in empty.iterdir() if not path.name.startswith(".")] == left_over(empty) == []


def test_the_archives_that_are_changed_above_are_accepted_unchanged(folder: Path, empty: Path, tmp_path: Path) -> None:
    plant(folder, packed(tmp_path, two, "-no-xattrs"))
    assert (take(folder, empty) / "bb_directory/inside").read_text() == "bb_directory"


def test_a_manifest_that_does_not_fit_is_refused(folder: Path, empty: Path, tmp_path: Path) -> None:
    blob = packed(tmp_path, two, "-no-xattrs")
    for changes, reason in (
        ({"entries": 1}, "expected 1 names"),
        ({"unpacked_bytes": 1 << 40}, "bytes, got"),
        ({"opaque": ("aa_directory",)}, "'aa_directory' may not hide"),
        ({"opaque": ("testbed/../..",)}, "may not hide"),
        ({"digest": "../../../etc/passwd"}, "expected a SHA-256 digest"),
        ({"key": ("environment", "another")}, "its key is that of another layer"),
        ({"size_bytes": -1}, "expected three sizes"),
        ({"opaque": ("testbed/\ud800",)}, "'testbed/\\ud800' may not hide"),
    ):
        plant(folder, blob)
        plant(folder, blob, **changes)
        with pytest.raises(LayerError, match="refused") as raised:
            take(folder, empty)
        assert reason in str(raised.value)
        (folder / "layers" / f"{NAME}.json").unlink()
        shutil.rmtree(folder)
        folder.mkdir()
        share_layer(LayerStore(empty.parent / "layers"), NAME, open_shared_store(str(folder)))
    name = layer_name(("bundle", "x"))
    manifest = (folder / "layers" / f"{NAME}.json").read_text().replace(json.dumps(KEY[0]), '"bundle"')
    (folder / "layers" / f"{name}.json").write_text(manifest.replace(NAME, name))
    with pytest.raises(LayerError, match="refused"):
        import_layer(LayerStore(empty, shared=str(folder)), open_shared_store(str(folder)), name)
    (folder / "layers" / f"{NAME}.json").write_text("[" * 200_000)
    with pytest.raises(LayerError, match="refused: maximum recursion depth"):
        take(folder, empty)


def test_a_layer_that_would_be_refused_is_not_sent(store: LayerStore, tmp_path: Path) -> None:
    store.get_or_build(KEY, with_set_uid, Provenance())
    shared = open_shared_store(str(tmp_path / "shared"))
    shared.create()
    with pytest.raises(LayerError, match="'su': set-uid"):
        share_layer(store, NAME, shared)
    assert shared.names() == []


def test_a_layer_that_is_removed_while_it_is_packed_is_not_sent(store: LayerStore, tmp_path: Path) -> None:
    def build(layer: Path) -> None:
        (layer / "testbed/.git").mkdir(parents=True)
        mark_opaque(layer / "testbed/.git")
        for number in range(50):
            (layer / f"{number:02}").write_bytes(random.Random(number).randbytes(40_000))

    built = store.get_or_build(KEY, build, Provenance())
    with (built / "00").open("rb+") as first, ThreadPoolExecutor(1) as pool:
        fcntl.fcntl(first, fcntl.F_SETSIG, signal.SIGWINCH)  # ignored, where SIGIO ends the process
        fcntl.fcntl(first, fcntl.F_SETLEASE, fcntl.F_WRLCK)  # whoever opens the file waits until this is given back
        packed = pool.submit(pack_layer, store, NAME, tmp_path / "blob")
        reading = wait_until(lambda: fcntl.fcntl(first, fcntl.F_GETLEASE) != fcntl.F_WRLCK, patience_s=30)
        store.remove(store.layers())
        fcntl.fcntl(first, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        assert reading, "mksquashfs did not open the first file"
        with pytest.raises(LayerError, match="mksquashfs cannot pack it"):
            packed.result()


def test_whatever_the_bytes_are_unpacking_ends_in_files_below_the_target_or_in_an_error(tmp_path: Path) -> None:
    """Bytes of tables and data are changed at random: nothing but LayerError is raised, nothing is written outside."""

    def make(source: Path) -> None:
        two(source)
        (source / "data").write_bytes(NOISE[:200_000] + bytes(100_000))
        (source / "link").symlink_to("../../../../outside")
        os.mknod(source / "gone", stat.S_IFCHR, os.makedev(0, 0))

    chance = random.Random(7)
    ends = {True: 0, False: 0}
    for plain in (True, False):
        scratch = tmp_path / f"plain-{plain}"
        scratch.mkdir()
        blob = packed(scratch, make, "-no-xattrs", plain=plain)
        tables = len(blob) - 1500
        for attempt in range(400):
            damaged = bytearray(blob)
            for _ in range(chance.randint(1, 4)):
                where = chance.randrange(96) if attempt % 4 == 0 else chance.randrange(tables, len(blob))
                damaged[where] = chance.randrange(256)
            image, target = scratch / "damaged", scratch / "out" / "target"
            target.mkdir(parents=True)
            image.write_bytes(damaged)
            try:
                unpack(image, read_tree(image), target)
                ends[True] += 1
            except LayerError:
                ends[False] += 1
            assert [path.name for path in (scratch / "out").iterdir()] == ["target"]
            shutil.rmtree(scratch / "out")
    assert min(ends.values()) > 20


# Damage and interruption


def blob_of(folder: Path) -> Path:
    (blob,) = (folder / "blobs/sha256").iterdir()
    return blob


SHARE = """
import sys
from pathlib import Path
from swegym_env.sandbox.layers import LayerStore
from swegym_env.sandbox.sharing import open_shared_store, share_layer
share_layer(LayerStore(Path(sys.argv[1])), sys.argv[3], open_shared_store(sys.argv[2]))
"""


def test_what_a_killed_export_left_is_garbage(built: LayerStore, tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    open_shared_store(str(tmp_path / "shared")).create()
    here = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3]), "TMPDIR": str(scratch)}
    command = [sys.executable, "-c", SHARE, str(built.root), str(tmp_path / "shared"), NAME]
    with subprocess.Popen(command, env=here, start_new_session=True) as sender:
        assert wait_until(lambda: any((built.root / ".building").glob(f"*/{NAME}")) or any(scratch.iterdir()), 30)
        os.killpg(sender.pid, signal.SIGKILL)
    assert list(scratch.iterdir()) == []
    assert len(built.collect_garbage()) == 1 and left_over(built.root) == []


def test_a_part_that_a_killed_export_left_in_a_folder_is_removed_a_day_later(folder: Path) -> None:
    old, new = (folder / "blobs/sha256" / f".{number}.partial" for number in range(2))
    old.write_text("half")
    new.write_text("half")
    os.utime(old, (1_000_000_000, 1_000_000_000))
    open_shared_store(str(folder)).create()
    assert not old.exists() and new.exists()


def test_a_layer_is_not_removed_while_it_is_sent(built: LayerStore, tmp_path: Path) -> None:
    shared = open_shared_store(str(tmp_path / "shared"))
    shared.create()
    with ThreadPoolExecutor(1) as pool:
        sent = pool.submit(share_layer, built, NAME, shared)
        assert wait_until(lambda: any((built.root / ".building").iterdir()), 30)
        built.remove(built.layers())
        sent.result()
    assert shared.names() == [NAME] and not built.path_of(KEY).exists()


def test_a_damaged_or_short_blob_is_refused_and_leaves_nothing(folder: Path, empty: Path) -> None:
    blob = blob_of(folder)
    content = blob.read_bytes()
    blob.write_bytes(content[:5000] + bytes([content[5000] ^ 1]) + content[5001:])
    with pytest.raises(LayerError, match=rf"{NAME} is damaged: expected sha256 {blob.name}, got .*export it again"):
        take(folder, empty)
    assert left_over(empty) == [] and not (empty / NAME).exists()
    blob.write_bytes(content[:-4096])
    with pytest.raises(LayerError, match=r"4096 of .* bytes are missing"):
        take(folder, empty)
    assert not (empty / NAME).exists()
    blob.write_bytes(content)
    assert take(folder, empty).is_dir() and left_over(empty) == []


TAKE = """
import sys
from pathlib import Path
from swegym_env.sandbox.layers import LayerStore
from swegym_env.sandbox.sharing import import_layer, open_shared_store
store = LayerStore(Path(sys.argv[1]), shared=sys.argv[2])
import_layer(store, open_shared_store(sys.argv[2]), sys.argv[3])
print("taken", flush=True)
"""


def taking(address: str, empty: Path) -> subprocess.Popen[str]:
    here = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    command = [sys.executable, "-c", TAKE, str(empty), address, NAME]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=here)


def test_a_killed_pull_is_continued_and_never_visible(folder: Path, empty: Path, built: LayerStore) -> None:
    with serving_files(folder) as server:
        server.slow_s = 0.2
        pull = taking(server.address, empty)
        partial = empty / ".building" / f"{NAME}.download"
        wait_until(lambda: partial.exists() and partial.stat().st_size > 1 << 17, patience_s=30)
        pull.send_signal(signal.SIGKILL)
        pull.communicate()
        received = partial.stat().st_size
        assert not (empty / NAME).exists() and 0 < received < blob_of(folder).stat().st_size
        server.slow_s = 0
        assert described(take(server.address, empty)) == described(built.path_of(KEY))
        assert server.ranges == [0, received]
    assert len(LayerStore(empty).collect_garbage()) == 1  # the directory that the killed one had not begun to fill
    assert left_over(empty) == []


def test_what_a_killed_pull_left_is_removed_by_garbage_collection_and_never_trusted(folder: Path, empty: Path) -> None:
    partial = empty / ".building" / f"{NAME}.download"
    partial.parent.mkdir(parents=True)
    partial.write_bytes(b"from another layer" * 1000)
    assert LayerStore(empty).collect_garbage() == (partial,) and not partial.exists()
    partial.write_bytes(b"from another layer" * 1000)
    with serving_files(folder) as server:
        assert take(server.address, empty).is_dir()
        assert server.ranges == [18_000, 0]


def test_a_connection_that_breaks_is_taken_up_again(folder: Path, empty: Path) -> None:
    with serving_files(folder) as server:
        server.drops = 2
        assert take(server.address, empty).is_dir()
        assert len(server.ranges) == 3 and 0 == server.ranges[0] < server.ranges[1] < server.ranges[2]


@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user cannot mount a file system: run as root")
def test_a_download_that_fills_the_disk_is_removed(folder: Path, empty: Path) -> None:
    empty.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m,mode=755", "none", empty], check=True)
    try:
        with pytest.raises(LayerError, match=r"No space left on device\. Try: swegym layers prune"):
            take(folder, empty)
        assert left_over(empty) == []
    finally:
        subprocess.run(["umount", "--lazy", empty], check=True)


def test_processes_that_take_one_layer_at_once_receive_it_once(folder: Path, empty: Path) -> None:
    with serving_files(folder) as server:
        server.slow_s = 0.02
        pulls = [taking(server.address, empty) for _ in range(3)]
        assert [pull.communicate()[0] for pull in pulls] == ["taken\n"] * 3
        assert server.ranges == [0] and left_over(empty) == []


# Servers


def test_any_static_server_serves_an_exported_folder(folder: Path, empty: Path, built: LayerStore) -> None:
    with serving_static(folder) as address:
        assert open_shared_store(address).names() == [NAME]
        assert open_shared_store(address).manifest("environment-none") is None
        assert described(take(address, empty)) == described(built.path_of(KEY))
    with pytest.raises(LayerError, match=r"no answer: .*[Rr]efused"):
        take(address, empty.parent / "fourth")


@pytest.mark.parametrize("place", ["http://[::1", f"http://{'a' * 70}.example/x"])
def test_a_server_that_redirects_to_no_address_is_refused(place: str) -> None:
    class Redirecting(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            self.send_response(302)
            self.send_header("Location", place)
            self.end_headers()

    with ThreadingHTTPServer(("127.0.0.1", 0), Redirecting) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        with pytest.raises(LayerError, match="no answer"):
            open_shared_store(f"http://127.0.0.1:{server.server_address[1]}").names()
        server.shutdown()


def test_layers_are_sent_to_a_server_that_takes_put(built: LayerStore, empty: Path, tmp_path: Path) -> None:
    place = tmp_path / "files"
    place.mkdir()
    with serving_files(place) as server:
        shared = open_shared_store(server.address)
        assert shared.names() == []
        assert share_layer(built, NAME, shared)[1] and not share_layer(built, NAME, shared)[1]
        assert shared.names() == [NAME]
        assert described(take(server.address, empty)) == described(built.path_of(KEY))
    with serving_static(place) as address:
        other = built.get_or_build(("setup", "x"), lambda layer: (layer / "x").touch(), Provenance()).name
        with pytest.raises(LayerError, match=r"PUT .*: 501"):
            share_layer(built, other, open_shared_store(address))


def there_and_back(address: str, built: LayerStore, empty: Path) -> None:
    shared = open_shared_store(address)
    assert shared.names() == [] and shared.manifest(NAME) is None
    assert share_layer(built, NAME, shared)[1] and not share_layer(built, NAME, shared)[1]
    assert shared.names() == [NAME]
    assert described(take(address, empty)) == described(built.path_of(KEY))


def test_an_oci_registry_keeps_layers_for_users_that_logged_in(
    built: LayerStore, empty: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "htpasswd").write_text(HTPASSWD)
    auth = f"auth: {{htpasswd: {{realm: lab, path: {tmp_path}/htpasswd}}}}\n"
    with running_registry(tmp_path / "registry", auth) as host:
        monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
        with pytest.raises(LayerError, match="401"):
            open_shared_store(f"oci+http://{host}/lab/layers").names()
        login = base64.b64encode(b"lab:secret").decode()
        (tmp_path / "config.json").write_text(json.dumps({"auths": {host: {"auth": login}}}))
        there_and_back(f"oci+http://{host}/lab/layers", built, empty)
        # Only the rest of a blob is sent where a part is there.
        partial = built.root.parent / "fifth" / ".building" / f"{NAME}.download"
        partial.parent.mkdir(parents=True)
        (blob,) = [
            path for path in (tmp_path / "registry").rglob("data") if path.is_file() and path.stat().st_size > 1e5
        ]
        partial.write_bytes(blob.read_bytes()[:100_000])
        assert take(f"oci+http://{host}/lab/layers", built.root.parent / "fifth").is_dir()
        # The registry's own copy is damaged on its disk.
        content = blob.read_bytes()
        blob.write_bytes(content[:5000] + bytes([content[5000] ^ 1]) + content[5001:])
        with pytest.raises(LayerError, match="is damaged: expected sha256"):
            take(f"oci+http://{host}/lab/layers", built.root.parent / "sixth")


@contextlib.contextmanager
def token_server() -> Iterator[tuple[str, list[str]]]:
    """Issues a token for everybody; its address, and what was asked for."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            asked.append(urllib.parse.unquote(self.path))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"token": "of-the-server"}')

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/token", asked
        server.shutdown()


def test_a_registry_whose_list_leads_back_to_itself_is_read_once() -> None:
    asked = []

    class Circular(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200 if len(asked) < 10 else 500)
            self.send_header("Link", f'<{self.path}&last={len(asked)}>; rel="next"')
            self.end_headers()
            self.wfile.write(json.dumps({"tags": [NAME]}).encode())

    with ThreadingHTTPServer(("127.0.0.1", 0), Circular) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        assert open_shared_store(f"oci+http://127.0.0.1:{server.server_address[1]}/lab/layers").names() == [NAME]
        server.shutdown()
    assert len(asked) == 2


def test_a_registry_that_asks_for_tokens_gets_them(
    built: LayerStore, empty: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    with token_server() as (realm, asked):
        auth = f"auth: {{silly: {{realm: '{realm}', service: lab}}}}\n"
        with running_registry(tmp_path / "registry", auth) as host:
            there_and_back(f"oci+http://{host}/lab/layers", built, empty)
    assert asked[0] == "/token?service=lab&scope=repository:lab/layers:pull"
