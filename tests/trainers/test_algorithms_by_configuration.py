"""Every algorithm through `swe-train`, from configuration to saved model, at a tiny size."""

from __future__ import annotations

import dataclasses
import json
import math

import numpy as np
import pytest

from swe_trainers.algorithms import ALGORITHMS, find_algorithm
from swe_trainers.cli.main import main
from swe_trainers.logging import read_metrics
from swe_trainers.model.language_model import LanguageModel
from swe_trainers.rollout.trajectory import Turn, write_trajectories
from tests.trainers.learning.tiny import trajectory

CONFIG = """\
environment: {{id: FrozenLake-v1, kwargs: {{is_slippery: false}}, adapter: text,
              adapter_kwargs: {{illegal_penalty: 0.1, unconstrained: true}}, parallel: 4, max_turns: 3,
              max_tokens: 64, max_new_tokens: 2}}
model: {{architecture: {{model_type: llama, hidden_size: 16, intermediate_size: 16, num_hidden_layers: 1,
                       num_attention_heads: 2, max_position_embeddings: 128}}, tokenizer: words}}
trainer: {{algorithm: {algorithm}}}
threads: 1
"""
PLAYED = ("--trainer.episodes_per_update", "8", "--trainer.max_updates", "2")
GROUPS = (*PLAYED, "--trainer.group_size", "4", "--trainer.kl_coefficient", "0.1", "--trainer.learning_rate", "0.01")
FULL = ("--trainer.kl_estimator", "full", "--trainer.kl_placement", "loss")
OPTIONS = {
    "ppo": (*PLAYED, "--trainer.critic", "separate", "--trainer.critic_learning_rate", "1e-3", "--trainer.pack"),
    "grpo": GROUPS,
    "dr_grpo": (*GROUPS, *FULL),
    "dapo": (*GROUPS, "--trainer.overlong_limit", "6", "--trainer.overlong_buffer", "3"),
    "gspo": (*GROUPS, "--trainer.correction", "truncate"),
    "rloo": GROUPS,
    "reinforce": PLAYED,
    "reinforce_plus_plus": (*GROUPS, *FULL),
    "monte_carlo_tree": (*PLAYED, "--trainer.max_depth", "1", "--trainer.branching", "4"),
    "cloning": ("--trainer.minibatch_episodes", "8"),
    "reward_model": ("--trainer.minibatch_episodes", "8"),
}


def recorded(path):
    """Sixteen episodes in groups of four, of two turns each."""
    made = []
    for number in range(16):
        mask, earned = [False, True, False, False, True], number % 4
        t = trajectory([5, 6, 7, 8, 9 + earned], mask, [0, 0, 0, 0, earned], group=number // 4)
        made.append(dataclasses.replace(t, turns=(Turn("a", "b", 0.0, 1, 2), Turn("c", "d", float(earned), 4, 5))))
    write_trajectories(path, made)


def train(monkeypatch, folder, algorithm, *options):
    monkeypatch.chdir(folder)
    (folder / "config.yaml").write_text(CONFIG.format(algorithm=algorithm))
    return main(["config.yaml", "--quiet", *options])


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_trains_from_its_configuration(tmp_path, monkeypatch, algorithm):
    offline = find_algorithm(algorithm)().rollout_plan is None
    options = OPTIONS.get(algorithm, () if offline else PLAYED)
    if offline:
        recorded(tmp_path / "recorded.jsonl")
    demonstrations = ("--demonstrations", "recorded.jsonl") if offline else ()
    code = train(
        monkeypatch, tmp_path, algorithm, "--output_dir", "out", *options, *demonstrations,
        "--evaluation.episodes", "4",
    )  # fmt: skip
    assert code == 0
    rows = read_metrics(tmp_path / "out" / "metrics.jsonl")
    assert {row["stage"] for row in rows} == {algorithm}
    assert rows[-1]["update"] == max(1, len(rows) - 1)
    assert math.isfinite(rows[-1]["loss"])
    assert max(row.get("grad_norm", 0.0) for row in rows) > 0
    assert LanguageModel.from_pretrained(tmp_path / "out" / "model").tokenizer.vocab_size > 20
    if "critic" in " ".join(options):
        assert rows[-1]["critic_grad_norm"] > 0
    if "group_size" in " ".join(options):
        assert rows[-1]["kl/coefficient"] == 0.1
        divergence = rows[-1]["kl/reference"]
        assert 0 < abs(divergence) < 1
        assert divergence > 0 or algorithm == "rloo"  # k1, in the reward, is negative where the tokens became unlikely


def test_ppo_trains_on_the_scores_of_a_trained_reward_model(tmp_path, monkeypatch):
    recorded(tmp_path / "recorded.jsonl")
    assert train(monkeypatch, tmp_path, "reward_model", "--output_dir", "judge", "--demonstrations", "recorded.jsonl",
                 "--trainer.kind", "process", "--trainer.learning_rate", "0.01") == 0  # fmt: skip
    options = ("--reward.model", "judge/model", "--reward.per_turn", "--reward.weight", "0.5")
    assert train(monkeypatch, tmp_path, "ppo", "--output_dir", "policy", *PLAYED, *options) == 0
    rows = read_metrics(tmp_path / "policy" / "metrics.jsonl")
    assert all(row["environment_reward_mean"] <= 0 for row in rows)  # the goal is six steps away
    assert all(row["reward_mean"] != row["environment_reward_mean"] for row in rows)


CONVERSATION = [{"role": "user", "content": "0"}, {"role": "assistant", "content": "1"}]


def test_conversations_can_be_used_as_demonstrations(tmp_path, monkeypatch):
    (tmp_path / "conversations.jsonl").write_text(
        json.dumps({"messages": CONVERSATION * 2}) + "\n" + json.dumps({"messages": CONVERSATION}) + "\n"
    )
    options = ("--trainer.epochs", "60", "--trainer.learning_rate", "0.03", "--demonstrations", "conversations.jsonl")
    assert train(monkeypatch, tmp_path, "cloning", "--output_dir", "out", *options) == 0
    rows = read_metrics(tmp_path / "out" / "metrics.jsonl")
    assert rows[0]["episodes"] == 2
    assert rows[-1]["loss"] < 0.05


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], "an observation for each action"),
        (CONVERSATION[:1], "an observation for each action"),
        (CONVERSATION[::-1], "message 0 of the turns is 'assistant', expected user"),
        ([*CONVERSATION, {"role": "tool", "content": "0"}], "message 2 of the turns is 'tool', expected user"),
        ([{"role": "user", "content": "zebra"}, CONVERSATION[1]], "'zebra' is not in the vocabulary"),
        ([{"role": "user"}, CONVERSATION[1]], "KeyError: 'content'"),
    ],
)
def test_invalid_conversation_is_an_error_with_its_line(tmp_path, monkeypatch, capsys, messages, message):
    lines = [json.dumps({"messages": some}) for some in (CONVERSATION, messages)]
    (tmp_path / "conversations.jsonl").write_text("\n".join(lines))
    assert train(monkeypatch, tmp_path, "cloning", "--demonstrations", "conversations.jsonl") == 2
    error = capsys.readouterr().err
    assert "conversations.jsonl, line 2: no conversation: " in error
    assert message in error
    assert error.count("\n") == 1


def count_words(trajectories):
    """A custom judge: the score of a turn is its number of characters."""
    return [[float(len(turn.action)) for turn in trajectory.turns] for trajectory in trajectories]


def test_custom_judge_is_loaded_by_module_and_function(tmp_path, monkeypatch):
    judge = "tests.trainers.test_algorithms_by_configuration:count_words"
    code = train(monkeypatch, tmp_path, "reinforce", "--output_dir", "out", *PLAYED, "--reward.judge", judge,
                 "--reward.keep_environment")  # fmt: skip
    assert code == 0
    assert all(row["reward_mean"] > 0 for row in read_metrics(tmp_path / "out" / "metrics.jsonl"))


@pytest.mark.parametrize(
    ("algorithm", "options", "message"),
    [
        ("ppo", "--reward.weight 2", "reward.model: exactly one of model and judge"),
        ("ppo", "--reward.model x --reward.judge y:z", "reward.model: exactly one of model and judge"),
        ("ppo", "--reward.judge y:z --reward.per_turn", "reward.per_turn: has no effect"),
        ("ppo", "--reward.judge nowhere:judge", "judge 'nowhere:judge'"),
        ("ppo", "--reward.judge count_words", "expected module:function"),
        ("ppo", "--reward.model /no/where", "/no/where"),
        ("grpo", "--trainer.critic separate", "trainer.critic: has no effect on grpo, it belongs to ppo"),
        ("reinforce", "--trainer.clip_low 0.1", "trainer.clip_low: has no effect on reinforce, it belongs to ppo"),
        ("cloning", "--demonstrations x --reward.judge y:z", "reward: has no effect on an algorithm that plays no"),
        ("grpo --demonstrations x", "", "demonstrations: needed by cloning and reward_model"),
        ("grp", "", "trainer.algorithm: got 'grp'. Did you mean 'grpo'?"),
    ],
)
def test_settings_without_effect_are_one_line_errors(tmp_path, monkeypatch, capsys, algorithm, options, message):
    algorithm, *more = algorithm.split()
    assert train(monkeypatch, tmp_path, algorithm, *more, *options.split()) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_episodes_of_a_group_share_a_seed_and_differ_in_sampling(tmp_path):
    from swe_trainers.engines.sampling import Sampling
    from swe_trainers.run_config import ModelConfig
    from tests.trainers.test_experiment import LAKE, lake_rollouts, make_env, make_model
    from tests.trainers.tiny import TINY

    config = ModelConfig(architecture=TINY, tokenizer="words")
    env = make_env(dataclasses.replace(LAKE, kwargs={"map_name": "4x4"}))
    model = make_model(config, env, seed=0)
    rollouts = lake_rollouts(config, model, [env], 3)
    played = rollouts.play(6, Sampling(), update=0, episodes_per_start=3)
    assert [t.group for t in played] == [0, 0, 0, 1, 1, 1]
    assert len({t.seed for t in played[:3]}) == 1 == len({t.seed for t in played[3:]})
    assert played[0].seed != played[3].seed
    assert any(not np.array_equal(played[0].token_ids, t.token_ids) for t in played[1:3])
    again = rollouts.play(6, Sampling(), update=0, episodes_per_start=3)
    assert all(np.array_equal(a.token_ids, b.token_ids) for a, b in zip(played, again, strict=True))
    other = rollouts.play(6, Sampling(), update=0, attempt=1, episodes_per_start=3)
    assert other[0].seed != played[0].seed
