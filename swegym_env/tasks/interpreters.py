"""Python interpreters of the machine, and how a sandbox gets one.

Old repositories need old Pythons. Where the machine has the version (pyenv, uv, conda, or the system), tasks are
installed with it. One under `/usr` is in every sandbox on the image "host" already; any other, often under a home that
the sandbox's user cannot enter, is copied once into a layer, under the same path: its libraries and settings name that
path.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from swegym_env.errors import LayerError
from swegym_env.sandbox.identity import own
from swegym_env.sandbox.layers import LayerStore

__all__ = ["Interpreter", "find_interpreter", "interpreter_layer"]

_PROBE = """\
import os, sys, ensurepip, venv
print("%d.%d.%d" % sys.version_info[:3], sys.base_prefix, os.path.realpath(sys.executable), sep="\\n")
"""


@dataclass(frozen=True)
class Interpreter:
    """A Python that can make virtual environments.

    Attributes:
        version: all three numbers, as in "3.9.18".
        prefix: where it is installed on the host.
        executable: on the host and in a sandbox.
    """

    version: str
    prefix: Path
    executable: Path


@cache
def find_interpreter(version: str = "3") -> Interpreter:
    """The machine's newest interpreter whose version begins with `version`; "3" prefers the system's.

    Raises:
        LayerError: the machine has none, or none with `venv` and `ensurepip`.
    """
    seen: list[str] = []
    for executable in _candidates(version):
        try:
            probe = subprocess.run(
                [executable, "-I", "-c", _PROBE],
                capture_output=True,
                text=True,
                timeout=60,
                stdin=subprocess.DEVNULL,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            seen.append(f"{executable} (does not run)")
            continue
        if probe.returncode != 0:
            seen.append(f"{executable} (without venv or ensurepip)")
            continue
        full, prefix, resolved = probe.stdout.splitlines()
        if f"{full}.".startswith(f"{version}."):
            return Interpreter(full, Path(prefix), Path(resolved))
    without = f"; unfit: {', '.join(seen)}" if seen else ""
    raise LayerError(
        f"no Python {version} on this machine (looked in pyenv, uv, conda, /usr/bin, /usr/local/bin, /opt and PATH)"
        f"{without}. Try: uv python install {version}"
    )


def _candidates(version: str) -> Iterator[Path]:
    """Executables that may be Python `version`, best first."""
    minor = ".".join(version.split(".")[:2])
    name = f"python{minor}"
    home = Path("~").expanduser()
    system = [Path("/usr/bin") / name]
    if version == "3":
        yield from (path for path in system if path.exists())
    managed = [
        (Path(os.environ.get("PYENV_ROOT") or home / ".pyenv") / "versions", f"{version}*"),
        (Path(os.environ.get("UV_PYTHON_INSTALL_DIR") or home / ".local/share/uv/python"), f"cpython-{version}*"),
        *((place / "envs", "*") for place in _conda_places(home)),
        *((place.parent, place.name) for place in _conda_places(home)),  # the base environment
        (Path("/opt"), f"python*{version}*"),
    ]
    for directory, pattern in managed:
        for prefix in sorted(directory.glob(pattern), key=_numbers, reverse=True):
            for executable in (prefix / "bin" / name, prefix / "bin" / "python3"):
                if executable.exists():
                    yield executable
                    break
    yield from (path for path in (Path("/usr/local/bin") / name, *system) if path.exists())
    found = shutil.which(name)
    if found:
        yield Path(found)


def _conda_places(home: Path) -> Iterator[Path]:
    """Where conda and its like are installed, and keep environments."""
    for variable in ("CONDA_PREFIX", "MAMBA_ROOT_PREFIX"):
        if os.environ.get(variable):
            yield Path(os.environ[variable])
    for name in ("miniconda3", "miniforge3", "mambaforge", "anaconda3", "micromamba"):
        yield from (home / name, Path("/opt") / name)
    yield from (home / ".conda", Path("/opt/conda"))


def _numbers(path: Path) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", path.name))


def interpreter_layer(interpreter: Interpreter, store: LayerStore) -> Path | None:
    """The layer that brings `interpreter` into a sandbox; None where the image "host" has it already.

    Raises:
        LayerError: it cannot be copied.
    """
    if interpreter.prefix == Path("/usr"):
        return None

    def copy(layer: Path) -> None:
        target = layer / interpreter.prefix.relative_to("/")
        target.parent.mkdir(parents=True)
        # Its own packages stay behind (pip comes from ensurepip), and so do archives to link C programs with.
        shutil.copytree(interpreter.prefix, target, symlinks=True, ignore=_left_behind)
        for directory, _, files in os.walk(layer):
            own(Path(directory))
            for name in files:
                own(Path(directory, name))

    return store.get_or_build(("interpreter", interpreter.version, str(interpreter.prefix)), copy)


def _left_behind(directory: str, names: list[str]) -> set[str]:
    if os.path.basename(directory) == "site-packages":
        return set(names)
    return {name for name in names if name.startswith("libpython") and name.endswith(".a")}
