"""What measures: source, device, clocks, driver and versions, without git and without a network."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from benchmarks.records import commit, cpu_name

__all__ = ["clocks", "describe", "source_digest"]

ROOT = Path(__file__).parents[2]
PACKAGES = ("torch", "triton", "transformers", "numpy", "swegym-env")
PEERS = (
    *("trl", "liger-kernel", "verl", "quack-kernels", "unsloth_zoo", "cut-cross-entropy", "flash-attn", "vllm"),
    "nvidia-cutlass-dsl",
)
_QUERY = "clocks.sm,clocks.mem,clocks.max.sm,temperature.gpu,power.draw,clocks_event_reasons.active"


def describe(device: str) -> dict[str, Any]:
    """The line that begins a run; `key` has what rows must share to be of one run."""
    found: dict[str, Any] = {"began": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), **commit()}
    versions = {name: _version(name) for name in (*PACKAGES, *PEERS)}
    found["source"] = source_digest()
    found["machine"] = {"cpu": cpu_name(), "cores": os.cpu_count(), "system": platform.platform()}
    found["versions"] = {"python": platform.python_version(), **{k: v for k, v in versions.items() if v}}
    found["device"] = _device(device)
    found["clocks"] = clocks(device)
    found["key"] = [found["source"], found["device"]["name"], versions["torch"], versions["triton"]]
    return found


def source_digest() -> str:
    """16 digits of the SHA-256 of the trainer's source and this benchmark's: equal digests measure the same code."""
    digest = hashlib.sha256()
    for path in sorted([*(ROOT / "swe_trainers").rglob("*.py"), *(ROOT / "benchmarks" / "gpu").rglob("*.py")]):
        digest.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def _device(device: str) -> dict[str, Any]:
    if device == "cpu":
        return {"name": "cpu"}
    properties = torch.cuda.get_device_properties(0)
    return {
        "name": properties.name,
        "memory_bytes": properties.total_memory,
        "multiprocessors": properties.multi_processor_count,
        "capability": list(torch.cuda.get_device_capability(0)),
        "driver": _smi("driver_version"),
        "cuda": torch.version.cuda,
    }


def clocks(device: str) -> dict[str, str]:
    """Clocks, temperature, power and what throttles, as nvidia-smi names them; empty where it is not there."""
    answer = "" if device == "cpu" else _smi(_QUERY)
    values = [value.strip() for value in answer.split(",")]
    names = _QUERY.split(",")
    return dict(zip(names, values, strict=True)) if len(values) == len(names) else {}


def _smi(query: str) -> str:
    program = shutil.which("nvidia-smi") or "/usr/local/nvidia/bin/nvidia-smi"
    device = (
        os.environ.get("CUDA_VISIBLE_DEVICES", "").partition(",")[0] or "0"
    )  # an index or a UUID, as `-i` takes them
    command = [program, "-i", device, f"--query-gpu={query}", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
