from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from swe_trainers.algorithms import find_algorithm
from swe_trainers.algorithms.cloning import Cloning
from swe_trainers.algorithms.ppo import PPO
from swe_trainers.cli.main import main
from swe_trainers.config import named, parse_overrides, read_config, to_yaml
from swe_trainers.errors import ConfigurationError
from swe_trainers.evaluation.environment import parameters
from swe_trainers.provenance import read_provenance, write_provenance
from swe_trainers.resume import Settings
from swe_trainers.rollout.environments import make_text_env
from swe_trainers.run_config import run_config

ROOT = Path(__file__).parents[2]
MINIMAL = """
environment: {id: FrozenLake-v1, adapter: text}
model: {architecture: {model_type: llama}, tokenizer: words}
trainer: {algorithm: ppo, learning_rate: 3e-4}
output_dir: ${oc.env:SWE_TEST_RUNS,runs}/x
"""


@pytest.fixture
def minimal(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(MINIMAL)
    return path


def test_the_command_line_overrides_the_file_and_the_environment_fills_in_paths(minimal, monkeypatch):
    monkeypatch.setenv("SWE_TEST_RUNS", "/elsewhere")
    overrides = [
        "--trainer.learning_rate",
        "5e-5",
        "--environment.kwargs.is_slippery=false",
        "--environment.parallel",
        "3",
    ]
    config = run_config(read_config(minimal, [*overrides, "--trainer.value_clip", "null", "--tensorboard"]))
    assert isinstance(config.trainer, PPO)
    assert (config.trainer.learning_rate, config.trainer.value_clip, config.trainer.epochs) == (
        5e-5,
        None,
        PPO().epochs,
    )
    assert (config.environment.kwargs, config.environment.parallel) == ({"is_slippery": False}, 3)
    assert str(config.output_dir) == "/elsewhere/x"
    assert config.tensorboard is True


@given(st.text(alphabet="\\${}a.: \n'\"", max_size=12))
@example("costs ${price}")
@settings(deadline=None, max_examples=100)
def test_every_text_reads_back_equal(text):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "config.yaml")
        path.write_text(to_yaml({"a": [text], "b": {"c": text}}))
        assert read_config(path) == {"a": [text], "b": {"c": text}}


def test_text_with_an_escaped_interpolation_is_no_change_of_settings(minimal, tmp_path):
    minimal.write_text(MINIMAL.replace("adapter: text", r"adapter: text, kwargs: {prompt: 'costs \${price}'}"))
    config = run_config(read_config(minimal, [f"--output_dir={tmp_path}/run"]))
    assert config.environment.kwargs["prompt"] == "costs ${price}"
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text(config.yaml())
    assert run_config(read_config(tmp_path / "run" / "config.yaml")) == config
    assert Settings.of(config).changes() == {}
    write_provenance(tmp_path, config.environment, None)
    provenance = read_provenance(tmp_path)
    assert provenance is not None and provenance.environment == config.environment


def test_written_configuration_reads_back_equal(minimal, tmp_path):
    config = run_config(read_config(minimal, ["--trainer.kl_coefficient", "0.1", "--environment.max_turns", "4"]))
    (tmp_path / "again.yaml").write_text(config.yaml())
    assert run_config(read_config(tmp_path / "again.yaml")) == config


def test_values_may_follow_a_flag_or_an_equals_sign():
    assert parse_overrides(["--a.b", "1", "--c=2=3", "--flag", "--print-this", "x"]) == {
        "a.b": "1", "c": "2=3", "flag": "true", "print_this": "x",
    }  # fmt: skip
    assert parse_overrides(["--a", "-1.5"]) == {"a": "-1.5"}
    with pytest.raises(ConfigurationError, match=r"expected --section\.key value"):
        parse_overrides(["loose"])


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("--trainer.learning_rat 1", r"trainer.learning_rat: no such setting. Did you mean 'learning_rate'\?"),
        ("--environment.paralel 1", "environment.paralel: no such setting. Did you mean 'parallel'"),
        ("--sed 1", "sed: no such setting. Did you mean 'seed'"),
        ("--trainer.algorithm pppo", r"trainer.algorithm: got 'pppo'. Did you mean 'ppo'\?"),
        ("--trainer.algorithm dpo", r"trainer.algorithm: got .dpo., which is not available. Try: reward_model learns"),
        ("--trainer.minibatch_episodes 4", "trainer.minibatch_episodes: has no effect on ppo, it belongs to cloning"),
        (
            "--trainer.algorithm reward_model --trainer.max_updates 3",
            r"trainer.max_updates: has no effect on reward_model, it belongs to ppo, .*\. Try: epochs$",
        ),
        ("--trainer.learning_rate -1", "trainer.learning_rate: got -1.0, expected a positive number"),
        ("--trainer.gamma 1.5", "trainer.gamma: got 1.5, expected a number from 0 to 1"),
        ("--trainer.temperature 1e-9", "trainer.temperature must be 0, or finite and at least 1e-06, got 1e-09"),
        ("--evaluation.temperature .nan", "evaluation.temperature must be 0, or finite and at least 1e-06, got nan"),
        ("--trainer.epochs 0", "trainer.epochs: got 0, expected at least 1"),
        ("--trainer.epochs 1.5", "trainer.epochs: got 1.5, expected a whole number"),
        ("--trainer.epochs many", "trainer.epochs: got 'many', expected a whole number"),
        ("--trainer.pack 1", "trainer.pack: got 1, expected true or false"),
        ("--trainer.kl_target 0.1", "trainer.kl_target: has no effect with kl_coefficient 0"),
        ("--trainer.aggregation mean", "trainer.aggregation: got 'mean', expected one of token, sequence, prompt"),
        ("--environment.parallel 0", "environment.parallel: got 0, expected at least 1"),
        ("--environment.adapter speech", "environment.adapter: got 'speech', expected one of none, text"),
        ("--model.path somewhere", "model.path: exactly one of path, architecture and tinker"),
        ("--model.tokenizer null", "model.tokenizer: a model with random weights needs one"),
        ("--evaluation.stop_at_success 0.9", "evaluation.stop_at_success: has no effect without"),
        ("--seed -1", "seed: got -1, expected 0 or more"),
        ("--environment text", "environment: got 'text', expected a section with keys"),
        ("--demonstrations x.jsonl", "demonstrations: needed by cloning and reward_model, and without effect"),
        ("--output_dir ${nowhere}", "nowhere"),
        (
            "--trainer.minibatches 1000 --trainer.episodes_per_update 16",
            r"trainer.minibatches: got 1000, expected at most episodes_per_update \(16\)",
        ),
        ("--environment.max_new_tokens 1024", r"max_new_tokens: got 1024, expected less than max_tokens \(1024\)"),
        (
            "--trainer.algorithm dapo --trainer.overlong_limit 5000 --trainer.overlong_buffer 100",
            r"begins at 4900 action tokens, and no episode has more than environment.max_tokens \(1024\)",
        ),
        (
            (
                "--trainer.algorithm monte_carlo_tree --trainer.max_depth 3 --trainer.fork_every 2 "
                "--environment.max_turns 4"
            ),
            r"the last fork is before turn 5, and no episode has more than environment.max_turns \(4\)",
        ),
    ],
)
def test_invalid_setting_is_a_one_line_error_that_names_it(minimal, capsys, override, message):
    with pytest.raises(ConfigurationError, match=message):
        run_config(read_config(minimal, override.split()))
    assert main([str(minimal), *override.split()]) == 2
    error = capsys.readouterr().err
    assert error.startswith("swe-train: ") and error.count("\n") == 1


@pytest.mark.parametrize("module", ["own_lake", "own_package.lake"])
def test_a_module_in_the_current_directory_is_found_with_the_search_path_that_the_error_names(
    tmp_path, monkeypatch, module
):
    path = (tmp_path / module.replace(".", "/")).with_suffix(".py")
    path.parent.mkdir(exist_ok=True)
    (path.parent / "__init__.py").touch()
    path.write_text("from swe_trainers import PPO as OwnAlgorithm\ndef judge(episodes): ...\n")
    monkeypatch.chdir(tmp_path)
    for find in (
        lambda: find_algorithm(f"{module}:OwnAlgorithm"),
        lambda: named(f"{module}:judge", "judge"),
        lambda: make_text_env(f"{module}:Lake-v0", {}, hint=""),
        lambda: parameters(f"{module}:Lake-v0"),
    ):
        with pytest.raises(ConfigurationError, match=r"No module named .*Try: export PYTHONPATH=\$PWD"):
            find()
    with pytest.raises(ConfigurationError, match=r"No module named 'elsewhere'$"):
        named("elsewhere:judge", "judge")
    monkeypatch.syspath_prepend(tmp_path)
    assert issubclass(find_algorithm(f"{module}:OwnAlgorithm"), PPO)
    with pytest.raises(ConfigurationError, match=r"^((?!PYTHONPATH).)*$"):  # found, and registers nothing
        parameters(f"{module}:Lake-v0")


@pytest.mark.parametrize(("key", "kind"), [("0", "int"), ("true", "bool"), ("1.5", "float")])
def test_key_that_is_no_text_is_refused_instead_of_made_one(minimal, key, kind):
    override = f"--environment.kwargs.maps=[{{{key}: left}}]"
    with pytest.raises(
        ConfigurationError, match=rf"environment\.kwargs\.maps\[0\]: the key .* is {kind}, expected text"
    ):
        run_config(read_config(minimal, [override]))
    quoted = read_config(minimal, [override.replace(key, f"'{key}'")])
    assert run_config(quoted).environment.kwargs["maps"] == [{key: "left"}]


def test_options_without_effect_are_rejected():
    for estimator, placement in (("k1", "loss"), ("k2", "reward"), ("k3", "reward"), ("full", "reward")):
        with pytest.raises(ConfigurationError, match=f"{estimator} in the {placement} does not pull towards"):
            PPO(kl_coefficient=0.1, kl_estimator=estimator, kl_placement=placement)
    assert PPO(kl_coefficient=0.1, kl_placement="reward").estimator == "k1"
    assert PPO(kl_coefficient=0.1, kl_placement="loss").estimator == "k3"


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (None, "no such file"),
        ("- a\n- b\n", ": expected sections with keys, got a list"),
        ("a: [1\n", ": line 2, column 1: did not find expected ',' or ']'"),
        ("a: 1\nb: 2\na: 3\n", ": line 3, column 1: found duplicate key a"),
        ("# Title\ntext\nmore: x\n", ": line 3, column 5: mapping values are not allowed in this context"),
        ("# nothing\n", ": the file is empty, expected sections with keys"),
        (b"\xff\xfe\x00", "cannot be read"),
    ],
)
def test_invalid_configuration_file_is_a_one_line_error(tmp_path, content, named, capsys):
    path = tmp_path / "config.yaml"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        path.write_text(content)
    assert main([str(path)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and named in error


def test_resolved_configuration_can_be_printed(minimal, capsys):
    assert main([str(minimal), "--print-config", "--seed", "7"]) == 0
    printed = OmegaConf.create(capsys.readouterr().out)
    assert printed.seed == 7 and printed.trainer.algorithm == "ppo" and printed.trainer.clip_low == PPO().clip_low


def test_help_has_an_example(capsys):
    with pytest.raises(SystemExit) as left:
        main(["--help"])
    assert left.value.code == 0
    assert "swe-train examples/configs/frozen_lake.yaml" in capsys.readouterr().out


def test_cloning_has_its_own_settings(minimal):
    overrides = ["--trainer.algorithm", "cloning", "--trainer.minibatch_episodes", "4", "--demonstrations", "x.jsonl"]
    config = run_config(read_config(minimal, overrides))
    assert isinstance(config.trainer, Cloning) and config.trainer.minibatch_episodes == 4


def test_import_of_the_command_line_prints_and_writes_nothing(tmp_path):
    code = "import swe_trainers.cli.main, swe_trainers.experiment"
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert not list(tmp_path.iterdir())
