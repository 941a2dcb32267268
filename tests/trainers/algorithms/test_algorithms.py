"""Properties of every algorithm that trains on rewards, and those of single algorithms."""

from __future__ import annotations

import copy
import dataclasses
import functools

import numpy as np
import pytest
import torch

from swe_trainers.algorithms.cloning import Cloning
from swe_trainers.algorithms.grpo import DAPO, GRPO, GSPO, RLOO, DrGRPO
from swe_trainers.algorithms.ppo import PPO
from swe_trainers.algorithms.reinforce import REINFORCE, REINFORCEPlusPlus
from swe_trainers.errors import ConfigurationError, TrainerError
from swe_trainers.learning.batch import Batch
from swe_trainers.learning.forward import take_snapshot
from swe_trainers.learning.rewards import overlong_penalty
from swe_trainers.logging import Run
from swe_trainers.trainer import Trainer
from tests.trainers.algorithms.games import ECHO_PPO, Player
from tests.trainers.algorithms.test_training import same
from tests.trainers.learning.tiny import TinyPolicy, random_trajectories, trajectory

ECHO = {
    "learning_rate": 3e-3,
    "adam_epsilon": 1e-5,
    "max_updates": 40,
    "episodes_per_update": 32,
    "entropy_coefficient": 0.005,
}
ONLINE = {
    "ppo": ECHO_PPO,
    "ppo-separate": dataclasses.replace(ECHO_PPO, critic="separate", critic_learning_rate=6e-3),
    "grpo": GRPO(**ECHO),
    "dr_grpo": DrGRPO(**ECHO),
    "dapo": DAPO(**ECHO),
    "gspo": GSPO(**ECHO | {"clip_low": 0.1, "clip_high": 0.1}),
    "rloo": RLOO(**ECHO),
    "reinforce": REINFORCE(**ECHO, gamma=0.9),
    "reinforce++": REINFORCEPlusPlus(**ECHO, gamma=0.9),
    "reinforce++-baseline": REINFORCEPlusPlus(**ECHO, group_size=8),
}
names = pytest.mark.parametrize("name", ONLINE)


def trainer_of(player, settings, **options):
    play = functools.partial(player.play, episodes=settings.episodes_per_update, group_size=settings.episodes_per_start)
    return Trainer(player.model, algorithm=settings, play=play, **options)


def learn(player, settings, updates):
    for metrics in trainer_of(player, settings).iterate(updates):
        last = metrics
    return last


@names
@pytest.mark.parametrize(
    ("part", "least"),
    [pytest.param(0.6, 1.25, marks=pytest.mark.sample), pytest.param(1, 2.0, marks=pytest.mark.campaign)],
)
def test_algorithm_learns_the_echo_task(name, part, least):
    player = Player(seed=1)
    # A critic learns faster than one return per episode, and several optimizer steps per update faster than one.
    learn(player, ONLINE[name], int(part * {"ppo": 24, "ppo-separate": 24, "reinforce": 60}.get(name, 36)))
    assert player.mean_return() > least  # at most 3/4 without reading, less than 1/4 at the random start


@pytest.mark.parametrize("name", ["grpo", "rloo", "reinforce"])
def test_negated_advantages_do_not_learn(name, monkeypatch):
    right = type(ONLINE[name]).advantages
    monkeypatch.setattr(type(ONLINE[name]), "advantages", lambda self, experience: -right(self, experience))
    player = Player(seed=1)
    learn(player, ONLINE[name], 16)
    assert player.mean_return() < 0.75


def update(settings, trajectories, model=None):
    model = model or TinyPolicy().double()
    learner = stage_learner(model, settings)
    return settings.update(learner, trajectories), learner


def stage_learner(model, settings):
    return settings.learner(model, seed=0, critic=TinyPolicy(seed=9).double() if settings.needs_critic else None)


def in_groups(count=16, size=8):
    return [dataclasses.replace(t, group=i // size) for i, t in enumerate(random_trajectories(count))]


def test_penalties_are_not_enlarged_where_the_episodes_of_each_group_ended_alike():
    algorithm = REINFORCEPlusPlus(**ECHO | {"kl_coefficient": 0.01}, group_size=8)
    model = TinyPolicy().double()
    learner = algorithm.learner(model, reference=TinyPolicy(seed=3).double())
    played = in_groups()
    alike = [dataclasses.replace(t, rewards=_at_the_end(t, float(t.group))) for t in played]  # the groups differ
    advantages = algorithm.advantages(algorithm.observe(learner, alike))
    assert 0 < advantages.abs().max() < 0.5
    differing = [dataclasses.replace(t, rewards=_at_the_end(t, float(n % 2))) for n, t in enumerate(played)]
    advantages = algorithm.advantages(algorithm.observe(learner, differing))
    assert advantages[Batch.of(played).action_mask].std(correction=0) == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("scale", ["group", "batch"])
def test_the_coefficient_of_a_penalty_counts_where_the_episodes_of_a_group_ended_alike(scale):
    def advantages(coefficient, rewards):
        algorithm = GRPO(group_size=8, scale=scale, kl_coefficient=coefficient, kl_placement="reward")
        learner = algorithm.learner(TinyPolicy().double(), reference=TinyPolicy(seed=3).double())
        played = [dataclasses.replace(t, rewards=_at_the_end(t, rewards(n))) for n, t in enumerate(in_groups())]
        experience = algorithm.observe(learner, played)
        return algorithm.advantages(experience)[experience.batch.last_actions]

    small, large = (advantages(coefficient, lambda _: 1.0) for coefficient in (0.001, 0.01))
    assert 0 < small.abs().max() < 0.02
    torch.testing.assert_close(large, 10 * small, rtol=1e-3, atol=1e-4)
    mixed = advantages(0.01, lambda n: float(n < 8 and n % 2))  # the second group ended alike
    # Four of 8 episodes, and four of 16, have a return of 1: deviations of (8/7 · 1/4)^½ and (16/15 · 3/16)^½.
    assert mixed[:8].std() == pytest.approx({"group": 1, "batch": (10 / 7) ** 0.5}[scale], abs=0.05)
    assert mixed[8:].abs().max() < 0.2


def _at_the_end(played, reward):
    rewards = np.zeros_like(played.rewards)
    rewards[np.flatnonzero(played.action_mask)[-1]] = reward
    return rewards


@names
def test_first_importance_ratio_is_exactly_one(name):
    settings = dataclasses.replace(ONLINE[name], epochs=1, minibatches=1)
    metrics, _ = update(settings, in_groups(), TinyPolicy())
    assert metrics["ratio_error_first"] == 0
    assert metrics["ratio"] == pytest.approx(1, abs=1e-6)
    assert metrics["clip_fraction"] == 0


@names
def test_old_logprobs_need_no_extra_forward_pass_if_the_first_step_has_the_whole_batch(name):
    class Watched(TinyPolicy):
        looks = 0

        def trunk_hidden(self, *rows):
            self.looks += not torch.is_grad_enabled()
            return super().trunk_hidden(*rows)

    epochs = 1 if name == "reinforce" else 3
    settings = dataclasses.replace(ONLINE[name], epochs=epochs, minibatches=1)
    found = []
    for always in (False, True):
        kind = type("Asking", (type(settings),), {"needs_old_logprobs": always or settings.needs_old_logprobs})
        model = Watched()
        measured, _ = update(kind(**vars(settings)), in_groups(), model)
        found.append((measured, torch.cat([p.detach().flatten() for p in model.parameters()]), model.looks))
    (one, weights, looks), (other, other_weights, other_looks) = found
    assert one == other
    assert torch.equal(weights, other_weights)
    # Advantages need values first; a shared critic computes them with the policy's trunk. One look more is for the
    # representation, at a few contexts.
    assert (looks > 1, other_looks > 1) == (getattr(settings, "critic", None) == "shared", True)


@names
def test_result_is_independent_of_micro_batches_and_packing(name):
    outcomes = []
    for options in ({"microbatch_tokens": 10**6}, {"microbatch_tokens": 20}, {"microbatch_tokens": 200, "pack": True}):
        _, learner = update(dataclasses.replace(ONLINE[name], **options), in_groups())
        models = [learner.model] + ([learner.critic] if learner.critic else [])
        outcomes.append(torch.cat([p.detach().flatten() for model in models for p in model.parameters()]))
    torch.testing.assert_close(outcomes[0], outcomes[1], atol=1e-7, rtol=1e-6)
    torch.testing.assert_close(outcomes[0], outcomes[2], atol=1e-7, rtol=1e-6)


@names
def test_values_at_masked_positions_have_no_effect(name):
    settings = dataclasses.replace(ONLINE[name], correction="truncate")
    poisoned = [
        dataclasses.replace(t, rollout_logprobs=np.where(t.action_mask, t.rollout_logprobs, np.nan).astype(np.float32))
        for t in in_groups()
    ]
    (clean, a), (dirty, b) = update(settings, in_groups()), update(settings, poisoned)
    assert clean == dirty
    assert same(a.model.state_dict(), b.model.state_dict())


class DiedError(Exception):
    """A crash during gradient accumulation."""


@names
def test_resumed_run_equals_uninterrupted_run(name, tmp_path):
    settings = dataclasses.replace(
        ONLINE[name], episodes_per_update=8, kl_coefficient=0.05, microbatch_tokens=30, warmup_updates=2
    )

    def run(directory, updates, dies_at=None):
        player = Player(parallel=4)
        seen, forward = [0], player.model.trunk_hidden

        def counted(*arguments):
            seen[0] += torch.is_grad_enabled()
            if seen[0] == dies_at:
                raise DiedError
            return forward(*arguments)

        player.model.trunk_hidden = counted
        with Run(directory, console=False) as made:
            learner = trainer_of(player, settings, run=made, checkpoint_every=1).train(updates)
        return learner.state_dict()

    whole = run(tmp_path / "whole", 4)
    run(tmp_path / "parts", 2)
    with pytest.raises(DiedError):  # the third update crashes in its second micro-batch
        run(tmp_path / "parts", 4, dies_at=2)
    parts = run(tmp_path / "parts", 4)
    whole.pop("seconds"), parts.pop("seconds")
    assert same(whole, parts)
    assert (whole["critic"] is None) == (name != "ppo-separate")


def test_separate_critic_is_trained_without_changing_the_policy():
    settings = PPO(critic="separate", entropy_coefficient=0.0, epochs=4)
    played = [dataclasses.replace(t, rewards=np.zeros_like(t.rewards), terminated=True) for t in random_trajectories(8)]
    learner = stage_learner(TinyPolicy().double(), dataclasses.replace(settings, whiten_advantages=False))
    with torch.no_grad():  # an exact critic has no loss
        learner.critic.value.weight.zero_()
        learner.critic.value.bias.zero_()
    before = copy.deepcopy((learner.model.state_dict(), learner.critic.state_dict()))
    metrics = settings.update(learner, played)
    assert metrics["value_loss"] == 0
    assert same(before[1], learner.critic.state_dict())
    learner.critic.value.bias.data.fill_(1.0)
    metrics = dataclasses.replace(settings, whiten_advantages=False).update(learner, played)
    assert metrics["critic_grad_norm"] > 0
    assert learner.critic.value.bias.item() < 1.0
    assert torch.equal(learner.model.value.weight, before[0]["value.weight"])


def test_separate_critic_is_required_exactly_if_it_has_an_effect():
    for settings, critic in ((PPO(), TinyPolicy()), (PPO(critic="separate"), None)):
        with pytest.raises(ConfigurationError, match="exactly where critic is separate"):
            settings.learner(TinyPolicy(), seed=0, critic=critic)


class Stay(Player):
    """Three turns, then truncation: `a` earns 0.3 and continues, `b` earns 1 and terminates."""

    def __init__(self, seed=0):
        from tests.trainers.algorithms.games import Echo

        class Door(Echo):
            def step(self, action):
                return self._show(), {"a": 0.3, "b": 1.0}.get(action, 0.0), action == "b", False, {}

            def _show(self):
                return "c"

        super().__init__(Door, seed=seed)
        self.limits = dataclasses.replace(self.limits, max_turns=3)

    def stays_at_the_limit(self):
        last = [t.turns[2].action for t in self.play(10**6, episodes=300) if len(t.turns) == 3]
        return np.mean([action == "a" for action in last]) if last else 0.0


@pytest.mark.parametrize("bootstrap", [True, False])
def test_bootstrapping_at_truncation_determines_the_last_action(bootstrap):
    player = Stay()
    settings = dataclasses.replace(ECHO_PPO, gamma=0.95, entropy_coefficient=0.01, lam=0.9)

    def collect(update):
        played = player.play(update, episodes=48)
        if bootstrap:
            return played
        return [dataclasses.replace(t, terminated=True, truncated=False) for t in played]  # without bootstrapping

    learner = settings.learner(player.model, seed=0)
    for _ in range(40):
        settings.update(learner, collect(learner.updates))
        learner.updates += 1
    # Continuing forever is worth 0.3 / 0.05 = 6, terminating 1; without bootstrapping the next turn is worth 0.
    assert (player.stays_at_the_limit() > 0.7) == bootstrap


def test_groups_of_equal_returns_are_resampled_up_to_the_limit():
    idle, asked = [0.0] * 4, []
    teaching = [0.0, 1.0, 0.0, 0.0]

    def play(update, attempt):
        asked.append((update, attempt))
        returns = [[*idle, *teaching], [*idle, *idle], [*teaching, *teaching]][attempt]
        return [trajectory([1, 2], [False, True], [0, r], group=i // 4) for i, r in enumerate(returns)]

    settings = DAPO(episodes_per_update=8, group_size=4, resampling=2, epochs=1, minibatches=1)

    def updated(play, **changes):
        algorithm = dataclasses.replace(settings, **changes)
        learner = algorithm.learner(TinyPolicy(), seed=0)
        return Trainer(learner.model, algorithm=algorithm, play=play, learner=learner).step()

    metrics = updated(play)
    assert asked == [(0, 0), (0, 1), (0, 2)]
    assert (metrics["episodes_played"], metrics["episodes_invalid"]) == (24, 0)
    assert (metrics["groups"], metrics["groups_with_signal"], metrics["episodes"]) == (2, 2, 8)
    few = updated(play, resampling=1)
    assert (few["groups"], few["groups_with_signal"]) == (1, 1)
    none = updated(lambda *_: play(0, 1), resampling=1)
    assert (none["groups_with_signal"], none["advantage_std"]) == (0, 0)
    kept = updated(play, resampling=0)
    assert (kept["groups"], kept["groups_with_signal"], kept["episodes_played"]) == (2, 1, 8)


def test_overlong_penalty_matches_the_paper():
    # DAPO eq. 13 with L_max 16 and L_cache 4: nothing up to 12 tokens, (12 − |y|)/4 up to 16, −1 beyond.
    lengths = torch.tensor([1, 12, 13, 14, 16, 99])
    assert overlong_penalty(lengths, limit=16, buffer=4).tolist() == [0, 0, -0.25, -0.5, -1, -1]
    played = [trajectory([0] * (n + 1), [False] + [True] * n, group=0) for n in (3, 4)]
    settings = DAPO(
        group_size=2, episodes_per_update=2, scale="none", overlong_limit=4, overlong_buffer=2, overlong_penalty=0.5
    )
    seen = settings.observe(settings.learner(TinyPolicy(), seed=0), played)
    got = settings.advantages(seen)[seen.batch.last_actions]
    torch.testing.assert_close(got, torch.tensor([0.125, -0.125]))  # −0.25 and −0.5


def test_truncated_episodes_can_be_excluded_from_the_loss():
    played = [
        trajectory([1, 2, 3], [False, True, False], [0, r, 0], terminated=not cut, group=0)
        for r, cut in ((1.0, False), (0.0, False), (5.0, True), (0.0, False))
    ]
    settings = GRPO(group_size=4, episodes_per_update=4, learn_from_truncated=False, minibatches=1, epochs=1)
    seen = []

    class Watching(TinyPolicy):
        def trunk_hidden(self, input_ids, position_ids, segment_ids):
            seen.append((torch.is_grad_enabled(), input_ids.shape[0]))
            return super().trunk_hidden(input_ids, position_ids, segment_ids)

    learner = settings.learner(Watching(), seed=0)
    metrics = settings.update(learner, played)
    assert [rows for learning, rows in seen if learning] == [3]
    assert metrics["episodes"] == 4
    assert metrics["truncated_fraction"] == 0.25
    whole = settings.observe(learner, played)
    assert settings.advantages(whole)[1] < 0  # but its return counts in the group's mean


def test_statistics_are_means_for_every_loss_aggregation():
    played = in_groups()
    ratios = []
    for options in ({"aggregation": "token", "aggregation_length": None}, {"aggregation_length": 1}):
        settings = DrGRPO(epochs=1, minibatches=1, **{"aggregation": "constant"} | options)
        metrics, _ = update(settings, played)
        ratios.append((metrics["ratio"], metrics["entropy"]))
        assert metrics["kl/old"] == pytest.approx(0, abs=1e-9)
    assert ratios[0] == pytest.approx(ratios[1])


def test_batch_baseline_is_the_mean_return_of_the_other_episodes():
    played = [trajectory([1, 2, 3], [False, True, True], [0, 0, r]) for r in (1.0, 2.0, 6.0)]
    seen = REINFORCE().observe(REINFORCE().learner(TinyPolicy(), seed=0), played)
    got = REINFORCE().advantages(seen).reshape(3, 3)
    torch.testing.assert_close(got, torch.tensor([[0, -3.0, -3], [0, -1.5, -1.5], [0, 4.5, 4.5]]))
    got = REINFORCE(gamma=0.5).advantages(seen).reshape(3, 3)  # discounted, the returns are 0.5, 1 and 3
    torch.testing.assert_close(got, torch.tensor([[0, -1.5, -1], [0, -0.75, 0.25], [0, 2.25, 5.25]]))
    bare = REINFORCE(baseline="none", gamma=0.5)
    got = bare.advantages(seen).reshape(3, 3)
    torch.testing.assert_close(got, torch.tensor([[0, 0.5, 1], [0, 1, 2], [0, 3, 6]]))


def test_engine_correction_weights_scale_only_the_policy_loss():
    model = TinyPolicy().double()
    played = random_trajectories(6)
    plain = PPO(epochs=1, minibatches=1, max_grad_norm=1e9, value_coefficient=0.0)
    learner = plain.learner(model, seed=0)
    batch = plain.observe(learner, played).batch
    old = take_snapshot(model, batch, microbatch_tokens=plain.microbatch_tokens).logprobs

    def shifted(by):
        return [
            dataclasses.replace(
                t, rollout_logprobs=(old[batch.offsets[s] : batch.offsets[s + 1]].numpy() - by).astype(np.float32)
            )
            for s, t in enumerate(played)
        ]

    def gradient(settings, episodes):
        learner = settings.learner(copy.deepcopy(model), seed=0)
        learner.optimizer = torch.optim.SGD(learner.model.parameters(), lr=1.0)
        metrics = settings.update(learner, episodes)
        moved = [a - b for a, b in zip(model.parameters(), learner.model.parameters(), strict=True)]
        return torch.cat([m.detach().flatten() for m in moved]), metrics

    # Every importance weight is e^0.5, at most the cap.
    base, _ = gradient(plain, shifted(0.0))
    for kind, cap, factor in (("truncate", None, np.exp(0.5)), ("truncate", 1.2, 1.2), ("mask", 1.2, 0.0)):
        settings = dataclasses.replace(plain, correction=kind, correction_cap=cap)
        got, metrics = gradient(settings, shifted(0.5))
        torch.testing.assert_close(got, factor * base, rtol=1e-4, atol=1e-9)
        assert metrics["correction"] == pytest.approx(factor, rel=1e-4)
        assert metrics["logprob_gap"] == pytest.approx(0.5, rel=1e-4)


def test_cloning_selects_recorded_episodes_by_minimum_return():
    played = [trajectory([1, 2], [False, True], [0, r]) for r in (0.0, 1.0, 2.0)]
    batch = Batch.of(played)
    assert Cloning().examples(batch).tolist() == [0, 1, 2]
    assert Cloning(minimum_return=1.0).examples(batch).tolist() == [1, 2]
    with pytest.raises(ConfigurationError, match="none of 3 are valid with an action and a return of 9"):
        Cloning(minimum_return=9.0).total_updates(batch)


def test_group_of_invalid_episodes_is_an_error():
    lost = [trajectory([1, 2], [False, True], [0, 1], valid=False, group=0) for _ in range(4)]
    settings = DAPO(episodes_per_update=4, group_size=4, resampling=1)
    learner = settings.learner(TinyPolicy(), seed=0)
    with pytest.raises(TrainerError, match="none of 4 episodes can be trained on: the machine failed"):
        settings.update(learner, lost)
