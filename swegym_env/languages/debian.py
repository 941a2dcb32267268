"""Programs that tests call and the machine lacks: unpacked from Debian's packages into a layer, without being root.

The image "host" has the machine's own `/usr`, which a layer cannot add to. So packages lie under `/opt/programs`, and
each program has a starter in `/opt/programs/bin` that finds its libraries and data there.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from swegym_env.errors import LayerError
from swegym_env.sandbox.identity import own
from swegym_env.sandbox.layers import LayerStore, Provenance, system_of

__all__ = ["PROGRAMS", "missing_programs", "programs_layer", "why_missing"]

PROGRAMS = "/opt/programs"
_TIMEOUT_S = 600.0
_APT = ("apt-get", "-o", "Debug::NoLocking=1", "--no-install-recommends")
# Ghostscript looks for its own files in the place that it was compiled for, or in $GS_LIB; Graphviz for its plugins,
# with the list of them that its installation makes, in $GVBINDIR.
_STARTER = f"""\
#!/bin/sh
for each in {PROGRAMS}/usr/lib/*-linux-gnu {PROGRAMS}/lib/*-linux-gnu; do
  [ -d "$each" ] && libraries=$libraries$each:
done
for each in {PROGRAMS}/usr/share/ghostscript/*/Resource/Init {PROGRAMS}/usr/share/ghostscript/*/lib \\
  {PROGRAMS}/usr/share/ghostscript/*/Resource/Font; do
  [ -d "$each" ] && data=$data$each:
done
for each in {PROGRAMS}/usr/lib/*-linux-gnu/graphviz; do
  [ -d "$each" ] && export GVBINDIR="$each" FONTCONFIG_PATH={PROGRAMS}/etc/fonts
done
LD_LIBRARY_PATH=$libraries$LD_LIBRARY_PATH GS_LIB=$data exec {PROGRAMS}/usr/bin/%s "$@"
"""


def missing_programs(wanted: Mapping[str, str]) -> dict[str, str]:
    """Those of `wanted` (program → Debian package) that the image "host" has not."""
    return {program: package for program, package in wanted.items() if not shutil.which(program, path="/usr/bin:/bin")}


def why_missing(wanted: Mapping[str, str]) -> str:
    """Why `programs_layer` cannot bring `wanted`; empty if the machine has them, or apt-get may bring them."""
    missing = missing_programs(wanted)
    if not missing or shutil.which("apt-get"):
        return ""
    return f"no {', '.join(sorted(missing))} on this machine. Try: install {' '.join(sorted(set(missing.values())))}"


def programs_layer(wanted: Mapping[str, str], store: LayerStore) -> Path | None:
    """The layer with the missing ones of `wanted` (program → Debian package); None if the machine has all.

    Raises:
        LayerError: the packages cannot be obtained; the text says what to install.
    """
    missing = missing_programs(wanted)
    if not missing:
        return None
    packages = sorted(set(missing.values()))
    system = platform.freedesktop_os_release()

    def unpack(layer: Path) -> None:
        root = layer / PROGRAMS.lstrip("/")
        (root / "bin").mkdir(parents=True)
        with tempfile.TemporaryDirectory() as scratch:
            planned = _run([*_APT, "--simulate", "install", *packages], scratch, packages)
            needed = [line.split()[1] for line in planned.splitlines() if line.startswith("Inst ")]
            _run([*_APT, "download", *needed], scratch, packages)
            for archive in sorted(Path(scratch).glob("*.deb")):
                _run(["dpkg-deb", "--extract", str(archive), str(root)], scratch, packages)
        for plugins in root.glob("usr/lib/*-linux-gnu/graphviz"):
            paths = {"GVBINDIR": str(plugins), "LD_LIBRARY_PATH": str(plugins.parent)}
            _run([str(root / "usr/bin/dot"), "-c"], str(root), packages, paths)
        for program in missing:
            starter = root / "bin" / program
            starter.write_text(_STARTER % program)
            starter.chmod(0o755)
        for directory, _, files in os.walk(layer):
            own(Path(directory))
            for name in files:
                own(Path(directory, name))

    release = f"{system.get('ID', '')} {system.get('VERSION_ID', '')}"
    key = ("programs", release, platform.machine(), _STARTER, *packages, *sorted(missing))
    return store.get_or_build(key, unpack, Provenance(requires=system_of("host")))


def _run(command: list[str], directory: str, packages: list[str], paths: Mapping[str, str] | None = None) -> str:
    try:
        done = subprocess.run(
            command,
            cwd=directory,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "LC_ALL": "C", **(paths or {})},
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        lines = (getattr(error, "stderr", "") or str(error)).strip().splitlines()
        raise LayerError(
            f"programs of the Debian packages {', '.join(packages)} are not on this machine, and "
            f"`{' '.join(command[:1])}` could not bring them: {lines[-1]}. Try: apt-get install {' '.join(packages)}"
        ) from error
    return done.stdout
