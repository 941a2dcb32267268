"""The public API: `from swe_trainers import Trainer, PPO, …`, and the shortest programs with it."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import gymnasium
import pytest
import torch

import swe_trainers
from benchmarks.mutants import broken
from swe_trainers import DAPO, GRPO, PPO, Cloning, EvaluationConfig, LanguageModel, TextAdapter, Trainer, WordTokenizer
from swe_trainers.errors import ConfigurationError, RolloutError
from swe_trainers.learning.rewards import judged
from swe_trainers.logging import read_metrics

ROOT = Path(__file__).parents[2]
SHAPE = {
    "model_type": "llama", "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
}  # fmt: skip
SMALL = {"episodes_per_update": 8, "learning_rate": 1e-3}
LIMITS = {"parallel": 4, "max_turns": 3, "max_tokens": 64, "max_new_tokens": 1}


def lake():
    return TextAdapter(gymnasium.make("FrozenLake-v1", is_slippery=False))


@pytest.fixture
def model():
    return LanguageModel.from_config(SHAPE, WordTokenizer.from_texts(lake().vocabulary()))


def test_importing_the_package_imports_no_torch():
    code = (
        "import sys, swe_trainers; assert 'torch' not in sys.modules; swe_trainers.PPO; assert 'torch' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_every_exported_name_can_be_imported():
    for name in swe_trainers.__all__:
        assert getattr(swe_trainers, name) is not None
    assert set(swe_trainers.__all__) == set(dir(swe_trainers))


@pytest.mark.parametrize(
    ("name", "right"),
    [("PPPO", "PPO"), ("Grpo", "GRPO"), ("Reinforce", "REINFORCE"), ("LanguageModle", "LanguageModel")],
)
def test_a_misspelled_name_is_answered_with_the_right_one(name, right):
    with pytest.raises(AttributeError, match=f"no attribute '{name}'. Did you mean '{right}'?"):
        getattr(swe_trainers, name)
    assert not hasattr(swe_trainers, name)


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("DPO", "RewardModel learns .*PPO or GRPO"),
        ("SFTTrainer", "Cloning trains"),
        ("A2C", "PPO with epochs 1"),
        ("GRPOTrainer", r"Trainer\(model, env, GRPO\("),
        ("PPOConfig", r"Trainer\(model, env, PPO\("),
    ],
)
def test_an_algorithm_of_other_libraries_is_answered_with_what_to_use(name, instead):
    with pytest.raises(ImportError, match=f"{name} is not available in swe_trainers. Try: {instead}"):
        exec(f"from swe_trainers import {name}")


@pytest.mark.parametrize("env", ["FrozenLake-v1", lake, lake(), gymnasium.make("FrozenLake-v1")])
def test_environment_can_be_an_id_a_function_or_an_object(model, env):
    seen = []
    trainer = Trainer(
        model, env, PPO(**SMALL), callbacks=[lambda trainer, metrics: seen.append(metrics["loss"])], **LIMITS
    )
    for number, metrics in enumerate(trainer.iterate(updates=2), start=1):
        assert metrics["update"] == number and metrics["tokens_per_second"] > 0
    assert trainer.learner.updates == len(seen) == 2
    assert trainer.evaluate(5)["episodes"] == 5


def test_run_without_output_directory_writes_nothing_and_one_with_it_resumes(model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Trainer(model, lake, GRPO(**SMALL, group_size=4), **LIMITS).train(1)
    assert not list(tmp_path.iterdir())
    options = {"output_dir": tmp_path / "out", "evaluation": EvaluationConfig(episodes=2), **LIMITS}
    Trainer(model, lake, PPO(**SMALL), **options).train(1)
    trainer = Trainer(model, lake, PPO(**SMALL), **options)
    trainer.train(2)
    assert [row["update"] for row in read_metrics(tmp_path / "out" / "metrics.jsonl")] == [0, 1, 2]
    trainer.save(tmp_path / "model")
    again = LanguageModel.load(tmp_path / "model")
    assert again.tokenizer.vocab_size == model.tokenizer.vocab_size
    assert again.chat_format().end_id == model.chat_format().end_id


def test_run_whose_newest_checkpoint_is_damaged_resumes_from_the_one_before_and_says_so_once(model, tmp_path):
    options = {"output_dir": tmp_path, "checkpoint_every": 1, **LIMITS}
    Trainer(model, lake, PPO(**SMALL), **options).train(2)
    damaged = tmp_path / "checkpoints" / "ppo" / "00000002" / "state.pt"
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 1
    damaged.write_bytes(content)
    Trainer(model, lake, PPO(**SMALL), **options).train(3)
    lines = [line for line in (tmp_path / "training.log").read_text().splitlines() if str(damaged) in line]
    assert len(lines) == 1 and lines[0].endswith("(SHA-256): resumed from 00000001; kept as 00000002.damaged")
    assert [row["update"] for row in read_metrics(tmp_path / "metrics.jsonl")] == [1, 2, 3]


def test_run_that_ended_before_its_first_checkpoint_begins_again_and_says_so(model, tmp_path):
    options = {"output_dir": tmp_path, "checkpoint_every": 5, **LIMITS}
    killed = Trainer(model, lake, PPO(**SMALL), **options).iterate(3)
    assert [next(killed)["episodes"] for _ in range(2)]
    killed.close()
    Trainer(model, lake, PPO(**SMALL), **options).train(3)
    log = (tmp_path / "training.log").read_text()
    assert log.count("ended after update 2, before its first checkpoint, and begins again") == 1
    assert [row["update"] for row in read_metrics(tmp_path / "metrics.jsonl")] == [1, 2, 3]
    Trainer(model, lake, PPO(**SMALL), **options).train(3)
    assert (tmp_path / "training.log").read_text().count("begins again") == 1


@pytest.mark.parametrize("checkpoint_every", [2, 9])
def test_another_call_goes_on_where_the_one_before_was_left(model, tmp_path, checkpoint_every):
    trainer = Trainer(model, lake, PPO(**SMALL), output_dir=tmp_path, checkpoint_every=checkpoint_every, **LIMITS)
    for metrics in trainer.iterate(9):
        if metrics["update"] == 3:
            break
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    trainer.train(3)
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    assert [metrics["update"] for metrics in trainer.iterate(5)] == [4, 5]
    assert [row["update"] for row in read_metrics(tmp_path / "metrics.jsonl")] == [1, 2, 3, 4, 5]
    assert "begins again" not in (tmp_path / "training.log").read_text()


def test_a_call_after_a_failed_update_resumes_from_the_checkpoint(model, tmp_path):
    def fail(trainer, metrics):
        if metrics["update"] == 3 and not failed:
            failed.append(trainer.learner.updates)
            raise RuntimeError("no")

    failed = []
    trainer = Trainer(model, lake, PPO(**SMALL), callbacks=[fail], output_dir=tmp_path, checkpoint_every=2, **LIMITS)
    with pytest.raises(RuntimeError, match="no"):
        trainer.train(5)
    assert [metrics["update"] for metrics in trainer.iterate(5)] == [3, 4, 5]


def test_a_paused_run_saves_a_checkpoint_and_its_continuation_is_equal_to_an_uninterrupted_run(tmp_path):
    def trained(folder, *callbacks, pause=None):
        torch.manual_seed(0)
        model = LanguageModel.from_config(SHAPE, WordTokenizer.from_texts(lake().vocabulary()))
        trainer = Trainer(
            model, lake, PPO(**SMALL, max_updates=5), callbacks=callbacks, output_dir=folder, pause=pause,
            lockstep=True, checkpoint_every=100, **LIMITS,
        )  # fmt: skip
        trainer.train()
        return trainer

    pause = threading.Event()
    begun = trained(
        tmp_path / "paused", lambda trainer, metrics: pause.set() if metrics["update"] == 1 else None, pause=pause
    )
    assert begun.paused and not begun.stopped and begun.learner.updates == 2  # set during the first, seen by the second
    again = trained(tmp_path / "paused", pause=pause)
    assert again.paused and again.learner.updates == 2  # nothing begins while it is set
    pause.clear()
    resumed, whole = trained(tmp_path / "paused", pause=pause), trained(tmp_path / "whole")
    assert not resumed.paused and resumed.learner.updates == whole.learner.updates == 5
    for one, other in zip(resumed.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("schedule", [{"decay": "linear"}, {"entropy_decay": "cosine", "entropy_coefficient": 0.1}])
def test_more_updates_than_a_schedule_has_are_refused(model, schedule):
    (name, kind), *_ = schedule.items()
    trainer = Trainer(model, lake, PPO(**SMALL, max_updates=2, **schedule), **LIMITS)
    with pytest.raises(ConfigurationError, match=f"got 3, but {name} {kind} reaches 0 at update 2. Try: max_updates 3"):
        trainer.train(3)
    assert trainer.train(1).updates == 1
    assert Trainer(model, lake, PPO(**SMALL, max_updates=2), **LIMITS).train(3).updates == 3


def test_incompatible_arguments_are_rejected(model):
    with pytest.raises(ConfigurationError, match="env: missing"):
        Trainer(model, algorithm=PPO())
    for no_algorithm, instead in (
        (None, r"missing\. Try: PPO\(\)"),
        ("ppo", r"got 'ppo', expected an object\. Try: PPO\(\)"),
        ("grpo", r"got 'grpo', expected an object\. Try: GRPO\(\)"),
        (GRPO, r"expected an object\. Try: GRPO\(\)"),
        ("dpo", "expected an object. Try: RewardModel learns"),
    ):
        with pytest.raises(ConfigurationError, match=f"algorithm: .*{instead}"):
            Trainer(model, lake, no_algorithm)
    with pytest.raises(ConfigurationError, match="demonstrations: needed by"):
        Trainer(model, lake, Cloning())
    for wrong in ({"checkpoint_every": 0}, {"log_every": 0}, {"keep_checkpoints": 0}, {"parallel": 0}):
        with pytest.raises(ConfigurationError, match=f"{next(iter(wrong))}: got 0, expected at least 1"):
            Trainer(model, lake, PPO(), **wrong)
    for wrong, message in (
        ({"max_turn": 3}, "Trainer: no argument 'max_turn'. Did you mean 'max_turns'"),
        ({"chekpoint_every": 3}, "Trainer: no argument 'chekpoint_every'. Did you mean 'checkpoint_every'"),
        ({"resume": "yes"}, "resume: got 'yes', expected one of same, changed, never"),
        ({"evaluation": 5}, r"evaluation: got 5, expected an object such as EvaluationConfig\(\)"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            Trainer(model, lake, PPO(), **wrong)
    with pytest.raises(ConfigurationError, match=r"model: got 'gpt2'. Try: LanguageModel.load\('gpt2'\)"):
        Trainer("gpt2", lake, PPO())
    several = gymnasium.make_vec("FrozenLake-v1", num_envs=2)
    for vector in (several, lambda: several):
        with pytest.raises(ConfigurationError, match=r"env: got SyncVectorEnv.*Try: .*parallel"):
            Trainer(model, vector, PPO())
    with pytest.raises(ConfigurationError, match="env: got 5, expected an id of Gymnasium"):
        Trainer(model, 5, PPO())
    with pytest.raises(ConfigurationError, match="parallel: have no effect"):
        Trainer(model, algorithm=PPO(), play=lambda update, attempt: [], parallel=2)


@pytest.mark.parametrize("logged", [True, False])
def test_tracebacks_of_an_environment_are_where_the_error_says_they_are(model, tmp_path, logged):
    class Broken(gymnasium.Wrapper):
        def step(self, action):
            raise ZeroDivisionError("in my environment")

    trainer = Trainer(
        model, lambda: Broken(lake()), PPO(**SMALL), output_dir=tmp_path if logged else None, resume="never", **LIMITS
    )
    line = 'raise ZeroDivisionError("in my environment")'
    with pytest.raises(RolloutError, match="ZeroDivisionError: in my environment") as raised:
        trainer.train()
    assert (line in str(raised.value)) == (not logged)
    if logged:
        assert str(raised.value).endswith("Tracebacks are in training.log")
        assert line in (tmp_path / "training.log").read_text()
    with pytest.raises(RolloutError) as raised:  # which writes no log
        trainer.evaluate(2)
    assert line in str(raised.value)


def test_groups_are_replaced_by_the_rewards_that_they_are_trained_on(model):
    """In three turns nobody reaches the goal: by the environment's rewards no group has a signal, by these each has."""

    def judge(trajectories):
        return [[float(number)] * len(each.turns) for number, each in enumerate(trajectories)]

    algorithm = DAPO(episodes_per_update=4, group_size=2, minibatches=1, resampling=3)
    for rewards, played in ((None, 16), (partial(judged, judge=judge), 4)):
        trainer = Trainer(model, lake, algorithm, rewards=rewards, **LIMITS)
        (metrics,) = trainer.iterate(1)
        assert metrics["episodes_played"] == played
        assert metrics["groups_with_signal"] == (0 if rewards is None else 2)


@pytest.fixture
def threads_kept():
    before = torch.get_num_threads()
    yield before
    torch.set_num_threads(before)


def test_threads_of_pytorch_are_set_and_stay_as_they_are_by_default(model, threads_kept):
    torch.set_num_threads(2)
    for given, expected in (({}, 2), ({"threads": 0}, 2), ({"threads": 1}, 1)):
        Trainer(model, lake, PPO(**SMALL), **given, **LIMITS)
        assert torch.get_num_threads() == expected
    with pytest.raises(ConfigurationError, match=r"^threads: got -1, expected 0 or more$"):
        Trainer(model, lake, PPO(**SMALL), threads=-1, **LIMITS)


def test_log_lines_have_short_numbers_and_leave_out_what_is_undefined(model, tmp_path):
    Trainer(model, lake, PPO(**SMALL, epochs=1, minibatches=1), output_dir=tmp_path / "run", **LIMITS).train(2)
    lines = [line for line in (tmp_path / "run" / "training.log").read_text().splitlines() if " ppo " in line]
    assert len(lines) == 2
    for line in lines:
        assert "kl/old 0 " in line  # of one epoch: what is left is rounding
        numbers = re.findall(r"(?:loss|reward_mean|entropy|grad_norm) (\S+)", line)
        assert len(numbers) == 4 and all(len(number.lstrip("-0.").replace(".", "")) <= 3 for number in numbers)
        assert "nan" not in line


def test_an_update_that_ended_early_is_marked_in_its_log_line_with_its_kl(model, tmp_path):
    settings = PPO(episodes_per_update=8, learning_rate=0.1, epochs=20, stop_kl=0.01)
    rewards = partial(judged, judge=lambda played: [[float(i)] * len(each.turns) for i, each in enumerate(played)])
    trainer = Trainer(model, lake, settings, rewards=rewards, output_dir=tmp_path / "run", **LIMITS)
    (metrics,) = trainer.iterate(1)
    line = (tmp_path / "run" / "training.log").read_text().splitlines()[-1]
    assert metrics["stopped_early"] == 1 and metrics["kl/old"] > 0.01
    assert f"  kl/old {metrics['kl/old']:.3g}  " in line and "  stopped early  " in line


def test_episodes_that_max_tokens_cuts_off_are_warned_of_once(model, tmp_path):
    def warnings_with(max_tokens):
        limits = {**LIMITS, "max_turns": None, "max_tokens": max_tokens}
        Trainer(model, lake, PPO(**SMALL), output_dir=tmp_path / str(max_tokens), **limits).train(3)
        log = (tmp_path / str(max_tokens) / "training.log").read_text()
        return [line for line in log.splitlines() if " WARNING " in line]

    (line,) = warnings_with(12)
    assert "update 1: environment.max_tokens cut off all 8 episodes, after " in line
    assert not warnings_with(512)


def code_lines(text):
    """The lines of a program without blank lines and the docstring of its module."""
    tree = ast.parse(text)
    first = tree.body[1] if ast.get_docstring(tree) else tree.body[0]
    return [line for line in text.splitlines()[first.lineno - 1 :] if line.strip()]


def test_shortest_program_has_nine_lines_and_is_the_one_in_the_readme():
    """README's block is run by tests/contracts/test_commands.py."""
    example = code_lines((ROOT / "examples" / "own_model.py").read_text(encoding="utf-8"))
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (block,) = (each for each in re.findall(r"```python\n(.+?)```", readme, flags=re.DOTALL) if "Trainer(" in each)
    assert code_lines(block) == example
    assert len(example) <= 9


def alike(model):
    """All words look alike to the model from now on."""
    with torch.no_grad():
        table = model.causal_lm.get_input_embeddings().weight
        table.copy_(table.mean(0).expand_as(table))


@pytest.mark.parametrize("unconstrained", [True, False])
def test_a_policy_that_no_longer_sees_its_observations_is_reported_once(unconstrained, tmp_path):
    """After two updates all words look alike to it; after three more it is reported, with what can be tried."""

    def taxi():
        return TextAdapter(gymnasium.make("Taxi-v4"), unconstrained=unconstrained)

    words = WordTokenizer.from_texts(taxi().vocabulary())
    model = LanguageModel.from_config({**SHAPE, "initializer_range": 0.3}, words)

    def blindfold(trainer, metrics):
        if trainer.learner.updates == 2:
            alike(model)

    settings = {**SMALL, "episodes_per_update": 24, "learning_rate": 1e-5}
    run = tmp_path / "run"
    trainer = Trainer(model, taxi, PPO(**settings), callbacks=[blindfold], output_dir=run, console=False, **LIMITS)
    trainer.train(6)
    rows = read_metrics(run / "metrics.jsonl")
    seen = [row["representation/spread"] for row in rows]
    assert min(seen[:2]) > 0.2
    assert max(seen[2:]) < 0.01
    log = (run / "training.log").read_text()
    assert log.count("actions hardly depend on its observations any more") == 1
    assert "update 5: " in log
    assert ("legal actions" in log) is unconstrained


def test_a_policy_that_sees_again_is_not_reported(tmp_path):
    """A policy of random weights may see less for an update or two before it learns."""

    def taxi():
        return TextAdapter(gymnasium.make("Taxi-v4"))

    words = WordTokenizer.from_texts(taxi().vocabulary())
    model = LanguageModel.from_config({**SHAPE, "initializer_range": 0.3}, words)
    table = model.causal_lm.get_input_embeddings().weight
    original = table.detach().clone()

    def blink(trainer, metrics):
        if trainer.learner.updates % 3 == 1:
            alike(model)
        elif trainer.learner.updates % 3 == 0:
            with torch.no_grad():
                table.copy_(original)

    settings = {**SMALL, "episodes_per_update": 24, "learning_rate": 1e-5}
    run = tmp_path / "run"
    trainer = Trainer(model, taxi, PPO(**settings), callbacks=[blink], output_dir=run, console=False, **LIMITS)
    trainer.train(7)
    seen = [row["representation/spread"] < 0.01 for row in read_metrics(run / "metrics.jsonl")]
    assert seen == [False, True, True, False, True, True, False]
    assert "hardly depend" not in (run / "training.log").read_text()


@pytest.mark.parametrize(("mutant", "reports"), [("", 0), ("shifted", 1)])
def test_log_probabilities_of_other_tokens_are_reported_once(mutant, reports, tmp_path):
    """With masks one token off a policy may learn all the same."""

    def lake():
        return TextAdapter(gymnasium.make("FrozenLake-v1", is_slippery=False), unconstrained=True)

    words = WordTokenizer.from_texts(lake().vocabulary())
    model = LanguageModel.from_config({**SHAPE, "initializer_range": 0.3}, words)
    settings, run = {**SMALL, "episodes_per_update": 8}, tmp_path / "run"
    with broken(mutant):
        Trainer(model, lake, PPO(**settings), output_dir=run, console=False, **LIMITS).train(3)
    gaps = [row["logprob_gap"] for row in read_metrics(run / "metrics.jsonl")]
    assert (min(gaps) > 0.3) if reports else (max(gaps) < 1e-4)
    log = (run / "training.log").read_text()
    assert log.count("the log-probabilities that the engine recorded are") == reports


def documented_metrics():
    """The names in the first column of the table of metrics; one with a slash at the end is a prefix."""
    section = (ROOT / "docs/training.md").read_text(encoding="utf-8").partition("### Metrics")[2].partition("\n#")[0]
    found = []
    for row in re.findall(r"^\| (`.+?`) \|", section, flags=re.MULTILINE):
        for name in re.findall(r"`([^`]+)`", row):
            prefix = found[-1].partition("/")[0] if name.startswith("…") else ""
            found.append(re.sub(r"…$|[A-Z]+$", "", prefix + name.removeprefix("…")))
    return found


def test_every_metric_is_documented_and_every_documented_metric_exists(model):
    algorithms = [
        PPO(**SMALL, kl_coefficient=0.1, correction="truncate", gradient_noise_every=1),
        GRPO(**SMALL, group_size=4, resampling=1),
    ]
    evaluation = EvaluationConfig(episodes=2, success_above=0.5)
    seen = set()
    for algorithm in algorithms:
        trainer = Trainer(model, lake, algorithm, evaluation=evaluation, compare_kernels_every=1, **LIMITS)
        seen.update(*trainer.iterate(1))
    names = documented_metrics()
    assert len(names) > 60
    unknown = {key for key in seen if not any(key == n or (n.endswith("/") and key.startswith(n)) for n in names)}
    assert unknown == set()
    source = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "swe_trainers").rglob("*.py"))
    assert [n for n in names if n not in seen and (n.rpartition("/")[2] or n) not in source] == []
