"""The resources of a Ray cluster that rollouts use, and the connection to it."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from swe_trainers.config import Configuration
from swe_trainers.errors import ConfigurationError, install_hint

__all__ = ["RayConfig", "joined_cluster"]


@dataclass(frozen=True)
class RayConfig(Configuration):
    """Rollout workers on a Ray cluster, each with `environment.parallel` environments and an engine.

    Attributes:
        address: of the cluster: `auto` for the one that this machine belongs to, `HOST:PORT`, or `local` for one that
            is started on this machine and ends with the run.
        workers: how many.
        cpus_per_worker: that Ray reserves for each: for its environments, and an embedded engine.
        memory_per_worker_gb: likewise; 0 reserves none.
        gpus_per_worker: for an embedded engine; workers in front of a server need none.
        restarts: how many workers may die over the whole run, each replaced by a new one.
        start_timeout_s: until a worker must be ready; more than a model takes to load.
    """

    address: str = "auto"
    workers: int = 2
    cpus_per_worker: float = 1.0
    memory_per_worker_gb: float = 0.0
    gpus_per_worker: float = 0.0
    restarts: int = 20
    start_timeout_s: float = 900.0

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise ConfigurationError(f"workers: got {self.workers}, expected at least 1")
        for name in ("cpus_per_worker", "memory_per_worker_gb", "gpus_per_worker", "restarts"):
            if getattr(self, name) < 0:
                raise ConfigurationError(f"{name}: got {getattr(self, name)}, expected 0 or more")
        if self.start_timeout_s <= 0:
            raise ConfigurationError(f"start_timeout_s: got {self.start_timeout_s}, expected a positive number")


@contextmanager
def joined_cluster(config: RayConfig) -> Iterator[Any]:
    """Ray's module, connected to the cluster; one that was connected before stays so.

    Raises:
        ConfigurationError: Ray is not installed, or there is no such cluster.
    """
    # Ray would hide GPUs from workers that ask for none, and warns that it will not any more.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError as error:
        raise ConfigurationError(f"scale.ray: Ray is not installed. {install_hint('ray')}") from error
    if ray.is_initialized():
        yield ray
        return
    try:
        _check_reachable(config.address)
        ray.init(address=config.address, logging_level=logging.ERROR, log_to_driver=False, include_dashboard=False)
    except (OSError, RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ConfigurationError(
            f"scale.ray.address {config.address!r}: no cluster there: {reason}. Try: ray start --head, or local"
        ) from error
    try:
        yield ray
    finally:
        ray.shutdown()


def _check_reachable(address: str) -> None:
    """Connect to `HOST:PORT` once, where Ray would try for minutes. Raises `OSError` if nothing listens."""
    host, colon, port = address.rpartition(":")
    if colon and "/" not in host and port.isdigit():
        socket.create_connection((host, int(port)), timeout=10).close()
