"""The action formats: ways in which a model writes an action. An answer contains one action.

    execute         <execute>COMMAND</execute>
    bash            a fenced block ```bash
    raw             the whole answer is the command
    search_replace  SEARCH/REPLACE blocks, or a command as in `execute`
    hermes          <tool_call>{"name": …, "arguments": {…}}</tool_call>       Hermes, Qwen 2.5 and 3
    llama3          {"name": …, "parameters": {…}}                              Llama 3
    mistral         [TOOL_CALLS] [{"name": …, "arguments": {…}}]                Mistral; [TOOL_CALLS]NAME[ARGS]{…}
    deepseek        <｜tool▁call▁begin｜>NAME<｜tool▁sep｜>{…}<｜tool▁call▁end｜>     DeepSeek V3, R1, V3.1, V3.2
    glm             <tool_call>NAME<arg_key>K</arg_key><arg_value>V</arg_value></tool_call>     GLM 4.5 and later
    xml             <function=NAME><parameter=K>V</parameter></function>        Qwen3-Coder, OpenHands
    openai          a message of the chat API with `tool_calls`, as JSON
    auto            any of these, recognised in the answer; the prompt describes `execute` and `bash`

A format is one file with an `ActionFormat`, and one line in `ACTION_FORMATS`. Your own format is registered with
`register_format`, or named as `module:attribute`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import fields

from swegym_env.agent.actions import Action, ActionFormat, Malformed
from swegym_env.agent.formats.scanning import after_reasoning
from swegym_env.arguments import nearest_and_all
from swegym_env.errors import ConfigurationError
from swegym_env.registry import resolve, with_installed

__all__ = ["ACTION_FORMATS", "action_format", "format_of_template", "register_format"]

_BUILT_IN = {
    "auto": "swegym_env.agent.formats:AUTO",
    "execute": "swegym_env.agent.formats.shell:EXECUTE",
    "bash": "swegym_env.agent.formats.shell:BASH",
    "raw": "swegym_env.agent.formats.shell:RAW",
    "search_replace": "swegym_env.agent.formats.search_replace:SEARCH_REPLACE",
    "xml": "swegym_env.agent.formats.xml:XML",
    "glm": "swegym_env.agent.formats.glm:GLM",
    "deepseek": "swegym_env.agent.formats.deepseek:DEEPSEEK",
    "mistral": "swegym_env.agent.formats.mistral:MISTRAL",
    "llama3": "swegym_env.agent.formats.llama3:LLAMA3",
    "hermes": "swegym_env.agent.formats.hermes:HERMES",
    "openai": "swegym_env.agent.formats.openai:OPENAI",
}

ACTION_FORMATS: dict[str, str | ActionFormat] = {**with_installed("swegym_env.action_formats", _BUILT_IN)}
"""Name → "module:attribute" of an `ActionFormat`, or the format. The first whose `in_template` agrees reads a model's
calls."""


def action_format(chosen: str | ActionFormat, *, chat_template: str | None = None) -> ActionFormat:
    """The format of this name.

    Args:
        chosen: a name; your own as `module:attribute`; or the format itself.
        chat_template: of the model (Jinja2 text). With "auto" it decides: a model acts as it was trained to.

    Raises:
        ConfigurationError: there is no such format (the message lists the known ones), or the template is not text.
    """
    if not isinstance(chat_template, str | None):  # a tokenizer may have several, by name
        raise ConfigurationError(f"chat_template: expected text, got a {type(chat_template).__name__}")
    if isinstance(chosen, str) and chosen == "auto" and chat_template is not None:
        chosen = format_of_template(chat_template)
    known = ACTION_FORMATS.get(chosen, chosen) if isinstance(chosen, str) else chosen
    if not isinstance(known, str):
        return _as_format(known, type(known).__name__)
    if ":" not in known:
        hint = nearest_and_all(known, sorted(ACTION_FORMATS))
        raise ConfigurationError(f"no action format {known!r}{hint}, or your own as module:attribute")
    return _imported(known)


@functools.cache
def _imported(place: str) -> ActionFormat:
    found = resolve(place, "action format")
    return _as_format(found() if isinstance(found, type) else found, place)


def _as_format(found: object, place: str) -> ActionFormat:
    """An `ActionFormat`, or any object with its attributes, as one. Raises ConfigurationError: something is missing."""
    if isinstance(found, ActionFormat):
        return found
    needed = {"name": str, "parse": Callable, "write": Callable, "instructions": str}
    for name, kind in needed.items():
        value = getattr(found, name, None)
        if not isinstance(value, kind):  # type: ignore[arg-type]
            expected = "text" if kind is str else "a function"
            raise ConfigurationError(
                f"action format {place!r}: {name}: expected {expected}, got {type(value).__name__}; a format has "
                f"{', '.join(needed)}"
            )
    own = {each.name: getattr(found, each.name) for each in fields(ActionFormat) if hasattr(found, each.name)}
    return ActionFormat(**own)


def format_of_template(chat_template: str) -> str:
    """The name of the format in which a chat template (Jinja2 text) writes calls; "auto" if it knows none of them."""
    for name in ACTION_FORMATS:
        known = action_format(name)
        if known.in_template is not None and known.in_template(chat_template):
            return name
    return "auto"


def register_format(own: ActionFormat) -> None:
    """Add your own format under its name. Raises ConfigurationError if another format has this name."""
    if own.name in ACTION_FORMATS and action_format(own.name) != own:
        raise ConfigurationError(f"there is an action format {own.name!r} already: give yours another name")
    ACTION_FORMATS[own.name] = own


def _parse_auto(text: str) -> Action:
    """Read an answer in the format whose action comes first."""
    found: list[tuple[int, str]] = []
    for name in ACTION_FORMATS:
        find = action_format(name).find
        if find is not None and (at := find(text)) >= 0:
            found.append((at, name))
    if found:
        return action_format(min(found)[1]).parse(text)
    answer = after_reasoning(text).strip()
    if answer.startswith("{"):  # JSON without tags
        return action_format("openai" if '"tool_calls"' in answer else "llama3").parse(text)
    if answer == "submit":
        return action_format("raw").parse(answer)
    return Malformed(
        "No action found. Write one command as <execute>COMMAND</execute> or in a ```bash block, "
        "or <execute>submit</execute> to hand in your work. Nothing was run."
    )


AUTO = ActionFormat(
    "auto",
    _parse_auto,
    "<execute>{}</execute>".format,
    "Write exactly one command in each answer, as <execute>COMMAND</execute> or in a ```bash block.",
)
