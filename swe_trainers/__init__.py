"""Trains language models by reinforcement learning against any Gymnasium environment with text spaces."""

from importlib.metadata import PackageNotFoundError, version

__all__ = ["__version__"]

try:
    __version__ = version("swegym-env")  # one distribution holds both packages
except PackageNotFoundError:
    __version__ = "0+checkout"  # a copy of the source that was not installed; the version stands in pyproject.toml
