"""Reward models, and policies that train on their scores."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from swe_trainers.algorithms.reward_model import (
    RewardModel,
    load_judge,
    preference_pairs,
    reward_model_accuracy,
    reward_model_judge,
)
from swe_trainers.errors import ConfigurationError, RolloutError
from swe_trainers.learning.batch import Batch
from swe_trainers.learning.forward import take_scores
from swe_trainers.learning.learner import adamw
from swe_trainers.learning.rewards import judged
from swe_trainers.learning.update import accumulate_scores
from swe_trainers.model.language_model import LanguageModel
from swe_trainers.model.tokenizers import WordTokenizer
from swe_trainers.rollout.trajectory import Turn
from tests.trainers.algorithms.games import ECHO_PPO, Echo, Player
from tests.trainers.learning.tiny import TinyPolicy, random_trajectories, trajectory
from tests.trainers.tiny import TINY


def gradients(model):
    return torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in model.parameters()])


def score_one(model, trajectory, place):
    """The value of the state after one token, of one trajectory alone."""
    ids = torch.from_numpy(trajectory.token_ids)[None]
    hidden = model.trunk_hidden(ids, torch.arange(ids.shape[1])[None], torch.ones_like(ids))
    return model.values(hidden)[0, place]


@pytest.mark.parametrize(("budget", "pack"), [(1, False), (40, False), (10**6, True)])
def test_gradient_of_a_score_loss_equals_autograd_for_any_micro_batches(budget, pack):
    trajectories = random_trajectories(7)
    batch, chosen = Batch.of(trajectories), torch.tensor([5, 0, 3, 6])
    truth = TinyPolicy().double()
    ends = [[i for i in range(len(t.action_mask)) if batch.turn_ends[batch.offsets[s] + i]] for s, t in
            enumerate(trajectories)]  # fmt: skip
    alone = [score_one(truth, trajectories[s], end) for s in chosen.tolist() for end in ends[s]]
    everything = torch.stack(alone)
    (everything.square().sum() * everything.cos().sum()).backward()  # the gradient of each score depends on all others

    model = TinyPolicy().double()
    marked = batch.turn_ends
    here = marked & torch.isin(batch.sequence_of_token, chosen)

    def loss(scores):
        assert not scores[~here].any()
        return scores[here].square().sum() * scores[here].cos().sum()

    options = {"microbatch_tokens": budget, "pack": pack}
    got = accumulate_scores(model, adamw(model, learning_rate=1.0), batch, chosen, marked, loss, **options)
    assert got == pytest.approx((everything.square().sum() * everything.cos().sum()).item(), rel=1e-4)
    torch.testing.assert_close(gradients(model), gradients(truth), rtol=1e-4, atol=1e-5)
    seen = take_scores(model, batch, marked, **options)
    for s, t in enumerate(trajectories):
        for end in ends[s]:
            torch.testing.assert_close(
                seen[batch.offsets[s] + end].double(), score_one(model, t, end), rtol=1e-5, atol=1e-6
            )


def test_turns_and_last_actions_follow_from_the_mask():
    batch = Batch.of(
        [
            trajectory([1] * 6, [False, True, True, False, True, False]),
            trajectory([1] * 3, [False, True, True]),
        ]
    )
    assert batch.turn_ends.nonzero().flatten().tolist() == [2, 4, 8]
    assert batch.last_actions.tolist() == [4, 8]


def test_preference_pairs_are_all_unequal_pairs_of_one_group():
    returns, groups = [1.0, 0.0, 0.0, 2.0, 5.0], [0, 0, 0, 1, 1]
    batch = Batch.of([trajectory([1, 2], [False, True], [0, r], group=g) for r, g in zip(returns, groups, strict=True)])
    assert sorted(preference_pairs(batch).tolist()) == [[0, 1], [0, 2], [4, 3]]
    equal = Batch.of([trajectory([1, 2], [False, True], [0, 1.0])] * 3)
    with pytest.raises(ConfigurationError, match="there is nothing to prefer"):
        RewardModel().total_updates(equal)


class Favourite(Echo):
    """A reward of 1 for each of the three turns with the action `a`."""

    def step(self, action):
        observation, _, terminated, truncated, info = super().step(action)
        return observation, float(action == "a"), terminated, truncated, info


def played_echo(player, numbers):
    """Episodes in groups of 8 from the same start."""
    found = []
    for number in numbers:
        found += [
            dataclasses.replace(t, group=t.group + 100 * number) for t in player.play(number, episodes=64, group_size=8)
        ]
    return found


def fit(settings, trajectories, seed=5):
    model = Player(seed=seed).model
    batch = Batch.of(trajectories)
    learner = settings.learner(model, seed=0)
    for _ in range(settings.total_updates(batch)):
        metrics = settings.update(learner, batch)
        learner.updates += 1
    return model, metrics


def test_reward_model_learns_preferences_and_a_policy_learns_from_it_alone():
    player = Player(Favourite, seed=1)
    known, unknown = played_echo(player, range(6)), played_echo(player, range(6, 8))
    settings = RewardModel(learning_rate=1e-2, epochs=2, minibatch_episodes=64)
    model, metrics = fit(settings, known)
    assert reward_model_accuracy(model, Batch.of(unknown)) > 0.9
    assert metrics["loss"] < 0.4  # log 2 at random scores

    judge = reward_model_judge(model, per_turn=False)
    ppo = dataclasses.replace(ECHO_PPO, whiten_advantages=True)
    learner = ppo.learner(player.model, seed=0)
    before = player.mean_return()
    for _ in range(16):
        ppo.update(learner, judged(player.play(learner.updates), judge))
        learner.updates += 1
    assert before < 1
    assert player.mean_return() > 2.5


@pytest.mark.parametrize("kind", ["regression", "process"])
def test_reward_model_predicts_returns_after_the_episode_and_after_each_turn(kind):
    player = Player(Favourite, seed=1)
    known, unknown = played_echo(player, range(6)), played_echo(player, range(6, 7))
    model, _ = fit(RewardModel(kind=kind, learning_rate=1e-2, epochs=25, minibatch_episodes=64), known)
    returns = np.array([t.rewards.sum() for t in unknown])
    scores = np.array([sum(turns) for turns in reward_model_judge(model, per_turn=kind == "process")(unknown)])
    assert np.corrcoef(returns, scores)[0, 1] > 0.8
    assert ((scores - returns) ** 2).mean() < 0.5 * returns.var()


def test_turn_rewards_add_up_to_the_score_of_the_episode():
    played = played_echo(Player(), [0])[:5]
    model = Player(seed=5).model
    with torch.no_grad():
        model.value_head.weight.normal_(generator=torch.Generator().manual_seed(0))
    whole, turns = (reward_model_judge(model, per_turn=each)(played) for each in (False, True))
    for one, many in zip(whole, turns, strict=True):
        assert one[:-1] == [0.0, 0.0]
        assert sum(many) == pytest.approx(one[-1], abs=1e-5)
        assert np.std(many) > 0


def three_turns():
    made = trajectory([1] * 7, [False, True, False, True, True, False, True], [0, 1, 0, 0, 0, 0, 5])
    turns = tuple(Turn("o", "a", 0.0, start, end) for start, end in ((1, 2), (3, 5), (6, 7)))
    return dataclasses.replace(made, turns=turns)


def test_judge_scores_are_on_the_last_tokens_of_their_turns():
    lost = dataclasses.replace(three_turns(), valid=False)
    asked = []

    def judge(trajectories):
        asked.append(len(trajectories))
        return [[0.5, -1.0, 2.0]] * len(trajectories)

    (one, other) = judged([three_turns(), lost], judge, weight=2.0)
    assert one.rewards.tolist() == [0, 1.0, 0, 0, -2.0, 0, 4.0]
    assert other is lost
    assert asked == [1]
    (both,) = judged([three_turns()], judge, keep_environment=True)
    assert both.rewards.tolist() == [0, 1.5, 0, 0, -1.0, 0, 7.0]
    assert three_turns().rewards.tolist() == [0, 1, 0, 0, 0, 0, 5]


@pytest.mark.parametrize(
    ("answer", "message"),
    [([[1.0]], "for an episode of 3 turns"), ([[1, np.nan, 2]], "a finite number for each"), ([], "answered 0 of 1")],
)
def test_judge_that_breaks_its_contract_is_rejected(answer, message):
    with pytest.raises(RolloutError, match=message):
        judged([three_turns()], lambda trajectories: answer)


def test_a_model_that_scores_nothing_or_reads_other_words_is_no_judge(tmp_path):
    policy = LanguageModel.from_config(TINY, WordTokenizer(["left", "right"]))
    for words, trained, message in (
        (["left", "right"], False, "its value head is 0: it has not been trained"),
        (["left", "up"], True, "a reward model with another vocabulary than the policy's"),
        (["left"], True, "a reward model of 5 tokens cannot read a policy's of 6"),
        (["left", "right"], True, None),
    ):
        model = LanguageModel.from_config(TINY, WordTokenizer(words))
        if trained:
            model.value_head.weight.data[0, 0] = 1.0
        model.save_pretrained(tmp_path / "judge")
        if message is None:
            assert callable(load_judge(tmp_path / "judge", policy, per_turn=False))
            continue
        with pytest.raises(ConfigurationError, match=message):
            load_judge(tmp_path / "judge", policy, per_turn=False)
