"""Files are written atomically."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

from swe_trainers.files import replacing, write_whole
from tests.disk import left_on, on_small_disk


def test_files_are_written_with_the_given_mode_and_umask(tmp_path):
    mask = os.umask(0o027)
    try:
        text = write_whole(tmp_path / "a" / "b.txt", "grüße\n")
        secret = write_whole(tmp_path / "secret", b"\x00\xff", mode=0o600)
    finally:
        os.umask(mask)
    assert text.read_bytes() == "grüße\n".encode()
    assert secret.read_bytes() == b"\x00\xff"
    assert text.stat().st_mode & 0o777 == 0o640
    assert secret.stat().st_mode & 0o777 == 0o600


def test_failed_write_keeps_the_previous_file_only(tmp_path):
    target = write_whole(tmp_path / "file", "before")

    def write_half():
        with replacing(target) as partial:
            partial.write_text("half")
            assert target.read_text() == "before"
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write_half()
    assert target.read_text() == "before"
    assert os.listdir(tmp_path) == ["file"]


def test_full_disk_keeps_the_previous_file(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    script = (
        "import sys; from swe_trainers.files import write_whole; write_whole(sys.argv[1], 'before')\n"
        "try: write_whole(sys.argv[1], b'x' * (1 << 20))\n"
        "except OSError as error: print(error.strerror, open(sys.argv[1]).read())"
    )
    command = [*on_small_disk(disk, free_kib=64), sys.executable, "-c", script, str(disk / "file")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "No space left on device before\n"
    assert left_on(disk) == ["file"]


def test_directory_at_the_path_is_not_replaced(tmp_path):
    (tmp_path / "file").mkdir()
    with pytest.raises(OSError, match="directory"):
        write_whole(tmp_path / "file", "text")
    assert os.listdir(tmp_path) == ["file"]


def test_concurrent_readers_see_complete_files_only(tmp_path):
    target = write_whole(tmp_path / "file", "0" * 4096)
    threads = [
        threading.Thread(target=lambda letter=letter: [write_whole(target, letter * 4096) for _ in range(50)])
        for letter in "12"
    ]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        seen = target.read_text()
        assert len(seen) == 4096
        assert len(set(seen)) == 1
    for thread in threads:
        thread.join()
    assert os.listdir(tmp_path) == ["file"]
