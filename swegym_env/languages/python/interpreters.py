"""Python interpreters for set-up layers: those of the machine, those that a program on it can fetch, and their layers.

Old repositories need old Pythons. An interpreter under `/usr` is available in every sandbox on the image "host". Any
other interpreter, often in a home directory that the sandbox's user cannot enter, is copied once into a layer, under
the same path, because its libraries and settings refer to that path.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from swegym_env.errors import LayerError
from swegym_env.files import make_directory
from swegym_env.paths import expand, work_dir
from swegym_env.sandbox.identity import own
from swegym_env.sandbox.layers import LayerStore, Provenance, system_of

__all__ = ["Interpreter", "fetch_interpreter", "find_interpreter", "interpreter_layer", "shared_interpreter"]

_log = logging.getLogger(__name__)
_FETCH_TIMEOUT_S = 1800.0  # pyenv compiles

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
    """Paths of executables that may be Python `version`, the preferred ones first."""
    minor = ".".join(version.split(".")[:2])
    name = f"python{minor}"
    home = expand("~")
    system = [Path("/usr/bin") / name]
    if version == "3":
        yield from (path for path in system if path.exists())
    managed = [
        (Path(os.environ.get("PYENV_ROOT") or home / ".pyenv") / "versions", f"{version}*"),
        (Path(os.environ.get("UV_PYTHON_INSTALL_DIR") or home / ".local/share/uv/python"), f"cpython-{version}*"),
        (_fetched(), f"*-{version}*"),
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
    """Directories in which conda and similar managers are installed, or keep environments."""
    for variable in ("CONDA_PREFIX", "MAMBA_ROOT_PREFIX"):
        if os.environ.get(variable):
            yield Path(os.environ[variable])
    for name in ("miniconda3", "miniforge3", "mambaforge", "anaconda3", "micromamba"):
        yield from (home / name, Path("/opt") / name)
    yield from (home / ".conda", Path("/opt/conda"))


def _numbers(path: Path) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", path.name))


def _fetched() -> Path:
    """Where fetched interpreters are installed; each at the path that its layer has inside."""
    return work_dir() / "interpreters"


def fetch_interpreter(version: str) -> Interpreter:
    """Install an interpreter that the machine lacks, with the first of uv, micromamba, conda and pyenv that succeeds.

    This needs a network; one line of the log says what was fetched. After a failure, this process does not try the same
    version again.

    Raises:
        LayerError: all programs failed; the text contains the message of each.
    """
    reason = _fetch(version)
    if reason:
        raise LayerError(reason)
    find_interpreter.cache_clear()
    return find_interpreter(version)


@cache
def _fetch(version: str) -> str:
    """Install the interpreter; returns why this failed, or an empty text."""
    place = _fetched()
    answers = []
    for name, command in _fetchers(version, place):
        program = shutil.which(name)
        if program is None:
            continue
        _log.warning("Python %s is not on this machine: %s fetches it into %s", version, name, place)
        make_directory(place)
        environment = {**os.environ, "UV_PYTHON_INSTALL_DIR": str(place)}
        try:
            done = subprocess.run(
                [program, *command],
                capture_output=True,
                text=True,
                timeout=_FETCH_TIMEOUT_S,
                umask=0o022,
                stdin=subprocess.DEVNULL,
                env=environment,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            answers.append(f"{name}: {error}")
            continue
        if done.returncode == 0:
            return ""
        lines = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        answers.append(f"{name}: {(lines or [f'exit code {done.returncode}'])[-1]}")
    if not answers:
        answers = ["none of uv, micromamba, conda and pyenv is on PATH. Try: pip install uv"]
    return f"Python {version} cannot be fetched: {'; '.join(answers)}"


def _fetchers(version: str, place: Path) -> Iterator[tuple[str, Sequence[str]]]:
    """Programs that install interpreters, and their arguments. conda-forge has 3.5 and 3.6, which uv does not have."""
    yield "uv", ("python", "install", "--no-bin", version)
    environment = ("create", "--yes", "--prefix", str(place / f"conda-{version}"), "--channel", "conda-forge")
    for name in ("micromamba", "conda"):
        yield name, (*environment, f"python={version}", "pip")
    yield "pyenv", ("install", "--skip-existing", version)


def interpreter_layer(interpreter: Interpreter, store: LayerStore) -> Path | None:
    """The layer with a copy of `interpreter` for sandboxes; None if the image "host" has it.

    Raises:
        LayerError: it cannot be copied.
    """
    if interpreter.prefix == Path("/usr"):
        return None

    def copy(layer: Path) -> None:
        target = layer / interpreter.prefix.relative_to("/")
        target.parent.mkdir(parents=True)
        # Not copied: installed packages (pip comes from ensurepip), and archives for linking C programs.
        shutil.copytree(interpreter.prefix, target, symlinks=True, ignore=_not_copied)
        for directory, _, files in os.walk(layer):
            own(Path(directory))
            for name in files:
                own(Path(directory, name))

    key = ("interpreter", interpreter.version, str(interpreter.prefix))
    return store.get_or_build(key, copy, Provenance(requires=system_of("host")))


def shared_interpreter(version: str, store: LayerStore) -> Interpreter | None:
    """The newest interpreter of `version` that a shared store offers, or that came from one; None if there is none.

    An environment works with one interpreter only, down to the third number of its version. So a machine that takes
    environments from a store uses the interpreter of the store, even if it has one of its own.
    """
    offered = [key for key in store.offered("interpreter") if f"{key[1]}.".startswith(f"{version}.")]
    if not offered:
        return None
    _, full, prefix = max(offered, key=lambda key: [int(number) for number in re.findall(r"\d+", key[1])])
    return Interpreter(full, Path(prefix), Path(prefix, "bin", f"python{full.rpartition('.')[0]}"))


def _not_copied(directory: str, names: list[str]) -> set[str]:
    if os.path.basename(directory) == "site-packages":
        return set(names)
    return {name for name in names if name.startswith("libpython") and name.endswith(".a")}
