"""scripts/install_torch.sh takes the pinned PyTorch, with CUDA only where there is an NVIDIA driver."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PIN = re.findall(r"^torch==([0-9.]+)", (ROOT / "constraints.txt").read_text(), flags=re.MULTILINE)[0]


def write_wheel(folder: Path, version: str) -> None:
    """A wheel named torch without content."""
    about = f"torch-{version}.dist-info"
    with zipfile.ZipFile(folder / f"torch-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n")
        wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{about}/RECORD", "")


@pytest.mark.parametrize(
    ("driver", "offered", "taken"),
    [
        pytest.param(False, ("", "+cpu"), "+cpu", id="no driver"),
        pytest.param(True, ("",), "", id="driver"),
        pytest.param(False, ("",), "", id="no build for the CPU is offered", marks=pytest.mark.campaign),
    ],
)
def test_the_build_of_pytorch_follows_the_driver(
    driver: bool, offered: tuple[str, ...], taken: str, tmp_path: Path
) -> None:
    wheels, site, programs = (tmp_path / name for name in ("wheels", "site", "bin"))
    for folder in (wheels, programs):
        folder.mkdir()
    for version in (*(PIN + build for build in offered), "99.0"):
        write_wheel(wheels, version)
    hidden = [folder for folder in os.environ["PATH"].split(":") if not Path(folder, "nvidia-smi").exists()]
    (programs / "python").symlink_to(sys.executable)
    if driver:
        (programs / "nvidia-smi").write_text("#!/bin/sh\n")
        (programs / "nvidia-smi").chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    environment |= {"PATH": ":".join([str(programs), *hidden]), "PIP_CONFIG_FILE": os.devnull}
    options = ["--no-index", "--find-links", str(wheels), "--target", str(site)]
    command = [str(ROOT / "scripts/install_torch.sh"), sys.executable, *options]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [path.name for path in site.glob("*.dist-info")] == [f"torch-{PIN}{taken}.dist-info"]
    assert ("with CUDA" in done.stdout) is driver


def test_python3_is_taken_where_there_is_no_python(tmp_path: Path) -> None:
    """Debian has no `python` outside of virtual environments."""
    for name in ("bash", "dirname", "sed"):
        found = shutil.which(name)
        assert found is not None
        (tmp_path / name).symlink_to(found)
    (tmp_path / "python3").write_text('#!/bin/sh\necho "python3 $*"\n')
    (tmp_path / "python3").chmod(0o755)
    command = ["bash", str(ROOT / "scripts/install_torch.sh")]
    done = subprocess.run(command, env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "installing PyTorch" in done.stdout
