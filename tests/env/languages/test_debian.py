"""Programs from Debian's packages run in a sandbox whose machine lacks them."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from swegym_env.errors import LayerError
from swegym_env.languages.debian import PROGRAMS, SYSTEM_PATH, missing_programs, programs_layer, why_missing
from swegym_env.languages.python.setup import SHIPPED_TABLE, read_table
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

# As TeX Live's: an engine that makes a format and needs its settings, and another program that it calls. The links lead
# to what Debian makes when it configures the package.
TEX = "usr/share/texlive/texmf-dist"
TEX_FILES = {
    "DEBIAN/control": "Package: texlive-x\nVersion: 1\nArchitecture: all\nMaintainer: x <x@x.org>\nDescription: x\n",
    "usr/bin/pdftex-x": (
        "#!/bin/bash\n[ -f $TEXMFCNF/texmf.cnf ] || exit 1\n"
        '[ "$1" = -ini ] && exec sh -c "echo $* > latex-x.fmt"\n'
        "cat $TEXMFCNF/latex-x.fmt $TEXMFCNF/texmf.cnf && make-font-x\n"
    ),
    "usr/bin/latex-x": "#!/bin/bash\nexec pdftex-x\n",
    "usr/bin/make-font-x": "#!/bin/sh\ncat ${TEXMFCNF%/web2c}/fonts/map/*/updmap/*.map\n",
    f"{TEX}/web2c/texmf.cnf": "TEXMFSYSVAR = /var/lib/texmf\n",
    f"{TEX}/tex/generic/config/language.us": "english hyphen.tex\n",
    f"{TEX}/tex/generic/config/language.us.def": "\\addlanguage {USenglish}{hyphen}{}{2}{3}\n",
    f"{TEX}/fonts/map/dvips/x/x.map": "cmr10 CMR10 <cmr10.pfb\n",
    f"{TEX}/fonts/map/dvips/x/unused.map": "unused\n",
    "var/lib/tex-common/fontmap-cfg/texlive/x.cfg": "# Map unused.map\nMixedMap x.map\nMap absent.map\n",
    "var/lib/tex-common/fmtutil-cnf/texlive/x.cnf": (
        "latex-x pdftex-x language.dat -translate-file=cp227.tcx *latex.ini\nxelatex-x no-engine - x.ini\n"
    ),
}


def package(directory: Path, name: str = "greeter", files: dict[str, str] = FILES) -> Path:
    """The Debian package `greeter` with `FILES`, or another one."""
    for path, text in files.items():
        (directory / "tree" / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / "tree" / path).write_text(text)
    if files is FILES:
        shutil.copy("/bin/bash", directory / "tree/usr/bin/masked")
    else:
        (directory / "tree" / TEX / "ls-R").symlink_to("/var/lib/texmf/ls-R-TEXLIVEDIST")
    for program in (directory / "tree/usr/bin").iterdir():
        program.chmod(0o755)
    archive = directory / f"{name}_1_all.deb"
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


def test_tex_live_is_configured_in_its_layer(
    tmp_path: Path, store: LayerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = package(tmp_path, "texlive-x", TEX_FILES)
    apt(
        tmp_path / "bin",
        'case "$*" in',
        '*"--simulate install fonts-x texlive-x") echo "Inst texlive-x (1 Debian [all])";;',
        f'*"download texlive-x") cp {archive} .;; *) exit 1;; esac',
    )
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    layer = programs_layer({"latex-x": "texlive-x fonts-x"}, store)
    assert layer is not None
    sandbox = open_sandbox(SandboxSpec(workdir="/tmp", layers=(layer,)))
    try:
        sandbox.start()
        lines = sandbox.run(f"{PROGRAMS}/bin/latex-x").output.splitlines()
        assert lines[0] == "-ini -jobname=latex-x -progname=latex-x -translate-file=cp227.tcx *latex.ini"
        # The first value of a setting counts.
        assert lines.index("TEXMFSYSVAR = $SELFAUTOPARENT/var/lib/texmf") < lines.index("TEXMFSYSVAR = /var/lib/texmf")
        assert lines[-2:] == ["cmr10 CMR10 <cmr10.pfb"] * 2  # for dvips and for pdftex
        assert sandbox.run(f"cat {PROGRAMS}/var/lib/texmf/tex/generic/config/language.dat").output == (
            "english hyphen.tex\n"
        )
        lists = sandbox.run(f"cd {PROGRAMS}; head -n 1 var/lib/texmf/ls-R; cat {TEX}/ls-R").output.splitlines()
        first = "% ls-R -- filename database for kpathsea; do not change this line."
        assert lists[:2] == [first, first]
        place = lists.index("./fonts/map/dvips/x:")
        assert lists[place + 1 : place + 4] == ["unused.map", "x.map", ""]
        assert sandbox.run(f"grep -c fmt {PROGRAMS}/var/lib/texmf/ls-R").output == "1\n"
    finally:
        sandbox.close()


def test_a_tex_live_of_which_the_machine_has_a_part_is_refused(
    tmp_path: Path, store: LayerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {path: text for path, text in TEX_FILES.items() if not path.endswith("texmf.cnf")}
    archive = package(tmp_path, "texlive-x", files)
    apt(
        tmp_path / "bin",
        'case "$*" in *--simulate*) echo "Inst texlive-x (1 Debian [all])";;',
        f"*download*texlive-x) cp {archive} .;; *) exit 1;; esac",
    )
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    with pytest.raises(LayerError, match=r"^latex-x: the Debian packages texlive-x make no TeX Live .*Try: a machine"):
        programs_layer({"latex-x": "texlive-x"}, store)


DOCUMENT = r"""
\documentclass{article}
\usepackage{type1ec}
\usepackage{type1cm}
\usepackage[utf8]{inputenc}
\usepackage[papersize=72in, margin=1in]{geometry}
\usepackage[strings]{underscore}
\begin{document}
\fontsize{12}{15}{\sffamily a\_b} {\fontfamily{pnc}\selectfont d}
$\displaystyle\sum_n\frac{-e^{i\pi}}{2^n}$ {\ttfamily c}
\end{document}
"""
PICTURE = r"""
\documentclass{article}
\usepackage{pgf}
\usepackage{fontspec}
\begin{document}
\begin{pgfpicture}\pgfpathcircle{\pgfpointorigin}{9pt}\pgfusepath{stroke}\end{pgfpicture} text
\end{document}
"""


@pytest.mark.campaign  # 126 MB are downloaded
def test_latex_and_xelatex_of_debian_make_what_matplotlib_asks_for(store: LayerStore) -> None:
    """The documents are as those of matplotlib's `texmanager` and `backend_pgf`."""
    recipe = dict(read_table(SHIPPED_TABLE)["matplotlib/matplotlib"])[frozenset({"3.6"})]
    wanted = {**recipe.programs, **recipe.instance_programs["matplotlib__matplotlib-23964"]}
    if missing_programs({"tex": "", "latex": "", "xelatex": ""}).keys() != {"tex", "latex", "xelatex"}:
        pytest.skip("this machine has TeX Live, or a part of it")
    if not shutil.which("apt-get"):
        pytest.skip("packages of Debian are brought by apt-get: run on Debian or Ubuntu")
    layer = programs_layer(wanted, store)
    assert layer is not None
    env = {"PATH": f"{PROGRAMS}/bin:{SYSTEM_PATH}"}
    sandbox = open_sandbox(SandboxSpec(workdir="/tmp", layers=(layer,), env=env))
    try:
        sandbox.start()
        sandbox.write("/tmp/a.tex", DOCUMENT.encode())
        sandbox.write("/tmp/b.tex", PICTURE.encode())
        done = sandbox.run("latex -interaction=nonstopmode -halt-on-error a.tex && dvips -q -R0 -o a.ps a.dvi")
        assert done.exit_code == 0, done.output
        fonts = re.findall(r"^%%BeginFont: (\S+)$", sandbox.read("/tmp/a.ps").decode("latin-1"), re.MULTILINE)
        assert {"CMSS12", "CenturySchL-Roma"} <= set(fonts), fonts  # outlines, no bitmaps
        done = sandbox.run("dvipng -D 100 -T tight --freetype0 -o a.png a.dvi")  # by bitmaps, which Metafont draws
        assert done.exit_code == 0 and sandbox.read("/tmp/a.png").startswith(b"\x89PNG"), done.output
        done = sandbox.run("xelatex -interaction=nonstopmode -halt-on-error b.tex")
        assert done.exit_code == 0 and sandbox.read("/tmp/b.pdf").startswith(b"%PDF"), done.output
        assert sandbox.run("gs -q -dBATCH -dNOPAUSE -sDEVICE=bbox b.pdf").output.startswith("%%BoundingBox: ")
        assert sandbox.run("kpsewhich pdftex.map type1ec.sty").output.count(PROGRAMS) == 2
    finally:
        sandbox.close()
