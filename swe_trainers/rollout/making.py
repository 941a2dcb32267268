"""Environments by their id: whatever Gymnasium finds, refused in one line where it speaks no text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import gymnasium

from swe_trainers.errors import ConfigurationError

__all__ = ["make_text_env"]


def make_text_env(
    name: str,
    arguments: Mapping[str, Any],
    wrap: Callable[[gymnasium.Env[Any, Any]], gymnasium.Env[Any, Any]] = lambda env: env,
    *,
    hint: str,
) -> gymnasium.Env[str, str]:
    """Make an environment that is observed and acted on in text.

    Args:
        name: of Gymnasium; `module:Id` where importing a module registers it.
        arguments: for `gymnasium.make`.
        wrap: puts wrappers around it.
        hint: what to try where it speaks no text.
    Raises:
        ConfigurationError: no such environment or wrapper, arguments that it does not take, or one that speaks no text.
    """
    try:
        env = wrap(gymnasium.make(name, disable_env_checker=True, **arguments))
    except (gymnasium.error.Error, ImportError, LookupError, OSError, TypeError, ValueError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ConfigurationError(f"environment {name}: {reason}") from error
    if not isinstance(env.observation_space, gymnasium.spaces.Text):
        raise ConfigurationError(f"environment {name} observes {env.observation_space}. Try: {hint}")
    return env
