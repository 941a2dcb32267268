"""The Triton kernels under the interpreter, in a separate process: the interpreter is chosen at import."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("selection", ["not campaign", pytest.param("campaign", marks=pytest.mark.campaign)])
def test_the_kernels_are_exact_under_the_interpreter(selection):
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-o", "addopts=", "-m", selection]
    # NumPy, which interprets, warns about operations on infinities; a GPU does not.
    command += ["-W", "ignore::RuntimeWarning", "tests/trainers/kernels/on_triton.py"]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
