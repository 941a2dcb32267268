"""The program that runs a project's tests inside its sandbox."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from swegym_env.making.inside import runner

PRELOADS = "import runner, sys; runner.preload(['ends_here', 'colorsys']); print('colorsys' in sys.modules)"


def test_a_module_that_cannot_be_preloaded_is_logged_and_the_others_are_imported(tmp_path: Path) -> None:
    (tmp_path / "ends_here.py").write_text("raise SystemExit('no display')\n")
    places = os.pathsep.join([str(tmp_path), str(Path(runner.__file__).parent)])
    ran = subprocess.run(
        [sys.executable, "-c", PRELOADS], env={**os.environ, "PYTHONPATH": places}, capture_output=True, text=True,
        timeout=60, check=True,
    )  # fmt: skip
    assert ran.stdout == "True\n"
    assert ran.stderr == "ends_here is not preloaded: SystemExit: no display\n"
