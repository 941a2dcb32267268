"""Atomic writes and JSON lines, with concurrent writers and writers that crash."""

from __future__ import annotations

import _thread
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from swegym_env.files import append_json_line, read_json_lines, write_atomically


def test_an_atomic_write_replaces_the_content_or_leaves_it(tmp_path: Path) -> None:
    path = write_atomically(tmp_path / "file", "before")
    assert write_atomically(path, "grüße \ud800").read_bytes() == "grüße \\ud800".encode()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda letter: [write_atomically(path, letter * 9999) for _ in range(20)], "abcd"))
    assert path.read_text() in {letter * 9999 for letter in "abcd"}
    with pytest.raises(OSError):
        write_atomically(tmp_path / "missing" / "file", "text")
    (tmp_path / "directory").mkdir()
    with pytest.raises(OSError):
        write_atomically(tmp_path / "directory", "text")
    assert sorted(os.listdir(tmp_path)) == ["directory", "file"]


def test_an_interrupted_write_leaves_the_content_and_nothing_else(tmp_path: Path) -> None:
    path = write_atomically(tmp_path / "file", "before")

    def interrupt_the_write() -> None:
        while len(os.listdir(tmp_path)) < 2:
            time.sleep(0.001)
        _thread.interrupt_main()

    threading.Thread(target=interrupt_the_write).start()
    with pytest.raises(KeyboardInterrupt):
        write_atomically(path, "x" * (1 << 28))
    assert os.listdir(tmp_path) == ["file"] and path.read_text() == "before"


def test_json_lines_of_many_writers_are_not_mixed_and_a_line_cut_off_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    assert read_json_lines(path) == []
    path.write_text('{"number": -1}\n{"number": ')  # as a crash leaves it
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda number: append_json_line(path, {"number": number, "text": "x" * 9999}), range(40)))
    assert sorted(row["number"] for row in read_json_lines(path)) == list(range(-1, 40))
