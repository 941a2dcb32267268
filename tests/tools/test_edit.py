"""The tool `edit`, in a real sandbox: what it changes, and what it refuses and why."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from swegym_env.agent.actions import Call
from swegym_env.agent.tools import tool_set
from swegym_env.prepare import prepare_locally
from swegym_env.sandbox.api import Sandbox
from swegym_env.tasks.datasets import load_tasks
from tests.tools.conftest import Run

MONTHS = "calends/months.py"


def test_unique_text_is_replaced_and_shown(run: Run) -> None:
    done = run(f"edit replace {MONTHS} --old='def is_leap(year)' --new='def leap(year)'")
    assert done.exit_code == 0
    assert f"Replaced in {MONTHS}:" in done.output and "     8\tdef leap(year):\n" in done.output
    assert "-def is_leap(year):\n+def leap(year):" in run("git diff").output


def test_edit_that_breaks_python_syntax_is_refused(run: Run) -> None:
    done = run(f"edit replace {MONTHS} --old='def is_leap(year):' --new='def is_leap(year:'")
    assert done.exit_code == 1
    assert "would no longer parse: SyntaxError" in done.output
    assert ">    8\tdef is_leap(year:" in done.output and "Nothing was changed." in done.output
    assert run("git status --porcelain").output == ""


def test_python_file_that_was_broken_before_can_be_edited(run: Run) -> None:
    run("printf 'def f(:\\n    return 1\\n' > broken.py")
    assert run("edit replace broken.py --old='return 1' --new='return 2'").exit_code == 0
    assert run("cat broken.py").output == "def f(:\n    return 2\n"


def test_missing_text_shows_the_nearest_lines(run: Run) -> None:
    done = run(f"edit replace {MONTHS} --old='def is_leap(the_year):' --new='x'")
    assert done.exit_code == 1
    assert "not in the file. The nearest lines are" in done.output and "8\tdef is_leap(year):" in done.output


def test_ambiguous_text_is_refused_with_its_lines(run: Run) -> None:
    done = run(f"edit replace {MONTHS} --old='return ' --new='yield '")
    assert done.exit_code == 1 and "occurs 9 times (at lines 10, 17, 18, 23, 30, …)" in done.output
    assert "until it is unique, or give --all\n" in done.output
    done = run("printf 'a\\na\\n' > f.txt; edit replace f.txt --old=a --new=b --all; cat f.txt")
    assert done.output == "Replaced 2 places in f.txt, the first at line 1.\nb\nb\n"


def test_indentation_may_differ_and_is_kept(run: Run) -> None:
    run("printf 'class A:\\n    def f(self):\\n        return 1\\n' > a.py")
    search, replace = "def f(self):\n    return 1\n", "def f(self):\n    if 1:\n        return 2\n"
    blocks = f"a.py\n<<<<<<< SEARCH\n{search}=======\n{replace}>>>>>>> REPLACE"
    done = run(f"edit apply <<'EOF'\n{blocks}\nEOF")
    assert done.exit_code == 0 and "indentation differed" in done.output
    assert run("cat a.py").output == "class A:\n    def f(self):\n        if 1:\n            return 2\n"


def test_windows_line_ends_are_kept(run: Run) -> None:
    run("printf 'one\\r\\ntwo\\r\\n' > dos.txt; printf 'x' | edit insert dos.txt --line=1")
    run("edit replace dos.txt --old='one\nx' --new='1\n2'")
    assert run("od -c dos.txt | head -1").output.split() == [
        "0000000",
        "1",
        "\\r",
        "\\n",
        "2",
        "\\r",
        "\\n",
        "t",
        "w",
        "o",
        "\\r",
        "\\n",
    ]


def test_blocks_are_applied_all_or_none(run: Run) -> None:
    good = f"{MONTHS}\n<<<<<<< SEARCH\ndef is_leap(year):\n=======\ndef is_leap(y):\n>>>>>>> REPLACE\n"
    bad = "calends/special.py\n<<<<<<< SEARCH\nno such line\n=======\n>>>>>>> REPLACE\n"
    done = run(f"edit apply <<'EOF'\n{good}{bad}EOF")
    assert done.exit_code == 1 and "block 2: calends/special.py" in done.output
    assert run("git status --porcelain").output == ""
    new = "deep/er/new.txt\n<<<<<<< SEARCH\n=======\nhello\n>>>>>>> REPLACE\n"
    assert run(f"edit apply <<'EOF'\n{good}{new}EOF").exit_code == 0
    assert run("cat deep/er/new.txt; git diff --stat | tail -1").output.startswith("hello\n 1 file changed")


def test_blocks_replace_whole_lines(run: Run) -> None:
    run("printf 'int f() {\\n    if (a) {\\n        return 1;\\n    }\\n    return 1;\\n}\\n' > a.txt")
    block = "a.txt\n<<<<<<< SEARCH\n{}\n=======\n{}\n>>>>>>> REPLACE"
    assert run(f"edit apply <<'EOF'\n{block.format('    return 1;', '    return 2;')}\nEOF").exit_code == 0
    assert run("sed -n '3p;5p' a.txt").output == "        return 1;\n    return 2;\n"
    done = run(f"edit apply <<'EOF'\n{block.format('turn 2;', 'turn 3;')}\nEOF")
    assert done.exit_code == 1 and "Nothing was changed." in done.output


def test_lines_are_inserted_and_files_created(run: Run) -> None:
    assert run(f"edit insert {MONTHS} --line=0 <<'EOF'\n# first\nEOF\nhead -1 {MONTHS}").output.endswith("# first\n")
    assert "expected 0 to 57" in run(f"echo x | edit insert {MONTHS} --line=99").output
    assert run("printf 'a\\nb' | edit create new/c.txt && cat new/c.txt").output.endswith("with 2 lines.\na\nb\n")
    assert "exists already" in run("echo x | edit create new/c.txt").output
    assert "would no longer parse" in run("echo 'def' | edit create bad.py").output
    assert run("ls bad.py").exit_code != 0


def test_changes_are_undone_one_by_one(run: Run) -> None:
    run(f"edit replace {MONTHS} --old='def is_leap' --new='def one'")
    run(f"edit replace {MONTHS} --old='def one' --new='def two'")
    run(f"edit undo {MONTHS}")
    assert "+def one(year):" in run("git diff").output
    run(f"edit undo {MONTHS}; echo x | edit create made.txt; edit undo made.txt")
    assert run("git status --porcelain").output == ""
    done = run(f"edit undo {MONTHS}")
    assert done.exit_code == 1 and "no change of calends/months.py was made by edit" in done.output


def test_edit_keeps_mode_and_other_bytes(run: Run) -> None:
    run("printf 'caf\\351 old\\n' > latin.sh; chmod 755 latin.sh; edit replace latin.sh --old=old --new=new")
    assert run("stat -c %a latin.sh; od -c latin.sh | head -1").output.split()[:6] == [
        "755",
        "0000000",
        "c",
        "a",
        "f",
        "351",
    ]


def test_bytes_that_are_not_utf8_are_shown_as_view_shows_them(run: Run) -> None:
    run("printf 'caf\\351 old\\n' > latin.txt")
    done = run("edit replace latin.txt --old=old --new=new")
    assert "     1\tcaf\ufffd new" in done.output and "     1\tcaf\ufffd new" in run("view latin.txt").output
    done = run("edit replace latin.txt --old='cafe new' --new=x")
    assert done.exit_code == 1 and "caf\ufffd new" in done.output


def test_a_read_only_file_is_not_replaced(run: Run) -> None:
    run("printf 'one\\n' > fixed.txt; chmod 444 fixed.txt; ln -s fixed.txt link.txt")
    blocks = "{}\n<<<<<<< SEARCH\none\n=======\ntwo\n>>>>>>> REPLACE\n"
    for path in ("fixed.txt", "link.txt"):
        for command in (
            f"edit replace {path} --old=one --new=two",
            f"echo two | edit insert {path} --line=1",
            f"edit apply <<'EOF'\n{blocks.format(path)}EOF",
        ):
            done = run(command)
            assert done.exit_code == 1 and f"{path} is read-only; if it is to change: chmod u+w {path}" in done.output
            assert "Nothing was changed." in done.output
    assert run("cat fixed.txt; ls -A").output.startswith("one\n") and ".edit-" not in run("ls -A").output
    assert run("chmod u+w fixed.txt; edit replace fixed.txt --old=one --new=two; cat fixed.txt").output.endswith(
        "two\n"
    )


def test_edit_errors_are_reported(run: Run) -> None:
    done = run("edit replace months.py --old=a --new=b")
    assert "there is no file months.py; there is calends/months.py" in done.output
    assert "is a directory" in run("edit replace calends --old=a --new=b").output
    assert "not a file of text" in run("printf 'a\\0b' > b.bin; edit replace b.bin --old=a --new=b").output
    assert "the same text" in run(f"edit replace {MONTHS} --old=year --new=year").output
    assert "choose from" in run("edit rewrite x").output
    assert "Permission denied" in run("edit replace /etc/passwd --old=agent:x --new=root:x").output


def test_hostile_text_is_written_literally(run: Run, box: Sandbox) -> None:
    hostile = "$(touch /tmp/pwned) `id` '\"\\ \n!! ;| & <>\tü"
    box.write("/testbed/h.txt", b"old\n")
    action = tool_set("default").resolve(
        Call("edit", {"command": "replace", "path": "h.txt", "old": "old", "new": hostile})
    )
    assert run(action.text).exit_code == 0
    assert box.read("/testbed/h.txt").decode() == hostile + "\n"
    action = tool_set("default").resolve(Call("edit", {"command": "create", "path": "-x.txt", "content": hostile}))
    assert run(action.text).exit_code == 0
    assert box.read("/testbed/-x.txt").decode() == hostile + "\n"
    assert run("ls /tmp/pwned").exit_code != 0


def test_inserted_line_has_the_number_that_view_shows(run: Run) -> None:
    """Form feeds and the line separator of Unicode end no line: `view` counts line breaks alone."""
    run("printf 'one\\n\\014\\ntwo \\342\\200\\250 still\\nthree\\n' > feeds.txt")
    run("echo new | edit insert feeds.txt --line=3")
    assert "\n     4\tnew\n" in run("view feeds.txt 4 4").output


def test_shown_lines_end_where_the_file_ends(run: Run) -> None:
    run("printf 'one\\ntwo\\n' > short.txt")
    assert run("edit replace short.txt --old=two --new=2").output.splitlines()[1:] == ["     1\tone", "     2\t2"]
    missing = run("edit replace short.txt --old='onee' --new=x").output
    assert "     2\t2\n" in missing and "     3" not in missing
    assert "     3" not in run("printf 'x = 1\\ny = (\\n' | edit create bad.py").output


def test_long_lines_are_cut_when_shown(run: Run) -> None:
    run("python3 -c \"print('x' * 50000 + 'needle')\" > min.js")
    done = run("edit replace min.js --old=needle --new=pin; edit replace min.js --old=xxnedle --new=pin")
    assert "more characters]" in done.output and len(done.output) < 3000
    assert run("tail -c 6 min.js").output == "xxpin\n"


def test_blocks_for_one_file_under_two_names_are_all_applied(run: Run) -> None:
    run("printf 'one\\ntwo\\n' > names.txt")
    form = "{}\n<<<<<<< SEARCH\n{}\n=======\n{}\n>>>>>>> REPLACE\n"
    blocks = form.format("names.txt", "one", "1") + form.format("./names.txt", "two", "2")
    run(f"edit apply <<'EOF'\n{blocks}EOF")
    assert run("cat names.txt").output == "1\n2\n"


def test_blocks_are_applied_to_no_file_where_one_cannot_be_written(run: Run) -> None:
    run("printf 'one\\n' > first.txt; mkdir locked; printf 'one\\n' > locked/second.txt; chmod 555 locked")
    form = "{}\n<<<<<<< SEARCH\none\n=======\ntwo\n>>>>>>> REPLACE\n"
    done = run(f"edit apply <<'EOF'\n{form.format('first.txt')}{form.format('locked/second.txt')}EOF")
    assert done.exit_code == 1 and "locked/second.txt: no file can be written in" in done.output
    assert "Permission denied" in done.output and "Nothing was changed." in done.output
    assert run("cat first.txt; ls -A").output.startswith("one\n") and ".edit-" not in run("ls -A").output
    assert "no change of first.txt was made by edit" in run("edit undo first.txt").output
    run("chmod 755 locked")


def test_creation_of_a_file_that_is_gone_can_be_undone(run: Run) -> None:
    done = run("echo x | edit create made.txt; rm made.txt; edit undo made.txt")
    assert done.exit_code == 0 and "made.txt is removed" in done.output
    assert "no change of made.txt" in run("edit undo made.txt").output


def test_command_may_stand_before_two_hyphens(run: Run) -> None:
    run("echo old > -x.txt")
    assert run("edit replace --old=old --new=new -- -x.txt").exit_code == 0
    assert run("cat ./-x.txt").output == "new\n"


def test_text_copied_with_line_numbers_or_written_with_escapes_is_explained(run: Run) -> None:
    numbered = run(f"cat -n {MONTHS} | sed -n 8,9p").output
    done = run(f"edit replace {MONTHS} --old='{numbered}' --new=x")
    assert done.exit_code == 1 and "begins its lines with line numbers" in done.output
    run("printf 'one\\n\\ttwo\\n' > tabs.txt")
    done = run(r"edit replace tabs.txt --old='one\n\ttwo' --new=x")
    assert done.exit_code == 1 and r"\n or \t as two characters" in done.output


def test_special_files_are_refused(run: Run) -> None:
    run("ln -s nowhere dangling; mkfifo pipe")
    assert "a symbolic link to nowhere, which does not exist" in run("edit replace dangling --old=a --new=b").output
    assert "pipe is not a regular file" in run("edit replace pipe --old=a --new=b", 5.0).output
    assert "calends is a directory" in run("echo x | edit create calends").output
    assert "<<<<<<< SEARCH" in run("echo x | edit apply").output


SOUND = {
    "c": "int area(int a, int b)\n{\n    return a * (b + 1);\n}\n",
    "h": "#define API(x) x\nAPI(int) area(int, int (*)(void));\n",
    "hpp": "template <class T> class Box {\n    T value[(3)];\n};\n",
    "js": "export const area = (a, b) => <Box of={a * (b + 1)} />;\n",
    "ts": "export function area<T>(a: number, of: T[]): number { return <number>a * (of.length + 1); }\n",
    "go": "package shapes\n\nfunc area(a int, b int) int { return a * (b + 1) }\n",
    "rs": "fn area(a: i64, b: i64) -> i64 { a * (b + 1) }\n",
    "java": "class Shapes { int area(int a, int b) { return a * (b + 1); } }\n",
}


@pytest.fixture(scope="module")
def run_in_c() -> Iterator[Run]:
    """Runs a command in a task of C, whose sandbox has the grammars."""
    if shutil.which("apptainer") is None:
        pytest.skip("Apptainer is not installed (scripts/install_apptainer.sh)")
    task = load_tasks("mini-c", select=":1")[0]
    box = prepare_locally(task, tools=tool_set("default"), turn_timeout_s=20, backend="apptainer").start()
    yield lambda command, timeout_s=30.0: box.run(command, timeout_s=timeout_s)
    box.close()


@pytest.mark.parametrize("suffix", SOUND)
def test_edit_that_breaks_the_syntax_of_another_language_is_refused(suffix: str, run_in_c: Run) -> None:
    path = f"shapes.{suffix}"
    assert "Note" not in run_in_c(f"edit create {path} <<'EOF'\n{SOUND[suffix]}EOF").output
    line = next(line for line in SOUND[suffix].splitlines() if "(" in line and "#" not in line)
    done = run_in_c(f"edit replace {path} --old='{line}' --new='{line.replace(')', '', 1)}'")
    assert done.exit_code == 1 and f"edit: {path} would no longer parse: " in done.output
    assert "Nothing was changed." in done.output and run_in_c(f"cat {path}").output == SOUND[suffix]
    done = run_in_c(f"edit replace {path} --old='{line}' --new='{line} // mended'")
    assert done.exit_code == 0 and "Note" not in done.output
    run_in_c(f"rm {path}")


def test_source_that_only_macros_explain_is_changed_with_a_note(run_in_c: Run) -> None:
    macros = "int f(int a, int b) { return a OR b; }\nint x = 1;\n"
    created = run_in_c(f"edit create m.c <<'EOF'\n{macros}EOF")
    assert created.exit_code == 0 and "Note: 1 place of m.c does not parse, none before" in created.output
    done = run_in_c("edit replace m.c --old='int x = 1;' --new='int x = 2;'")
    assert done.exit_code == 0 and "Note" not in done.output
    done = run_in_c("edit replace m.c --old='int x = 2;' --new='int x = (2;'")
    assert done.exit_code == 0 and "Note: 2 places of m.c do not parse, 1 before" in done.output
