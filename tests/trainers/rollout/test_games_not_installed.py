"""Games of packages that are not installed; `in_games.py` needs them and is run by `scripts/test_adapter.sh games`."""

from __future__ import annotations

import sys

import pytest

from swe_trainers.cli.main import main


@pytest.mark.parametrize(
    ("name", "package"),
    [
        ("minigrid:MiniGridText-v0", "MiniGrid"),
        ("textworld:TextWorld-v0", "TextWorld"),
        ("textarena:TextArena-v0", "textarena"),
    ],
)
def test_a_missing_package_is_named_with_the_extra_that_brings_it(
    name: str, package: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, package.lower(), None)  # importing it fails
    arguments = ["--kwargs", '{"games": "none"}'] if package == "TextWorld" else []
    assert main(["check-env", f"swe_trainers.games.{name}", *arguments]) == 2
    message = f"{package} is not installed. Try, in a clone of swegym-env: pip install '.[games]'"
    assert capsys.readouterr().err == f"swe-train check-env: {message}\n"
