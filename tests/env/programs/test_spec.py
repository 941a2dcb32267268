"""What an agent program is: `agent.yaml`, and those of the package."""

from __future__ import annotations

from pathlib import Path

import pytest

from swegym_env.errors import ConfigurationError, LayerError
from swegym_env.programs.spec import AgentSpec, load_agent, shipped_agents
from tests.env.programs.conftest import SMALL, Make


def written(folder: Path, text: str) -> Path:
    (folder / "agent.yaml").write_text(text)
    return folder


def test_agents_of_the_package_are_complete() -> None:
    assert "mini-swe-agent" in shipped_agents()
    for name in shipped_agents():
        spec = load_agent(name)
        assert spec.name == name and spec.description and spec.install and spec.bundle().install == spec.install


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[", "cannot be read"),
        ("- a", "keys and values"),
        ("install: x", "command: expected"),
        ("command: ''", "command: expected"),
        ("command: [x]", "command: expected text"),
        ("command: x\ncomand: y", "unknown key 'comand'"),
        ("command: x\nenvironment: {a b: c}", "environment"),
        ("command: x\nenvironment: [c]", "environment"),
        ("command: x\nimports: {modules: [a]}", "imports: expected `program`"),
        ("command: x\nimports: {program: a, unless: .env}", "imports: expected `program`"),
        ("command: x\nimports: {program: a, modules: [1]}", "imports: expected `program`"),
        ("command: x\nimports: {program: a, files: [b]}", "imports: expected `program`"),
        ("command: x\nimports: {program: a}", r"imports: the command has to begin with \$SWEGYM_START"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, text: str, named: str) -> None:
    with pytest.raises(ConfigurationError, match=named) as error:
        load_agent(written(tmp_path, text))
    assert "agent" in str(error.value)


def test_a_folder_without_an_agent_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"no agent '.*': give .*mini-swe-agent.*agent\.yaml"):
        load_agent(tmp_path)


def test_it_is_installed_once_and_started_with_its_variables(make: Make, tmp_path: Path) -> None:
    """What the installation wrote is there, in a layer of its own."""
    folder = tmp_path / "my-agent"
    folder.mkdir()
    (folder / "agent.py").write_text((SMALL / "agent.py").read_text())
    written(
        folder,
        "install: |\n  echo installed $((6 * 7)) >made\n  mkdir bin && cp agent.py bin/\n"
        'command: exec python3 "$SWEGYM_AGENT/bin/agent.py"\nenvironment: {MODE: "a \'quoted\' word", N: 3}\n',
    )
    env = make(folder)
    env.reset(seed=0)
    observation, *_ = env.step('cat "$SWEGYM_AGENT/made"; echo "$MODE" $N $OPENAI_BASE_URL; git status --short')
    assert observation == "installed 42\na 'quoted' word 3 http://127.0.0.1:8390/v1\n[0]"


def test_an_installation_that_fails_says_why(make: Make) -> None:
    with pytest.raises(LayerError, match="install exited with 9: no such thing"):
        make(AgentSpec(install="echo no such thing\n(exit 9)\necho on", command="true")).reset(seed=0)


def test_a_name_is_one_of_a_folder() -> None:
    with pytest.raises(ConfigurationError, match="name"):
        AgentSpec(command="x", name="../x")
