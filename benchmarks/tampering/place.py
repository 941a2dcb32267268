"""The task that is attacked, and what peers need of it: images, a repository with later commits, a Harbor task."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.root_file_system import make_root, write_files
from swegym_env.sandbox.images.store import settle
from swegym_env.tasks.datasets import load_tasks
from swegym_env.tasks.task import Task, task_to_row

__all__ = ["BASE_IMAGE", "TESTS", "Place", "make_image", "make_place", "write_harbor_task", "write_singularity"]

_TASK = load_tasks("mini")["mini__calends-012"]
TESTS = "tests/test_months.py"
"""The only file of its test patch."""
_PROGRAMS = (
    "bash", "sh", "git", "grep", "sed", "find", "tar", "gzip", "xargs", "setsid", "kill", "base64", "basename", "cat",
    "chmod", "chown", "cp", "cut", "date", "dirname", "echo", "env", "head", "id", "ln", "ls", "mkdir", "mktemp", "mv",
    "nohup", "od", "printf", "pwd", "readlink", "rm", "rmdir", "sleep", "sort", "stat", "tail", "tee", "test",
    "timeout", "touch", "tr", "true", "uname", "uniq", "wc",
)  # fmt: skip
BASE_IMAGE = "tampering:1"
_CONDA = "conda() { :; }\n"  # SWE-bench's scripts activate an environment: here it is the image's Python
_STAND_INS = {
    "su": 'exec /bin/bash -c "${@: -1}"',  # Harbor's way to run a command as root, who is the only user of the image
    "tmux": "exit 0",  # Harbor's bootstrap would install this and the next one; no episode here uses a terminal
    "asciinema": "exit 0",
}
_SINGULARITY = """\
#!/bin/bash
for word; do shift; [[ $UID == 0 && $word == --fakeroot ]] || set -- "$@" "$word"; done
exec apptainer --quiet "$@"
"""
_PIP = (sys.executable, "-m", "pip", "--no-input", "--disable-pip-version-check", "install", "-q")


@dataclass(frozen=True)
class Place:
    """What was made in a directory.

    Attributes:
        directory: where it is.
        task: the task as this package has it, on the image and the repository.
        dataset: a file with its row.
        bases: a directory of base images for `$SWEGYM_BASE_IMAGES`, with `BASE_IMAGE`.
        image: the image as a `.sif`, with the repository in `/testbed` as a clone that was reset to the base commit.
        swebench: a directory with the same, after the commands of SWE-bench 4.1 that remove later commits.
        programs: a directory with a `singularity` for Harbor, which leaves `--fakeroot` out where root runs it.
        preload: a shared library that runs `/tmp/forge.py` in place of pytest.
    """

    directory: Path
    task: Task
    dataset: Path
    bases: Path
    image: Path
    swebench: Path
    programs: Path
    preload: bytes


def make_place(directory: Path) -> Place:
    """Make everything, from the programs and the Python of this machine and packages of PyPI."""
    source, base_commit = _make_repository(directory)
    root = directory / "bases" / BASE_IMAGE
    make_image(root)
    plain = directory / "plain"  # the image without the repository, which this package prepares by itself
    shutil.copytree(root, plain, symlinks=True)
    _run("git", "clone", "-q", "-o", "origin", "--single-branch", f"file://{source}", root / "testbed")
    _git(root / "testbed", "reset", "-q", "--hard", base_commit)
    image = directory / "image.sif"
    _run("apptainer", "--quiet", "build", image, root)
    stripped = directory / "swebench"
    shutil.copytree(root, stripped, symlinks=True)
    for command in (
        ["remote", "remove", "origin"],
        ["reflog", "expire", "--expire=now", "--all"],
        ["gc", "-q", "--prune=now"],
    ):
        _git(stripped / "testbed", *command)
    settle(root)  # everything in it now belongs to the user of our sandboxes
    task = replace(
        _TASK,
        instance_id="tampering__calends-012",
        base_commit=base_commit,
        files={},
        repository=str(source),
        image=str(plain),
        test_command=f"pytest -rA -p no:cacheprovider {TESTS}",
        log_parser="pytest",
        fail_to_pass=tuple(_pytest_names(_TASK.fail_to_pass)),
        pass_to_pass=tuple(_pytest_names(_TASK.pass_to_pass)),
    )
    dataset = directory / "tampering.jsonl"
    dataset.write_text(json.dumps(task_to_row(task)) + "\n")
    return Place(
        directory, task, dataset, root.parent, image, stripped, write_singularity(directory), _make_preload(directory)
    )


def _pytest_names(names: Iterable[str]) -> Iterator[str]:
    """The names of the tests in `TESTS`, as pytest writes them."""
    module = TESTS.removesuffix(".py").replace("/", ".")
    for name in names:
        if name.startswith(f"{module}."):
            yield f"{TESTS}::{name.removeprefix(f'{module}.').replace('.', '::')}"


def _make_repository(directory: Path) -> tuple[Path, str]:
    """A repository with the base commit and, after it, the repair; and the id of the first."""
    place = directory / "source"
    write_files(_TASK.files, place)
    _git(place, "init", "-q", "-b", "main")
    for day, message, patch in ((1, "calends", ""), (2, "Weeks begin on any weekday", _TASK.patch)):
        if patch:
            _git(place, "apply", "-", stdin=patch)
        _git(place, "add", "-A")
        author = ["-c", "user.name=A", "-c", "user.email=a@b.c"]
        _git(place, *author, "commit", "-q", "-m", message, env={"GIT_COMMITTER_DATE": f"2026-01-0{day}T12:00:00Z"})
    return place, _git(place, "rev-parse", "HEAD~1")


def make_image(root: Path) -> None:
    """A root file system of this machine's programs and Python, with pytest, and what Harbor's server in it needs."""
    make_root(root, _PROGRAMS, more=("root", "opt", "app", "run", "sys", "mnt", "srv"))
    (root / "usr").unlink()  # as Debian has it: programs and libraries in /usr, and links to them
    (root / "usr/local/bin").mkdir(parents=True)
    for folder in ("bin", "lib", "lib64"):
        if (root / folder).exists():
            (root / folder).rename(root / "usr" / folder)
            (root / folder).symlink_to(f"usr/{folder}")
    base, name = Path(sys.base_prefix), f"python{sys.version_info.major}.{sys.version_info.minor}"
    left_out = shutil.ignore_patterns("test", "tests", "site-packages", "__pycache__", "config-*", "idlelib", "tkinter")
    shutil.copytree(base / "lib" / name, root / "usr/local/lib" / name, ignore=left_out)
    (root / "usr/local/lib" / name / "site-packages").mkdir()
    shutil.copy(base / "bin" / name, root / "usr/local/bin" / name)
    for link in ("python3", "python"):
        (root / "usr/local/bin" / link).symlink_to(name)
        (root / "bin" / link).symlink_to(f"../local/bin/{name}")
    site = root / "usr/local/lib" / name / "site-packages"
    _run(*_PIP, "--target", site, "pytest==8.4.1")
    (root / "usr/local/bin/pytest").write_text(
        "#!/usr/local/bin/python3\nimport sys\n\nfrom pytest import console_main\n\nsys.exit(console_main())\n"
    )
    (root / "usr/local/bin/pytest").chmod(0o755)
    server = root / "opt/harbor-server"  # Harbor's bootstrap makes it by network, unless the image has it
    (server / "bin").mkdir(parents=True)
    (server / "bin/python3").symlink_to("/usr/local/bin/python3")
    (server / "pyvenv.cfg").write_text("home = /usr/local/bin\n")
    _run(*_PIP, "--target", server / "lib" / name / "site-packages", "uvicorn", "fastapi")
    _copy_libraries(root, base)
    for name, text in _STAND_INS.items():
        (root / "bin" / name).write_text(f"#!/bin/bash\n{text}\n")
        (root / "bin" / name).chmod(0o755)
    conda = root / "opt/miniconda3/bin/activate"
    conda.parent.mkdir(parents=True)
    conda.write_text(_CONDA)


def write_singularity(directory: Path) -> Path:
    """Write the `singularity` for Harbor, which leaves `--fakeroot` out where root runs it; return its directory."""
    programs = directory / "bin"
    programs.mkdir()
    (programs / "singularity").write_text(_SINGULARITY)
    (programs / "singularity").chmod(0o755)
    return programs


def _copy_libraries(root: Path, base: Path) -> None:
    """Copy the shared libraries that the Python in `root` and its extensions need; those of `base` go to `/lib`."""
    for program in (*(root / "usr/local/bin").glob("python3.*"), *root.glob("*/**/*.so")):
        listed = subprocess.run(["ldd", program], capture_output=True, text=True, check=False).stdout
        for word in listed.split():
            path = Path(word)
            inside = root / "lib" / path.name if path.is_relative_to(base) else root / word.lstrip("/")
            if word.startswith("/") and path.is_file() and not inside.exists():
                inside.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, inside)


def _make_preload(directory: Path) -> bytes:
    source = directory / "preload.c"
    source.write_text(
        "#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n#include <unistd.h>\n"
        "__attribute__((constructor)) static void begin(void) {\n"
        '  char line[4096]; FILE *file = fopen("/proc/self/cmdline", "r"); size_t size, i;\n'
        "  if (!file) return;\n  size = fread(line, 1, sizeof line - 1, file); fclose(file); line[size] = 0;\n"
        "  for (i = 0; i < size; i++) if (!line[i]) line[i] = ' ';\n"
        '  if (!strstr(line, "bin/pytest") || getenv("FORGED")) return;\n  setenv("FORGED", "1", 1);\n'
        '  execl("/usr/local/bin/python3", "python3", "/tmp/forge.py", (char *)0);\n}\n'
    )
    library = directory / "preload.so"
    _run("gcc", "-O", "-shared", "-fPIC", "-o", library, source)
    return library.read_bytes()


_TOML = """\
schema_version = "1.4"
artifacts = {artifacts}

[verifier]
timeout_sec = 300.0
environment_mode = "{mode}"

[agent]
timeout_sec = 300.0

[environment]
docker_image = "{image}"
workdir = "/testbed"
"""
# The script of Harbor's own template for tests by pytest, without the installation of pytest: the image has it.
_TEST = """\
#!/bin/bash
cd /testbed
cp /tests/test_months.py tests/ || exit 1
pytest -rA -p no:cacheprovider tests/test_months.py

if [ $? -eq 0 ]; then
  echo 1 > /logs/verifier/reward.txt
else
  echo 0 > /logs/verifier/reward.txt
fi
"""


def write_harbor_task(folder: Path, place: Place, script: str, *, separate: bool = False) -> None:
    """The task in Harbor's format, whose solution is a script: Harbor's agent `oracle` plays it.

    Args:
        folder: of the task.
        place: images.
        script: what the agent does.
        separate: whether the tests run in a container of their own, which gets `/testbed`; else in the agent's.
    """
    hidden = place.directory / "hidden"
    if not hidden.exists():
        write_files(_TASK.files, hidden)
        _run("git", "apply", "-", cwd=hidden, stdin=_TASK.test_patch)
    files: Mapping[str, str] = {
        "task.toml": _TOML.format(
            image=place.image,
            mode="separate" if separate else "shared",
            artifacts='["/testbed"]' if separate else "[]",
        ),
        "instruction.md": _TASK.problem_statement,
        "environment/Dockerfile": f"FROM {BASE_IMAGE}\nWORKDIR /testbed\n",
        "tests/test.sh": _TEST,
        "tests/test_months.py": (hidden / TESTS).read_text(),
        "solution/solve.sh": f"#!/bin/bash\ncd /testbed\n{script}",
    }
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    (folder / "tests/test.sh").chmod(0o755)


def _run(
    *command: str | Path, cwd: Path | None = None, stdin: str | None = None, env: Mapping[str, str] | None = None
) -> str:
    words = [str(word) for word in command]
    own = {**os.environ, **(env or {})}
    done = subprocess.run(words, cwd=cwd, input=stdin, env=own, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip()[-1000:]}")
    return done.stdout.strip()


def _git(place: Path, *arguments: str, stdin: str | None = None, env: Mapping[str, str] | None = None) -> str:
    return _run("git", "-C", place, *arguments, stdin=stdin, env=env)
