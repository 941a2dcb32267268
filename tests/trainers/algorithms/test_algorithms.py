"""What holds for every algorithm that learns from rewards, and what each of them promises beside."""

from __future__ import annotations

import copy
import dataclasses
import functools

import numpy as np
import pytest
import torch

from swe_trainers.algorithms import reinforcement as reinforcement_module
from swe_trainers.algorithms.cloning import Cloning, cloning_batch
from swe_trainers.algorithms.grpo import DAPO, GRPO, GSPO, RLOO, DrGRPO, GroupRelative, grpo_step, grpo_targets
from swe_trainers.algorithms.ppo import PPO, ppo_learner, ppo_step, ppo_update
from swe_trainers.algorithms.reinforce import REINFORCE, REINFORCEPlusPlus, reinforce_targets
from swe_trainers.algorithms.reinforcement import experience_of, reinforcement_learner
from swe_trainers.algorithms.stages import make_stage
from swe_trainers.algorithms.training import train
from swe_trainers.errors import ConfigurationError, TrainerError
from swe_trainers.learning.forward import take_snapshot
from swe_trainers.learning.rewards import overlong_penalty
from swe_trainers.logging import Run
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


def stage_of(player, settings, seed=0):
    play = functools.partial(player.play, episodes=settings.episodes_per_update, group_size=settings.episodes_per_start)
    return make_stage(settings, player.model, seed=seed, play=play)


def learn(player, settings, updates):
    stage = stage_of(player, settings)
    for _ in range(updates):
        metrics = stage.step(stage.learner)
        stage.learner.updates += 1
    return metrics


@names
def test_it_learns_to_say_back_what_it_reads(name):
    player = Player(seed=1)
    # One number an episode takes longer than one a token, and one step an update longer than four.
    learn(player, ONLINE[name], {"ppo": 24, "ppo-separate": 24, "reinforce": 60}.get(name, 36))
    assert player.mean_return() > 2.0  # blind play gets 3/4, the random start less than 1/4


@pytest.mark.parametrize("name", ["grpo", "rloo", "reinforce"])
def test_with_the_sign_of_the_advantages_flipped_it_does_not(name, monkeypatch):
    right = reinforcement_module._objective
    monkeypatch.setattr(
        reinforcement_module, "_objective", lambda seen, advantages, *rest: right(seen, -advantages, *rest)
    )
    player = Player(seed=1)
    learn(player, ONLINE[name], 16)
    assert player.mean_return() < 0.75


def update(settings, trajectories, model=None):
    model = model or TinyPolicy().double()
    learner = stage_learner(model, settings)
    play = {"grpo": lambda update, attempt=0: trajectories}
    if isinstance(settings, PPO):
        return ppo_update(learner, trajectories, settings), learner
    if isinstance(settings, GroupRelative):
        return grpo_step(learner, play["grpo"], settings), learner
    from swe_trainers.algorithms.reinforce import reinforce_update

    return reinforce_update(learner, trajectories, settings), learner


def stage_learner(model, settings):
    if isinstance(settings, PPO):
        critic = TinyPolicy(seed=9).double() if settings.critic == "separate" else None
        return ppo_learner(model, settings, seed=0, critic=critic)
    return reinforcement_learner(model, settings, seed=0)


def in_groups(count=16, size=8):
    return [dataclasses.replace(t, group=i // size) for i, t in enumerate(random_trajectories(count))]


@names
def test_the_first_ratio_is_exactly_one(name):
    settings = dataclasses.replace(ONLINE[name], epochs=1, minibatches=1)
    metrics, _ = update(settings, in_groups(), TinyPolicy())
    assert metrics["ratio_error_first"] == 0
    assert metrics["ratio"] == pytest.approx(1, abs=1e-6)
    assert metrics["clip_fraction"] == 0


@names
def test_where_the_first_step_is_on_the_whole_batch_the_policy_is_not_asked_twice(name):
    class Watched(TinyPolicy):
        looks = 0

        def trunk_hidden(self, *rows):
            self.looks += not torch.is_grad_enabled()
            return super().trunk_hidden(*rows)

    epochs = 1 if name == "reinforce" else 3
    settings = dataclasses.replace(ONLINE[name], epochs=epochs, minibatches=1)
    found = []
    for always in (False, True):
        kind = type("Asking", (type(settings),), {"looks_before": always or settings.looks_before})
        model = Watched()
        measured, _ = update(kind(**vars(settings)), in_groups(), model)
        measured = {key: value for key, value in measured.items() if not key.startswith("seconds")}
        found.append((measured, torch.cat([p.detach().flatten() for p in model.parameters()]), model.looks))
    (one, weights, looks), (other, other_weights, other_looks) = found
    assert one == other
    assert torch.equal(weights, other_weights)
    # What values states must say so before advantages can be known: the policy's own trunk, or another.
    assert (looks > 0, other_looks > 0) == (getattr(settings, "critic", None) == "shared", True)


@names
def test_the_result_does_not_depend_on_how_a_batch_is_cut(name):
    outcomes = []
    for options in ({"microbatch_tokens": 10**6}, {"microbatch_tokens": 20}, {"microbatch_tokens": 200, "pack": True}):
        _, learner = update(dataclasses.replace(ONLINE[name], **options), in_groups())
        models = [learner.model] + ([learner.critic] if learner.critic else [])
        outcomes.append(torch.cat([p.detach().flatten() for model in models for p in model.parameters()]))
    torch.testing.assert_close(outcomes[0], outcomes[1], atol=1e-7, rtol=1e-6)
    torch.testing.assert_close(outcomes[0], outcomes[2], atol=1e-7, rtol=1e-6)


@names
def test_what_stands_in_masked_places_changes_nothing(name):
    settings = dataclasses.replace(ONLINE[name], correction="truncate")
    poisoned = [
        dataclasses.replace(t, rollout_logprobs=np.where(t.action_mask, t.rollout_logprobs, np.nan).astype(np.float32))
        for t in in_groups()
    ]
    (clean, a), (dirty, b) = update(settings, in_groups()), update(settings, poisoned)
    clocks = {"seconds/collect", "seconds/learn"}
    assert {k: v for k, v in clean.items() if k not in clocks} == {k: v for k, v in dirty.items() if k not in clocks}
    assert same(a.model.state_dict(), b.model.state_dict())


class DiedError(Exception):
    """In the middle of an accumulation."""


@names
def test_stopped_anywhere_and_taken_up_again_it_is_the_run_that_was_never_stopped(name, tmp_path):
    settings = dataclasses.replace(
        ONLINE[name], episodes_per_update=8, kl_coefficient=0.05, microbatch_tokens=30, warmup_updates=2
    )

    def run(directory, updates, dies_at=None):
        player = Player(parallel=4)
        stage = stage_of(player, settings)
        seen, forward = [0], player.model.trunk_hidden

        def counted(*arguments):
            seen[0] += torch.is_grad_enabled()
            if seen[0] == dies_at:
                raise DiedError
            return forward(*arguments)

        player.model.trunk_hidden = counted
        with Run(directory, console=False) as made:
            train(stage.learner, stage.step, run=made, max_updates=updates)
        return stage.learner.state_dict()

    whole = run(tmp_path / "whole", 4)
    run(tmp_path / "parts", 2)
    with pytest.raises(DiedError):  # the third update is lost in its second micro-batch
        run(tmp_path / "parts", 4, dies_at=2)
    parts = run(tmp_path / "parts", 4)
    whole.pop("seconds"), parts.pop("seconds")
    assert same(whole, parts)
    assert (whole["critic"] is None) == (name != "ppo-separate")


def test_a_critic_of_its_own_learns_and_leaves_the_policy_alone():
    settings = PPO(critic="separate", entropy_coefficient=0.0, epochs=4)
    played = [dataclasses.replace(t, rewards=np.zeros_like(t.rewards), terminated=True) for t in random_trajectories(8)]
    learner = stage_learner(TinyPolicy().double(), dataclasses.replace(settings, whiten_advantages=False))
    with torch.no_grad():  # a critic that is right everywhere has nothing to learn
        learner.critic.value.weight.zero_()
        learner.critic.value.bias.zero_()
    before = copy.deepcopy((learner.model.state_dict(), learner.critic.state_dict()))
    metrics = ppo_update(learner, played, settings)
    assert metrics["value_loss"] == 0
    assert same(before[1], learner.critic.state_dict())
    learner.critic.value.bias.data.fill_(1.0)
    metrics = ppo_update(learner, played, dataclasses.replace(settings, whiten_advantages=False))
    assert metrics["critic_grad_norm"] > 0
    assert learner.critic.value.bias.item() < 1.0
    assert torch.equal(learner.model.value.weight, before[0]["value.weight"])


def test_a_critic_of_its_own_is_asked_for_exactly_where_it_has_an_effect():
    for settings, critic in ((PPO(), TinyPolicy()), (PPO(critic="separate"), None)):
        with pytest.raises(ConfigurationError, match="exactly where critic is separate"):
            ppo_learner(TinyPolicy(), settings, seed=0, critic=critic)


class Stay(Player):
    """Three turns before a limit: `a` earns 0.3 and goes on, `b` earns 1 and is the end."""

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
def test_only_who_values_what_follows_a_limit_goes_on_at_it(bootstrap):
    player = Stay()
    settings = dataclasses.replace(ECHO_PPO, gamma=0.95, entropy_coefficient=0.01, lam=0.9)

    def collect(update):
        played = player.play(update, episodes=48)
        if bootstrap:
            return played
        return [dataclasses.replace(t, terminated=True, truncated=False) for t in played]  # the mutant

    learner = ppo_learner(player.model, settings, seed=0)
    for _ in range(40):
        ppo_step(learner, collect, settings)
        learner.updates += 1
    # To go on for ever is worth 0.3 / 0.05 = 6, the end 1; but at the limit the next turn is worth 0 to the mutant.
    assert (player.stays_at_the_limit() > 0.7) == bootstrap


def test_groups_that_teach_nothing_are_replaced_and_only_so_often():
    idle, asked = [0.0] * 4, []
    teaching = [0.0, 1.0, 0.0, 0.0]

    def collect(update, attempt):
        asked.append((update, attempt))
        returns = [[*idle, *teaching], [*idle, *idle], [*teaching, *teaching]][attempt]
        return [trajectory([1, 2], [False, True], [0, r], group=i // 4) for i, r in enumerate(returns)]

    settings = DAPO(episodes_per_update=8, group_size=4, resampling=2, epochs=1, minibatches=1)
    learner = reinforcement_learner(TinyPolicy(), settings, seed=0)
    metrics = grpo_step(learner, collect, settings)
    assert asked == [(0, 0), (0, 1), (0, 2)]
    assert (metrics["episodes_sampled"], metrics["episodes_lost"]) == (24, 0)
    assert (metrics["groups"], metrics["groups_with_signal"], metrics["episodes"]) == (2, 2, 8)
    few = grpo_step(learner, collect, dataclasses.replace(settings, resampling=1))
    assert (few["groups"], few["groups_with_signal"]) == (1, 1)
    none = grpo_step(learner, lambda *_: collect(0, 1), dataclasses.replace(settings, resampling=1))
    assert (none["groups_with_signal"], none["advantage_std"]) == (0, 0)
    kept = grpo_step(learner, collect, dataclasses.replace(settings, resampling=0))
    assert (kept["groups"], kept["groups_with_signal"], kept["episodes_sampled"]) == (2, 1, 8)


def test_length_is_priced_as_in_the_paper():
    # DAPO eq. 13 with L_max 16 and L_cache 4: nothing up to 12 tokens, (12 − |y|)/4 up to 16, −1 beyond.
    lengths = torch.tensor([1, 12, 13, 14, 16, 99])
    assert overlong_penalty(lengths, limit=16, buffer=4).tolist() == [0, 0, -0.25, -0.5, -1, -1]
    played = [trajectory([0] * (n + 1), [False] + [True] * n, group=0) for n in (3, 4)]
    settings = DAPO(
        group_size=2, episodes_per_update=2, scale="none", overlong_limit=4, overlong_buffer=2, overlong_penalty=0.5
    )
    seen = experience_of(reinforcement_learner(TinyPolicy(), settings, seed=0), played, settings)
    torch.testing.assert_close(grpo_targets(seen, settings), torch.tensor([0.125, -0.125]))  # −0.25 and −0.5


def test_episodes_that_a_limit_cut_off_may_be_left_out_of_the_loss():
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

    learner = reinforcement_learner(Watching(), settings, seed=0)
    metrics = grpo_step(learner, lambda *_: played, settings)
    assert [rows for learning, rows in seen if learning] == [3]
    assert metrics["episodes"] == 4
    assert metrics["truncated_share"] == 0.25
    whole = experience_of(learner, played, settings)
    assert grpo_targets(whole, settings)[0] < 0  # but its return is part of what the others are compared with


def test_statistics_are_means_whatever_the_loss_divides_by():
    played = in_groups()
    ratios = []
    for options in ({"aggregation": "token", "aggregation_length": None}, {"aggregation_length": 1}):
        settings = DrGRPO(epochs=1, minibatches=1, **{"aggregation": "constant"} | options)
        metrics, _ = update(settings, played)
        ratios.append((metrics["ratio"], metrics["entropy"]))
        assert metrics["kl_old"] == pytest.approx(0, abs=1e-9)
    assert ratios[0] == pytest.approx(ratios[1])


def test_a_baseline_of_the_batch_is_what_the_other_episodes_earned():
    played = [trajectory([1, 2, 3], [False, True, True], [0, 0, r]) for r in (1.0, 2.0, 6.0)]
    seen = experience_of(reinforcement_learner(TinyPolicy(), REINFORCE(), seed=0), played, REINFORCE())
    got = reinforce_targets(seen, REINFORCE()).reshape(3, 3)
    torch.testing.assert_close(got, torch.tensor([[0, -3.0, -3], [0, -1.5, -1.5], [0, 4.5, 4.5]]))
    bare = REINFORCE(baseline="none", gamma=0.5)
    got = reinforce_targets(seen, bare).reshape(3, 3)
    torch.testing.assert_close(got, torch.tensor([[0, 0.5, 1], [0, 1, 2], [0, 3, 6]]))


def test_weights_for_what_the_engine_computes_otherwise_scale_the_policys_loss_alone():
    model = TinyPolicy().double()
    played = random_trajectories(6)
    plain = PPO(epochs=1, minibatches=1, max_grad_norm=1e9, value_coefficient=0.0)
    learner = ppo_learner(model, plain, seed=0)
    batch = experience_of(learner, played, plain).batch
    old = take_snapshot(model, batch, microbatch_tokens=plain.microbatch_tokens).logprobs

    def shifted(by):
        return [
            dataclasses.replace(
                t, rollout_logprobs=(old[batch.offsets[s] : batch.offsets[s + 1]].numpy() - by).astype(np.float32)
            )
            for s, t in enumerate(played)
        ]

    def gradient(settings, episodes):
        learner = ppo_learner(copy.deepcopy(model), settings, seed=0)
        learner.optimizer = torch.optim.SGD(learner.model.parameters(), lr=1.0)
        metrics = ppo_update(learner, episodes, settings)
        moved = [a - b for a, b in zip(model.parameters(), learner.model.parameters(), strict=True)]
        return torch.cat([m.detach().flatten() for m in moved]), metrics

    # lr of the settings scales the steps; every weight is e^0.5, at most the cap.
    base, _ = gradient(plain, shifted(0.0))
    for kind, cap, factor in (("truncate", None, np.exp(0.5)), ("truncate", 1.2, 1.2), ("mask", 1.2, 0.0)):
        settings = dataclasses.replace(plain, correction=kind, correction_cap=cap)
        got, metrics = gradient(settings, shifted(0.5))
        torch.testing.assert_close(got, factor * base, rtol=1e-4, atol=1e-9)
        assert metrics["correction"] == pytest.approx(factor, rel=1e-4)
        assert metrics["engine_logprob_gap"] == pytest.approx(0.5, rel=1e-4)


def test_cloning_takes_the_best_of_what_was_recorded():
    played = [trajectory([1, 2], [False, True], [0, r]) for r in (0.0, 1.0, 2.0)]
    assert cloning_batch(played, Cloning()).n_sequences == 3
    assert cloning_batch(played, Cloning(minimum_return=1.0)).rewards.sum() == 3
    with pytest.raises(ConfigurationError, match="none of 3 are valid ones with an action that earned 9"):
        cloning_batch(played, Cloning(minimum_return=9.0))


def test_a_group_of_lost_episodes_is_no_group():
    lost = [trajectory([1, 2], [False, True], [0, 1], valid=False, group=0) for _ in range(4)]
    settings = DAPO(episodes_per_update=4, group_size=4, resampling=1)
    learner = reinforcement_learner(TinyPolicy(), settings, seed=0)
    with pytest.raises(TrainerError, match="none of 4 episodes can be learnt from: the machine failed"):
        grpo_step(learner, lambda *_: lost, settings)
