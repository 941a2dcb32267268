"""Work that the supervisor does in a child."""

from __future__ import annotations

import os
import sys

import pytest

from swegym_env.sandbox.linux.processes import start_child


@pytest.mark.parametrize("read", [True, False])
def test_a_result_that_nobody_reads_is_no_failure(read: bool, capfd: pytest.CaptureFixture[str]) -> None:
    result, output = os.pipe()
    if not read:
        os.close(result)
    child = start_child(lambda: b"done", output)
    os.close(output)
    assert os.waitpid(child, 0)[1] == 0
    if read:
        assert os.read(result, 100) == b"done"
        os.close(result)
    sys.stderr.flush()
    assert capfd.readouterr().err == ""
