"""Your own action format is any object with `parse`, `write`, `instructions` and `name`, as docs/tools.md says."""

from __future__ import annotations

from pathlib import Path

import pytest

from swegym_env.agent.actions import Action, Command, Submit
from swegym_env.agent.formats import action_format
from swegym_env.env import SWEBenchEnv
from swegym_env.errors import ConfigurationError


class Arrow:
    """Commands behind an arrow; no subclass of anything."""

    name = "arrow"
    instructions = "Write one command after ->."

    def parse(self, text: str) -> Action:
        command = text.rpartition("->")[2].strip()
        return Submit() if command == "submit" else Command(command)

    def write(self, command: str) -> str:
        return f"-> {command}"


class Dumb(Arrow):
    parse = "not a function"  # type: ignore[assignment]


arrow = Arrow()
dumb = Dumb()
nothing = object()


@pytest.mark.parametrize("place", ["arrow", "Arrow"])
def test_object_with_the_four_attributes_is_a_format(place: str) -> None:
    found = action_format(f"{__name__}:{place}")
    assert (found.name, found.instructions) == ("arrow", Arrow.instructions)
    assert found.parse("I look: -> ls") == Command("ls") and found.write("ls") == "-> ls"
    assert action_format(arrow).parse("-> submit") == Submit()  # type: ignore[arg-type]


def test_episode_is_played_in_an_own_format() -> None:
    env = SWEBenchEnv("mini-edit", action_format=f"{__name__}:arrow", max_turns=1)
    try:
        _, info = env.reset(seed=0)
        assert "Write one command after ->." in info["system_prompt"]
        observation, *_ = env.step("Well. -> echo $((6 * 7))")
        assert observation.startswith("42")
    finally:
        env.close()


def test_a_format_in_the_current_directory_is_an_error_with_the_search_path_that_finds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "arrows.py").write_text(f"from {__name__} import arrow\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match=r"No module named 'arrows' .*Try: export PYTHONPATH=\$PWD"):
        action_format("arrows:arrow")
    monkeypatch.syspath_prepend(tmp_path)
    assert action_format("arrows:arrow").name == "arrow"


@pytest.mark.parametrize(("place", "reason"), [("dumb", "parse: expected a function, got str"), ("nothing", "name")])
def test_what_is_missing_is_named(place: str, reason: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{place}'.*{reason}.* a format has name, parse, write, instructions"):
        action_format(f"{__name__}:{place}")
