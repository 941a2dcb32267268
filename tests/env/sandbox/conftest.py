"""Real sandboxes on every back end that this machine can run, in a separate run directory."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchmarks.root_file_system import make_root
from swegym_env.sandbox import Sandbox, SandboxSpec, open_sandbox
from swegym_env.sandbox.backends import LOCAL_BACKENDS, make_backend
from tests.places import own_run_directory, public_directory

Opener = Callable[..., Sandbox]
PROGRAMS = ("bash", "cat", "ls", "mkdir", "rm", "stat", "env")


@pytest.fixture(scope="package", autouse=True)
def run_directory() -> Iterator[Path]:
    """A run directory of these tests only, so that garbage in it can be counted."""
    with own_run_directory() as directory:
        yield directory


@pytest.fixture(scope="session")
def public_parent() -> Iterator[Path]:
    """A directory that the sandbox's user can enter; pytest's own are closed to others."""
    with public_directory("test") as directory:
        yield directory


@pytest.fixture(scope="session")
def root(public_parent: Path) -> Path:
    """A root file system with a few programs and the libraries that they need."""
    directory = public_parent / "root"
    make_root(directory, PROGRAMS)
    (directory / "testbed" / "code.py").write_text("x = 1\n")
    (directory / ".singularity.d" / "env").mkdir(parents=True)
    (directory / ".singularity.d" / "env" / "10-docker2singularity.sh").write_text(
        'export FROM_IMAGE="given by the image"\n'
    )
    (directory / "bin" / "sh").symlink_to("bash")
    return directory


@pytest.fixture
def public_path(public_parent: Path) -> Path:
    """A fresh directory that the sandbox's user can enter."""
    directory = Path(tempfile.mkdtemp(dir=public_parent))
    directory.chmod(0o755)
    return directory


@pytest.fixture(scope="package")
def verdicts(run_directory: Path) -> dict[str, str]:
    """Back end → why it does not work here; "" if it works."""
    return {name: make_backend(name).problem(fresh=True) for name in LOCAL_BACKENDS}


def missing(name: str) -> str:
    """What this machine lacks for a back end, found without the code under test: the only reason to skip."""
    if name == "apptainer" and shutil.which("apptainer") is None:
        return "Apptainer is not installed (scripts/install_apptainer.sh)"
    if (
        subprocess.run(["unshare", "--user", "--map-root-user", "true"], capture_output=True, check=False).returncode
        != 0
    ):
        return "user namespaces are not allowed (sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone)"
    return ""


@pytest.fixture(params=LOCAL_BACKENDS)
def backend(request: pytest.FixtureRequest, verdicts: dict[str, str]) -> str:
    """The name of each back end that can work on this machine."""
    name = str(request.param)
    if lack := missing(name):
        pytest.skip(lack)
    assert verdicts[name] == ""
    return name


@pytest.fixture
def opened(backend: str) -> Iterator[Opener]:
    """Opens started sandboxes that are closed with the test."""
    sandboxes: list[Sandbox] = []

    def open_one(spec: SandboxSpec | None = None) -> Sandbox:
        sandbox = open_sandbox(spec or SandboxSpec(), backend=backend)
        sandboxes.append(sandbox)
        sandbox.start()
        return sandbox

    yield open_one
    for sandbox in sandboxes:
        sandbox.close()


@pytest.fixture
def sandbox(opened: Opener) -> Sandbox:
    """A started sandbox."""
    return opened()


@pytest.fixture(scope="module", params=LOCAL_BACKENDS)
def shared_sandbox(request: pytest.FixtureRequest, verdicts: dict[str, str]) -> Iterator[Sandbox]:
    """A started sandbox on each back end, for tests that leave nothing in it that matters to the others."""
    name = str(request.param)
    if lack := missing(name):
        pytest.skip(lack)
    assert verdicts[name] == ""
    sandbox = open_sandbox(SandboxSpec(), backend=name)
    sandbox.start()
    yield sandbox
    sandbox.close()
