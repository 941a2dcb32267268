"""The command line of `swegym`. A wrong request is reported in one line, with exit code 2."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from swegym_env.cli.main import main
from swegym_env.sandbox.backends import BACKENDS
from swegym_env.sandbox.linux.processes import descendants
from swegym_env.tasks.data import mini_edit
from swegym_env.tasks.task import task_to_row
from tests.disk import left_on, on_small_disk
from tests.places import public_directory
from tests.warm import warm_python

ROOT = Path(__file__).parents[3]
SWEGYM = (sys.executable, "-m", "swegym_env.cli.main")
TASK = mini_edit.generate(0)
ROW = task_to_row(TASK)
ONE_TASK = ("--dataset", "task.jsonl")  # lies in the directory that commands run in

_LONG_WORK = re.compile(r"^swegym: [\w-]+: .+( …|: done after \S+ s)\n", re.MULTILINE)
"""Lines about work that took longer than 5 s, which depends on how busy the machine is."""

Done = subprocess.CompletedProcess[str]
Run = Callable[..., Done]


@pytest.fixture(scope="module")
def machine() -> Iterator[Path]:
    """A directory that sandboxes can reach, with the work and run directories of all commands here."""
    with public_directory("cli") as directory:
        (directory / "task.jsonl").write_text(json.dumps(ROW) + "\n")
        yield directory


@pytest.fixture
def place(machine: Path) -> Path:
    """A fresh directory there."""
    directory = Path(tempfile.mkdtemp(dir=machine))
    directory.chmod(0o755)
    return directory


@pytest.fixture(scope="module")
def program(machine: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The program `swegym` in forks of a process that has imported what most commands need."""
    folder = tmp_path_factory.mktemp("program")
    preloaded = ("swegym_env.cli.main", "swegym_env.env", "swegym_env.grading.grading", "swegym_env.tasks.datasets")
    with warm_python(folder, _environment(machine, {}), preloaded) as warm:
        warm.program(folder / "swegym", "swegym_env.cli.main:main")
        yield folder / "swegym"


@pytest.fixture
def swegym(machine: Path, program: Path) -> Run:
    """Runs the command; keywords are environment variables, but `stdin` and `before` (a prefix).

    A prefix, bytes as input and variables that Python reads when it starts need a process of their own.
    """

    def run(*arguments: str, stdin: str | bytes = "", before: list[str] | None = None, **variables: str) -> Done:
        given = stdin.encode() if isinstance(stdin, str) else stdin
        started = before or isinstance(stdin, bytes) or {"PATH", "PYTHONIOENCODING"} & variables.keys()
        command = [*(before or []), *(SWEGYM if started else (str(program),)), *arguments]
        environment = _environment(machine, variables)
        done = subprocess.run(
            command, input=given, capture_output=True, env=environment, cwd=machine, check=False, timeout=120
        )
        stderr = _LONG_WORK.sub("", done.stderr.decode())
        return subprocess.CompletedProcess(command, done.returncode, done.stdout.decode(), stderr)

    return run


@pytest.fixture
def in_process(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command that starts no sandbox in this process, which is faster."""

    def run(*arguments: str) -> Done:
        try:
            code = main(arguments)
        except SystemExit as ended:
            code = int(ended.code or 0)
        output = capsys.readouterr()
        return subprocess.CompletedProcess(arguments, code, output.out, output.err)

    return run


def _environment(machine: Path, variables: dict[str, str]) -> dict[str, str]:
    places = {"SWEGYM_WORKDIR": str(machine / "work"), "SWEGYM_RUNDIR": str(machine / "run")}
    return {
        **os.environ,
        **places,
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "PYTHONWARNINGS": "error",
        **variables,
    }


def assert_refused(done: Done, *named: str) -> None:
    """The command ended with exit code 2 and one line on standard error that contains these."""
    assert done.returncode == 2, (done.stdout, done.stderr)
    assert done.stderr.startswith("swegym"), done.stderr
    assert done.stderr.count("\n") == 1 and done.stderr.endswith("\n"), done.stderr
    for name in named:
        assert name in done.stderr, done.stderr


def _half_made(machine: Path) -> list[str]:
    """Files that belong neither to a finished layer or image nor to the record of working back ends."""
    found = [path for path in (machine / "run").glob("*") if path.is_dir()]
    for kind in ("layers", "images"):
        found += (machine / "work" / kind).glob(".building/*")
        found += (machine / "work" / kind).glob(".locks/*")
        found += (machine / "work" / kind).glob(".host-*")
    return sorted(str(path.relative_to(machine)) for path in found)


def _rows(place: Path, *rows: dict[str, object]) -> tuple[str, str]:
    path = place / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return "--dataset", str(path)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((), ("COMMAND", "--help")),
        (("rum",), ("'rum'", "; did you mean run? Try: swegym --help")),
        (("tools", "chek"), ("'chek'", "; did you mean check? Try: swegym tools --help")),
        (("run", "--sed", "1"), ("--sed", "Try: swegym run --help")),
        (("tasks", "mini"), ("swegym tasks: unrecognized arguments: mini; did you mean --dataset mini?",)),
        (("tasks", "--selct", ":3"), ("did you mean --select?",)),
        (("tools", "check", "a", "b"), ("swegym tools check: unrecognized arguments: b",)),
        (("run", "--seed", "x"), ("--seed", "'x'", "swegym run --help")),
        (("run", "--seed", "-1"), ("--seed", "at least 0", "-1")),
        (("run", "--sandbox", "docker"), ("'docker'", f"auto, {', '.join(BACKENDS)}")),
        (("grade", "--instance", "x"), ("--patch", "--predictions", "swegym grade --help")),
        (("grade", "--patch", "gold", "--jobs", "0"), ("--jobs", "at least 1", "0")),
        (("grade", "--patch", "gold", "--timeout", "nan"), ("--timeout", "more than 0 seconds", "nan")),
        (("grade", "--patch", "gold", "--policy", "lax"), ("--policy", "'lax'", "strict")),
        (("grade", "--patch", "gold", "--select", "1-5"), ("select", "'0:50'", "'1-5'")),
        (("grade", "--patch", "no.diff"), ("one instance", "--instance ID")),
        (("grade", "--predictions", "no.jsonl"), ("no.jsonl", "No such file")),
        (("tasks", "--dataset", "minni"), ("'minni'", "did you mean mini", "OWNER/NAME")),
        (("tasks", "--dataset", "/no/where.jsonl"), ("/no/where.jsonl", "no such file")),
        (("tasks", "--split", "tran"), ("'tran'", "train, test")),
        (("tasks", "--dataset", "mini-edit", "--split", "dev"), ("'dev'", "train, test")),
        (("tasks", "--instance", "mini__calends-01"), ("'mini__calends-01'", "did you mean mini__calends-0")),
        (("run", "--instance", "mini__calend-001"), ("'mini__calend-001'", "did you mean mini__calends-001")),
        (("grade", "--patch", "gold", "--instance", "calends"), ("'calends'",)),
    ],
)
def test_invalid_request_is_reported_in_one_line(in_process: Run, arguments, named):
    done = in_process(*arguments)
    assert_refused(done, *named)
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("dataset", "named"),
    [
        (str(ROOT / "scripts"), ("scripts", "no dataset in this folder")),
        ("owner/name", ("owner/name", "hub", "HF_HOME")),
        ("minni", ("'minni'", "did you mean mini")),
    ],
)
def test_unknown_dataset_is_reported_in_one_line_by_the_program(swegym: Run, machine: Path, dataset, named):
    done = swegym("tasks", "--dataset", dataset, HF_HUB_OFFLINE="1", HF_HOME=str(machine / "hub"))
    assert_refused(done, *named)
    assert done.stdout == ""
    assert _half_made(machine) == []


@pytest.mark.parametrize(
    ("command", "content", "named"),
    [
        ("tasks", b'{"instance_id": \n', ("row 2", "JSON")),
        ("run", b"\xff\xfe\n", ("row 2", "UTF-8")),
        ("grade --patch gold", b"[1]\n", ("row 2", "expected an object", "[1]")),
        ("tasks", {"problem_statement": None}, ("row 2", TASK.instance_id, "'problem_statement'")),
        ("grade --patch gold", {"FAIL_TO_PASS": 3}, ("row 2", TASK.instance_id, "'FAIL_TO_PASS'", "list of names")),
        ("run", {"test_timeout_s": "soon"}, ("row 2", TASK.instance_id, "'test_timeout_s'", "'soon'")),
        ("tasks", {"instance_id": "first"}, ("row 2", "'instance_id'", "row 1")),
    ],
)
def test_malformed_row_is_reported_with_its_field(in_process: Run, place: Path, machine: Path, command, content, named):
    dataset = _rows(place, ROW | {"instance_id": "first"})
    with open(dataset[1], "ab") as file:
        file.write(content if isinstance(content, bytes) else json.dumps(ROW | content).encode() + b"\n")
    done = in_process(*command.split(), "--strict-rows", *dataset)
    assert_refused(done, dataset[1], *named)
    assert done.stdout == ""
    assert _half_made(machine) == []


def test_missing_field_of_a_row_is_named(in_process: Run, place: Path):
    row = {name: value for name, value in ROW.items() if name != "instance_id"}
    assert_refused(in_process("tasks", *_rows(place, row)), "row 1", "'instance_id'", "missing")


def test_invalid_parquet_file_is_reported_in_one_line(in_process: Run, place: Path):
    (place / "rows.parquet").write_text("these are no columns")
    assert_refused(in_process("tasks", "--dataset", str(place / "rows.parquet")), "rows.parquet", "not a parquet file")


def _an_image(place: Path, name: str) -> Path:
    path = place / name
    if name == "directory":
        path.mkdir()
    elif name == "no-git":
        for directory in ("usr", "dev", "proc", "etc"):
            (path / directory).mkdir(parents=True)
        for tree in ("bin", "lib", "lib64"):
            (path / tree).symlink_to(f"usr/{tree}")
        _copy_program(Path("/bin/bash").resolve(), path)
    elif name != "missing.sif":
        path.write_text({"text.sif": "no SIF", "empty.sif": "", "broken.def": "Bootstrap: nothing\nFrom: x\n"}[name])
    return path


def _copy_program(program: Path, image: Path) -> None:
    listed = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout.split()
    for file in (str(program), *(word for word in listed if word.startswith("/"))):
        inside = image / "usr" / file.lstrip("/").removeprefix("usr/")
        inside.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, inside)
    shutil.copy(program, image / "usr" / "bin" / program.name)


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("missing.sif", ("no such directory, image file or registry address",)),
        ("text.sif", ("not a SIF",)),
        ("empty.sif", ("empty",)),
        ("directory", ("not a root file system", "/bin/bash")),
        ("broken.def", ("apptainer",)),
    ],
)
def test_unreadable_image_is_named(swegym: Run, place: Path, machine: Path, name, named):
    image = _an_image(place, name)
    dataset = _rows(place, ROW | {"image": str(image)})
    done = swegym("run", *dataset)
    assert_refused(done, str(image), *named)
    assert done.stdout == ""
    done = swegym("grade", *dataset, "--patch", "gold", "--json")
    assert_refused(done, str(image), *named)
    verdict = json.loads(done.stdout)
    assert (verdict["valid"], verdict["resolved"]) == (False, False)
    assert done.stderr == f"swegym: {' '.join(verdict['failure_reason'].split())}\n"
    assert _half_made(machine) == []


def test_image_without_git_makes_the_verdict_invalid(swegym: Run, place: Path):
    dataset = _rows(place, ROW | {"image": str(_an_image(place, "no-git"))})
    mode = "diff --git a/other b/other\nold mode 100644\nnew mode 100755\n"  # a plain patch would not need git
    (place / "patch").write_text(TASK.patch + mode)
    done = swegym("grade", *dataset, "--patch", str(place / "patch"), "--json", "--sandbox", "namespace")
    assert_refused(done, "has no git")
    assert json.loads(done.stdout)["valid"] is False


def test_missing_git_clone_or_commit_is_named(swegym: Run, place: Path, machine: Path):
    row = {name: value for name, value in ROW.items() if name != "files"} | {"repo": "a/b", "base_commit": "0" * 40}
    arguments = ("run", *_rows(place, row), "--repos", str(place))
    assert_refused(swegym(*arguments), "no clone of a/b", str(place), "git clone")
    subprocess.run(["git", "init", "-q", str(place / "a+b")], check=True)
    assert_refused(swegym(*arguments), "a/b at 000000000000", "no such commit", "fetch")
    (place / "empty").mkdir()
    assert_refused(swegym(*arguments, PATH=str(place / "empty")), "git is not installed", "apt install git")
    assert _half_made(machine) == []


@pytest.mark.parametrize("command", [("run",), ("grade", "--patch", "gold"), ("images", "build", "--for", "mini")])
def test_missing_folder_of_clones_is_refused_where_no_clone_is_needed(swegym: Run, place: Path, command):
    dataset = () if "--for" in command else ONE_TASK
    done = swegym(*command, *dataset, "--repos", str(place / "clons"))
    assert_refused(done, "--repos: expected a directory of clones", f"'{place / 'clons'}': no such directory")
    assert done.stdout == ""


def test_tasks_with_inline_files_need_neither_git_nor_apptainer(swegym: Run, place: Path):
    done = swegym("grade", *ONE_TASK, "--patch", "gold", "--json", PATH=str(place))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["resolved"] is True
    done = swegym("grade", *ONE_TASK, "--patch", "gold", "--sandbox", "apptainer", PATH=str(place))
    assert_refused(done, "no `apptainer` on PATH", "scripts/install_apptainer.sh", "'namespace'")
    assert done.stdout == ""


@pytest.mark.parametrize("command", [("run",), ("grade", "--patch", "gold")], ids=lambda command: command[0])
@pytest.mark.parametrize("variable", ["SWEGYM_WORKDIR", "SWEGYM_RUNDIR"])
@pytest.mark.parametrize("read_only", [False, True], ids=["full", "read-only"])
def test_full_or_read_only_disk_is_named_and_left_clean(swegym: Run, place: Path, command, variable, read_only):
    disk = place / "disk"
    disk.mkdir()
    here = {"SWEGYM_WORKDIR": str(place / "work"), variable: str(disk / "swegym")}
    done = swegym(*command, *ONE_TASK, before=on_small_disk(disk, read_only=read_only), **here)
    reason = "Read-only file system" if read_only else "No space left on device"
    assert_refused(done, str(disk), reason, f"${variable}")
    assert "apptainer" not in done.stderr  # no back end is at fault
    whole = {"swegym", "swegym/images", "swegym/layers", "swegym/layers/.building", "swegym/layers/.locks"}
    assert set(left_on(disk)) <= whole


def test_logs_are_written_atomically(swegym: Run, place: Path):
    disk = place / "disk"
    disk.mkdir()
    arguments = ("grade", *ONE_TASK, "--patch", "gold", "--logs", str(disk))
    assert_refused(swegym(*arguments, before=on_small_disk(disk, read_only=True)), "--logs", str(disk), "Read-only")
    assert_refused(swegym(*arguments, before=on_small_disk(disk)), "--logs", str(disk), "No space left")
    assert left_on(disk) == []
    assert swegym(*arguments).returncode == 0
    assert "OK" in (disk / f"{TASK.instance_id}.log").read_text()
    assert len(list(disk.iterdir())) == 1


def test_work_directory_that_is_a_file_is_named(swegym: Run, place: Path):
    (place / "file").touch()
    for variable in ("SWEGYM_WORKDIR", "SWEGYM_RUNDIR"):
        assert_refused(
            swegym("run", *ONE_TASK, **{variable: str(place / "file" / "x")}), str(place / "file"), f"${variable}"
        )


def test_closed_pipe_exits_with_141_and_full_output_device_is_reported(swegym: Run, machine: Path):
    reader, writer = os.pipe()
    os.close(reader)
    piped = subprocess.run(
        [*SWEGYM, "tasks"], stdout=writer, stderr=subprocess.PIPE, env=_environment(machine, {}), check=False
    )
    os.close(writer)
    assert (piped.returncode, piped.stderr) == (141, b"")
    assert_refused(swegym("tasks", before=["bash", "-c", 'exec "$@" > /dev/full', "bash"]), "No space left on device")


@pytest.mark.parametrize("closed", ["0<&-", "1>&-", "2>&-", "0<&- 1>&- 2>&-"])
def test_closed_standard_streams_change_no_exit_code_and_no_episode(swegym: Run, place: Path, closed: str):
    before = ["bash", "-c", f'exec "$@" {closed}', "bash"]
    assert swegym("tasks", *ONE_TASK, before=before).returncode == 0
    assert swegym("tasks", "--dataset", "nowhere", before=before).returncode == 2
    done = swegym("run", *ONE_TASK, "--record", str(place), stdin="ls\nsubmit\n", before=before)
    if closed.startswith("0"):  # no command comes
        assert (done.returncode, list(place.iterdir())) == (1, [])
    else:
        (record,) = place.iterdir()
        assert (done.returncode, len(json.loads((record / "traj.json").read_text())["turns"])) == (0, 2)
        assert swegym("view", str(record), "-o", "-", before=before).returncode == 0


@pytest.mark.parametrize(
    ("program", "imported"),
    [
        ("swegym", "gymnasium"),
        ("swegym", "swegym_env.cli.long_work"),
        ("swe_train", "swe_trainers.errors"),
        ("swe_eval", "swe_trainers.cli.evaluate"),
        ("swe_serve", "swe_trainers.errors"),
    ],
)
def test_an_interrupt_while_a_package_is_imported_is_one_line(program: str, imported: str):
    code = (
        f"{INTERRUPT.format(imported)}\nimport swegym_commands\nsys.argv[1:] = ['--help']\n"
        f"sys.exit(swegym_commands.{program}())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    name = program.replace("_", "-")
    assert (done.returncode, done.stdout, done.stderr) == (130, "", f"{name}: interrupted\n")


INTERRUPT = """
import os, signal, sys
class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == '{}':
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupt())
"""


def test_an_interrupt_while_the_commands_are_imported_is_one_line(machine: Path, place: Path):
    (place / "sitecustomize.py").write_text(INTERRUPT.format("swegym_env.cli.serve"))
    variables = _environment(machine, {})
    variables["PYTHONPATH"] = os.pathsep.join([str(place), variables["PYTHONPATH"]])
    done = subprocess.run([*SWEGYM, "tasks"], capture_output=True, text=True, env=variables, check=False)
    assert (done.returncode, done.stderr) == (130, "swegym: interrupted; its sandboxes are removed\n")


def test_characters_that_the_terminal_lacks_are_escaped(swegym: Run, place: Path):
    done = swegym("tasks", *_rows(place, ROW | {"problem_statement": "a → b"}), PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert r"a \u2192 b" in done.stdout


def test_end_of_input_before_submission_exits_with_1(swegym: Run, machine: Path):
    for stdin in ("", "echo some work\n"):
        done = swegym("run", *ONE_TASK, stdin=stdin)
        assert done.returncode == 1
        assert done.stderr == "swegym: standard input ended before the work was submitted\n"
        assert ("some work" in done.stdout) == bool(stdin)
    done = swegym("run", *ONE_TASK, before=["bash", "-c", 'exec "$@" <&-', "bash"])
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert _half_made(machine) == []


def test_commands_of_several_lines_stand_in_execute_tags(swegym: Run):
    here = "cat > note.txt <<'END'\n  two \\\n\nlines\nEND\nwc -l < note.txt"
    stdin = f"cd .\r\n<execute>\n{here}\n</execute>\n<execute>echo one</execute>\n"
    stdin += "  <execute>echo two &&\necho three</execute> \n"
    done = swegym("run", *ONE_TASK, "--json", stdin=f"{stdin}echo '<execute>' four\necho five \\\nsubmit\r\n")
    assert (done.returncode, done.stderr) == (0, "")
    shown = [json.loads(line)["observation"].split("\n[exit")[0] for line in done.stdout.splitlines()]
    assert "<issue>" in shown[0]  # of the reset
    assert shown[1:-1] == ["[exit code 0]", "3", "one", "two\nthree", "<execute> four", "five \\"]
    assert shown[-1] == "Submitted."
    ended = [(step["terminated"], step["truncated"]) for step in map(json.loads, done.stdout.splitlines())]
    assert ended == [(False, False)] * (len(shown) - 1) + [(True, False)]
    assert f">>> {here}\n3\n" in swegym("run", *ONE_TASK, stdin=stdin).stdout


@pytest.mark.parametrize(
    ("stdin", "named"),
    [
        ("<execute>\necho a\n", "standard input ended before </execute>"),
        ("<execute>echo a</execute> echo b\nsubmit\n", "expected nothing after </execute>, got 'echo b'"),
    ],
)
def test_command_in_tags_that_is_not_whole_is_refused(swegym: Run, stdin: str, named: str):
    done = swegym("run", *ONE_TASK, stdin=stdin)
    assert_refused(done, named)
    assert ">>>" not in done.stdout


def test_input_that_is_not_utf8_is_decoded_with_replacements(swegym: Run):
    done = swegym("run", *ONE_TASK, stdin=b"echo \xff\nsubmit\n")
    assert (done.returncode, done.stderr) == (0, "")
    assert "resolved: False  FAIL_TO_PASS 0/1  PASS_TO_PASS " in done.stdout


def on_terminal(machine: Path, *arguments: str, typed: bytes = b"", **variables: str) -> tuple[int, str]:
    """The exit code of `swegym` on a terminal of 80 columns that echoes nothing, and what it shows."""
    ours, theirs = pty.openpty()
    settings = termios.tcgetattr(theirs)
    settings[3] &= ~termios.ECHO
    termios.tcsetattr(theirs, termios.TCSANOW, settings)
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    environment = {**_environment(machine, {}), **variables}
    try:
        process = subprocess.Popen(
            [*SWEGYM, *arguments], stdin=theirs, stdout=theirs, stderr=theirs, env=environment, cwd=machine
        )
        os.write(ours, typed)
        shown = b""
        while process.poll() is None or select.select([ours], [], [], 0)[0]:
            if select.select([ours], [], [], 0.1)[0]:
                shown += os.read(ours, 65536)
    finally:
        process.kill()
        process.wait()
        os.close(ours)
        os.close(theirs)
    return process.returncode, shown.decode().replace("\r\n", "\n")


def test_on_a_terminal_commands_have_a_prompt_and_are_not_repeated(machine: Path):
    typed = b"\n  \necho o''ne\n<execute>\n\necho t''wo\n</execute>\nsubmit\n"
    code, text = on_terminal(machine, "run", *ONE_TASK, typed=typed, TERM="dumb")
    assert code == 0
    shown = "\n\n>>> >>> >>> one\n[exit code 0]\n\n>>> ... ... ... two\n[exit code 0]\n\n>>> Submitted.\n"
    assert shown in text and "t''wo" not in text  # the terminal echoes nothing, and nothing is repeated


def test_on_a_narrow_terminal_a_row_of_the_table_stays_one_line(machine: Path):
    several = ("--dataset", "mini", "--select", ":2", "--predictions", "empty")
    code, text = on_terminal(machine, "grade", *several, TERM="xterm")
    rows = [line for line in re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text).splitlines() if line.startswith("mini__")]
    assert code == 0 and len(rows) == 2
    assert all(re.fullmatch(r"mini__\S+ +unresolved +\d+/\d+ +\d+/\d+ +\d+\.\d( .*)?", row) for row in rows), rows


def _runs(pid: int, name: bytes) -> bool:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().startswith(name)
    except OSError:
        return False


@pytest.mark.parametrize("command", ["run", "grade"])
def test_interrupt_removes_all_sandboxes(machine: Path, place: Path, command: str):
    waiting = "exec -a began-300 sleep 300"
    arguments = [command, *_rows(place, ROW | {"test_command": waiting, "test_timeout_s": 300.0})]
    arguments += ["--patch", "empty"] if command == "grade" else []
    variables = _environment(machine, {"SWEGYM_RUNDIR": str(place / "run")})
    process = subprocess.Popen(
        [*SWEGYM, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=variables
    )
    try:
        assert process.stdin is not None
        process.stdin.write(f"{waiting}\n".encode())
        process.stdin.flush()
        deadline = time.monotonic() + 60
        while not any(_runs(pid, b"began-300") for pid in descendants(process.pid)):
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=20)
    finally:
        process.kill()
    assert process.returncode == 130
    assert stderr.decode() == "swegym: interrupted; its sandboxes are removed\n"
    assert [path for path in (place / "run").iterdir() if path.is_dir()] == []


def test_debug_option_shows_the_traceback(swegym: Run):
    done = swegym("--debug", "tasks", "--dataset", "minni")
    assert done.returncode == 2
    assert "Traceback (most recent call last)" in done.stderr and "load_tasks" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("swegym: no dataset 'minni'")


def test_tasks_lists_a_dataset_and_shows_one_task(swegym: Run):
    listed = [json.loads(line) for line in swegym("tasks", "--json").stdout.splitlines()]
    assert len(listed) >= 200 and {"instance_id", "repo", "problem_statement"} == set(listed[0])
    assert len({row["instance_id"] for row in listed}) == len(listed)
    one = ("tasks", "--instance", listed[0]["instance_id"])
    shown = json.loads(swegym(*one, "--json").stdout)
    assert shown["problem_statement"].startswith(listed[0]["problem_statement"])
    assert swegym(*one).stdout == shown["problem_statement"].strip() + "\n"
    hidden = {"patch", "test_patch", "FAIL_TO_PASS", "PASS_TO_PASS", "hints_text", "eval_script", "test_command"}
    assert not hidden & set(shown)
    assert hidden < set(json.loads(swegym(*one, "--full").stdout))
    assert_refused(swegym("tasks", "--full"), "--full: only with --instance")


def test_run_starts_no_sandbox_for_another_episode(machine: Path):
    code = (
        "import threading; from swegym_env.cli.main import main; "
        "code = main(['run', '--sandbox', 'namespace']); "
        "print(code, [thread.name for thread in threading.enumerate()])"
    )
    command = [sys.executable, "-c", code]
    environment = _environment(machine, {})
    done = subprocess.run(command, check=True, input="true\n", capture_output=True, text=True, env=environment)
    code, _, names = done.stdout.splitlines()[-1].partition(" ")
    assert code == "1" and "MainThread" in names and "swegym-ahead" not in names


def test_run_plays_an_episode_until_it_is_resolved(swegym: Run, machine: Path):
    patch = base64.b64encode(TASK.patch.encode()).decode()
    commands = f"echo {patch} | base64 -d | git apply\nsubmit\n"
    done = swegym("run", *ONE_TASK, stdin=commands)
    assert (done.returncode, done.stderr) == (0, "")
    assert "resolved: True" in done.stdout and TASK.patch.splitlines()[-1] in done.stdout
    done = swegym("run", *ONE_TASK, "--json", stdin=commands)
    steps = [json.loads(line) for line in done.stdout.splitlines()]
    assert [step["reward"] for step in steps] == [0.0, 0.0, 1.0]  # the first of the reset
    assert steps[-1]["info"]["resolved"] is True and steps[-1]["info"]["end_reason"] == "submitted"
    assert _half_made(machine) == []


def test_help_of_grade_states_its_exit_codes(swegym: Run):
    """0 and 2 are those of the tests of resolved, unresolved and invalid verdicts here."""
    text = " ".join(swegym("grade", "--help").stdout.split())
    assert "Exit code: 0 if every verdict is valid, resolved or not; 2 if a patch could not be graded" in text


@pytest.mark.parametrize(("patch", "resolved"), [("gold", True), ("empty", False)])
def test_grade_resolves_the_gold_patch_and_not_the_empty_one(swegym: Run, patch: str, resolved: bool):
    arguments = ("--dataset", "mini", "--instance", "mini__semver-001", "--patch", patch, "--json")
    done = swegym("grade", *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    verdict = json.loads(done.stdout)
    assert (verdict["instance_id"], verdict["resolved"], verdict["valid"]) == ("mini__semver-001", resolved, True)


def test_doctor_prints_a_table_or_json(swegym: Run):
    done = swegym("doctor")
    assert (done.returncode, done.stderr) == (0, "")
    findings = [json.loads(line) for line in swegym("doctor", "--json").stdout.splitlines()]
    assert {"Python", "git", "namespace sandboxes", "apptainer sandboxes"} <= {finding["name"] for finding in findings}
    assert all(finding["name"] in done.stdout for finding in findings)


def test_gc_removes_and_counts_leftovers_of_dead_owners(swegym: Run, place: Path):
    building = place / "work" / "layers" / ".building" / "files-0.dead"
    building.mkdir(parents=True)
    sandbox = place / "run" / "1-1-0-sandbox"
    sandbox.mkdir(parents=True)
    lease = {"owner": 1, "owner_start": 1, "supervisor": 1, "supervisor_start": 1, "boot": "another"}
    (sandbox / "lease.json").write_text(json.dumps(lease))
    here = {"SWEGYM_WORKDIR": str(place / "work"), "SWEGYM_RUNDIR": str(place / "run")}
    found = json.loads(swegym("gc", "--json", **here).stdout)
    removed = {"sandboxes": ["1-1-0-sandbox"], "processes": [], "layers": ["files-0.dead"]}
    assert found == {**removed, "in_use": 0, "failed": []}
    assert not building.exists() and not sandbox.exists()
    assert swegym("gc", **here).stdout.startswith("removed of dead owners: 0 sandboxes, 0 processes, 0 layers")
