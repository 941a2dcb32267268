"""A Gymnasium environment in which an agent repairs real repositories inside a sandbox.

Importing registers the environments; nothing else happens. `SWEBench-v0`, `FileRepair-v0`, `KodCode-v0` and
`VulnerabilityDetection-v0` have tasks of their own, offline; `SWEBenchLite-v0`, `SWEBenchVerified-v0` and `SWEGym-v0`
are `SWEBench-v0` on the datasets of these names.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

import gymnasium

__all__ = ["__version__"]

try:
    __version__ = version("swegym-env")
except PackageNotFoundError:
    __version__ = "0+checkout"  # a copy of the source that was not installed; the version stands in pyproject.toml


def _register(name: str, kind: str, vector: str, **arguments: str) -> None:
    gymnasium.register(
        id=name,
        entry_point=f"swegym_env.{kind}",
        vector_entry_point=f"swegym_env.vector:{vector}",
        kwargs=arguments,
    )


for _name, _arguments in {
    "SWEBench-v0": {},
    "SWEBenchLite-v0": {"dataset": "SWE-bench/SWE-bench_Lite", "split": "test"},
    "SWEBenchVerified-v0": {"dataset": "SWE-bench/SWE-bench_Verified", "split": "test"},
    "SWEGym-v0": {"dataset": "SWE-Gym/SWE-Gym", "split": "train"},
}.items():
    _register(_name, "env:SWEBenchEnv", "make_vector", **_arguments)
_register("FileRepair-v0", "kinds.graded:FileRepairEnv", "make_file_repair_vector")
_register("KodCode-v0", "kinds.graded:KodCodeEnv", "make_kodcode_vector")
_register("VulnerabilityDetection-v0", "kinds.vulnerability:VulnerabilityDetectionEnv", "make_vulnerability_vector")
