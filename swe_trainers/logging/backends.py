"""The logging back ends for metrics. Adding one: a file with its class, and a line in `LOGGERS`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Protocol

from swe_trainers.config import named, nearest
from swe_trainers.errors import ConfigurationError, package_hint
from swe_trainers.registry import with_installed

__all__ = ["LOGGERS", "MetricsLogger", "logger_class", "open_logger"]

_BUILT_IN = {
    "tensorboard": "swe_trainers.logging.tensorboard:TensorBoard",
    "wandb": "swe_trainers.logging.wandb:WeightsAndBiases",
}
LOGGERS = with_installed("swe_trainers.loggers", _BUILT_IN)


class MetricsLogger(Protocol):
    """A logging back end; constructed as `Class(directory, **options)`, with the options of the configuration.

    Attributes:
        package: the package that it needs.
    """

    package: ClassVar[str]

    def log(self, update: int, metrics: Mapping[str, float]) -> None:
        """Record the finite numbers of an update."""
        ...

    def close(self) -> None:
        """Flush and close."""
        ...


def logger_class(name: str) -> Any:
    """The class of a back end: one of `LOGGERS`, or `module:Class`.

    Raises:
        ConfigurationError: there is no such back end.
    """
    if ":" not in name and name not in LOGGERS:
        raise ConfigurationError(f"loggers: no back end {name!r}{nearest(name, LOGGERS)}")
    return named(LOGGERS.get(name, name), "logger")


def open_logger(name: str, directory: Path, options: Mapping[str, Any]) -> MetricsLogger:
    """Open a back end for a run.

    Raises:
        ConfigurationError: there is no such back end, its package is not installed, or it does not take the options.
    """
    backend = logger_class(name)
    try:
        opened: MetricsLogger = backend(directory, **options)
    except ImportError as error:
        missing = f"needs {error.name or 'a package'}, which is not installed"
        raise ConfigurationError(f"{name}: {missing}. {package_hint(backend.package)}") from error
    except TypeError as error:
        raise ConfigurationError(f"loggers.{name}: {error}") from error
    return opened
