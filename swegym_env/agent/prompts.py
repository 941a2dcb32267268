"""Prompts: Jinja2 templates, shipped or your own.

A prompt is a folder with `system.j2`, `task.j2` or both; a missing one is taken from `default`. The variables of a
template are `task`, `action_format`, `max_turns`, `turn_timeout_s`, `observation_limit` (characters), `workdir` and
`tools` (a `tools.ToolSet`).
Templates run in Jinja2's sandbox and can extend shipped ones: `{% extends "default/system.j2" %}` with your own
`{% block role %}` keeps the rest. An empty system prompt is omitted.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swegym_env.errors import ConfigurationError
from swegym_env.paths import expand

if TYPE_CHECKING:
    from jinja2.sandbox import SandboxedEnvironment

__all__ = ["SHIPPED_PROMPTS", "check_prompt", "render_prompt"]

_SHIPPED = Path(__file__).parent / "templates"
SHIPPED_PROMPTS = ("default", "terse")


def render_prompt(prompt: str, values: Mapping[str, Any]) -> tuple[str, str]:
    """The system prompt and the first observation of an episode.

    Args:
        prompt: the name of a shipped prompt, or a folder with your own templates.
        values: the variables of the templates.

    Raises:
        ConfigurationError: there is no such prompt, or a template does not render.
    """
    import jinja2

    environment = _environment(prompt)
    try:
        system, task = (environment.get_template(name).render(**values).strip() for name in ("system.j2", "task.j2"))
    except jinja2.TemplateSyntaxError as error:
        raise ConfigurationError(f"prompt {prompt!r}: {error.name}, line {error.lineno}: {error.message}") from error
    except (jinja2.TemplateError, UnicodeDecodeError, TypeError, ValueError, ArithmeticError, LookupError) as error:
        raise ConfigurationError(f"prompt {prompt!r}: {type(error).__name__}: {error}") from error
    return system, task


def check_prompt(prompt: str | os.PathLike[str]) -> Path:
    """The folder of a prompt. Raises ConfigurationError if there is no such prompt; its templates are not read."""
    if isinstance(prompt, str | os.PathLike):
        folder = _SHIPPED / prompt if prompt in SHIPPED_PROMPTS else expand(prompt)
        if (folder / "task.j2").is_file() or (folder / "system.j2").is_file():
            return folder
    raise ConfigurationError(
        f"no prompt {prompt!r}: give {' or '.join(SHIPPED_PROMPTS)}, or a folder that contains system.j2 or task.j2"
    )


@functools.lru_cache(maxsize=16)
def _environment(prompt: str) -> SandboxedEnvironment:
    from jinja2 import FileSystemLoader, StrictUndefined
    from jinja2.sandbox import SandboxedEnvironment

    folder = check_prompt(prompt)
    return SandboxedEnvironment(
        loader=FileSystemLoader([folder, _SHIPPED / "default", _SHIPPED]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
