"""What Python loads at its start is never the agent's, and what an agent installs stays installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.root_file_system import make_root
from swegym_env.harbor.state import StateVerdict
from swegym_env.sandbox.images.store import settle
from tests.env.harbor.conftest import PROGRAMS, Make
from tests.env.harbor.test_harbor import graded

VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
LIBRARY = f"/usr/local/lib/python{VERSION}"
SITE = f"{LIBRARY}/site-packages"
LEFT_OUT = ("__pycache__", "test", "site-packages", "config-*", "idlelib", "tkinter", "ensurepip", "lib2to3")
# What an agent wants Python to run before the tests: `reward.json` is read before `reward.txt`.
PAYLOAD = "open('/logs/verifier/reward.json', 'w').write('1')"
TEST = """\
cd /app
python3 -c 'import argparse; print(argparse.__file__)'
if grep -qx 42 /app/answer; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
"""
DOCKERFILE = "FROM python:own\nWORKDIR /app\n"


@pytest.fixture(scope="module")
def with_python(bases: Path) -> Iterator[Path]:
    """A base with this Python in /usr/local, as the official images have it."""
    root = bases / "python:own"
    make_root(root, (*PROGRAMS, "dirname"), more=("root", "app"))
    (root / "usr").unlink()
    (root / "usr/local/bin").mkdir(parents=True)
    (root / "bin").rename(root / "usr/bin")
    (root / "bin").symlink_to("usr/bin")
    source = Path(sys.base_prefix) / f"lib/python{VERSION}"
    shutil.copytree(source, root / LIBRARY[1:], symlinks=True, ignore=shutil.ignore_patterns(*LEFT_OUT))
    for shared in source.parent.glob("libpython*.so*"):
        shutil.copy2(shared, root / "lib")
    (root / SITE[1:]).mkdir()
    executable = Path(os.path.realpath(sys.executable))
    shutil.copy2(executable, root / "usr/local/bin/python3")
    modules = (source / "lib-dynload").glob("*.so")
    for linked in (executable, *modules):
        for word in subprocess.run(["ldd", linked], capture_output=True, text=True, check=True).stdout.split():
            if word.startswith("/") and not word.startswith(str(source.parent)):
                (root / word[1:]).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(word, root / word[1:])
    settle(root)
    yield bases
    shutil.rmtree(root)


@pytest.fixture
def python_task(make_task: Make, with_python: Path) -> Path:
    """A task whose tests start Python."""
    return make_task(dockerfile=DOCKERFILE, test=TEST)


PAYLOADS = f"""
SITE, LIBRARY, TAG = Path({SITE!r}), Path({LIBRARY!r}), sys.implementation.cache_tag
PAYLOAD = {PAYLOAD!r}
STATEMENT = "import sys; " + PAYLOAD
UNCHECKED = py_compile.PycInvalidationMode.UNCHECKED_HASH

def write(path, text=PAYLOAD):
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(text)

def archive(path):
    zipfile.ZipFile(path, "w").writestr("sitecustomize.py", PAYLOAD)
"""
ATTACKS = {
    "a statement in a .pth file": "write(SITE / 'x.pth', STATEMENT)",
    "a finder of its own": (
        "write(SITE / '__editable___mine_finder.py', 'MAPPING = {}\\ndef install():\\n    ' + PAYLOAD); "
        "write(SITE / 'x.pth', 'import __editable___mine_finder; __editable___mine_finder.install()')"
    ),
    "a statement behind a directory": "write(SITE / 'x.pth', '/app\\r' + STATEMENT)",
    "a .pth file behind a link": (
        "user = Path('/root/.local/lib') / LIBRARY.name; write('/app/x.pth', STATEMENT); os.makedirs(user); "
        "os.symlink('/app', user / 'site-packages')"
    ),
    "an archive that a .pth file names": "archive('/app/x.zip'); write(SITE / 'x.pth', '/app/x.zip')",
    "an archive behind a link that a .pth file names": (
        "archive('/app/x.zip'); os.symlink('x.zip', '/app/y'); write(SITE / 'x.pth', '/app/y')"
    ),
    "a package in a directory that a .pth file names": (
        "write('/app/sitecustomize/__init__.py'); write(SITE / 'x.pth', '/app')"
    ),
    "a package that Python imports at its start": "write(SITE / 'sitecustomize/__init__.py')",
    "a compiled module that Python imports at its start": (
        "write('/app/u.py'); py_compile.compile('/app/u.py', SITE / 'usercustomize.pyc')"
    ),
    "an archive that is on the path of Python": 'archive(f\'{LIBRARY.parent}/{LIBRARY.name.replace(".", "")}.zip\')',
    "a package that hides a module of the library": "write(LIBRARY / 'argparse/__init__.py')",
    "a compiled module that hides one of the library": (
        "write('/app/u.py'); place = LIBRARY / f'__pycache__/argparse.{TAG}.pyc'; "
        "py_compile.compile('/app/u.py', place, invalidation_mode=UNCHECKED)"
    ),
    "another library": (
        "other = Path('/app/lib') / LIBRARY.name; shutil.copytree(LIBRARY, other); write(other / 'argparse.py'); "
        "write('/usr/local/bin/pyvenv.cfg', 'home = /app/bin')"
    ),
}


def attacked(task: Path, attack: str, protect: str) -> StateVerdict:
    program = f"import os, py_compile, shutil, sys, zipfile\nfrom pathlib import Path\n{PAYLOADS}\n{ATTACKS[attack]}\n"
    return graded(task, f"python3 - <<'PROGRAM'\n{program}PROGRAM\n", protect=protect)


@pytest.mark.parametrize("attack", ATTACKS)
def test_nothing_of_the_agent_runs_when_python_starts(python_task: Path, attack: str) -> None:
    verdict = attacked(python_task, attack, "system")
    assert verdict.valid and verdict.rewards == {"reward": 0.0}, verdict
    assert f"{LIBRARY}/argparse.py" in verdict.log


@pytest.mark.parametrize("attack", ATTACKS)
def test_each_of_these_pays_without_protection(python_task: Path, attack: str) -> None:
    assert attacked(python_task, attack, "none").reward == 1.0


def install(project: Path, layout: str) -> str:
    """The agent's commands that put down what `pip install -e /app/project` does, which setuptools makes here."""
    package = project / {"flat": "thing", "src": "src/thing"}[layout]
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("answer = 42\n")
    (project / "docs").mkdir()  # so that setuptools finds several directories, and installs a finder
    (project / "pyproject.toml").write_text(
        "[project]\nname = 'thing'\nversion = '1'\n[build-system]\nrequires = ['setuptools']\n"
        "build-backend = 'setuptools.build_meta'\n"
    )
    wheels = project.parent / "wheels"
    wheels.mkdir()
    program = "import sys, setuptools.build_meta as backend; backend.build_editable(sys.argv[1])"
    subprocess.run([sys.executable, "-c", program, str(wheels)], cwd=project, check=True, capture_output=True)
    (wheel,) = wheels.glob("*.whl")
    shutil.unpack_archive(wheel, wheels / "installed", "zip")
    lines = [f"mkdir -p /app/project/{package.relative_to(project)}"]
    lines.append(f"echo 'answer = 42' > /app/project/{package.relative_to(project)}/__init__.py")
    for path in (wheels / "installed").iterdir():
        if path.is_file():
            text = path.read_text().replace(str(project), "/app/project")
            lines.append(f"cat > {SITE}/{path.name} <<'FILE'\n{text}\nFILE")
    return "\n".join(lines)


USES = """\
cd /
if python3 -c 'import thing; assert thing.answer == 42'; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
"""


@pytest.mark.parametrize("layout", ["flat", "src"])
def test_an_editable_installation_stays_installed(
    make_task: Make, with_python: Path, tmp_path: Path, layout: str
) -> None:
    task, commands = make_task(dockerfile=DOCKERFILE, test=USES), install(tmp_path / "project", layout)
    assert graded(task, "true").reward == 0.0
    verdict = graded(task, commands)
    assert (verdict.reward, verdict.set_aside) == (1.0, ()), verdict.log
