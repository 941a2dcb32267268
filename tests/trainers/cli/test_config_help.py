"""Every setting is explained, by its docstring and nowhere else."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
import yaml

from swe_trainers.algorithms import ALGORITHMS, algorithm_classes
from swe_trainers.cli.config_help import help_text, sections
from swe_trainers.cli.main import main
from swe_trainers.config import read_config
from swe_trainers.engines.connect import SERVERS
from swe_trainers.errors import ConfigurationError
from swe_trainers.field_docs import field_docs, purpose
from swe_trainers.logging import LOGGERS
from swe_trainers.run_config import run_config

EXAMPLES = sorted((Path(__file__).parents[3] / "examples" / "configs").glob("*.yaml"))


@pytest.mark.parametrize(("name", "kind"), sections().items(), ids=str)
def test_every_setting_has_an_explanation(name, kind):
    explained = field_docs(kind)
    assert [field.name for field in dataclasses.fields(kind) if not explained.get(field.name)] == []
    assert purpose(kind)


def test_every_algorithm_and_every_section_is_asked_for_by_name():
    known = sections()
    assert set(ALGORITHMS) < set(known)
    assert {"run", "environment", "environment.wrappers[]", "model", "model.lora", "rollout.history"} < set(known)


def test_texts_of_several_lines_and_of_several_names_are_read_whole():
    @dataclasses.dataclass
    class Parent:
        """What it is for.

        Attributes:
            first, second: a text that goes on
                in the next line: with a colon.
            third: overridden below.

        A paragraph after them, note: it is none of them.
        """

        first: int = 0
        second: int = 0
        third: int = 0

    @dataclasses.dataclass
    class Child(Parent):
        """More of it.

        Attributes:
            third: the nearest counts.
        """

    text = "a text that goes on in the next line: with a colon."
    assert field_docs(Child) == {"first": text, "second": text, "third": "the nearest counts."}
    assert purpose(Child) == "More of it."


def test_a_setting_is_shown_with_its_type_its_default_and_its_text(capsys):
    assert main(["--help", "environment"]) == 0
    shown = capsys.readouterr().out
    assert (
        "--environment.parallel  (whole number; default 8)\n      number of environments that play at the same time.\n"
        in shown
    )
    assert "--environment.id  (text; required)" in shown
    assert "--environment.adapter  (none | text; default none)" in shown


def test_an_algorithm_shows_its_own_defaults():
    assert "--trainer.clip_high  (number; default 0.28)" in help_text("dapo")
    assert "--trainer.clip_high  (number; default 0.2)" in help_text("grpo")
    assert "group_size" not in help_text("ppo")


def test_one_setting_is_found_in_every_algorithm_that_has_it():
    shown = re.findall(r"^(\w+):$", help_text("trainer.gamma"), re.MULTILINE)
    assert {"ppo", "reinforce", "reinforce_plus_plus"} <= set(shown)
    assert shown == [name for name, kind in algorithm_classes().items() if "gamma" in field_docs(kind)]
    assert "grpo" not in shown


def test_names_of_a_registry_follow_the_text_of_the_setting():
    assert f"Names: {', '.join(LOGGERS)}, or module:Class." in " ".join(help_text("loggers").split())
    assert all(name in help_text("engine.kind") for name in ("embedded", *SERVERS))


def test_everything_there_is_can_be_had_at_once():
    shown = help_text("all")
    for name, kind in sections().items():
        for field in dataclasses.fields(kind):
            where = "trainer." if name in ALGORITHMS else "" if name == "run" else f"{name}."
            assert f"{where}{field.name}  (" in shown


def test_a_section_that_is_not_there_is_one_line_that_names_the_nearest(capsys):
    assert main(["--help", "enviroment"]) == 2
    assert capsys.readouterr().err == (
        "swe-train: --help enviroment: no such section or setting. Did you mean 'environment'?\n"
    )
    with pytest.raises(ConfigurationError, match=r"environment\.parallel"):
        help_text("environment.paralel")
    with pytest.raises(ConfigurationError, match=r"Did you mean 'trainer\.learning_rate'\?"):
        help_text("trainer.lerning_rate")
    with pytest.raises(ConfigurationError, match=r"There are: (.*)$") as refused:
        help_text("metrics")
    listed = str(refused.value).partition("There are: ")[2].split(", ")
    assert sorted(listed) == sorted({*sections(), "trainer"})


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_a_printed_configuration_explains_every_setting_and_reads_back_the_same(path, tmp_path):
    config = run_config(read_config(path, ["--environment.kwargs.odd", "['a: b', '#c', \"d\\n\"]"]))
    text = config.yaml()
    (tmp_path / "again.yaml").write_text(text)
    assert run_config(read_config(tmp_path / "again.yaml")) == config
    lines = text.splitlines()
    keys = [i for i, line in enumerate(lines) if re.match(r"(  )?[a-z_]+:", line)]
    top = [i for i in keys if not lines[i].startswith(" ")]
    assert all(lines[i - 1].lstrip().startswith("# ") for i in top)
    for name in yaml.safe_load(text)["trainer"]:
        at = next(i for i, line in enumerate(lines) if line.startswith(f"  {name}:") and i > lines.index("trainer:"))
        assert lines[at - 1].startswith("  # "), lines[at]
