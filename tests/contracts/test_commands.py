"""Every command in the README and in docs/ works: it is run, or checked against the parser of its program.

The blocks of a page run in order, in one directory with a copy of examples/ and tools/. Files and exported variables
persist between blocks, and the Python blocks share their names, as for a reader who follows the page.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import typing
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from tests.contracts.documents import LANGUAGES, ROOT, Block, blocks_of, commands_of, pages
from tests.env.wheels import write_wheels
from tests.places import public_directory
from tests.programs import offline, run_to_end
from tests.warm import warm_python

PROGRAMS = {
    "swegym": "swegym_env.cli.main:main",
    "swe-train": "swe_trainers.cli.main:main",
    "swe-eval": "swe_trainers.cli.main:main_eval",
    "swe-serve": "swe_trainers.cli.serve:main",
}
SESSION = Path(__file__).with_name("page_session.py")
PAGES = {page.relative_to(ROOT).as_posix(): blocks_of(page) for page in pages()}
PLAYED = [name for name, blocks in PAGES.items() if any(b.language in ("sh", "python") for b in blocks)]
LONG_PAGES = ("docs/tasks.md", "docs/training.md", "docs/evaluation.md")
CHECKED = [block for blocks in PAGES.values() for block in blocks if block.language == "sh"]
SHOWN_YAML = [block for blocks in PAGES.values() for block in blocks if block.language == "yaml"]


def named(block: Block) -> str:
    return block.place


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """The programs by name, wheels for what sandboxes install, and a work directory."""
    with public_directory("documents") as directory:
        programs = directory / "bin"
        programs.mkdir()
        write_wheels(directory / "wheels")
        with warm_python(directory, {**os.environ, **offline(directory)}) as warm:
            for name, target in PROGRAMS.items():
                warm.program(programs / name, target)
            (programs / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
            (programs / "python").chmod(0o755)
            yield directory


def run_page(blocks: list[Block], place: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the blocks of a page in a fresh directory."""
    for name in ("examples", "tools"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    steps = [
        {"place": b.place, "language": b.language, "text": b.made_small, "exit_code": b.exit_code}
        for b in blocks
        if b.language in ("sh", "python") and not b.checked_only
    ]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SWEGYM_TOKEN")}
    (folder / "home").mkdir()
    environment |= {
        **offline(place),
        "HOME": str(folder / "home"),
        "PATH": f"{place / 'bin'}:{os.environ['PATH']}",
    }
    command = [sys.executable, str(SESSION)]
    return run_to_end(command, environment, cwd=folder, stdin=json.dumps(steps), timeout_s=240)


@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=pytest.mark.campaign) if page in LONG_PAGES else page for page in PLAYED]
)
def test_blocks_of_a_page_run_without_error(page: str, place: Path) -> None:
    with public_directory("page") as folder:
        ran = run_page(PAGES[page], place, folder)
    assert ran.returncode == 0, f"{ran.stdout[-3000:]}\n{ran.stderr[-3000:]}"


def test_failing_block_fails_its_page(place: Path) -> None:
    wrong = [Block("x.md", 1, "sh", "swegym tasks --dataset no-such\n")]
    late = [
        Block("x.md", 1, "sh", "export A=1\n"),
        Block("x.md", 5, "python", 'import os\nassert os.environ["A"] == "2"\n'),
    ]
    quiet = [Block("x.md", 1, "sh", "true\n", exit_code=2)]
    for blocks, failed_at in ((wrong, "x.md:1"), (late, "x.md:5"), (quiet, "x.md:1")):
        with public_directory("page") as folder:
            ran = run_page(blocks, place, folder)
        assert ran.returncode == 1 and failed_at in ran.stdout


def test_every_block_has_a_known_language() -> None:
    blocks = [block for page in PAGES.values() for block in page]
    assert len(blocks) > 40
    assert [b.place for b in blocks if b.language not in LANGUAGES] == []
    assert [b.place for b in blocks if b.small and not any(program in b.text for program in b.small)] == []


@pytest.mark.parametrize("block", CHECKED, ids=named)
def test_every_command_is_accepted_by_its_parser(block: Block) -> None:
    for words in commands_of(block.text):
        complaint = complaint_about(words)
        assert not complaint, f"{block.place}: {' '.join(words)}: {complaint}"


def test_unknown_commands_and_options_are_found() -> None:
    wrong = (
        "swegym tasks --datset mini",
        "swegym no-such",
        "make no-such",
        "swe-eval runs/x --no-such 3",
        "swe-train x.yaml --trainer.learning_rat 1",
        "pip install '.[no-such]'",
        "no such program",
        "sbatch scripts/slurm/no-such.sbatch",
        "cd x && swegym gc --no-such",
    )
    assert [line for line in wrong if not any(complaint_about(words) for words in commands_of(line))] == []


@pytest.mark.parametrize("block", SHOWN_YAML, ids=named)
def test_every_setting_in_yaml_blocks_exists(block: Block) -> None:
    shown = yaml.safe_load(block.text)
    assert isinstance(shown, dict), block.place
    for key, value in shown.items():
        if key not in settings_of_a_run():
            pytest.fail(f"{block.place}: {key} is no section of a configuration")
        unknown = set(value) - settings_of_a_run()[key] if isinstance(value, dict) else set()
        assert not unknown, f"{block.place}: {key}.{min(unknown)}"


# The parsers of the programs


def complaint_about(words: list[str]) -> str:
    """Why the parser refuses a command; "" if it accepts it."""
    program, *arguments = words
    program = program.removeprefix(".venv/bin/")
    if program in _CHECKS:
        return _CHECKS[program](arguments)
    if program in _FREE:
        return ""
    return "unknown program"


def _swegym(arguments: list[str]) -> str:
    from swegym_env.cli.main import build_parser

    stderr = io.StringIO()
    with contextlib.redirect_stderr(stderr), contextlib.redirect_stdout(io.StringIO()):
        try:
            build_parser().parse_args(arguments)
        except SystemExit as ended:
            return stderr.getvalue().strip() if ended.code else ""
    return ""


def _options(program: str) -> Callable[[list[str]], str]:
    """Checks the options of a command against the program's --help, and settings against the dataclasses."""

    def check(arguments: list[str]) -> str:
        words = [word for word in arguments if not word.startswith("-")]
        below = words[:1] if words and words[0] in _below(program) else []
        if program == "swe-eval" and words[:1] == arguments[:1] and not below:
            below = ["RUN"]  # the first argument is the folder of a run
        known = set(re.findall(r"--?[a-z][a-z-]*", _help(program, tuple(below))))
        for word in arguments:
            name = word.partition("=")[0]
            if program == "swe-eval" and name.startswith(("--env.", "--request.")):
                continue  # arguments for the environment and the server
            if re.match(r"--[a-z_]+\.", name):
                section, _, key = name[2:].partition(".")
                if key.split(".")[0] not in settings_of_a_run().get(section, set()):
                    return f"no setting {name}"
            elif re.match(r"--?[a-zA-Z]", name) and name not in known and name[2:] not in settings_of_a_run():
                return f"no option {name}"
        return ""

    return check


def _make(arguments: list[str]) -> str:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    wanted = [word for word in arguments if "=" not in word]
    return "" if set(wanted) <= targets else f"no target among {wanted}"


def _installs(arguments: list[str]) -> str:
    text = " ".join(arguments)
    project = (ROOT / "pyproject.toml").read_text()
    named_extras = re.findall(r"swegym-env\[([\w,-]+)\]|\.\[([\w,-]+)\]|--extra ([\w-]+)", text)
    extras = {name for found in named_extras for part in found for name in part.split(",") if name}
    missing = [name for name in extras if not re.search(rf"^{name} = \[", project, flags=re.MULTILINE)]
    return f"no extra {missing[0]}" if missing else ""


def _file(arguments: list[str]) -> str:
    return "" if (ROOT / arguments[0]).exists() else f"no file {arguments[0]}"


def _torchrun(arguments: list[str]) -> str:
    if "swe_trainers.cli.main" not in arguments:
        return "does not run swe_trainers.cli.main"
    return _options("swe-train")(arguments[arguments.index("swe_trainers.cli.main") + 1 :])


def _python(arguments: list[str]) -> str:
    if arguments[:1] == ["-m"]:
        return ""
    return _file(arguments) if arguments and arguments[0].startswith(("examples/", "scripts/")) else ""


def _bench_gpu(arguments: list[str]) -> str:
    from benchmarks.gpu.__main__ import MODULES

    script = [str(ROOT / "scripts" / "bench_gpu.sh"), "--help"]
    known = set(re.findall(r"--[a-z]+", subprocess.run(script, capture_output=True, text=True, check=True).stdout))
    words = iter(arguments)
    for word in words:
        if word.startswith("-"):
            next(words, None)  # every option has a value
        if word not in known and word not in MODULES:
            return f"no option or part {word}"
    return ""


_CHECKS: dict[str, Callable[[list[str]], str]] = {
    "swegym": _swegym,
    "swe-train": _options("swe-train"),
    "swe-eval": _options("swe-eval"),
    "swe-serve": _options("swe-serve"),
    "make": _make,
    "pip": _installs,
    "uv": _installs,
    "sbatch": _file,
    "torchrun": _torchrun,
    "python": _python,
    "python3": _python,
    "scripts/bench_gpu.sh": _bench_gpu,
    "scripts/install_torch.sh": lambda _: "",
    "scripts/install_apptainer.sh": lambda _: "",
    "scripts/setup_node.sh": lambda _: "",
    ".ci/run": lambda _: "",
}
_FREE = {"cd", "cat", "cp", "curl", "export", "git", "ls", "mkdir", "printf", "source", "sudo", "chmod", "test", "grep"}
_FREE |= {"EOF", "hf", "pytest", "pre-commit", "ruff", "mypy", "sysctl", "df", "rm", "head", "tail"}
_FREE |= {"harbor", "inspect", "vf-eval", "vf-validate"}  # peers that are not installed beside this package


def _below(program: str) -> list[str]:
    from swe_trainers.cli import main as cli

    found = re.findall(rf"^ +{program} ([a-z][a-z-]+)(?= )", _help(program, ()), flags=re.MULTILINE)
    return [*found, *(cli._COMMANDS if program == "swe-train" else ())]


_help_texts: dict[tuple[str, ...], str] = {}


def _help(program: str, words: tuple[str, ...]) -> str:
    asked = (program, *words)
    if asked not in _help_texts:
        module, _, function = PROGRAMS[program].partition(":")
        imported = importlib.import_module(module)
        output = io.StringIO()
        with contextlib.redirect_stdout(output), contextlib.suppress(SystemExit):
            getattr(imported, function)([*words, "--help"])
        _help_texts[asked] = output.getvalue()
    return _help_texts[asked]


def settings_of_a_run() -> dict[str, set[str]]:
    """Top-level key of a run's configuration → the keys below it."""
    from swe_trainers.algorithms import algorithm_classes
    from swe_trainers.run_config import RunConfig

    found: dict[str, set[str]] = {}
    for name, hint in typing.get_type_hints(RunConfig).items():
        kinds = [each for each in (hint, *typing.get_args(hint)) if dataclasses.is_dataclass(each)]
        found[name] = {field.name for kind in kinds for field in dataclasses.fields(kind)}
    settings = (field.name for kind in algorithm_classes().values() for field in dataclasses.fields(kind))
    found["trainer"] = {"algorithm", *settings}  # `algorithm` selects the class of the settings
    return found
