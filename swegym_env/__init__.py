"""A Gymnasium environment in which an agent repairs real repositories inside a sandbox.

Importing registers the environments and has no other effect:

- `SWEBench-v0`, `SWEAgent-v0`, `FileRepair-v0`, `KodCode-v0` and `VulnerabilityDetection-v0` come with tasks and work
  offline;
- `SWEBenchLite-v0`, `SWEBenchVerified-v0` and `SWEGym-v0` are `SWEBench-v0` on the datasets of these names;
- `Harbor-v0` plays tasks in Harbor's format;
- `OpenEnv-v0` plays sessions on an OpenEnv server.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

import gymnasium

__all__ = ["__version__"]

try:
    __version__ = version("swegym-env")
except PackageNotFoundError:
    __version__ = "0+checkout"  # the source without an installation; pyproject.toml has the version


for _name, _module, _class, _arguments in (
    ("SWEBench-v0", "env", "SWEBenchEnv", {}),
    ("SWEBenchLite-v0", "env", "SWEBenchEnv", {"dataset": "SWE-bench/SWE-bench_Lite", "split": "test"}),
    ("SWEBenchVerified-v0", "env", "SWEBenchEnv", {"dataset": "SWE-bench/SWE-bench_Verified", "split": "test"}),
    ("SWEGym-v0", "env", "SWEBenchEnv", {"dataset": "SWE-Gym/SWE-Gym", "split": "train"}),
    ("SWEAgent-v0", "programs.env", "SWEAgentEnv", {}),
    ("Harbor-v0", "harbor.env", "HarborEnv", {}),
    ("OpenEnv-v0", "adapters.openenv_client", "OpenEnvEnv", {}),
    ("FileRepair-v0", "answers.file_repair", "FileRepairEnv", {}),
    ("KodCode-v0", "answers.kodcode", "KodCodeEnv", {}),
    ("VulnerabilityDetection-v0", "answers.vulnerability", "VulnerabilityDetectionEnv", {}),
):
    gymnasium.register(
        id=_name,
        entry_point=f"swegym_env.{_module}:{_class}",
        vector_entry_point=f"swegym_env.{_module}:make_vector",
        kwargs=_arguments,
        # Gymnasium's passive checker raises at every step of an environment whose first reset raised (1.4).
        disable_env_checker=True,
    )
