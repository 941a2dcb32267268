"""Trees: every leaf equals an episode played alone, and branches share their tokens up to the fork."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

import gymnasium
import pytest
import torch
from gymnasium.wrappers import TimeLimit

from swe_trainers.algorithms.tree import MonteCarloTree
from swe_trainers.engines.embedded import EmbeddedEngine
from swe_trainers.errors import ConfigurationError, RolloutError
from swe_trainers.learning.advantages import tree_advantages
from swe_trainers.learning.batch import Batch
from swe_trainers.model.chat import CompactChat
from swe_trainers.rollout.adapters import AnyText
from swe_trainers.rollout.environments import EnvPool
from swe_trainers.rollout.history import HeadTail
from swe_trainers.rollout.play import iter_episodes
from swe_trainers.rollout.play import play as play_episodes
from swe_trainers.rollout.rate import Rate
from swe_trainers.rollout.settings import Branching, EpisodeSettings, EpisodeStart, Limits
from swe_trainers.rollout.trajectory import Trajectory, read_trajectories, write_trajectories
from tests.trainers.tiny import full_logprobs, tiny_model

MODEL = tiny_model("llama", seed=3)
CHAT = CompactChat(MODEL.tokenizer)


class Walk(gymnasium.Env[str, str]):
    """Shows the total length of the actions and a number drawn at reset; ends after 4 turns."""

    observation_space = AnyText()
    action_space = AnyText()
    resets = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.resets += 1
        self.turn, self.sum, self.drawn = 0, 0, int(self.np_random.integers(20))
        return self._show(), {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.turn += 1
        self.sum += len(action)
        return self._show(), float(self.sum), self.turn == 4, False, {}

    def _show(self) -> str:
        return f"w{self.drawn} w{self.sum % 20}"


class Keeping(Walk):
    """The same, able to go back; counts what it keeps."""

    kept = 0

    def snapshot(self) -> Kept:
        type(self).kept += 1
        return Kept(self, (self.turn, self.sum, self.drawn))

    def restore(self, snapshot: Kept) -> None:
        self.turn, self.sum, self.drawn = snapshot.state


class Kept:
    def __init__(self, env: Keeping, state: tuple[int, int, int]) -> None:
        self.env, self.state = env, state

    def discard(self) -> None:
        type(self.env).kept -= 1


class Forgetful(Walk):
    """Does not follow from its seed."""

    def _show(self) -> str:
        return f"w{self.resets}"


def play(
    envs: Sequence[Any], *, n: int = 3, branching: int = 2, max_depth: int = 2, every: int = 1, **options: Any
) -> list[Trajectory]:
    engine = EmbeddedEngine(MODEL, n_slots=len(envs), max_tokens=options.pop("max_tokens", 150))
    limits = options.pop("limits", Limits(max_new_tokens=5))
    starts = [EpisodeStart(seed, group=seed) for seed in options.pop("seeds", range(n))]
    forks = Branching(branching, max_depth, every)
    played = play_episodes(engine, CHAT, envs, starts, limits=limits, branching=forks, **options)
    assert [engine.open() for _ in envs] == list(range(len(envs)))
    return played


@pytest.mark.parametrize("kind", [Walk, Keeping])
def test_branches_share_their_prefix_up_to_the_fork(kind: type[Walk]) -> None:
    played = play([kind(), kind()], branching=2, max_depth=3, every=1)
    assert [t.group for t in played] == [0] * 8 + [1] * 8 + [2] * 8
    for episode in played:
        assert [fork.turn for fork in episode.forks] == [0, 1, 2]
        ids = episode.token_ids.tolist()
        truth = full_logprobs(MODEL, ids)
        mask = torch.from_numpy(episode.action_mask)
        torch.testing.assert_close(torch.from_numpy(episode.rollout_logprobs)[mask], truth[mask], rtol=1e-4, atol=1e-4)
        # The observations follow from the actions of this very episode.
        alone = Walk()
        observation, _ = alone.reset(seed=episode.seed)
        for turn in episode.turns:
            assert turn.observation == observation
            observation, reward, *_ = alone.step(turn.action)
            assert turn.reward == reward
    tree = played[:8]
    for one in tree:
        for other in tree:
            shared = [f for f, g in zip(one.forks, other.forks, strict=True) if f == g]
            assert shared  # the first fork at least
            turn = shared[-1].turn
            assert one.turns[:turn] == other.turns[:turn]
    assert len({t.token_ids.tobytes() for t in tree}) > 5  # branches sample actions of their own
    assert Keeping.kept == 0


def test_snapshots_restore_environment_and_wrappers_without_a_reset() -> None:
    env = Keeping()
    played = play([TimeLimit(env, 3)], n=1, branching=3, max_depth=2)
    assert env.resets == 1
    assert [len(t.turns) for t in played] == [3] * 9
    assert all(t.truncated for t in played)
    again = Walk()
    play([again], n=1, branching=3, max_depth=2)
    assert again.resets == 9


def test_tree_is_independent_of_timing_and_of_snapshots() -> None:
    runs = [play(envs, seed=4) for envs in ([Walk()], [Keeping(), Keeping(), Keeping()])]
    assert [t.token_ids.tolist() for t in runs[0]] == [t.token_ids.tolist() for t in runs[1]]


def test_history_is_shortened_in_trees() -> None:
    history = HeadTail(note="w30 w{n}")
    played = play([Walk()], n=2, max_tokens=26, history=history, every=2, limits=Limits(max_new_tokens=3))
    assert any(len(t.sample_starts) > 1 for t in played)
    for episode in played:
        ends = [*episode.sample_starts[1:], len(episode.token_ids)]
        for a, b in zip(episode.sample_starts, ends, strict=True):
            mask = torch.from_numpy(episode.action_mask[a:b])
            truth = full_logprobs(MODEL, episode.token_ids[a:b].tolist())
            got = torch.from_numpy(episode.rollout_logprobs[a:b])
            torch.testing.assert_close(got[mask], truth[mask], rtol=1e-4, atol=1e-4)


def test_time_limit_of_an_episode_does_not_count_the_time_of_other_branches() -> None:
    class Slow(Walk):
        def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
            time.sleep(0.15)
            return super().step(action)

    class Asleep(Keeping, Slow):
        pass

    # Four turns take 0.6 s, and the 22 of the whole tree 3.3 s.
    played = play([Asleep()], n=1, max_depth=3, limits=Limits(max_new_tokens=5, episode_timeout_s=2.5))
    assert [t.end_reason for t in played] == [""] * 8


def test_every_end_of_a_tree_counts_as_an_episode_in_the_rate() -> None:
    rate, settings = Rate(), EpisodeSettings(Limits(max_new_tokens=5), branching=Branching(2, 2))
    engine = EmbeddedEngine(MODEL, n_slots=1, max_tokens=150)
    starts = [EpisodeStart(seed, group=seed) for seed in range(3)]
    ended = list(iter_episodes(engine, CHAT, [Walk()], starts, settings, rate=rate))
    assert rate.episodes == sum(len(each.trajectories) for each in ended) == 12


def test_nondeterministic_environment_is_rejected() -> None:
    with pytest.raises(RolloutError, match="actions are repeated"):
        play([Forgetful()])
    with pytest.raises(RolloutError, match="without a seed"):
        play([Walk()], seeds=[None])


def test_failure_invalidates_one_branch_only() -> None:
    class Frail(Walk):
        steps = 0

        def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
            self.steps += 1
            if self.steps == 4:  # the last of the first end
                raise ConnectionError("gone")
            return super().step(action)

    played = play([Frail()], n=1)
    assert [t.valid for t in played] == [False, True, True, True]
    assert "gone" in played[0].failure_reason


@pytest.mark.parametrize("failure", [OSError("the server is gone"), SystemExit(3)])
def test_snapshot_that_cannot_be_discarded_costs_no_episode_and_is_noted(failure: BaseException) -> None:
    class Stubborn(Keeping):
        def snapshot(self) -> Kept:
            kept = super().snapshot()
            if self.turn == 1:
                kept.discard = refuse  # type: ignore[method-assign]
            return kept

    def refuse() -> None:
        raise failure

    pool = EnvPool([Stubborn(), Stubborn()])
    played = play(pool)
    assert [t.valid for t in played] == [True] * 12
    assert [t.token_ids.tolist() for t in played] == [t.token_ids.tolist() for t in play([Keeping()])]
    assert Stubborn.kept == 6  # two of each tree; the others were discarded
    (noted,) = pool.failures
    assert noted.reason == f"a snapshot was not discarded: {type(failure).__name__}: {failure}"


def test_discarding_a_snapshot_delays_no_other_environment() -> None:
    hung, returned = threading.Event(), threading.Event()

    class Slow(Keeping):
        def snapshot(self) -> Kept:
            kept = super().snapshot()
            kept.discard = hang  # type: ignore[method-assign]
            return kept

    def hang() -> None:
        hung.set()
        assert returned.wait(20), "the other environment's episodes waited for this call"

    class Other(Walk):
        def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
            if hung.is_set():
                returned.set()
            return super().step(action)

    pool = EnvPool([Slow(), Other()])
    played = play(pool, n=12)
    assert all(t.valid for t in played) and not pool.failures


def test_tree_advantages_match_hand_computed_values() -> None:
    # One tree, two ways at each of two forks. Tokens: o a o a; rewards on the actions:
    #   first way  (reward 1): then 2 or 4      worth 1 + (2 + 4) / 2 = 4
    #   second way (reward 0): then 6 or, not valid, left out: worth 6
    rewards = torch.tensor([0, 1, 0, 2, 0, 1, 0, 4, 0, 0, 0, 6]).float()
    mask = torch.tensor([False, True] * 6)
    offsets, group = torch.tensor([0, 4, 8, 12]), torch.tensor([5, 5, 5])
    forks = torch.tensor([[0, 1, 0], [0, 3, 1], [1, 5, 0], [1, 7, 1], [2, 9, 0], [2, 11, 2]])
    advantages = tree_advantages(rewards, mask, offsets, group, forks)
    #                                        4−6   2−4      4−6   4−2      6−4   alone
    assert advantages.tolist() == [0, -2, 0, -2, 0, -2, 0, 2, 0, 2, 0, 0]
    apart = tree_advantages(rewards, mask, offsets, torch.tensor([0, 1, 2]), forks)
    assert not apart.any()


def test_tree_advantages_of_one_fork_are_leave_one_out() -> None:
    played = play([Walk()], n=2, branching=3, max_depth=1)
    batch = Batch.of(played)
    advantages = tree_advantages(batch.rewards, batch.action_mask, batch.offsets, batch.group, batch.forks)
    returns = torch.tensor([float(t.rewards.sum()) for t in played]).view(2, 3)
    expected = (returns - (returns.sum(1, keepdim=True) - returns) / 2).flatten()  # less the mean of the others
    torch.testing.assert_close(advantages, batch.spread(expected))


def test_trees_round_trip_through_files(tmp_path: Any) -> None:
    played = play([Walk()], n=1)
    write_trajectories(tmp_path / "trees.jsonl", played)
    (first, *_), again = played, read_trajectories(tmp_path / "trees.jsonl")
    assert [t.forks for t in again] == [t.forks for t in played]
    assert again[0].sample_starts == first.sample_starts


def test_invalid_tree_settings_are_rejected() -> None:
    with pytest.raises(ConfigurationError, match="multiple of the ends of a tree"):
        MonteCarloTree(branching=3, max_depth=2, episodes_per_update=64)
    with pytest.raises(ConfigurationError, match="branching: got 1"):
        MonteCarloTree(branching=1)
