"""Episodes played in the background, and weights that change during them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch

from swe_trainers.engines.embedded import EmbeddedEngine
from swe_trainers.engines.protocol import Engine
from swe_trainers.engines.sampling import Sampling
from swe_trainers.engines.weights import WeightSync
from swe_trainers.errors import ConfigurationError, RolloutError
from swe_trainers.model.chat import CompactChat
from swe_trainers.model.language_model import LanguageModel
from swe_trainers.rollout.background import BackgroundPlayer
from swe_trainers.rollout.environments import EnvPool
from swe_trainers.rollout.history import HeadTail
from swe_trainers.rollout.play import Player, play
from swe_trainers.rollout.settings import Branching, EpisodeSettings, EpisodeStart, Limits
from swe_trainers.rollout.trajectory import Trajectory
from tests.trainers.engines.served import engine_of, served
from tests.trainers.rollout.test_play import Counting, jitter
from tests.trainers.tiny import full_logprobs, tiny_model

FORMER, NEW = tiny_model("llama", seed=3), tiny_model("llama", seed=4)
CHAT = CompactChat(FORMER.tokenizer)
LIMITS = Limits(max_new_tokens=6, max_tokens=90)


def starts(n: int, first: int = 0) -> list[tuple[tuple[int, ...], EpisodeStart]]:
    return [((i,), EpisodeStart(seed=i % 36, stream=(0, i))) for i in range(first, first + n)]


@contextmanager
def playing(
    engine: Engine, n_envs: int = 3, *, before: Callable[[Counting], None] = jitter, renews_actions: bool = True,
    branching: Branching | None = None, history: HeadTail | None = None, limits: Limits = LIMITS,
) -> Iterator[BackgroundPlayer]:  # fmt: skip
    envs = [Counting(before) for _ in range(n_envs)]
    settings = EpisodeSettings(limits, history=history, branching=branching)
    player = BackgroundPlayer(Player(engine, CHAT, envs, settings), renews_actions=renews_actions)
    try:
        yield player
    finally:
        player.close()


def gather(player: BackgroundPlayer, n: int) -> list[Trajectory]:
    found: dict[tuple[int, ...], list[Trajectory]] = {}
    while len(found) < n:
        for key, trajectories in player.ended(60):
            assert key not in found
            found[key] = trajectories
    return [trajectory for key in sorted(found) for trajectory in found[key]]


def embedded(n_slots: int = 3) -> tuple[EmbeddedEngine, LanguageModel]:
    model = FORMER.copy()
    engine = EmbeddedEngine(model, n_slots=n_slots, max_tokens=90)
    engine.renew(0)
    return engine, model


def assert_each_token_has_the_logprob_of_the_weights_that_drew_it(trajectory: Trajectory) -> set[int]:
    """The versions that drew it."""
    versions = np.array(trajectory.weight_versions)
    assert ((versions >= 0) == trajectory.action_mask).all()
    truth = np.zeros(len(versions), dtype=np.float32)
    ends = [*trajectory.sample_starts[1:], len(versions)]
    for start, end in zip(trajectory.sample_starts, ends, strict=True):
        for version, model in enumerate((FORMER, NEW)):
            logprobs = full_logprobs(model, trajectory.token_ids[start:end].tolist()).numpy()
            truth[start:end] = np.where(versions[start:end] == version, logprobs, truth[start:end])
    np.testing.assert_allclose(trajectory.rollout_logprobs, truth, rtol=1e-4, atol=1e-4)
    return set(versions[trajectory.action_mask].tolist())


def test_background_and_foreground_play_give_equal_trajectories() -> None:
    engine, _ = embedded()
    with playing(engine) as player:
        player.begin(starts(5))
        player.begin(starts(7, first=5))
        behind = gather(player, 12)
    before = play(EmbeddedEngine(FORMER, n_slots=1, max_tokens=90), CHAT, [Counting()],
                     [start for _, start in starts(12)], limits=LIMITS)  # fmt: skip
    assert [t.token_ids.tolist() for t in behind] == [t.token_ids.tolist() for t in before]
    assert all(set(t.weight_versions) <= {-1, 0} and t.weight_versions for t in behind)


@pytest.mark.parametrize(
    "options", [{}, {"history": HeadTail(note="w30"), "limits": Limits(max_new_tokens=6, max_tokens=24)},
                {"branching": Branching(2, max_depth=2)}], ids=["plain", "shortened", "trees"],
)  # fmt: skip
def test_suspended_actions_continue_with_the_new_weights(options) -> None:
    engine, model = embedded()
    mixed, cut = 0, 0
    with playing(engine, **options) as player:
        player.begin(starts(16))
        for version in range(1, 30):
            time.sleep(0.004)
            with player.paused(between_episodes=False):
                model.load_state_dict((NEW if version % 2 else FORMER).state_dict())
                engine.renew(version % 2)
        for trajectory in gather(player, 16):
            mixed += len(assert_each_token_has_the_logprob_of_the_weights_that_drew_it(trajectory)) == 2
            versions = np.array(trajectory.weight_versions)
            cut += any(len(set(versions[turn.start : turn.end])) == 2 for turn in trajectory.turns)
    assert mixed > 2 and cut > 0


def test_pause_between_episodes_leaves_one_weight_version_per_episode() -> None:
    engine, model = embedded()
    at_work: set[Counting] = set()

    def note(env: Counting) -> None:
        jitter(env)
        (at_work.discard if env.turn > env.episode % 4 else at_work.add)(env)

    with playing(engine, before=note) as player:
        player.begin(starts(24))
        for version in range(1, 6):
            time.sleep(0.01)
            with player.paused(between_episodes=True):
                assert not at_work and not engine.busy
                model.load_state_dict((NEW if version % 2 else FORMER).state_dict())
                engine.renew(version % 2)
        played = gather(player, 24)
    found = [assert_each_token_has_the_logprob_of_the_weights_that_drew_it(trajectory) for trajectory in played]
    assert all(len(versions) == 1 for versions in found) and {0, 1} == set.union(*found)


def test_server_finishes_actions_before_weights_change_and_episodes_resume(tmp_path: Path) -> None:
    model = FORMER.copy()
    with served(tmp_path / "model", model) as server:
        engine = engine_of(server, max_tokens=90)
        sync = WeightSync(model, engine, tmp_path / "model", tolerance=1e-3)
        mixed = 0
        with playing(engine, renews_actions=False) as player:
            player.begin(starts(16))
            for version in range(1, 8):
                time.sleep(0.02)
                with player.paused(between_episodes=False):
                    assert not engine.busy
                    model.load_state_dict((NEW if version % 2 else FORMER).state_dict())
                    sync.send(version % 2, Sampling())
            for trajectory in gather(player, 16):
                mixed += len(assert_each_token_has_the_logprob_of_the_weights_that_drew_it(trajectory)) == 2
                versions = np.array(trajectory.weight_versions)
                assert all(len(set(versions[turn.start : turn.end])) == 1 for turn in trajectory.turns)
    assert mixed > 0


def test_pause_does_not_wait_for_a_running_environment_step() -> None:
    engine, _ = embedded(1)
    release = threading.Event()

    def stuck(env: Counting) -> None:
        if env.turn == 1:
            release.wait(60)

    with playing(engine, 1, before=stuck) as player:
        player.begin(starts(1, first=1))
        while not engine.throughput.sampled_tokens or engine.busy:
            time.sleep(0.001)
        with player.paused(between_episodes=False):  # would wait for ever
            assert not release.is_set()
        release.set()
        assert len(gather(player, 1)) == 1


def test_repeated_pauses_all_begin_and_end() -> None:
    engine, _ = embedded()
    with playing(engine) as player:
        player.begin(starts(6))
        for number in range(60):
            with player.paused(between_episodes=number % 3 == 0):
                assert not engine.busy or number % 3
        assert len(gather(player, 6)) == 6
        assert player.idle_s > 0


def test_episodes_queued_first_start_before_waiting_ones() -> None:
    engine, _ = embedded(1)
    with playing(engine, 1) as player, player.paused(between_episodes=True):
        pass
    with playing(engine, 1) as player:
        player.begin(starts(4))
        with player.paused(between_episodes=True):
            player.begin(starts(1, first=99), first=True)
        order: list[int] = []
        while len(order) < 5:
            order += [key[0] for key, _ in player.ended(60)]
    assert order.index(99) <= 1 and order[-1] == 3


def test_error_that_ends_a_run_is_raised_to_the_caller_and_ends_the_player() -> None:
    def wrong(env: Counting) -> None:
        if env.episode == 3:
            raise ConfigurationError("no such task")

    engine, _ = embedded()
    with playing(engine, before=wrong) as player:
        player.begin(starts(8))
        with pytest.raises(ConfigurationError, match="no such task"):
            gather(player, 8)
        for call in (lambda: player.begin(starts(1)), lambda: player.paused(between_episodes=True).__enter__()):
            with pytest.raises(ConfigurationError, match="no such task"):
                call()
    assert [engine.open() for _ in range(3)] == [0, 1, 2]


def test_environment_that_hangs_is_replaced_for_the_background_and_for_what_is_played_in_its_pauses() -> None:
    release, made = threading.Event(), list[Counting]()

    def make() -> Counting:
        made.append(Counting(lambda env: release.wait(60) and None if env.episode == 5 and env.turn else None))
        return made[-1]

    engine, _ = embedded(1)
    pool = EnvPool([make()], make)
    settings = EpisodeSettings(Limits(max_new_tokens=6, max_tokens=90, step_timeout_s=0.2))
    player = BackgroundPlayer(Player(engine, CHAT, pool, settings), renews_actions=True)
    try:
        player.begin(starts(3))
        assert all(t.valid for t in gather(player, 3)) and len(made) == 1
        with player.paused(between_episodes=True):  # another player of the same environments abandons one
            played = play(engine, CHAT, pool, [EpisodeStart(seed) for seed in (5, 2)], limits=settings.limits)
            assert [t.valid for t in played] == [False, True] and len(made) == 2
        player.begin(starts(4, first=3))
        assert [t.valid for t in gather(player, 4)] == [True, True, False, True]
        assert len(made) == 3
    finally:
        release.set()
        player.close()


def test_close_drops_episodes_and_releases_engine_slots() -> None:
    engine, _ = embedded()
    with playing(engine) as player:
        player.begin(starts(500))
        player.ended(60)
    assert [engine.open() for _ in range(3)] == [0, 1, 2]
    with pytest.raises(RolloutError, match="closed"):
        player.begin(starts(1))
    assert not any(thread.name.startswith("play") for thread in threading.enumerate())


def test_stale_cache_after_a_weight_change_is_detectable() -> None:
    """The engine's own promise, seen from its other side: what is kept of the former weights shows."""
    engine, model = embedded(1)
    slot = engine.open()
    ask = {"max_new_tokens": 4, "stop_ids": (), "sampling": Sampling(), "random": np.random.default_rng(0)}
    engine.submit(slot, [1, 2, 3, 4, 5], **ask)
    engine.step()
    model.load_state_dict(NEW.state_dict())
    gaps = []
    for renew in (True, False):
        if renew:
            engine.renew(1)
        while not (samples := engine.step()):
            pass
        ids = [1, 2, 3, 4, 5, *samples[0].token_ids]
        truth = full_logprobs(NEW, ids)[6:]
        gaps.append(float((torch.tensor(samples[0].logprobs[1:]) - truth).abs().max()))
        assert samples[0].versions == (0, 1, 1, 1) or not renew
        if renew:
            model.load_state_dict(FORMER.state_dict())
            engine.rewind(slot, 4)
            engine.submit(slot, [5], **ask)
            engine.step()
            model.load_state_dict(NEW.state_dict())
    assert gaps[0] < 1e-4 < gaps[1]
