"""Mistakes are found before anything heavy is imported, and a missing extra is one line."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import typing
from pathlib import Path
from typing import Any

import pytest
import yaml

from swe_trainers.algorithms import ALGORITHMS, algorithm_classes
from swe_trainers.cli.keys import check_keys, keys_of
from swe_trainers.config import build
from swe_trainers.errors import ConfigurationError
from swe_trainers.run_config import RunConfig, run_config
from tests.trainers.tiny import lake_run

ROOT = Path(__file__).parents[3]
HEAVY = ("torch", "transformers", "gymnasium")
WITHOUT_EXTRAS = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("omegaconf", "pydantic", "torch", "transformers", "loguru", "httpx2", "rich"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
"""


def run_program(program: str, *, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run Python code in a new process that imports from this tree."""
    return subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        env={"PYTHONPATH": str(ROOT)},
    )


def run_main(code: str, entry: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Call `main` or `main_eval` in a new process; its last line of output names heavy modules that it imported."""
    program = (
        f"{code}\nimport sys\nfrom swe_trainers.cli.main import {entry}\n"
        f"try:\n    code = {entry}({list(arguments)!r})\n"
        "except SystemExit as ended:\n    code = ended.code\n"
        f"print('imported:', *[name for name in {HEAVY!r} if name in sys.modules])\nsys.exit(code)"
    )
    return run_program(program, cwd=cwd)


def assert_equal_keys(kind: type[Any], place: str, *, besides: tuple[str, ...] = ()) -> None:
    """The keys read from the source are the fields of the imported dataclass, and so in each of its sections."""
    keys, hints = keys_of(place), typing.get_type_hints(kind)
    assert list(keys) == [field.name for field in dataclasses.fields(kind)]
    for field in dataclasses.fields(kind):
        missing = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        assert keys[field.name].required == missing, field.name
        parts = (hints[field.name], *typing.get_args(hints[field.name]))
        if typing.get_origin(hints[field.name]) is tuple:
            continue
        section = next((part for part in parts if dataclasses.is_dataclass(part)), None)
        if field.name not in besides and section is not None:
            assert keys[field.name].section == f"{section.__module__}:{section.__name__}"
            assert_equal_keys(section, keys[field.name].section)  # type: ignore[arg-type]


def test_keys_from_the_source_are_the_keys_of_the_dataclasses() -> None:
    assert_equal_keys(RunConfig, "swe_trainers.run_config:RunConfig", besides=("trainer",))
    for name, kind in algorithm_classes().items():
        assert_equal_keys(kind, ALGORITHMS[name])


@pytest.mark.parametrize("path", sorted((ROOT / "examples" / "configs").glob("*.yaml")), ids=lambda path: path.stem)
def test_shipped_configurations_have_no_unknown_key(path: Path) -> None:
    """The counterpart of `test_unknown_key_has_the_message_of_the_full_check`: it passes if no key is refused."""
    check_keys(yaml.safe_load(path.read_text()))


@pytest.mark.parametrize(
    ("section", "key"),
    [("environment", "paralel"), ("trainer", "learning_rat"), ("model", "architectur"), ("", "output_dire")],
)
def test_unknown_key_has_the_message_of_the_full_check(tmp_path: Path, section: str, key: str) -> None:
    values = lake_run(tmp_path)
    (values[section] if section else values)[key] = 1
    with pytest.raises(ConfigurationError) as early:
        check_keys(values)
    with pytest.raises(ConfigurationError) as late:
        run_config(values)
    assert str(early.value) == str(late.value)


WRONG = [
    ("", "seed", "one"), ("", "seed", 1.5), ("", "seed", True), ("", "max_seconds", "long"), ("", "output_dir", 3),
    ("", "tensorboard", 1), ("", "loggers", []), ("", "environment", 3), ("environment", "wrappers", "a"),
    ("environment", "kwargs", [1]), ("environment", "adapter", "texts"), ("environment", "id", 7),
    ("environment", "id", None), ("model", "lora", 16), ("model", "bits", 3), ("model", "dtype", "float16"),
    ("trainer", "learning_rate", "fast"), ("trainer", "minibatches", 1.5), ("rollout", "step_timeout_s", "x"),
]  # fmt: skip


@pytest.mark.parametrize(("section", "key", "value"), WRONG)
def test_value_of_another_type_has_the_message_of_the_full_check(
    tmp_path: Path, section: str, key: str, value: object
) -> None:
    values = lake_run(tmp_path)
    (values.setdefault(section, {}) if section else values)[key] = value
    with pytest.raises(ConfigurationError) as early:
        check_keys(values)
    with pytest.raises(ConfigurationError) as late:
        run_config(values)
    assert str(early.value) == str(late.value)


def test_missing_section_has_the_message_of_the_full_check(tmp_path: Path) -> None:
    values = {key: value for key, value in lake_run(tmp_path).items() if key != "environment"}
    with pytest.raises(ConfigurationError) as early:
        check_keys(values)
    with pytest.raises(ConfigurationError) as late:
        build(RunConfig, values)
    assert str(early.value) == str(late.value) == "environment: missing, and it has no default"


def test_algorithm_of_the_user_may_have_other_settings(tmp_path: Path) -> None:
    """The counterpart of `test_unknown_key_has_the_message_of_the_full_check`: it passes if no key is refused."""
    check_keys(lake_run(tmp_path, trainer={"algorithm": "mine:Own", "whatever": 3}))


@pytest.mark.parametrize(
    "arguments", [["nowhere.yaml"], ["lake.yaml", "--trainer.learning_rat", "1"], ["lake.yaml", "--seed", "x"]]
)
def test_mistyped_configuration_imports_nothing_heavy(tmp_path: Path, arguments: list[str]) -> None:
    (tmp_path / "lake.yaml").write_text(yaml.safe_dump(lake_run(tmp_path)))
    done = run_main("", "main", *arguments, cwd=tmp_path)
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
    assert done.stdout == "imported:\n"


def test_commands_without_the_extra_say_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "lake.yaml").write_text(yaml.safe_dump(lake_run(tmp_path)))
    calls = [("main", ["lake.yaml"]), ("main", ["--help", "ppo"]), ("main_eval", ["run"])]
    calls += [("main", ["doctor", "run"]), ("main_eval", ["--model", "x", "--base-url", "http://127.0.0.1:1/v1"])]
    for entry, arguments in calls:
        done = run_main(WITHOUT_EXTRAS, entry, *arguments, cwd=tmp_path)
        assert done.returncode == 2, (arguments, done.stderr)
        assert (
            done.stderr.count("\n") == 1 and "Try, in a clone of swegym-env: pip install '.[train]'" in done.stderr
        ), (
            arguments,
            done.stderr,
        )


@pytest.mark.parametrize(("entry", "word"), [("main", "--dry-run"), ("main_eval", "RUN")])
def test_help_works_without_the_extra(tmp_path: Path, entry: str, word: str) -> None:
    done = run_main(WITHOUT_EXTRAS, entry, "--help", cwd=tmp_path)
    assert done.returncode == 0 and word in done.stdout and done.stderr == ""


def test_importing_what_needs_the_extra_says_what_to_install(tmp_path: Path) -> None:
    done = run_program(f"{WITHOUT_EXTRAS}\nfrom swe_trainers import PPO", cwd=tmp_path)
    message = "ModuleNotFoundError: PPO needs PyTorch. Try, in a clone of swegym-env: pip install '.[train]'"
    assert (done.returncode, done.stderr.splitlines()[-1]) == (1, message)
