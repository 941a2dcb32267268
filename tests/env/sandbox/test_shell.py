"""The long-lived shell: what persists between commands, and that no command can break it."""

from __future__ import annotations

import resource
import signal
import time
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from swegym_env.sandbox import Sandbox, SandboxSpec, local
from swegym_env.sandbox.shell import CappedOutput
from tests.env.sandbox.conftest import Opener


def test_directory_variables_functions_and_files_persist(sandbox: Sandbox) -> None:
    sandbox.run("cd /tmp; x=5; declare -A m=([k]='a b'); f() { echo f$x; }; export Y=y; echo z > file")
    assert sandbox.run("pwd; echo $x ${m[k]}; f; bash -c 'echo $Y'; cat file").output == "/tmp\n5 a b\nf5\ny\nz\n"


@pytest.mark.parametrize(
    ("command", "output", "code"),
    [
        ("printf abc", "abc", 0),
        ("false", "", 1),
        ("(exit 7)", "", 7),
        ("echo out; echo err >&2", "out\nerr\n", 0),
        ("cat <<'END'\n$not 'a \"variable\nEND", "$not 'a \"variable\n", 0),
        ("for i in 1 2\ndo\n  echo $i\ndone", "1\n2\n", 0),
        ("echo a # it's a comment", "a\n", 0),
        ("cat", "", 0),
        ("read line; echo $?", "1\n", 0),
        ("", "", 0),
        ("printf '\\377\\376x'", "\ufffd\ufffdx", 0),
        ("echo 'é ü 漢'", "é ü 漢\n", 0),
        ("yes | head -n 2", "y\ny\n", 0),
        ("break; continue; echo on", None, 0),
    ],
)
def test_output_and_exit_code(shared_sandbox: Sandbox, command: str, output: str | None, code: int) -> None:
    result = shared_sandbox.run(command)
    assert result.exit_code == code
    assert output is None or result.output == output
    assert shared_sandbox.run("echo next").output == "next\n"


@pytest.mark.parametrize(
    "command", ["echo 'open", 'echo "open', "if true; then", "echo $(", "a=(1 2", "}", "cat <<E && ("]
)
def test_a_syntax_error_is_an_observation_and_the_shell_survives(sandbox: Sandbox, command: str) -> None:
    # not shared: bash 5.2 corrupts its own memory by some of these, and dies many commands later
    sandbox.run("kept=1")
    result = sandbox.run(command)
    assert result.exit_code != 0
    assert "bash: " in result.output
    assert sandbox.run("echo $kept").output == "1\n"


@pytest.mark.parametrize(
    ("command", "code"),
    [("exit 3", 3), ("set -e; false; echo never", 1), ("exec sh -c 'exit 5'", 5), ("set -u; echo $undefined", 1)],
)
def test_a_command_that_ends_the_shell_gets_its_code_and_a_fresh_shell(
    sandbox: Sandbox, command: str, code: int
) -> None:
    sandbox.run("cd /tmp; kept='a b'; f() { echo f; }; echo content > file")
    result = sandbox.run(command)
    assert (result.exit_code, result.timed_out) == (code, False)
    assert "never" not in result.output
    kept = "" if command.startswith("exec") else "a b"  # the program that replaces bash has none of its variables
    assert sandbox.run("pwd; cat file; echo $kept").output == f"/tmp\ncontent\n{kept}\n"


@pytest.mark.parametrize(
    "command", ["kill -9 $$", "kill -9 -1", "exec 0<&- 1>&- 2>&-", "exec 10<&- 13>&-", "trap '' USR2 EXIT; exit"]
)
def test_the_shell_is_replaced_when_a_command_breaks_it(shared_sandbox: Sandbox, command: str) -> None:
    shared_sandbox.run(command, timeout_s=5)
    assert shared_sandbox.run("echo alive").output.endswith("alive\n")


@pytest.mark.parametrize("target", ["$$", "-1"])
def test_a_command_runs_once_though_its_shell_was_killed_before_it(sandbox: Sandbox, target: str) -> None:
    sandbox.run(f"setsid sh -c 'sleep 0.1; kill -9 {target}' &")
    time.sleep(0.5)
    result = sandbox.run("echo alive | tee -a /tmp/runs")
    assert (result.exit_code, result.output) == (0, "alive\n")
    assert sandbox.run("cat /tmp/runs").output == "alive\n"


def test_a_background_job_that_keeps_stdout_open_does_not_delay_the_result(shared_sandbox: Sandbox) -> None:
    begin = time.monotonic()
    assert shared_sandbox.run("sleep 30 & echo started").output == "started\n"
    assert shared_sandbox.run("nohup sleep 30 & setsid sleep 30 & echo again").output.endswith("again\n")
    assert time.monotonic() - begin < 15


def test_printed_trailers_are_output(shared_sandbox: Sandbox) -> None:
    forged = "printf '\\001%032d 0 /\\0' 0"
    result = shared_sandbox.run(f"{forged}; {forged} >&2; for fd in {{3..9}}; do {forged} >&$fd; done 2>&-; false")
    assert (result.exit_code, result.output) == (1, f"\1{'0' * 32} 0 /\0" * 2)


def test_commands_do_not_inherit_the_protocol_descriptors(opened: Opener) -> None:
    first, second = opened(), opened()
    listing = "python3 -c 'import os; print(sorted(map(int, os.listdir(\"/proc/self/fd\"))))'"
    for sandbox in (first, second):
        assert sandbox.run(listing).output == "[0, 1, 2, 3]\n"  # 3 is the listing's own


def test_a_timeout_kills_the_process_tree_and_keeps_the_shell_state(sandbox: Sandbox) -> None:
    sandbox.run("cd /tmp; kept=1; f() { echo f; }")
    late = "sleep 1; echo late > /tmp/late"
    command = f"echo before; setsid sh -c '{late}' & ({late}) & sleep 60; echo past > /tmp/past"
    result = sandbox.run(command, timeout_s=0.3)
    assert (result.exit_code, result.timed_out, result.limit, result.output) == (124, True, "time", "before\n")
    time.sleep(1.2)
    assert sandbox.run("pwd; echo $kept; f; ls; pgrep -c sleep").output == "/tmp\n1\nf\n0\n"


@pytest.mark.parametrize(
    "loop", ["while :; do :; done", "trap '' USR2 TERM INT; while :; do :; done", "read < <(sleep 60)"]
)
def test_a_loop_in_the_shell_itself_times_out(sandbox: Sandbox, loop: str) -> None:
    sandbox.run("cd /tmp")
    assert sandbox.run(loop, timeout_s=0.3).timed_out
    assert sandbox.run("pwd").output == "/tmp\n"


class _AlarmError(Exception):
    """What a caller's signal handler raises."""


def _interrupted(call: Callable[[], object], after_s: float) -> bool:
    """Make a call, and whether a signal interrupted it after so many seconds."""

    def interrupt(*_: object) -> None:
        raise _AlarmError

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, after_s)
        call()
        signal.setitimer(signal.ITIMER_REAL, 0)
        return False
    except _AlarmError:
        return True
    finally:
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("after_s", [0.001, 0.01, 0.1, 0.3])
def test_an_interrupted_command_ends_and_the_next_one_has_its_own_output_and_state(
    opened: Opener, after_s: float
) -> None:
    sandbox = opened()
    sandbox.run("cd /tmp; kept=1; rm -f late")
    assert _interrupted(lambda: sandbox.run("echo old; sleep 0.6; echo old; touch late"), after_s)
    assert sandbox.run("echo new $kept $PWD").output == "new 1 /tmp\n"
    time.sleep(1)
    assert sandbox.run("echo again; ls late").output.startswith("again\nls: ")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of files open at the interrupt
def test_interrupts_while_shells_are_replaced_or_saved_leave_a_sandbox_that_works(opened: Opener) -> None:
    sandbox = opened()
    sandbox.run("cd /tmp; kept=1")
    made: list[Callable[[], None]] = []
    for number in range(24):
        after_s = 0.002 * (number // 3) + 0.0005
        if number % 3 == 0:
            sandbox.run("exit")
            _interrupted(lambda: sandbox.run("echo old"), after_s)
        elif number % 3 == 1:
            _interrupted(lambda: made.append(sandbox.snapshot().discard), after_s)
        else:
            _interrupted(lambda: made.append(sandbox.fork().close), after_s)
        assert sandbox.run(f"echo {number} $kept $PWD").output == f"{number} 1 /tmp\n"
        for end in made:
            end()
        made.clear()


def test_interrupt_that_keeps_stopped_processes_from_going_on_holds_no_command_up(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox = opened()
    sandbox.run("cd /tmp; kept=1")
    send = local._signal

    def interrupted(pid: int, number: int) -> None:
        if number == signal.SIGCONT:
            raise KeyboardInterrupt
        send(pid, number)

    with monkeypatch.context() as patched:
        patched.setattr(local, "_signal", interrupted)
        with pytest.raises(KeyboardInterrupt):
            sandbox.fork()
    assert sandbox.run("echo $kept $PWD", timeout_s=10).output == "1 /tmp\n"


@pytest.mark.parametrize("pause", ["", "sleep 0.01; "])
def test_output_line_by_line_is_whole_and_in_order(shared_sandbox: Sandbox, pause: str) -> None:
    lines = 30 if pause else 3000
    result = shared_sandbox.run(f"for n in $(seq {lines}); do {pause}echo line $n; done; (exit 3)")
    assert result.output == "".join(f"line {n}\n" for n in range(1, lines + 1))
    assert (result.exit_code, result.truncated_bytes) == (3, 0)


def test_many_pieces_of_a_command_that_fills_its_pipe_are_whole(shared_sandbox: Sandbox) -> None:
    program = "import os\nfor n in range(200):\n    os.write(1, b'small\\n')\n    os.write(1, b'x' * 9999 + b'\\n')\n"
    result = shared_sandbox.run(f"python3 - <<'END'\n{program}END", output_limit_bytes=1 << 22)
    assert result.output == ("small\n" + "x" * 9999 + "\n") * 200


def test_output_is_capped_while_it_streams(shared_sandbox: Sandbox) -> None:
    total = 200_000_000
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    result = shared_sandbox.run(
        f"echo head; head -c {total} /dev/zero; echo tail; touch /tmp/done", output_limit_bytes=1000
    )
    assert len(result.output) == 1000
    assert result.output.startswith("head\n\0") and result.output.endswith("\0tail\n")
    assert result.truncated_bytes == total + 10 - 1000
    assert result.limit == "output"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20_000  # kilobytes
    assert shared_sandbox.run("ls /tmp/done").exit_code == 0


@settings(max_examples=200, deadline=None)
@given(pieces=st.lists(st.binary(max_size=300)), limit=st.integers(0, 400))
def test_capped_output_keeps_head_and_tail(pieces: list[bytes], limit: int) -> None:
    kept = CappedOutput(limit)
    for piece in pieces:
        kept.feed(piece)
    whole = b"".join(pieces)
    if len(whole) <= limit:
        assert (kept.take(), kept.dropped) == (whole, 0)
    else:
        tail = limit // 2
        assert kept.take() == whole[: limit - tail] + whole[len(whole) - tail :]
        assert kept.dropped == len(whole) - limit


def test_commands_may_be_long_but_contain_no_nul_and_no_half_of_a_pair(shared_sandbox: Sandbox) -> None:
    text = "".join(f"line {number} 'quoted'\n" for number in range(20_000))
    assert shared_sandbox.run(f"cat <<'END' | sha256sum | cut -c1-8\n{text}END").exit_code == 0
    assert shared_sandbox.run(f"x=$(cat <<'END'\n{text}END\n); echo ${{#x}}").output == f"{len(text) - 1}\n"
    for text in ("echo a\0b", "echo \ud83d"):
        assert shared_sandbox.run(text).exit_code == 2


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(st.characters(blacklist_characters="\0", blacklist_categories=["Cs"]), max_size=200))
def test_any_text_reaches_the_shell_unchanged(shared_sandbox: Sandbox, text: str) -> None:
    word = "'" + text.replace("'", "'\\''") + "'"
    assert shared_sandbox.run(f"printf %s {word}").output == text


def test_the_owners_environment_is_not_inherited(opened: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "hunter2")
    monkeypatch.setenv("APPTAINERENV_SECRET", "hunter2")
    sandbox = opened(SandboxSpec(env={"GIVEN": "a,b 'c'\nd=\"$e\""}))
    assert sandbox.run('printf %s "$GIVEN"').output == "a,b 'c'\nd=\"$e\""
    names = set(sandbox.run("compgen -e; cat /proc/*/environ 2>/dev/null | tr '\\0' '\\n'").output.split())
    assert not any("SECRET" in name or "hunter2" in name for name in names)
    assert "PAGER=cat\n" in sandbox.run("env").output


def test_directories_of_spec_path_come_first_in_path(opened: Opener) -> None:
    sandbox = opened(SandboxSpec(workdir="/tmp", path=("/tmp/first", "/tmp/second")))
    sandbox.write("/tmp/first/git", b"#!/bin/sh\necho first\n", mode=0o755)
    sandbox.write("/tmp/second/git", b"#!/bin/sh\necho second\n", mode=0o755)
    sandbox.write("/tmp/second/two", b"#!/bin/sh\necho two\n", mode=0o755)
    assert sandbox.run("git; two; exit").output == "first\ntwo\n"
    assert sandbox.run("git; ls >/dev/null && echo still").output == "first\nstill\n"
