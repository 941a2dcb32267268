"""The root file systems that Dockerfiles begin from.

    $SWEGYM_BASE_IMAGES                       a folder of root file systems and Dockerfiles, looked into first:
                                              `NAME:TAG` with `_` for `/`, or `NAME_TAG.Dockerfile`
    FROM debian:SUITE, buildpack-deps:SUITE   Debian's own packages, by mmdebstrap
    FROM ubuntu:VERSION                       the Debian release of the same age
    FROM python:3.X                           the Debian release with this Python, or this machine's own interpreter
    any other                                 pulled from its registry, by Apptainer

Where Debian takes the place of Ubuntu, `add-apt-repository` adds nothing: packages are Debian's or missing.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from swegym_env.errors import ImageError
from swegym_env.languages.python.interpreters import find_interpreter
from swegym_env.paths import expand
from swegym_env.sandbox.identity import own, sandbox_user
from swegym_env.sandbox.images import resolve_image
from swegym_env.sandbox.images.store import check_root, settle
from swegym_env.sandbox.layers import LayerStore

__all__ = ["find_base", "find_recipe", "image_variables"]

_MIRROR = "http://deb.debian.org/debian"
_SUITES = ("bullseye", "bookworm", "trixie")
_OF_NUMBER = {"11": "bullseye", "12": "bookworm", "13": "trixie", "latest": "trixie", "stable": "trixie"}
_OF_UBUNTU = {"20.04": "bullseye", "22.04": "bookworm", "24.04": "trixie", "latest": "trixie", "focal": "bullseye",
              "jammy": "bookworm", "noble": "trixie"}  # fmt: skip
_BEFORE_MARKERS = ("20.04", "22.04", "focal", "jammy")  # where pip installs beside Debian's own packages
_ADD_ARCHIVE = "usr/local/bin/add-apt-repository"
_NO_ARCHIVE = """\
#!/bin/sh
echo "add-apt-repository $*: left out: packages are Debian's here" >&2
"""
_VARIABLES = ".singularity.d/env/10-docker2singularity.sh"
_OF_PYTHON = {"3.9": "bullseye", "3.11": "bookworm", "3.13": "trixie"}


def find_recipe(name: str) -> Path | None:
    """The Dockerfile in `$SWEGYM_BASE_IMAGES` that the image `name` is built from, if there is one."""
    given = _given(name)
    recipe = given.with_name(given.name.replace(":", "_") + ".Dockerfile") if given else None
    return recipe if recipe is not None and recipe.is_file() else None


def find_base(name: str, store: LayerStore, at: str) -> Path:
    """The root file system for the image `name` of a FROM.

    Raises:
        ImageError: it cannot be made here, nor pulled.
    """
    whole, name = name, name.partition("@")[0]
    given = _given(name)
    if given is not None and given.is_dir():
        return _check_owner(check_root(given, name), at)
    repository, _, tag = name.removeprefix("docker.io/").removeprefix("library/").partition(":")
    words = set(re.split(r"[-:]", tag or "latest"))
    suite = next((each for each in _SUITES if each in words), "")
    python = ""
    if repository in ("debian", "buildpack-deps"):
        suite = suite or next(
            (_OF_NUMBER[word.split(".")[0]] for word in words if word.split(".")[0] in _OF_NUMBER), ""
        )
    if repository in ("ubuntu", "buildpack-deps"):
        suite = suite or next((_OF_UBUNTU[word] for word in words if word in _OF_UBUNTU), "")
    elif repository == "python":
        version = re.match(r"(3\.\d+)", tag)
        python = version[1] if version else "3.13"
        suite = suite or _OF_PYTHON.get(python, "bookworm")
    elif repository != "debian":
        suite = ""
    if not suite:
        try:
            return resolve_image(f"docker://{whole}")
        except ImageError as error:
            raise ImageError(
                f"{at}: FROM {whole}: not made of Debian's packages here, and not pulled: {error}. "
                "Try: a root file system or a Dockerfile of it in $SWEGYM_BASE_IMAGES"
            ) from error
    parts = (repository == "buildpack-deps") * "build" or ("slim" not in words and repository == "python") * "build"
    named = words - {"latest"} if repository == "buildpack-deps" else words  # whose latest is Debian's
    ubuntu = (
        next((word for word in sorted(named) if word in _OF_UBUNTU), "")
        if repository in ("ubuntu", "buildpack-deps")
        else ""
    )
    key = ("base", "2", suite, python, parts, ubuntu)
    return store.get_or_build(key, lambda layer: _bootstrap(layer, suite, python, parts, ubuntu, at))


def image_variables(root: Path) -> dict[str, str]:
    """The variables that an image pulled by Apptainer sets, by Docker's ENV."""
    try:
        text = (root / _VARIABLES).read_text(errors="replace")
    except OSError:
        return {}
    return {
        name: re.sub(r"\\(.)", r"\1", default or value, flags=re.DOTALL)
        for name, default, value in re.findall(r'^export (\w+)="(?:\$\{\1:-"(.*)"\}|(.*))"$', text, re.MULTILINE)
    }


def _given(name: str) -> Path | None:
    """Where `$SWEGYM_BASE_IMAGES` would have an image."""
    folder = os.environ.get("SWEGYM_BASE_IMAGES")
    return expand(folder) / name.replace("/", "_") if folder else None


def _check_owner(root: Path, at: str) -> Path:
    """Return `root` if all its files belong to the user of sandboxes. Raises ImageError."""
    user = sandbox_user()
    for path in (root.resolve(), *sorted(root.iterdir()), *sorted(root.glob("*/*"))):
        if (owner := path.lstat().st_uid) != user[0]:
            raise ImageError(
                f"{at}: {path} belongs to user {owner}, who does not exist in a sandbox: the agent and the tests could "
                f"not write there. Try: chown -RhP {user[0]}:{user[1]} {root}"
            )
    return root


def _bootstrap(target: Path, suite: str, python: str, parts: str, ubuntu: str, at: str) -> None:
    """Fill `target` with a Debian of `suite`, and a Python as the official images have it, in `/usr/local/bin`."""
    program = shutil.which("mmdebstrap")
    if program is None:
        raise ImageError(f"{at}: Debian's packages are put together by mmdebstrap. Try: apt-get install mmdebstrap")
    packages = ["ca-certificates", "fakeroot", "bash", "tar"]
    if parts:
        packages += ["build-essential", "git", "curl", "wget", "procps", "unzip", "xz-utils"]
    of_debian = python and _OF_PYTHON.get(python) == suite
    if python:
        packages += (
            ["python3", "python3-pip", "python3-venv", "python3-dev"] if of_debian else ["libsqlite3-0", "libffi8"]
        )
        packages += [] if of_debian else ["libreadline8", "libncursesw6", "libbz2-1.0", "liblzma5", "openssl"]
    command = [
        program, "--mode=root", "--variant=minbase", "--format=directory", f"--include={','.join(packages)}",
        "--aptopt=Acquire::Languages \"none\"", suite, str(target / ".made"), _MIRROR,
    ]  # fmt: skip
    ran = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    if ran.returncode != 0:
        lines = [line for line in ran.stderr.splitlines() if line.startswith("E:")] or ran.stderr.splitlines()[-1:]
        raise ImageError(f"{at}: mmdebstrap {suite}: {' '.join(lines)[:300]}")
    root = target / ".made"
    (root / "etc/apt/apt.conf.d/99sandbox").write_text('APT::Sandbox::User "root";\n')
    if ubuntu:
        (root / _ADD_ARCHIVE).write_text(_NO_ARCHIVE)
        (root / _ADD_ARCHIVE).chmod(0o755)
    if ubuntu in _BEFORE_MARKERS:
        (root / "etc/dpkg/dpkg.cfg.d/markers").write_text("path-exclude=/usr/lib/python3*/EXTERNALLY-MANAGED\n")
    if python:
        _install_python(root, python, bool(of_debian), at)
    settle(root)
    for entry in list(root.iterdir()):
        entry.rename(target / entry.name)
    root.rmdir()
    own(target)


def _install_python(root: Path, version: str, of_debian: bool, at: str) -> None:
    """`python`, `python3` and `pip` in `/usr/local/bin`: of Debian's packages, or this machine's interpreter."""
    programs = root / "usr/local/bin"
    if of_debian:
        for name, target in {"python": "python3", "python3": "python3", "pip": "pip3", "pip3": "pip3"}.items():
            (programs / name).symlink_to(f"/usr/bin/{target}")
        for marker in (root / "usr/lib").glob("python3*/EXTERNALLY-MANAGED"):
            marker.unlink()
        return
    # In /usr/local as in the official images: scripts of packages are on the path, and protected as programs are.
    found = find_interpreter(version)
    left_out = shutil.ignore_patterns("__pycache__", "test", "site-packages")
    for name in ("include", "lib"):
        place = root / "usr/local" / name
        shutil.copytree(found.prefix / name, place, symlinks=True, ignore=left_out, dirs_exist_ok=True)
    shutil.copy2(found.executable.resolve(), programs / f"python{version}")
    for name in ("python", "python3"):
        (programs / name).symlink_to(f"python{version}")
    for command in (["/sbin/ldconfig"], [f"/usr/local/bin/python{version}", "-m", "ensurepip", "--default-pip"]):
        ran = subprocess.run(["chroot", root, *command], check=False, capture_output=True, text=True)
        if ran.returncode != 0:
            reason = (ran.stderr.strip().splitlines() or ["no output"])[-1]
            raise ImageError(f"{at}: python {found.version} of this machine: {command[0]}: {reason[:300]}")
