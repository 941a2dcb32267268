"""Pulling from a real registry on loopback: once for all, retried where that helps, and never published in part."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from swegym_env.cli.main import main
from swegym_env.errors import ConfigurationError, ImageError
from swegym_env.sandbox.images import ImageStore, PullOptions, parse_size
from swegym_env.sandbox.images.references import mirrored
from tests.disk import left_on, on_small_disk
from tests.env.sandbox.registry import Image, Registry, make_image, serving, write_layout

pytestmark = pytest.mark.skipif(shutil.which("apptainer") is None, reason="no Apptainer: scripts/install_apptainer.sh")
SOON = PullOptions(retries=3, first_wait_s=0.01)
PULL = """
import sys
from swegym_env.sandbox.images import ImageStore, PullOptions
from pathlib import Path
print("pulling", flush=True)
for image in sys.argv[2:]:
    print(ImageStore(Path(sys.argv[1])).get(image, options=PullOptions(retries=0)), flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def image(root: Path) -> Image:
    return make_image(root)


@pytest.fixture
def registry(image: Image) -> Iterator[Registry]:
    with serving() as registry:
        registry.images["some/image"] = image
        yield registry


@pytest.fixture
def store(public_path: Path, monkeypatch: pytest.MonkeyPatch) -> ImageStore:
    # Apptainer's own cache would answer in the registry's place.
    monkeypatch.setenv("APPTAINER_CACHEDIR", str(public_path / "cache"))
    return ImageStore(public_path / "images")


def name(registry: Registry, tag: str = "1") -> str:
    return f"docker://{registry.address}/some/image:{tag}"


def half_made(store: ImageStore) -> list[str]:
    return [str(path) for kind in (".building", ".locks") for path in (store.root / kind).glob("*")]


def published(store: ImageStore) -> list[Path]:
    return list(store.root.glob("image-*"))


def test_one_pull_serves_all_threads_and_processes(store: ImageStore, registry: Registry) -> None:
    registry.slow_s = 0.3
    command = [sys.executable, "-c", PULL, str(store.root), name(registry)]
    others = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    with ThreadPoolExecutor(4) as pool:
        roots = {str(root) for root in pool.map(lambda _: ImageStore(store.root).get(name(registry)), range(4))}
    for other in others:
        output, _ = other.communicate()
        roots.add(output.split()[-1])
        assert other.returncode == 0
    assert len(roots) == 1
    assert registry.seen["manifest some/image"] == registry.seen["layer"] == 1
    assert half_made(store) == []


@pytest.mark.parametrize(("code", "output"), [(401, "UNAUTHORIZED"), (403, "DENIED"), (404, "MANIFEST_UNKNOWN")])
def test_a_rejected_pull_is_not_retried(store: ImageStore, registry: Registry, code: int, output: str) -> None:
    registry.refuses, registry.stays = [code], True
    with pytest.raises(ImageError, match=f"{registry.address}/some/image:1: .*{output}") as raised:
        store.get(name(registry), options=PullOptions(retries=5, first_wait_s=60))
    assert "\n" not in str(raised.value)
    assert registry.seen["manifest some/image"] == 1
    assert published(store) == half_made(store) == []


def test_pulls_from_a_busy_or_broken_registry_are_retried(store: ImageStore, registry: Registry) -> None:
    message: list[str] = []
    registry.refuses, registry.drops = [429], 1
    root = store.get(name(registry), options=SOON, report=message.append)
    assert (root / "testbed" / "code.py").read_text() == "x = 1\n"
    assert sum("trying again" in line for line in message) == 2
    assert registry.seen["layer"] == 2


def test_the_number_of_retries_is_limited(store: ImageStore, registry: Registry) -> None:
    registry.refuses, registry.stays = [429], True
    with pytest.raises(ImageError, match=r"TOOMANYREQUESTS.*\(tried 4 times\)"):
        store.get(name(registry), options=SOON)
    assert registry.seen["manifest some/image"] == 4
    registry.refuses, registry.drops = [], 9
    with pytest.raises(ImageError, match=r"EOF.*\(tried 4 times\)"):
        store.get(name(registry), options=SOON)
    assert published(store) == half_made(store) == []
    registry.drops = 0
    assert store.get(name(registry), options=SOON).is_dir()


def test_server_errors_and_refused_connections_are_retried(store: ImageStore, registry: Registry) -> None:
    registry.refuses, registry.stays = [500], True
    with pytest.raises(ImageError, match=r"tried 2 times"):
        store.get(name(registry), options=PullOptions(retries=1, first_wait_s=0.01))
    with pytest.raises(ImageError, match=r"connection refused \(tried 2 times\)"):
        store.get("docker://127.0.0.1:9/some/image", options=PullOptions(retries=1, first_wait_s=0.01))


def test_a_stalled_pull_is_stopped_and_a_slow_one_is_not(store: ImageStore, registry: Registry) -> None:
    registry.slow_s = 30
    with pytest.raises(ImageError, match="made no progress for 1 s"):
        store.get(name(registry), options=PullOptions(retries=0, stall_s=1))
    assert published(store) == half_made(store) == []
    registry.slow_s = 1.2
    assert store.get(name(registry), options=PullOptions(retries=0, stall_s=10)).is_dir()


def test_a_full_disk_leaves_no_partial_image(public_path: Path, registry: Registry, tmp_path: Path) -> None:
    disk = public_path / "disk"
    disk.mkdir()
    command = [sys.executable, "-m", "swegym_env.cli.main", "images", "pull", name(registry)]
    here = str(Path(__file__).parents[3])
    environment = {**os.environ, "SWEGYM_WORKDIR": str(disk), "APPTAINER_CACHEDIR": str(tmp_path), "PYTHONPATH": here}
    done = subprocess.run(
        on_small_disk(disk, free_kib=200) + command, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "o space left on device" in done.stderr and done.stderr.count("\n") == 1, done.stderr
    assert [path for path in left_on(disk) if not path.endswith((".building", ".locks", "images"))] == []


def test_garbage_of_a_killed_pull_is_collected(store: ImageStore, registry: Registry) -> None:
    registry.slow_s = 1.0
    command = [sys.executable, "-c", PULL, str(store.root), name(registry)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as other:
        while not registry.seen["layer"]:
            time.sleep(0.01)
        other.send_signal(signal.SIGKILL)
    assert len(half_made(store)) == 2
    assert published(store) == []
    assert len(store.layers.collect_garbage()) == 1
    assert half_made(store) == []
    registry.slow_s = 0
    assert store.get(name(registry)).is_dir()


def test_refresh_pulls_a_moved_tag(store: ImageStore, registry: Registry, root: Path) -> None:
    old = store.get(name(registry))
    registry.images["some/image"] = make_image(root, {"testbed/new": "y"})
    assert store.get(name(registry)) == old
    new = store.get(name(registry), refresh=True)
    assert new != old and (new / "testbed" / "new").read_text() == "y"
    assert ImageStore(store.root).get(name(registry)) == new


def test_images_are_pulled_from_a_mirror(store: ImageStore, registry: Registry, image: Image) -> None:
    registry.images["hub/library/python"] = registry.images["ghcr/x/y"] = image
    mirrors = f"{registry.address}/hub,ghcr.io={registry.address}/ghcr/"
    options = PullOptions(mirror=mirrors, retries=0)
    root = store.get("docker://python:3.11", options=options)
    assert store.get("docker://docker.io/library/python:3.11", options=PullOptions(mirror="")) == root
    assert store.get("docker://ghcr.io/x/y", options=options) == root
    assert registry.seen["manifest hub/library/python"] == registry.seen["manifest ghcr/x/y"] == 1
    assert mirrored("docker://quay.io/x/y:1", mirrors) == "docker://quay.io/x/y:1"
    assert mirrored("docker://python", "m.example") == "docker://m.example/library/python:latest"
    pinned = "docker://a/b@sha256:" + "0" * 64
    assert mirrored(pinned, "m.example:5000") == pinned.replace("a/b", "m.example:5000/a/b")


def test_the_base_image_of_a_definition_is_pulled_from_a_mirror(
    store: ImageStore, registry: Registry, image: Image, tmp_path: Path
) -> None:
    registry.images["hub/library/python"] = image
    registry.refuses = [429]
    definition = tmp_path / "image.def"
    definition.write_text("Bootstrap: docker\nFrom: python:3.11\n\n%environment\n    export FROM: x\n")
    options = PullOptions(mirror=f"{registry.address}/hub", retries=2, first_wait_s=0.01)
    root = store.get(str(definition), options=options)
    assert (root / "testbed" / "code.py").read_text() == "x = 1\n"
    assert registry.seen["manifest hub/library/python"] == 2
    recipe = tmp_path / "Dockerfile"
    (tmp_path / "given").write_text("given\n")
    recipe.write_text("FROM python:3.11\nCOPY given /given\nENV WHERE=here\n")
    assert (store.get(str(recipe), options=options) / "given").read_text() == "given\n"


@pytest.fixture
def three(store: ImageStore, root: Path, tmp_path: Path) -> list[str]:
    """Three images, used in this order, each a little larger than 4 MiB; this process uses none of them any more."""
    names = [
        str(write_layout(make_image(root, {"testbed/number": str(number)}), tmp_path / f"{number}"))
        for number in range(3)
    ]
    command = [sys.executable, "-c", PULL, str(store.root), *names]
    subprocess.run(command, stdin=subprocess.DEVNULL, check=True, stdout=subprocess.DEVNULL)
    for image in store.inventory():
        used = 1_000_000 + names.index(image.names[0])
        os.utime(store.root / ".uses" / image.root.name / "last", (used, used))
    return names


def test_the_least_recently_used_image_is_pruned_first_and_one_in_use_never(
    store: ImageStore, three: list[str]
) -> None:
    stored = store.inventory()
    assert [list(image.names) for image in stored] == [[name] for name in three]
    assert not any(image.in_use for image in stored)
    size = stored[0].size_bytes
    assert size > 4 << 20
    assert [image.names for image in store.prune(budget_bytes=int(2.5 * size), dry_run=True)] == [(three[0],)]
    assert len(published(store)) == 3
    command = [sys.executable, "-c", PULL, str(store.root), three[0]]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as user:
        assert user.stdout is not None
        assert [user.stdout.readline() for _ in range(2)][1].strip() == str(stored[0].root)
        os.utime(store.root / ".uses" / stored[0].root.name / "last", (1_000_000, 1_000_000))
        # By age the first would go; another process uses it, so the second goes instead.
        assert [image.names for image in store.prune(budget_bytes=int(2.5 * size))] == [(three[1],)]
        assert not store._remove(stored[0].root)  # as where it begins to be used while it is removed
        assert stored[0].root.is_dir()
        user.kill()
    assert [image.names for image in store.prune(budget_bytes=int(1.5 * size))] == [(three[0],)]
    assert not stored[0].root.exists() and half_made(store) == []
    assert store.get(three[1]).is_dir()  # made anew


def test_a_new_image_prunes_others_to_stay_within_the_budget(
    store: ImageStore, three: list[str], registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = store.inventory()[0].size_bytes
    monkeypatch.setenv("SWEGYM_IMAGE_BUDGET", f"{3.5 * size / (1 << 20):.3f}M")
    registry.images["some/image"] = make_image(Path(published(store)[0]), {"testbed/number": "9"})
    root = store.get(name(registry))
    assert {image.root for image in store.inventory()} >= {root}
    assert three[0] not in {name for image in store.inventory() for name in image.names}
    assert len(published(store)) == 3
    assert store.prune(budget_bytes=0, dry_run=True) and root not in {
        image.root for image in store.prune(budget_bytes=0)
    }


@pytest.mark.parametrize(("text", "size"), [("0", 0), ("500M", 500 << 20), ("1.5 GiB", 3 << 29), ("2tb", 2 << 40)])
def test_sizes_are_parsed(text: str, size: int) -> None:
    assert parse_size(text, "--budget") == size


@pytest.mark.parametrize("text", ["", "G", "-1", "5 apples", "1e9"])
def test_an_invalid_size_is_rejected(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^--budget: expected a size such as 50G, got "):
        parse_size(text, "--budget")


def test_the_command_pulls_lists_and_prunes(
    registry: Registry,
    public_path: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    environment = {**os.environ, "SWEGYM_WORKDIR": str(public_path / "work"), "PYTHONPATH": os.pathsep.join(sys.path)}
    environment["APPTAINER_CACHEDIR"] = str(tmp_path / "cache")

    def swegym(*arguments: str, code: int = 0) -> tuple[list[dict[str, object]], str]:
        command = [sys.executable, "-m", "swegym_env.cli.main", "images", *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == code, (done.stdout, done.stderr)
        return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")], done.stderr

    def here(*arguments: str, code: int = 0) -> tuple[str, str]:
        """Without a process of its own, for what uses no image."""
        try:
            got: object = main(["images", *arguments])
        except SystemExit as error:
            got = error.code
        assert got == code
        return capsys.readouterr()

    monkeypatch.setenv("SWEGYM_WORKDIR", environment["SWEGYM_WORKDIR"])
    (pulled,), _ = swegym("pull", name(registry), "--json")
    assert pulled["image"] == name(registry) and Path(str(pulled["root"])).is_dir()
    wanted = tmp_path / "images.txt"
    wanted.write_text(f"# three\n{name(registry)}\nhost\n{name(registry, '2')}\n{name(registry)}\n")
    fetched, _ = swegym("prefetch", "--file", str(wanted), "-j", "2", "--json")
    assert {item["image"] for item in fetched} == {name(registry), name(registry, "2")}
    listed = json.loads(here("list", "--json")[0])
    assert listed["images"] == [name(registry), name(registry, "2")] and listed["in_use"] is False
    assert listed["size_bytes"] == pulled["size_bytes"] != 0
    registry.images.clear()
    _, output = swegym("pull", name(registry, "3"), name(registry), code=2)
    assert "MANIFEST_UNKNOWN" in output and output.endswith("swegym: 1 of 2 images failed\n")
    # Progress on a terminal takes nothing of what a program reads.
    read = f"{sys.executable} -m swegym_env.cli.main images prefetch --file {wanted} --json > {tmp_path}/out"
    subprocess.run(["script", "-qec", read, "/dev/null"], env=environment, check=True, stdout=subprocess.DEVNULL)
    assert len((tmp_path / "out").read_text().splitlines()) == 2
    removed, _ = swegym("prune", name(registry), "--json")
    assert [item["root"] for item in removed] == [pulled["root"]]
    assert here("list", "--json")[0] == ""
    for arguments, message in (
        (("pull", "host"), "not in a registry"),
        (("build", "docker://x"), "swegym images pull docker://x"),
        (("prune",), "expected --budget"),
        (("prune", "nothing"), "no such image here"),
        (("prune", "--budget", "much"), "expected a size"),
        (("prefetch",), "either --dataset or --file"),
        (("prefetch", "--file", str(tmp_path / "none")), "No such file"),
    ):
        _, output = here(*arguments, code=2)
        assert message in output and output.count("\n") == 1, output
