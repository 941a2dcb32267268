"""Kernel features that a machine may lack are disabled: sandboxes behave the same without them."""

from __future__ import annotations

import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from swegym_env.errors import ConfigurationError, SandboxError
from swegym_env.sandbox import Limits, SandboxSpec, local, open_sandbox
from tests.env.sandbox.conftest import Opener
from tests.env.sandbox.test_files import BASE, make_layer

HOG = "for i in 1 2 3 4; do python3 -c 'x = bytearray(70 << 20); input()' < <(sleep 20) & done; wait -n"


@pytest.fixture(params=["overlay", "cgroups", "tmpfs", "users", "overlay,cgroups,tmpfs,users"])
def without(
    request: pytest.FixtureRequest, backend: str, run_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> list[str]:
    """Kernel features that the sandboxes of this test do not use."""
    words = str(request.param)
    if "overlay" in words and shutil.which("fuse-overlayfs") is None:
        pytest.skip("fuse-overlayfs is not installed (scripts/install_apptainer.sh)")
    place = (
        run_directory / f"without-{words.replace(',', '-')}-{backend}"
    )  # a run directory has a supervisor of its own
    place.mkdir(mode=0o711, exist_ok=True)
    monkeypatch.setenv("SWEGYM_WITHOUT", words)
    monkeypatch.setenv("SWEGYM_RUNDIR", str(place))
    return words.split(",")


def test_a_sandbox_behaves_the_same_without_a_kernel_feature(
    opened: Opener, without: list[str], public_path: Path
) -> None:
    layer = make_layer(public_path / "layer", BASE)
    sandbox = opened(SandboxSpec(layers=(layer,), limits=Limits(memory_bytes=200 << 20)))
    served = sandbox.run("grep -c ' / fuse' /proc/mounts").output == "1\n"
    assert served == ("overlay" in without)
    sandbox.run("rm -r d e/only; mkdir d; echo new > d/x; ln -s nowhere link; touch a.txt; chmod 000 run.sh")
    expected = [
        ("d/sub", "deleted"),
        ("d/x", "written"),
        ("d/y", "deleted"),
        ("e/only", "deleted"),
        ("link", "symlink"),
        ("run.sh", "written"),
    ]
    assert [(change.path, change.kind) for change in sandbox.changes("/testbed")] == expected
    sandbox.write("deep/er/file", b"content")
    assert sandbox.read("/testbed/deep/er/file") == b"content"
    with pytest.raises(FileNotFoundError):
        sandbox.read("/testbed/nothing")
    assert sandbox.run(f"cat <<'END' | wc -c\n{'x' * 20_000}\nEND").output == "20001\n"
    result = sandbox.run(HOG, timeout_s=15)
    assert result.limit == "memory", result
    assert sandbox.run("ls deep/er").output.startswith("file\n")


def test_forks_and_snapshots_are_complete_without_a_kernel_feature(
    opened: Opener, without: list[str], public_path: Path
) -> None:
    if os.geteuid() != 0 and "tmpfs" in without:
        with_closed = ""  # without a mount namespace, an ordinary user cannot read files it has closed to itself
    else:
        with_closed = "chmod 000 run.sh; mkdir -m 000 shut; "
    sandbox = opened(SandboxSpec(layers=(make_layer(public_path / "layer", BASE),)))
    sandbox.run(f"rm -r d; mkdir d; echo n > d/n; rm a.txt; {with_closed}")
    snapshot = sandbox.snapshot()
    changes = [(change.path, change.kind) for change in sandbox.changes("/testbed")]
    other = sandbox.fork()
    sandbox.run("rm -rf d; echo more > more")
    assert [(change.path, change.kind) for change in other.changes("/testbed")] == changes
    other.close()
    sandbox.restore(snapshot)
    assert [(change.path, change.kind) for change in sandbox.changes("/testbed")] == changes
    assert sandbox.run("cat d/n; ls").output.startswith("n\n")
    snapshot.discard()


@pytest.mark.parametrize("without", ["overlay"], indirect=True)
@pytest.mark.usefixtures("without")
def test_a_path_that_fuse_overlayfs_cannot_take_is_named(opened: Opener, public_path: Path) -> None:
    sandbox = opened(SandboxSpec(layers=(make_layer(public_path / "one,two three", BASE),)))
    assert sandbox.run("cat a.txt").output == BASE["a.txt"]
    with pytest.raises(SandboxError, match=r"fuse-overlayfs takes no path with ':', got .*/one:two"):
        opened(SandboxSpec(layers=(make_layer(public_path / "one:two", BASE),)))


STOP_OTHERS = "for i in $(seq 200); do [ $i = $$ ] || [ $i = $BASHPID ] || kill -STOP $i; done 2>/dev/null"


@pytest.mark.parametrize("without", ["overlay"], indirect=True)
@pytest.mark.usefixtures("without")
def test_nobody_inside_can_stop_the_server_of_the_files(opened: Opener) -> None:
    sandbox = opened()
    sandbox.run("echo x >file")
    sandbox.run(STOP_OTHERS)
    with ThreadPoolExecutor(1) as threads:
        reading = threads.submit(sandbox.read, "file")
        try:
            assert reading.result(timeout=20) == b"x\n"
        finally:
            sandbox.run("exit", timeout_s=0.5)  # ends the container, and so every wait for its files


def test_overlay_marks_made_by_the_agent_are_ignored(opened: Opener, public_path: Path) -> None:
    sandbox = opened(SandboxSpec(layers=(make_layer(public_path / "layer", BASE),)))
    mark = "import os; os.setxattr('/testbed/d', 'user.fuseoverlayfs.opaque', b'y')"
    assert sandbox.run(f'python3 -c "{mark}"; touch d/.wh.x d/.wh..wh..opq').exit_code == 0
    changes = [(change.path, change.kind) for change in sandbox.changes("/testbed")]
    assert changes == [("d/.wh..wh..opq", "written"), ("d/.wh.x", "written")]


def test_an_unknown_kernel_feature_is_rejected(monkeypatch: pytest.MonkeyPatch, run_directory: Path) -> None:
    monkeypatch.setenv("SWEGYM_WITHOUT", "overlays")
    monkeypatch.setenv("SWEGYM_RUNDIR", str(run_directory / "unknown"))
    local._known.clear()
    with pytest.raises(ConfigurationError, match="unknown word 'overlays'; there are: overlay, cgroups, tmpfs"):
        open_sandbox(SandboxSpec(), backend="namespace")
    local._known.clear()
