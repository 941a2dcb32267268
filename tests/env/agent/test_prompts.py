"""Every shipped prompt renders with every format and tool set, and contains what the agent must know."""

import functools
import shlex
from pathlib import Path

import pytest

from swegym_env.agent.actions import Command
from swegym_env.agent.formats import ACTION_FORMATS, action_format
from swegym_env.agent.prompts import render_prompt
from swegym_env.agent.tools import BASH_TOOL, PROGRAMS, TOOL_SETS, shell_command
from swegym_env.agent.tools import tools_for as load_tools_for
from swegym_env.errors import ConfigurationError
from swegym_env.tasks.task import Task

TASK = Task("a__b-1", "owner/name", "", "The sum is wrong.\n", "")
SETS = ["bash", *sorted(TOOL_SETS)]
tools_for = functools.cache(load_tools_for)


def _render(prompt: str, form: str = "execute", tools: str = "bash", max_turns: int | None = 7):
    chosen = action_format(form)
    equipped = tools_for(chosen, tools)
    limits = {"max_turns": max_turns, "turn_timeout_s": 60.0, "observation_limit": 9876}
    values = {"task": TASK, "action_format": chosen, **limits, "workdir": "/testbed", "tools": equipped}
    return (*render_prompt(prompt, values), chosen, equipped)


@pytest.mark.parametrize("tools", SETS)
@pytest.mark.parametrize("form", sorted(ACTION_FORMATS))
def test_default_prompt_describes_task_format_and_tools(form, tools):
    system, task, chosen, equipped = _render("default", form, tools)
    assert "\n\n\n" not in system + task
    assert f"reported against {TASK.repo}, checked out at /testbed:\n\n<issue>\nThe sum is wrong.\n</issue>\n" in task
    assert "A repository is checked out at /testbed." in system
    assert chosen.instructions in system
    assert f"hand in your work with\n\n{chosen.write('submit')}\n" in system
    assert "You have 7 turns" in system
    assert "turns" not in _render("default", form, tools, None)[0]
    answer = "call" if chosen.write_call else "action" if form == "search_replace" else "command"
    assert f"After each {answer} you are shown" in system
    assert "of more than 9876 characters only the beginning and the end" in system
    assert ("bash shell" in system) == ("Commands have no standard input" in system) == equipped.shell
    assert ("with sed" in system) == (equipped.shell and form != "search_replace")
    assert ("by running the code" in task) == equipped.shell
    listed = equipped.functions if chosen.write_call else equipped.tools
    for tool in listed:
        assert f"{tool.signature if chosen.write_call else tool.command}\n    {tool.description}\n" in system
        if chosen.write_call:
            assert all(f"- {each.name}: {each.description}" in system for each in tool.arguments)
            assert all(f"One of {', '.join(each.choices)}." in system for each in tool.arguments if each.choices)
        if tool.example and tool.name != "submit":
            assert equipped.example_of(tool, chosen) in system.partition("For example")[2]
    assert ("For example" in system) == bool(listed)
    typed = bool(equipped.tools) and not chosen.write_call
    assert ("Besides the usual programs there are" in system) == (typed and equipped.shell)
    assert ("There is no shell; these are the commands" in system) == (typed and not equipped.shell)
    assert equipped.example(chosen) in task


@pytest.mark.parametrize("tools", SETS)
@pytest.mark.parametrize("form", sorted(ACTION_FORMATS))
def test_terse_prompt_is_the_problem_statement_alone(form, tools):
    assert _render("terse", form, tools)[:2] == ("", "The sum is wrong.")


@pytest.mark.parametrize("tools", SETS)
@pytest.mark.parametrize("form", sorted(ACTION_FORMATS))
def test_examples_in_prompts_run_the_commands_that_they_show(form, tools):
    chosen = action_format(form)
    equipped = tools_for(chosen, tools)
    shown = [tool for tool in equipped.functions if tool.example]
    assert shown, "the prompt shows an example"
    for tool in shown:
        if tool == BASH_TOOL and chosen.write_call is None:  # there a command is written as it is
            continue
        text = equipped.example_of(tool, chosen)
        action = equipped.resolve(chosen.parse(text))
        if tool == BASH_TOOL:
            assert action == Command("git log --oneline -1 && ls -a")
            continue
        program = tool.name if equipped.shell and chosen.write_call is None else f"{PROGRAMS}/{tool.name}"
        assert isinstance(action, Command)
        # Quoted differently, but the same words.
        assert shlex.split(action.text) == shlex.split(shell_command(tool, tool.example, program=program))
        values = [each for value in tool.example.values() for each in (value if isinstance(value, list) else [value])]
        assert all(any(str(value) in word for word in shlex.split(action.text)) for value in values)
    first = equipped.resolve(chosen.parse(equipped.example(chosen)))
    expected = "git log --oneline -1 && ls -a" if equipped.shell else f"{PROGRAMS}/view ."
    assert first == Command(expected)


def test_custom_folder_overrides_a_template_or_one_block(tmp_path):
    (tmp_path / "system.j2").write_text(
        '{% extends "default/system.j2" %}{% block role %}You are a poet.{% endblock %}'
    )
    system, task, *_ = _render(str(tmp_path))
    assert system.startswith("You are a poet.") and "<execute>submit</execute>" in system
    assert task == _render("default")[1]


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{% if %}", "system.j2, line 1"),
        ("{{ nothing }}", "'nothing' is undefined"),
        ("{{ ''.__class__.__mro__ }}", "SecurityError"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{% include 'other.j2' %}", "other.j2"),
    ],
)
def test_template_error_is_reported(tmp_path: Path, template, message):
    (tmp_path / "system.j2").write_text(template)
    with pytest.raises(ConfigurationError) as raised:
        _render(str(tmp_path))
    assert message in str(raised.value) and str(tmp_path) in str(raised.value)


def test_missing_prompt_is_reported(tmp_path):
    with pytest.raises(ConfigurationError, match="default or terse, or a folder"):
        _render(str(tmp_path))
