"""The kernels compiled for A100, H100 and B200: no spills, few barriers in loops, wide accesses, and no growth."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.kernel_resources import grown, least_clock

ROOT = Path(__file__).parents[3]
KNOWN = ROOT / "benchmarks" / "results" / "kernel_resources.json"


@pytest.mark.parametrize(
    "architecture", [90, *(pytest.param(place, marks=pytest.mark.campaign) for place in (80, 100))]
)
def test_no_kernel_grows_spills_or_waits_and_accesses_are_16_bytes_wide(architecture, tmp_path):
    found = tmp_path / "resources.json"
    command = [sys.executable, "benchmarks/kernel_resources.py", "--architectures", str(architecture)]
    command += ["--output", str(found), "--compare", str(KNOWN)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    ((_, rows),) = json.loads(found.read_text()).items()
    assert len({row["kernel"] for row in rows}) == len(rows) >= 18
    for row in rows:
        assert row["spilled_bytes"] == 0, row
        if row["kernel"].startswith("attention"):
            # 4 blocks of 128 threads stay resident on each multiprocessor, on an A100 3 of them in float32.
            assert row["registers"] <= 128, row
            assert row["shared_bytes"] <= (51_000 if "fp32" in row["kernel"] else 42_000), row
            assert row["wide_loads"] >= 2 and row["narrow_loads"] == 0, row
            continue
        if row["kernel"].startswith("new token"):  # a few numbers a thread, and a norm
            assert row["registers"] <= 48 and row["instructions"] <= 350, row
            continue
        if row["kernel"].startswith("product"):  # one program on a multiprocessor, whose loop waits for copies
            assert row["registers"] <= 255 and row["shared_bytes"] <= 232_448, row
            assert row["loop_instructions"] <= 16 and row["loop_barriers"] <= 36, row
            continue
        # Threads meet in a norm alone: its factor is of the whole row.
        assert row["loop_barriers"] == 0 or row["kernel"].startswith("norm"), row
        # 6 blocks of 128 threads stay resident on each multiprocessor; of the norm's gradient on an A100, 5.
        assert row["registers"] <= (96 if row["kernel"].startswith("norm gradient") else 80), row
        if "merge" in row["kernel"] or "unaligned" in row["kernel"]:
            continue
        few = row["kernel"].startswith(("SwiGLU", "norm", "gradient bf16"))  # of 16 elements a thread
        assert row["wide_loads"] >= (2 if few else 4), row
        if "gradient" in row["kernel"]:
            assert row["wide_stores"] >= 2, row  # the narrow ones are of the last columns of an odd vocabulary
    if architecture == 90:
        counts = {row["kernel"]: row for row in rows}
        assert counts["sums bf16"]["loop_instructions"] <= 8.6 and counts["sums bf16"]["registers"] <= 48
        clocks = [least_clock(row) for row in rows if least_clock(row) is not None]
        assert len(clocks) == 13 and max(clocks) <= 1.5e9  # an H200 has 1.98 GHz: memory is the limit, not instructions


def test_an_h200_must_issue_four_instructions_a_byte_at_1_14_gigahertz():
    row = {"kernel": "sums bf16", "loop_instructions": 8.0}  # 4.8e12 / 2 · 8 / (132 · 128), by hand
    assert least_clock(row) == pytest.approx(1.1364e9, rel=1e-4)
    assert least_clock({"kernel": "KL merge", "loop_instructions": 8.0}) is None


def test_growth_of_more_than_five_percent_and_narrower_accesses_are_named():
    before = [{"kernel": "sums", "architecture": 90, "instructions": 100, "registers": 40, "wide_loads": 4}]

    def problems(**changes):
        return grown([{**before[0], **changes}], before)

    assert not problems() and not problems(instructions=105, registers=30, wide_loads=8)
    assert problems(instructions=106) == ["sums sm_90: instructions 100 → 106"]
    assert problems(registers=43) and problems(wide_loads=3)
    assert problems(architecture=100) == ["sums sm_100: not in the file"]
