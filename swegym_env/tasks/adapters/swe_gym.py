"""SWE-Gym (SWE-Gym/SWE-Gym, -Lite): SWE-bench's schema for eleven other repositories.

It has no `environment_setup_commit`. The names of its published images are made from the instance ids.
"""

from __future__ import annotations

from collections.abc import Mapping

from swegym_env.tasks.adapters import Adapter, swe_bench
from swegym_env.tasks.rows import CheckedRow
from swegym_env.tasks.task import Task

__all__ = ["ADAPTER", "COLUMNS", "REPOSITORIES", "adapt", "matches"]

COLUMNS = swe_bench.COLUMNS
REPOSITORIES = frozenset(
    {
        "Project-MONAI/MONAI", "bokeh/bokeh", "conan-io/conan", "dask/dask", "facebookresearch/hydra", "getmoto/moto",
        "iterative/dvc", "modin-project/modin", "pandas-dev/pandas", "pydantic/pydantic", "python/mypy",
    }
)  # fmt: skip


def matches(values: Mapping[str, object]) -> bool:
    """Whether it is a repository of SWE-Gym, and no column belongs to another family."""
    own = ("environment_setup_commit", "image", "docker_image", "install_config", "files")
    return str(values.get("repo")) in REPOSITORIES and not any(values.get(name) for name in own)


def adapt(row: CheckedRow) -> Task:
    """The task of a row."""
    name = row.text("instance_id").lower().replace("__", "_s_")
    return swe_bench.repository_task(row, official_image=f"docker://xingyaoww/sweb.eval.x86_64.{name}:latest")


ADAPTER = Adapter(COLUMNS, adapt, matches)
