"""Programs that tests need and the machine lacks: unpacked from Debian packages into a layer, without root.

The image "host" uses the machine's `/usr`, to which a layer cannot add files. So packages are unpacked under
`/opt/programs`, and each program has a starter in `/opt/programs/bin` that finds its libraries and data there. Paths in
scripts and other texts of the packages, such as those of Autoconf, are changed accordingly.
"""

from __future__ import annotations

import glob
import os
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from swegym_env.errors import LayerError
from swegym_env.sandbox.identity import own
from swegym_env.sandbox.layers import LayerStore, Provenance, system_of

__all__ = ["PROGRAMS", "SYSTEM_PATH", "missing_programs", "programs_layer", "why_missing"]

PROGRAMS = "/opt/programs"
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_TIMEOUT_S = 600.0
_TEXT_BYTES = 1 << 20
_MACROS = "usr/share/aclocal"  # of Autoconf; the machine's own ones are found by $ACLOCAL_PATH
_TEX = "usr/share/texlive/texmf-dist"
_TEX_MADE = "var/lib/texmf"  # what TeX Live makes when it is configured: formats, maps of fonts, lists of files
# Of several values of a setting the first counts, so these stand before TeX Live's own. $SELFAUTOPARENT is the
# directory above `usr`, wherever that is.
_TEX_SETTINGS = f"""\
TEXMFROOT = $SELFAUTOPARENT/usr/share/texlive
TEXMFDEBIAN = $SELFAUTOPARENT/usr/share/texmf
TEXMFSYSVAR = $SELFAUTOPARENT/{_TEX_MADE}
TEXMFSYSCONFIG = $SELFAUTOPARENT/etc/texmf
"""
_NAMED_FILE = re.compile(rb"(?<![\w./-])/usr/[\w+-]+(?:/[\w.+-]+)+")
_APT = ("apt-get", "-o", "Debug::NoLocking=1", "--no-install-recommends")
# Ghostscript looks for its own files in the place that it was compiled for, or in $GS_LIB; Graphviz for its plugins,
# with the list of them that its installation makes, in $GVBINDIR; Bison for its skeletons, and with Flex for m4; TeX
# Live for its settings in $TEXMFCNF, and its programs for each other on $PATH. A program that is called by another
# name, through a link, gets that name: ccache compiles when it is called `gcc`.
_STARTER = f"""\
#!/bin/bash
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
[ -x {PROGRAMS}/usr/bin/m4 ] && export M4={PROGRAMS}/usr/bin/m4
[ -d {PROGRAMS}/usr/share/bison ] && export BISON_PKGDATADIR={PROGRAMS}/usr/share/bison
[ -d {PROGRAMS}/{_TEX_MADE} ] && export TEXMFCNF={PROGRAMS}/{_TEX_MADE}/web2c PATH=$PATH:{PROGRAMS}/usr/bin
[ -d {PROGRAMS}/{_MACROS} ] && export ACLOCAL_PATH=/{_MACROS}
program={PROGRAMS}/usr/bin/%s name=$0
[ "${{name##*/}}" = "${{program##*/}}" ] && name=$program
LD_LIBRARY_PATH=$libraries$LD_LIBRARY_PATH GS_LIB=$data exec -a "$name" "$program" "$@"
"""


def missing_programs(wanted: Mapping[str, str]) -> dict[str, str]:
    """Those of `wanted` (program → Debian packages, separated by blanks) that the image "host" has not."""
    return {program: package for program, package in wanted.items() if not shutil.which(program, path="/usr/bin:/bin")}


def why_missing(wanted: Mapping[str, str]) -> str:
    """Why `programs_layer` cannot bring `wanted`; empty if the machine has them, or apt-get may bring them."""
    missing = missing_programs(wanted)
    if not missing or shutil.which("apt-get"):
        return ""
    return f"no {', '.join(sorted(missing))} on this machine. Try: install {' '.join(_packages(missing))}"


def programs_layer(wanted: Mapping[str, str], store: LayerStore) -> Path | None:
    """The layer with the missing ones of `wanted`, as in `missing_programs`; None if the machine has all.

    Raises:
        LayerError: the packages cannot be obtained; the text says what to install.
    """
    missing = missing_programs(wanted)
    if not missing:
        return None
    packages = _packages(missing)
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
        _relocate(root)
        for plugins in root.glob("usr/lib/*-linux-gnu/graphviz"):
            paths = {"GVBINDIR": str(plugins), "LD_LIBRARY_PATH": str(plugins.parent)}
            _run([str(root / "usr/bin/dot"), "-c"], str(root), packages, paths)
        if (root / _TEX).is_dir():
            _configure_tex(root, missing, packages)
        for program in missing:
            _link_alternative(root / "usr/bin", program)
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


def _packages(missing: Mapping[str, str]) -> list[str]:
    return sorted({package for packages in missing.values() for package in packages.split()})


def _relocate(root: Path) -> None:
    """Let the texts of the packages name the packages' own files below `PROGRAMS`, if the machine has none of them.

    A name that ends with a dash is the beginning of one: a script adds a version to it.
    """

    def place(match: re.Match[bytes]) -> bytes:
        pattern = glob.escape(os.fsdecode(match[0]).lstrip("/")) + ("*" if match[0].endswith(b"-") else "")
        ours = any(root.glob(pattern)) and (pattern == _MACROS or not any(Path("/").glob(pattern)))
        return PROGRAMS.encode() + match[0] if ours else match[0]

    for directory, _, files in os.walk(root):
        for file in (Path(directory, name) for name in files):
            if file.is_symlink() or file.stat().st_size > _TEXT_BYTES:
                continue
            content = file.read_bytes()
            if b"/usr/" in content and b"\0" not in content:
                file.write_bytes(_NAMED_FILE.sub(place, content))


def _link_alternative(programs: Path, program: str) -> None:
    """Link a program that Debian links when it configures the package: `automake` to `automake-1.16`."""
    if not (programs / program).exists():
        for versioned in sorted(programs.glob(f"{program}-[0-9]*")):
            (programs / program).unlink(missing_ok=True)
            (programs / program).symlink_to(versioned.name)


def _configure_tex(root: Path, programs: Iterable[str], packages: list[str]) -> None:
    """Make what Debian makes when it configures TeX Live: settings, maps of fonts, lists of files, and formats.

    Args:
        programs: the formats among them are made, such as `latex`, and that of Metafont, which draws fonts as bitmaps.
    Raises:
        LayerError: the machine has a part of TeX Live, which apt-get leaves out, or a format cannot be made.
    """
    dist, made = root / _TEX, root / _TEX_MADE
    if not (dist / "web2c/texmf.cnf").exists():
        raise LayerError(
            f"{', '.join(sorted(programs))}: the Debian packages {', '.join(packages)} make no TeX Live without that "
            "part of it which this machine has. Try: a machine without TeX Live"
        )
    for place in ("web2c", "tex/generic/config", "fonts/map/dvips/updmap", "fonts/map/pdftex/updmap"):
        (made / place).mkdir(parents=True, exist_ok=True)
    (made / "web2c/texmf.cnf").write_text(_TEX_SETTINGS + (dist / "web2c/texmf.cnf").read_text())
    for name, source in {"language.dat": "language.us", "language.def": "language.us.def"}.items():
        shutil.copy(dist / "tex/generic/config" / source, made / "tex/generic/config" / name)

    maps = ["ps2pk35.map"]  # Times, Helvetica and others that printers have, taken from files all the same
    for settings in sorted(root.glob("var/lib/tex-common/fontmap-cfg/*/*.cfg")):
        maps += re.findall(r"^(?:Mixed)?Map +(\S+)", settings.read_text(), re.MULTILINE)
    trees = (made, root / "usr/share/texmf", dist)
    known = {place.name: place for tree in trees for place in tree.glob("fonts/map/dvips/*/*.map")}
    lines = "".join(known[name].read_text(errors="surrogateescape") for name in maps if name in known)
    for name in ("dvips/updmap/psfonts.map", "pdftex/updmap/pdftex.map"):
        (made / "fonts/map" / name).write_text(lines, errors="surrogateescape")

    lists = "".join(place.read_text() for place in sorted(root.glob("var/lib/tex-common/fmtutil-cnf/*/*.cnf")))
    paths = {
        "TEXMFCNF": str(made / "web2c"),
        "PATH": f"{os.environ['PATH']}:{root / 'usr/bin'}",
        "LD_LIBRARY_PATH": ":".join(map(str, root.glob("usr/lib/*-linux-gnu"))),
    }
    _list_files(trees)
    for name, engine, arguments in re.findall(r"^(\S+) (\S+) \S+ (.+)$", lists, re.MULTILINE):
        if name in {"mf", *programs}:
            command = [str(root / "usr/bin" / engine), "-ini", f"-jobname={name}", f"-progname={name}"]
            _run([*command, *arguments.split()], str(made / "web2c"), packages, paths)
    _list_files(trees)


def _list_files(trees: Iterable[Path]) -> None:
    """Write the list of its files into each tree of TeX Live, which looks for no others there."""
    for tree in filter(Path.is_dir, trees):
        lines = ["% ls-R -- filename database for kpathsea; do not change this line."]
        for directory, directories, files in sorted(os.walk(tree)):
            lines += [f".{directory.removeprefix(str(tree)) or '/'}:", *sorted([*directories, *files]), ""]
        (tree / "ls-R").unlink(missing_ok=True)  # a link to where Debian makes it
        (tree / "ls-R").write_text("\n".join(lines))


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
