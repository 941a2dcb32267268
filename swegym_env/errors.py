"""The errors of `swegym_env`, one small tree.

    SwegymError                   on the command line: one line and exit code 2
    ├── ConfigurationError        the request is wrong or cannot be fulfilled here; also a ValueError
    │   ├── UnknownTaskError      no such dataset, split or instance
    │   ├── TaskFormatError       a dataset row is malformed: which row, which field
    │   └── BackendUnavailableError  the requested sandbox back end cannot work here
    └── InfrastructureError       the machine failed; the episode is invalid and excluded from training
        ├── ImageError            an image cannot be read, pulled or built
        ├── LayerError            a layer cannot be built or published
        ├── RepositoryError       git is missing, a repository or a commit cannot be read
        ├── SandboxError          a sandbox did not start, died, or does not respond
        │   ├── SandboxBrokenError  it does not start again because of what ran in it
        │   └── StorageError      its files cannot be stored: the disk is full, or a directory cannot be written
        └── GradingError          the tests could not be run at all

An agent's mistake (bad syntax, a failing command, a timeout) is none of these: it is an observation.

Whose fault is a failure? What the machine broke makes an episode invalid; what the agent broke makes it a failure like
any other, since an agent could otherwise take its failures out of the average. Where both could be the cause, the same
work without the agent's part decides: if it succeeds, the agent's part is the cause.

    a shell does not start again     a start of the same sandbox without the files that the agent changed decides, and
                                     then another start with them: `sandbox.local`, SandboxBrokenError
    the tests cannot be run          a run without the patch decides: `grading.task_tests`
    a timeout on a busy machine      the processor time that the sandbox itself used decides: `sandbox.limits`

`env.TextEpisode.step` and `grading.grade` are the places where a failure becomes an invalid or a failed episode.
"""

from __future__ import annotations

__all__ = [
    "BackendUnavailableError",
    "ConfigurationError",
    "GradingError",
    "ImageError",
    "InfrastructureError",
    "LayerError",
    "RepositoryError",
    "SandboxBrokenError",
    "SandboxError",
    "SetUpError",
    "StorageError",
    "SwegymError",
    "TaskFormatError",
    "UnknownTaskError",
    "install_hint",
]


class SwegymError(Exception):
    """Base of all errors of this package. The message is one line: what failed, what was given, what to do."""


class ConfigurationError(SwegymError, ValueError):
    """The request is wrong or cannot be fulfilled here."""


class UnknownTaskError(ConfigurationError):
    """No such dataset, split or instance."""


class TaskFormatError(ConfigurationError):
    """A dataset row does not fit the schema; the message names the row and the field."""


class BackendUnavailableError(ConfigurationError):
    """The requested sandbox back end cannot work on this machine."""


class InfrastructureError(SwegymError):
    """The machine failed, not the agent: the episode is invalid."""


class ImageError(InfrastructureError):
    """An image cannot be read, pulled or built."""


class LayerError(InfrastructureError):
    """A layer cannot be built or published."""


class SetUpError(LayerError):
    """A command that sets a repository up failed."""


class RepositoryError(InfrastructureError):
    """Git is missing, or a repository or a commit cannot be read."""


class SandboxError(InfrastructureError):
    """A sandbox did not start, died, or does not respond."""


class SandboxBrokenError(SandboxError):
    """A sandbox does not start again because of the files that ran in it or that it wrote; a new one does start.

    For an episode this is the agent's fault: the episode has failed and is valid. Anywhere else it is a failure like
    any other SandboxError.
    """


class StorageError(SandboxError):
    """The files of a sandbox cannot be stored: the disk is full, or the run directory cannot be written."""


class GradingError(InfrastructureError):
    """The tests of a task could not be run at all."""


def install_hint(extra: str) -> str:
    """How to install an extra of this project, for the end of an error: from a clone, since it is on no index."""
    return f"Try, in a clone of swegym-env: pip install '.[{extra}]'"
