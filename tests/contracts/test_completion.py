"""TAB in a real bash and zsh on a pseudo-terminal, with the completion scripts that the commands print."""

from __future__ import annotations

import contextlib
import io
import os
import pty
import re
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from swe_trainers.cli.main import main, main_eval
from swe_trainers.cli.serve import main as serve_main
from swegym_env.cli.main import main as environment_main

PROGRAMS: dict[str, tuple[Callable[[list[str]], int], str]] = {
    "swegym": (environment_main, "completion"),
    "swe-train": (main, "--print-completion"),
    "swe-eval": (main_eval, "--print-completion"),
    "swe-serve": (serve_main, "--print-completion"),
}
COMPLETED = {
    "swegym doc": "swegym doctor",
    "swegym images pref": "swegym images prefetch",
    "swegym tasks --dataset mini-e": "swegym tasks --dataset mini-edit",
    "swegym tasks --dataset row": "swegym tasks --dataset rows.jsonl",
    "swegym run --sandbox app": "swegym run --sandbox apptainer",
    "swegym grade --pol": "swegym grade --policy",
    "swegym grade --policy off": "swegym grade --policy official",
    "swe-train row": "swe-train rows.jsonl",
    "swe-train check-": "swe-train check-env",
    "swe-train run.yaml --trainer.learning_r": "swe-train run.yaml --trainer.learning_rate",
    "swe-train run.yaml --trainer.algorithm dr_": "swe-train run.yaml --trainer.algorithm dr_grpo",
    "swe-train run.yaml --model.lora.r": "swe-train run.yaml --model.lora.rank",
    "swe-eval comp": "swe-eval compare",
    "swe-eval row": "swe-eval rows.jsonl",
    "swe-eval --ver": "swe-eval --version",
    "swe-serve row": "swe-serve rows.jsonl",
    "swe-serve model --max": "swe-serve model --max-tokens",
}
SET_UP = {
    "bash": ("--norc --noprofile -i", "for one in {place}/*; do . $one; done"),
    "zsh": ("-f -i", "bindkey -e; fpath=({place} $fpath); autoload -Uz compinit; compinit -u -D"),
}


def printed(program: str, shell: str) -> str:
    called, how = PROGRAMS[program]
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        assert called([how, shell]) == 0
    return out.getvalue()


def after_tab(shell: str, set_up: str, lines: list[str], folder: Path) -> list[str]:
    """The command line after each of `lines` and TAB.

    The shell reads key by key, so that no waiting is needed: after TAB the cursor goes to the start of the line
    (Ctrl-A), and the line becomes the argument of `echo`.
    """
    options, prepare = SET_UP[shell]
    typed = [prepare.format(place=set_up), *(f"{line}\t @@\x01echo @@ " for line in lines), "exit"]
    master, slave = pty.openpty()
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "TERM": "dumb", "PS1": "> "}
    process = subprocess.Popen(
        [shell, *options.split()], stdin=slave, stdout=slave, stderr=slave, cwd=folder, env=environment,
        start_new_session=True,
    )  # fmt: skip
    os.close(slave)
    screen = b""
    try:
        os.write(master, "\n".join([*typed, ""]).encode())
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            try:
                screen += os.read(master, 65536)
            except OSError:  # the shell has ended
                break
    finally:
        process.kill()
        process.wait()
        os.close(master)
    shown = screen.decode(errors="replace").replace("\r", "\n")
    return [found.rstrip() for found in re.findall(r"^@@ (.*) @@$", shown, re.MULTILINE)]


@pytest.mark.parametrize("shell", list(SET_UP))
def test_tab_completes_commands_options_values_and_files(shell: str, tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed; run scripts/install_test_tools.sh")
    place, folder = tmp_path / "scripts", tmp_path / "here"
    place.mkdir()
    folder.mkdir()
    (folder / "rows.jsonl").touch()
    for program in PROGRAMS:
        (place / f"_{program}").write_text(printed(program, shell))
    assert after_tab(shell, str(place), list(COMPLETED), folder) == list(COMPLETED.values())


@pytest.mark.parametrize("program", list(PROGRAMS))
def test_unknown_shell_is_reported_in_one_line(program: str, capsys: pytest.CaptureFixture[str]) -> None:
    called, how = PROGRAMS[program]
    with pytest.raises(SystemExit) as ended:
        called([how, "csh"])
    assert ended.value.code == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert program in error and "'csh'" in error and "bash" in error
