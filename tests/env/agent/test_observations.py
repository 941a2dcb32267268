"""Observations are bounded, harmless and say what is missing."""

import contextlib
import os
import re
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swegym_env.agent.observations import print_turn, render_result, shorten
from swegym_env.sandbox import SandboxSpec, open_sandbox
from swegym_env.sandbox.api import CommandResult


def test_output_and_exit_code_are_shown():
    assert render_result(CommandResult("hello\n", 0), limit_chars=1000).text == "hello\n[exit code 0]"
    assert render_result(CommandResult("", 3), limit_chars=1000).text == "[exit code 3]"


def test_missing_final_newline_is_added():
    assert render_result(CommandResult("no newline", 1), limit_chars=1000).text == "no newline\n[exit code 1]"


def test_timeout_is_shown():
    shown = render_result(CommandResult("", 124, timed_out=True, duration_s=5.04), limit_chars=1000)
    assert "ended after 5 s" in shown.text


def test_head_and_tail_of_long_output_are_kept():
    text = "a" * 600 + "b" * 600
    shown, dropped = shorten(text, 200)
    assert dropped == 1000
    assert shown.startswith("a" * 100 + "\n[... 1000 characters left out ...]\n")
    assert shown.endswith("b" * 100)


@given(text=st.text(max_size=3000), limit=st.integers(100, 1000), extra=st.integers(0, 10**9))
def test_shortening_counts_every_omitted_character(text, limit, extra):
    shown, dropped = shorten(text, limit, extra=extra)
    if len(text) <= limit and not extra:
        assert (shown, dropped) == (text, 0)
    else:
        assert dropped == max(0, len(text) - limit) + extra
        assert f"[... {dropped} characters left out ...]" in shown
        assert len(shown) <= limit + 60


def test_bytes_dropped_by_the_sandbox_are_counted():
    shown = render_result(CommandResult("head tail", 0, truncated_bytes=5000), limit_chars=1000)
    assert shown.truncated_chars == 5000
    assert "5000 characters left out" in shown.text


@given(st.text())
def test_control_characters_never_reach_the_agent(text):
    shown = render_result(CommandResult(text, 0), limit_chars=10_000).text
    assert not [c for c in shown if ord(c) < 32 and c not in "\t\n"]
    assert "\x7f" not in shown


def test_terminal_escapes_are_removed_and_other_controls_escaped():
    shown = render_result(CommandResult("\x1b[31mred\x1b[0m \x07 \x1b]0;title\x07end", 0), limit_chars=1000).text
    assert shown == "red \\x07 end\n[exit code 0]"


def test_long_line_is_folded():
    shown = render_result(CommandResult("x" * 50_000, 0), limit_chars=10_000).text
    assert len(shown) < 2_200
    assert "48000 characters of this line" in shown


def test_text_overwritten_by_progress_bars_is_omitted_and_counted():
    shown = render_result(CommandResult("get: 10%\rget: 99%\rget: done\r\nnext\r\n", 0), limit_chars=1000)
    assert shown.text == "get: done\nnext\n[exit code 0]"
    assert shown.truncated_chars == len("get: 10%\rget: 99%\r")


def test_unterminated_title_escape_hides_only_its_line():
    assert render_result(CommandResult("\x1b]0;title\nseen", 0), limit_chars=1000).text == "\nseen\n[exit code 0]"


def test_folded_characters_are_counted():
    assert render_result(CommandResult("x" * 5_000, 0), limit_chars=10_000).truncated_chars == 3_000


def test_duration_is_shown_only_on_request():
    result = CommandResult("", 0, duration_s=1.26)
    assert render_result(result, limit_chars=1000).text == "[exit code 0]"
    assert render_result(result, limit_chars=1000, show_duration=True).text == "[exit code 0 after 1.3 s]"
    late = CommandResult("", 124, timed_out=True, duration_s=5.0, limit="time")
    assert render_result(late, limit_chars=1000, show_duration=True).text.count(" s") == 1


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        ("cpu", "processor time"),
        ("memory", "memory"),
        ("processes", "could not start more processes"),
        ("disk", "disk is full"),
        ("file_size", "a file has the size"),
        ("output", "more output than is kept"),
    ],
)
def test_reached_limit_is_described(limit, words):
    text = render_result(CommandResult("", 1, limit=limit), limit_chars=1000).text
    assert text.startswith("[exit code 1: ") and words in text


@pytest.mark.parametrize("piece", ["\x1b[", "\x1b]", "\r", "a\r", "\x1b[0;", "0", "\x1b", "\x07\x1b]"])
def test_rendering_time_is_linear(piece):
    def seconds(size):
        result = CommandResult(piece * (size // len(piece)) + "\ra", 0)
        times = []
        for _ in range(3):
            begun = time.process_time()
            render_result(result, limit_chars=10_000)
            times.append(time.process_time() - begun)
        return min(times)

    assert seconds(800_000) < 8 * 6 * max(seconds(100_000), 0.002)


def test_excessive_output_is_cut_while_it_streams():
    with_flood = open_sandbox(SandboxSpec(workdir="/tmp"))
    try:
        with_flood.start()
        result = with_flood.run("head -c 100000000 /dev/zero | tr '\\0' x; echo; echo end", timeout_s=60)
    finally:
        with_flood.close()
    shown = render_result(result, limit_chars=10_000)
    assert result.truncated_bytes == 100_000_005 - (1 << 20) and len(result.output) == 1 << 20
    assert "x\nend\n[exit code 0: it wrote more output than is kept]" in shown.text
    assert shown.truncated_chars > 99_990_000 and len(shown.text) < 11_000


@pytest.mark.parametrize("piece", ["\0", "\x1b[31m", "\r", "\x1b", "x\r", "\n", "é\x9b", "\x1b]", "\x01\x02\x03"])
def test_long_output_takes_little_more_time_than_the_part_that_is_shown(piece: str) -> None:
    def seconds(text: str) -> float:
        took = []
        for _ in range(3):
            began = time.thread_time()
            render_result(CommandResult(text, 0), limit_chars=10_000)
            took.append(time.thread_time() - began)
        return min(took)

    shown, whole = piece * (160_000 // len(piece)), piece * ((4 << 20) // len(piece))
    assert seconds(whole) < 4 * seconds(shown) + 0.005  # 26 times as long


def test_middle_of_a_very_long_output_is_counted_in_characters_of_the_output() -> None:
    output = "first\n" + "\0" * 1_000_000 + "\nlast"
    shown = render_result(CommandResult(output, 1, truncated_bytes=7), limit_chars=1000)
    head, _, tail = shown.text.partition("\n[... ")
    assert head.startswith("first\n\\x00") and len(head) == 500
    assert tail.endswith("\\x00\nlast\n[exit code 1]")
    assert shown.truncated_chars == len(output) - 1000 + 7
    assert f"[... {shown.truncated_chars} characters left out ...]" in shown.text


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
@pytest.mark.parametrize("terminal", [True, False])
def test_a_printed_turn_neither_controls_a_terminal_nor_fails_for_any_text(terminal, encoding, monkeypatch):
    reader, writer = os.openpty() if terminal else os.pipe()
    with open(reader, "rb", 0) as printed:
        with open(writer, "w", encoding=encoding) as stdout, monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", stdout)
            hostile = "a\x1b]0;title\x07 \x9b2J \b\b\x0e \ud83d ☃ \x1b"
            print_turn("turn 1", f"act {hostile}", f"see\r\n{hostile}\n[exit code 0]")
        read = b""
        with contextlib.suppress(OSError):  # EIO: the end of a terminal
            while piece := printed.read(1 << 16):
                read += piece
    text = read.decode(encoding)
    plain = re.sub(r"\x1b\[[0-9;]*m|\r(?=\n)", "", text) if terminal else text  # colours, and line ends of a terminal
    assert "act a" in plain and "see\na" in plain and "\n[exit code 0]" in plain and "\\ud83d" in plain
    assert [character for character in plain if not character.isprintable() and character != "\n"] == []
