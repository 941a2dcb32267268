"""Programs from Debian's packages run in a sandbox whose machine lacks them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from swegym_env.errors import LayerError
from swegym_env.languages.debian import PROGRAMS, missing_programs, programs_layer, why_missing
from swegym_env.sandbox import SandboxSpec, open_sandbox
from swegym_env.sandbox.layers import LayerStore

# One program reads a library beside it, one needs the list of its plugins, as Graphviz does, and one acts by the name
# that it is called by, as ccache does.
FILES = {
    "DEBIAN/control": "Package: greeter\nVersion: 1\nArchitecture: all\nMaintainer: x <x@x.org>\nDescription: x\n",
    "usr/bin/greet-x": "#!/bin/sh\ncat ${LD_LIBRARY_PATH%%:*}/words; echo $1\n",
    "usr/lib/x86_64-linux-gnu/words": "hello\n",
    "usr/bin/dot": "#!/bin/sh\n[ $1 = -c ] && ls $GVBINDIR > $GVBINDIR/config\n",
    "usr/bin/dot-x": "#!/bin/sh\ncat $GVBINDIR/config\n",
    "usr/lib/x86_64-linux-gnu/graphviz/plugin.so": "",
    "usr/bin/masked": "",  # bash, as the kernel gives no script the name that it is called by
    # As Automake's: data at absolute paths, one of which gets its version later, and a name without one.
    "usr/bin/make-x-1.2": (
        "#!/bin/sh\ndata=/usr/share/make-x- words=/usr/share/greeter/words\n"
        "cat ${data}1.2/words $words && ls /usr/bin/env\n"
    ),
    "usr/share/make-x-1.2/words": "versioned\n",
    "usr/share/greeter/words": "plain\n",
}


def package(directory: Path) -> Path:
    """The Debian package `greeter` with `FILES`."""
    for path, text in FILES.items():
        (directory / "tree" / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / "tree" / path).write_text(text)
    shutil.copy("/bin/bash", directory / "tree/usr/bin/masked")
    for program in (directory / "tree/usr/bin").iterdir():
        program.chmod(0o755)
    archive = directory / "greeter_1_all.deb"
    subprocess.run(["dpkg-deb", "--build", directory / "tree", archive], check=True, capture_output=True)
    return archive


def apt(directory: Path, *lines: str) -> None:
    directory.mkdir(exist_ok=True)
    (directory / "apt-get").write_text("\n".join(("#!/bin/sh", *lines)) + "\n")
    (directory / "apt-get").chmod(0o755)


def test_a_program_that_the_machine_lacks_comes_from_its_package(
    tmp_path: Path, store: LayerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = package(tmp_path)
    apt(
        tmp_path / "bin",
        f'echo "$*" >> {tmp_path}/asked',
        'case "$*" in *--simulate*) echo "Inst greeter (1 Debian [all])";;',
        f"*download*greeter) cp {archive} .;; *) exit 1;; esac",
    )
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    wanted = {"sh": "dash", "greet-x": "greeter", "dot-x": "greeter", "make-x": "greeter", "masked": "greeter"}
    assert missing_programs(wanted) == dict.fromkeys(("greet-x", "dot-x", "make-x", "masked"), "greeter")
    layer = programs_layer(wanted, store)
    assert layer is not None
    sandbox = open_sandbox(SandboxSpec(workdir="/tmp", layers=(layer,)))
    try:
        sandbox.start()
        assert sandbox.run(f"{PROGRAMS}/bin/greet-x you").output == "hello\nyou\n"
        assert sandbox.run(f"{PROGRAMS}/bin/dot-x").output == "config\nplugin.so\n"
        assert sandbox.run(f"{PROGRAMS}/bin/make-x").output == "versioned\nplain\n/usr/bin/env\n"
        link = f"ln -s {PROGRAMS}/bin/masked /tmp/gcc && PATH=/tmp:$PATH gcc -c 'echo ${{0##*/}}'"
        assert sandbox.run(link).output == "gcc\n"
        assert sandbox.run(f"{PROGRAMS}/bin/masked -c 'echo $0'").output == f"{PROGRAMS}/usr/bin/masked\n"
    finally:
        sandbox.close()
    asked = (tmp_path / "asked").read_text()
    assert programs_layer(wanted, store) == layer
    assert (tmp_path / "asked").read_text() == asked  # once
    assert programs_layer({"sh": "dash"}, store) is None


def test_a_package_that_cannot_be_had_is_named_in_one_line(
    tmp_path: Path, store: LayerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    apt(tmp_path / "bin", "echo 'E: Unable to locate package greeter' >&2", "exit 100")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    with pytest.raises(LayerError, match=r"greeter are not on .*E: Unable to locate.* Try: apt-get install greeter$"):
        programs_layer({"greet-x": "greeter"}, store)
    assert why_missing({"greet-x": "greeter"}) == ""  # not known before it is tried
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    assert why_missing({"sh": "dash", "greet-x": "greeter"}) == "no greet-x on this machine. Try: install greeter"
    with pytest.raises(LayerError, match=r"`apt-get` could not bring them: .*No such file"):
        programs_layer({"greet-x": "greeter"}, store)
