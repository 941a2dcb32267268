"""A server starts with the files that scripts/setup_node.sh writes."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from tests.env.serving.conftest import served

SCRIPT = Path(__file__).parents[3] / "scripts" / "setup_node.sh"


def set_up(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([SCRIPT, *arguments], capture_output=True, text=True, check=False)


def test_installed_files_start_a_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = set_up("--destdir", str(tmp_path), "--", "--capacity", "3", "--drain", "5")
    assert done.returncode == 0, done.stderr
    token = tmp_path / "etc/swegym/token"
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
    first = token.read_text()
    assert re.fullmatch(r"[0-9a-f]{64}\n", first)

    unit = (tmp_path / "etc/systemd/system/swegym-serve.service").read_text()
    command = next(line for line in unit.splitlines() if line.startswith("ExecStart=")).partition("=")[2]
    name, _, value = (tmp_path / "etc/swegym/serve.env").read_text().strip().partition("=")
    arguments = shlex.split(command.replace(f"${name}", value))
    assert arguments[1:] == ["serve", "--capacity", "3", "--drain", "5"]
    monkeypatch.delenv("SWEGYM_TOKEN")
    monkeypatch.setenv("SWEGYM_TOKEN_FILE", str(token))
    with served(*arguments[1:]) as server:
        status, payload, _ = server.ask("/healthz", token=first.strip())
        assert (status, payload["capacity"]) == (200, 3)

    assert set_up("--destdir", str(tmp_path), "--", "--capacity", "4").returncode == 0
    assert token.read_text() == first  # an existing token is kept: clients use it


def test_invalid_argument_is_an_error_and_writes_nothing(tmp_path: Path) -> None:
    for arguments in (("--nothing",), ("--images", "/nowhere"), ("--", "--host", "a b")):
        done = set_up("--destdir", str(tmp_path / "new"), *arguments)
        assert done.returncode == 2 and done.stderr.startswith("setup_node: ")
        assert not os.path.exists(tmp_path / "new")


def test_dry_run_prints_every_step_and_does_none(tmp_path: Path) -> None:
    images = tmp_path / "images.txt"
    images.write_text("docker://debian:12\n")
    before = sorted(tmp_path.rglob("*"))
    done = set_up("--dry-run", "--images", str(images), "--", "--capacity", "3")
    assert done.returncode == 0, done.stderr
    steps = [shlex.split(line.removeprefix("+ ")) for line in done.stdout.splitlines()]
    assert all(line.startswith("+ ") for line in done.stdout.splitlines())
    commands = [" ".join(step) for step in steps]
    order = [
        "SWEGYM" not in commands[0] and "mkdir -p /etc/swegym /etc/systemd/system",
        "new_token /etc/swegym/token",
        "say_arguments /etc/swegym/serve.env --capacity 3",
        "python3 -m venv /opt/swegym",
        "/opt/swegym/bin/swegym doctor",
        "images prefetch --file /var/lib/swegym/images.txt -j 4",
        "systemctl enable swegym-serve",
        "systemctl restart swegym-serve",
    ]
    places = [next((at for at, step in enumerate(commands) if str(each) in step), -1) for each in order]
    assert places == sorted(places) and -1 not in places, commands
    assert sorted(tmp_path.rglob("*")) == before and not Path("/etc/swegym").exists()
    # Every program of a step exists or is installed by an earlier step.
    for step in steps:
        program = step[0]
        assert shutil.which(program) or program in ("new_token", "say_arguments", "systemctl") or "/opt/" in program
