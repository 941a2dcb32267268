"""Settings of optimisation, each with the effect that its description promises."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from swe_trainers.algorithms.grpo import RLOO
from swe_trainers.algorithms.ppo import PPO
from swe_trainers.algorithms.reinforce import REINFORCE
from swe_trainers.errors import ConfigurationError
from swe_trainers.learning.rewards import RunningMoments
from swe_trainers.model.language_model import LanguageModel
from swe_trainers.model.tokenizers import WordTokenizer
from swe_trainers.rollout.trajectory import Trajectory
from tests.trainers.algorithms.games import ECHO_PPO, Player
from tests.trainers.learning.tiny import TinyPolicy, random_trajectories, trajectory

CONFIG = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}


def with_rewards(episodes: list[Trajectory], change) -> list[Trajectory]:
    """The same episodes with other rewards."""
    return [replace(each, rewards=change(each.rewards).astype(np.float32)) for each in episodes]


def test_rewards_are_clipped_for_training_and_reported_as_they_are() -> None:
    episodes = [trajectory([1, 2, 3, 4, 5], [False, True, False, True, True], [0, -10.0, 0, 0, 20.0])]
    settings = PPO(reward_min=-1.0, reward_max=5.0, reward_scale=0.5)
    learner = settings.learner(TinyPolicy())
    assert settings.observe(learner, episodes).rewards.tolist() == [0, -0.5, 0, 0, 2.5]
    assert settings.update(learner, episodes)["reward_mean"] == 10


def test_normalised_rewards_do_not_depend_on_their_unit() -> None:
    """Cents instead of thousands of dollars: the same updates, step for step."""
    trained = []
    for unit in (1e-2, 1e3):
        settings = PPO(normalise_rewards=True, gamma=0.9, learning_rate=1e-2)
        learner = settings.learner(TinyPolicy().double(), seed=0)
        for update in range(3):
            played = random_trajectories(12, seed=update)
            settings.update(learner, with_rewards(played, lambda rewards, unit=unit: unit * rewards))
            learner.updates += 1
        trained.append(torch.cat([p.detach().flatten() for p in learner.model.parameters()]))
    torch.testing.assert_close(*trained, rtol=1e-4, atol=1e-5)


def test_rewards_are_divided_by_the_deviation_of_all_discounted_returns_so_far() -> None:
    settings, seen = PPO(normalise_rewards=True, gamma=0.5), list[float]()
    learner = settings.learner(TinyPolicy())
    mask = [False, True, False, True]
    for first, second in ((1.0, 4.0), (8.0, -2.0)):
        rewards = settings.observe(learner, [trajectory([1, 2, 3, 4], mask, [0, first, 0, second])]).rewards
        seen += [first + 0.5 * second, second]
        assert rewards[1] == pytest.approx(first / np.std(seen), rel=1e-6)
    assert learner.returns.count == 4 and learner.returns.mean == pytest.approx(np.mean(seen))


def test_a_resumed_learner_goes_on_with_the_moments_and_an_old_checkpoint_begins_with_none() -> None:
    settings = PPO(normalise_rewards=True)
    one, other = settings.learner(TinyPolicy()), settings.learner(TinyPolicy())
    settings.update(one, random_trajectories(8))
    other.load_state_dict(one.state_dict())
    assert other.returns == one.returns and other.returns.count > 0
    old = {name: value for name, value in one.state_dict().items() if name != "returns"}
    other.load_state_dict(old)
    assert other.returns == RunningMoments()


def test_the_entropy_coefficient_falls_to_zero_over_the_updates() -> None:
    for decay, middle in (("linear", 0.5), ("cosine", 0.5 * (1 + math.cos(math.pi / 2)))):
        settings = REINFORCE(entropy_coefficient=0.2, entropy_decay=decay, max_updates=4)
        learner, found = settings.learner(TinyPolicy()), []
        for _ in range(5):
            found.append(settings.update(learner, random_trajectories(8))["entropy_coefficient"])
            learner.updates += 1
        assert found[0] == 0.2 and found[4] == 0
        assert found[2] == pytest.approx(0.2 * middle)


def test_the_entropy_bonus_pushes_only_while_its_coefficient_is_not_zero() -> None:
    """Episodes without rewards: what is left of the loss is the bonus."""
    settings = REINFORCE(entropy_coefficient=1.0, entropy_decay="linear", max_updates=1, learning_rate=1e-2)
    silent = with_rewards(random_trajectories(8), np.zeros_like)
    moved = []
    for updates in (0, 1):
        learner = settings.learner(TinyPolicy())
        learner.updates = updates
        before = [p.detach().clone() for p in learner.model.parameters()]
        settings.update(learner, silent)
        after = [p.detach() for p in learner.model.parameters()]
        moved.append(max(float((a - b).abs().max()) for a, b in zip(before, after, strict=True)))
    assert moved[0] > 1e-3 and moved[1] == 0


def test_advantages_are_whitened_over_each_minibatch() -> None:
    settings = PPO(whiten_over="minibatch", epochs=1, minibatches=3, episodes_per_update=12)
    learner = settings.learner(TinyPolicy(), seed=0)
    experience = settings.observe(learner, random_trajectories(12))
    raw, batch = settings.advantages(experience), experience.batch
    acted = batch.action_mask
    assert abs(float(raw[acted].std(correction=0)) - 1) > 1e-2
    for part in torch.arange(12).split(4):
        ours = acted & torch.isin(batch.sequence_of_token, part)
        found = settings.minibatch_advantages(raw, batch, part)[ours]
        expected = (raw[ours] - raw[ours].mean()) / raw[ours].std(correction=0)
        torch.testing.assert_close(found, expected)


def test_a_minibatch_of_equal_returns_is_not_enlarged_whatever_the_others_return() -> None:
    settings = PPO(whiten_over="minibatch", minibatches=2, episodes_per_update=8)
    learner = settings.learner(TinyPolicy(), seed=0)
    episodes = random_trajectories(8)
    experience = settings.observe(learner, with_rewards(episodes[:4], np.zeros_like) + episodes[4:])
    experience.old.values[:] = torch.linspace(-0.1, 0.1, len(experience.old.values))  # of a critic
    raw, batch = settings.advantages(experience), experience.batch
    silent, others = torch.arange(8).split(4)
    ours = batch.action_mask & torch.isin(batch.sequence_of_token, silent)
    assert 0 < float(raw[ours].std(correction=0)) < 0.5
    found = settings.minibatch_advantages(raw, batch, silent)[ours]
    torch.testing.assert_close(found, raw[ours] - raw[ours].mean())
    ours = batch.action_mask & torch.isin(batch.sequence_of_token, others)
    assert float(settings.minibatch_advantages(raw, batch, others)[ours].std(correction=0)) == pytest.approx(1.0)


def test_a_minibatch_is_trained_on_its_own_advantages() -> None:
    """With one minibatch both are the same; with several the steps differ."""
    for minibatches in (1, 3):
        trained = []
        for over in ("batch", "minibatch"):
            settings = PPO(whiten_over=over, epochs=1, minibatches=minibatches, learning_rate=1e-2)
            learner = settings.learner(TinyPolicy(), seed=0)
            settings.update(learner, random_trajectories(12))
            trained.append(torch.cat([p.detach().flatten() for p in learner.model.parameters()]))
        assert torch.allclose(*trained, atol=1e-6) == (minibatches == 1)


def language_model() -> LanguageModel:
    return LanguageModel.from_config(CONFIG, WordTokenizer([f"w{i}" for i in range(12)]))


@pytest.mark.parametrize("critic", ["shared", "separate"])
def test_a_critic_starts_at_the_mean_return(critic) -> None:
    """Returns around −200: at first the critic is not 200 away, but at their mean."""
    episodes = with_rewards(random_trajectories(16, vocabulary=12), lambda rewards: rewards - 50 * (rewards != 0))
    settings = PPO(value_start="mean_return", value_clip=None, critic=critic, gamma=0.9)
    for start, shifted in (("model", False), ("mean_return", True)):
        own = replace(settings, value_start=start)
        learner = own.start(language_model())
        experience = own.observe(learner, episodes)
        acted, batch = experience.batch.action_mask, experience.batch
        to_go = own_returns(experience.rewards.tolist(), acted.tolist(), batch.offsets.tolist(), 0.9)
        expected = float(np.mean(to_go)) if shifted else 0.0
        assert expected < -30 or not shifted
        assert torch.allclose(experience.old.values[acted], torch.full_like(experience.old.values[acted], expected))
        again = replace(own, value_start="model").observe(learner, episodes)  # what the model itself predicts now
        torch.testing.assert_close(again.old.values[acted], experience.old.values[acted])
        torch.testing.assert_close(again.old.final_values, experience.old.final_values)
    learner.updates = 1
    before = settings.observe(learner, with_rewards(episodes, np.zeros_like)).old.values
    torch.testing.assert_close(before, settings.observe(learner, episodes).old.values)  # once, and never again


def own_returns(rewards: list[float], acted: list[bool], offsets: list[int], gamma: float) -> list[float]:
    """Discounted returns to go at the action tokens, one trajectory after another."""
    found = []
    for first, end in itertools.pairwise(offsets):
        own = [rewards[t] for t in range(first, end) if acted[t]]
        found += [sum(gamma**k * r for k, r in enumerate(own[t:])) for t in range(len(own))]
    return found


def after_one_step(**settings: float) -> LanguageModel:
    """A model after one optimizer step on episodes that all earn 1."""
    one_step = PPO(learning_rate=1e-4, epochs=1, minibatches=1, lam=1.0, **settings)
    learner = one_step.start(language_model())
    one_step.update(learner, with_rewards(random_trajectories(16, vocabulary=12), one_at_the_end))
    return learner.model


def one_at_the_end(rewards: np.ndarray) -> np.ndarray:
    """A reward of 1 at the last action, which `random_trajectories` rewards."""
    ends = np.zeros_like(rewards)
    ends[rewards.nonzero()[0][-1]] = 1.0
    return ends


def test_a_shared_head_moves_by_its_own_learning_rate_alone() -> None:
    """AdamW's first step is the learning rate, whatever the loss weighs: a coefficient makes no critic faster."""
    slow = after_one_step(value_coefficient=0.1)
    weighed = after_one_step(value_coefficient=100.0)
    fast = after_one_step(value_coefficient=0.1, critic_learning_rate=0.05)
    for model, expected in ((slow, 1e-4), (weighed, 1e-4), (fast, 0.05)):
        assert model.value_head.bias.item() == pytest.approx(expected, rel=1e-3)
        assert model.value_head.weight.abs().max().item() == pytest.approx(expected, rel=1e-3)
    for (name, one), (_, other) in zip(slow.named_parameters(), fast.named_parameters(), strict=True):
        assert torch.equal(one, other) == (not name.startswith("value_head")), name


def test_a_shared_head_keeps_its_share_of_a_decaying_learning_rate() -> None:
    """1e-2 and half of it; AdamW's steps of a gradient whose sign does not change are the learning rate."""
    settings = PPO(learning_rate=1e-5, critic_learning_rate=1e-2, decay="linear", max_updates=2, lam=1.0)
    settings = replace(settings, epochs=1, minibatches=1, value_clip=None)
    learner, biases = settings.start(language_model()), [0.0]
    for _ in range(2):
        settings.update(learner, with_rewards(random_trajectories(16, vocabulary=12), one_at_the_end))
        learner.updates += 1
        biases.append(learner.model.value_head.bias.item())
    assert np.diff(biases) == pytest.approx([1e-2, 5e-3], rel=0.1)


def test_a_learning_rate_for_a_missing_head_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="TinyPolicy has no module value_head"):
        PPO(critic_learning_rate=1e-3).learner(TinyPolicy())


def test_a_critic_without_a_bias_is_refused() -> None:
    settings = PPO(value_start="mean_return")
    learner = settings.learner(TinyPolicy())
    with pytest.raises(ConfigurationError, match="the value head of TinyPolicy has no bias"):
        settings.update(learner, random_trajectories(4))


def test_an_orthogonal_head_makes_tokens_nearly_equally_likely() -> None:
    model = language_model()
    state = torch.get_rng_state()
    model.initialise_head(0.01, seed=3)
    assert torch.equal(torch.get_rng_state(), state)
    weight = model.unembedding.weight.detach()
    rows = weight / 0.01  # of length 1, and orthogonal
    torch.testing.assert_close(rows @ rows.T, torch.eye(len(rows)), rtol=0, atol=1e-5)
    # Of a hidden state of length 1 each logit lies in ±0.01, and so each logarithm of a probability in ±0.02 of −log V.
    logprobs = model.logits(torch.nn.functional.normalize(torch.randn(8, 32), dim=-1)).log_softmax(-1)
    assert 1e-3 < (logprobs + math.log(len(weight))).abs().max().item() < 0.02
    other = language_model()
    other.initialise_head(0.01, seed=4)
    assert not torch.equal(other.unembedding.weight, weight)
    tied = LanguageModel.from_config({**CONFIG, "tie_word_embeddings": True}, WordTokenizer(["a", "b"]))
    with pytest.raises(ConfigurationError, match="tie_word_embeddings false"):
        tied.initialise_head(0.01)


def test_only_matrices_decay() -> None:
    """Without a gradient a step of AdamW is its decay alone: p (1 − learning rate · decay)."""
    settings = PPO(weight_decay=0.5, learning_rate=0.1)
    model = language_model()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(1.0)
    optimizer = settings.optimizer(model, None)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    names = {"matrix": 0, "vector": 0}
    for parameter in model.parameters():
        kind, expected = ("matrix", 0.95) if parameter.ndim >= 2 else ("vector", 1.0)
        names[kind] += 1
        assert torch.allclose(parameter, torch.full_like(parameter, expected))
    assert min(names.values()) > 2


def test_the_echo_game_is_learnt_with_all_of_them() -> None:
    player = Player(seed=0)
    settings = {"normalise_rewards": True, "whiten_over": "minibatch", "value_start": "mean_return"}
    algorithm = replace(ECHO_PPO, entropy_decay="linear", reward_min=-1.0, **settings)
    learner = algorithm.learner(player.model, seed=0)
    for _ in range(24):
        algorithm.update(learner, player.play(learner.updates))
        learner.updates += 1
    assert player.mean_return() > 2.5


@pytest.mark.parametrize(
    ("algorithm", "values", "message"),
    [
        (PPO, {"reward_min": 0.5}, "reward_min: got 0.5, expected 0 or less"),
        (PPO, {"reward_max": -0.5}, "reward_max: got -0.5, expected 0 or more"),
        (PPO, {"entropy_decay": "linear"}, "entropy_decay: has no effect with entropy_coefficient 0"),
        (PPO, {"normalise_rewards": True, "reward_scale": 0.1}, "reward_scale: has no effect with normalise_rewards"),
        (PPO, {"whiten_over": "minibatch", "whiten_advantages": False}, "whiten_over: has no effect"),
        (RLOO, {"gradient_noise_every": -1}, "expected 0 or more"),
    ],
)
def test_what_has_no_effect_is_refused(algorithm, values, message) -> None:
    with pytest.raises(ConfigurationError, match=message):
        algorithm(**values)
