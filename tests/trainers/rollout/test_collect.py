"""Episodes through environments on threads: what is recorded is what happened, in any timing."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from swe_trainers.engines.embedded import EmbeddedEngine
from swe_trainers.engines.sampling import Sampling
from swe_trainers.errors import ConfigurationError, RolloutError
from swe_trainers.policy.chat import ChatFormat, CompactChat, TemplateChat
from swe_trainers.policy.language_model import LanguageModel
from swe_trainers.rollout.adapters import AnyText
from swe_trainers.rollout.collect import collect
from swe_trainers.rollout.plan import EpisodeStart, Limits
from swe_trainers.rollout.statistics import environment_statistics
from swe_trainers.rollout.trajectory import Trajectory
from swe_trainers.rollout.workers import is_infrastructure_failure
from tests.trainers.policy.test_chat import CHATML, byte_level
from tests.trainers.tiny import full_logprobs, tiny_model, words

MODEL = tiny_model("llama", seed=3)
CHAT = CompactChat(MODEL.tokenizer)
Hook = Callable[["Counting"], None]


class Counting(gymnasium.Env[str, str]):
    """Says `w<seed> w<turn>`; the reward of turn n is n; ends after `seed % 4 + 1` turns. Keeps all that it is told."""

    observation_space = AnyText()
    action_space = AnyText()

    def __init__(self, before: Hook | None = None, info: dict[str, Any] | None = None) -> None:
        self.before, self.extra, self.actions, self.options = before or (lambda env: None), info or {}, [], {}
        self.turn = self.episode = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.turn, self.episode, self.options = 0, seed or 0, options or {}
        self.before(self)
        return f"w{self.episode}", {**self.extra, "at": 0}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.turn += 1
        self.before(self)
        self.actions.append((self.episode, action))
        return (
            f"w{self.episode} w{self.turn}",
            float(self.turn),
            self.turn > self.episode % 4,
            False,
            {**self.extra, "at": self.turn},
        )


def play(
    envs: list[Any], seeds: Any, *, model: LanguageModel = MODEL, chat: ChatFormat = CHAT, max_new_tokens: int = 6,
    max_tokens: int | None = None, max_turns: int | None = None, size: int = 120, limits: Limits | None = None,
    **options: Any,
) -> list[Trajectory]:  # fmt: skip
    engine = EmbeddedEngine(model, n_slots=len(envs), max_tokens=size)
    starts = [seed if isinstance(seed, EpisodeStart) else EpisodeStart(seed) for seed in seeds]
    limits = limits or Limits(max_new_tokens=max_new_tokens, max_tokens=max_tokens, max_turns=max_turns)
    trajectories = collect(engine, chat, envs, starts, limits=limits, **options)
    assert [engine.open() for _ in envs] == list(range(len(envs)))  # every slot was given back
    return trajectories


def jitter(env: Counting) -> None:
    time.sleep(random.random() * 0.004)


def test_the_parts_of_the_reward_add_up_over_the_turns() -> None:
    parts = {"step": -0.5, "resolved": 1.0}
    played = play([Counting(info={"reward": parts})], [2, 0])  # of three turns, and of one
    assert [t.info["reward"] for t in played] == [{"step": -1.5, "resolved": 3.0}, {"step": -0.5, "resolved": 1.0}]
    counted = environment_statistics(played)
    assert (counted["reward/step"], counted["reward/resolved"]) == (-1.0, 2.0)


def test_a_trajectory_is_the_conversation_token_by_token() -> None:
    env = Counting()
    (trajectory,) = play([env], [2])
    expected: list[int] = []
    mask: list[bool] = []
    rewards: list[float] = []
    for n, turn in enumerate(trajectory.turns):
        said = f"w2 w{n}" if n else "w2"
        closed = not expected or expected[-1] in CHAT.stop_ids
        observed = CHAT.observe(said, closed=closed) if n else CHAT.start(said)
        action = trajectory.token_ids[turn.start : turn.end].tolist()
        assert (turn.observation, turn.action, turn.reward) == (said, CHAT.action_text(action), n + 1)
        expected += observed + action
        mask += [False] * len(observed) + [True] * len(action)
        rewards += [0.0] * (len(observed) + len(action) - 1) + [n + 1.0]
    assert trajectory.token_ids.tolist() == expected
    assert trajectory.action_mask.tolist() == mask
    assert trajectory.rewards.tolist() == rewards
    assert [action for _, action in env.actions] == [turn.action for turn in trajectory.turns]
    assert len(trajectory.turns) == 3
    assert (trajectory.terminated, trajectory.truncated, trajectory.valid) == (True, False, True)
    assert (trajectory.info, trajectory.seed) == ({"at": 3}, 2)
    assert trajectory.token_ids.dtype == np.int64
    assert trajectory.rollout_logprobs.dtype == trajectory.rewards.dtype == np.float32


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_logprobs_are_those_of_the_plain_forward_pass_and_zero_off_the_actions(temperature: float) -> None:
    for trajectory in play([Counting(jitter) for _ in range(3)], range(12), sampling=Sampling(temperature)):
        truth = full_logprobs(MODEL, trajectory.token_ids.tolist(), temperature)
        got = torch.from_numpy(trajectory.rollout_logprobs)
        torch.testing.assert_close(
            got, torch.where(torch.from_numpy(trajectory.action_mask), truth, 0.0), rtol=1e-4, atol=1e-4
        )


def test_the_result_depends_on_neither_timing_nor_the_number_of_environments() -> None:
    runs = [
        play([Counting(jitter) for _ in range(n)], range(16), seed=5, lockstep=lockstep)
        for n, lockstep in [(1, False), (4, False), (4, True), (7, False)]
    ]
    for run in runs[1:]:
        assert [t.seed for t in run] == list(range(16))
        assert [t.token_ids.tolist() for t in run] == [t.token_ids.tolist() for t in runs[0]]
    other = play([Counting()], range(16), seed=6)
    assert [t.token_ids.tolist() for t in other] != [t.token_ids.tolist() for t in runs[0]]


def test_two_runs_in_lockstep_are_equal_to_the_last_bit() -> None:
    first, second = (play([Counting(jitter) for _ in range(5)], range(20), lockstep=True) for _ in range(2))
    for one, two in zip(first, second, strict=True):
        assert one.rollout_logprobs.tobytes() == two.rollout_logprobs.tobytes()
        assert one.token_ids.tobytes() == two.token_ids.tobytes()


def test_an_episode_out_of_turns_is_truncated_and_keeps_its_last_observation() -> None:
    (trajectory,) = play([Counting()], [3], max_turns=2)
    assert (trajectory.terminated, trajectory.truncated) == (False, True)
    assert len(trajectory.turns) == 2
    closed = int(trajectory.token_ids[trajectory.turns[-1].end - 1]) in CHAT.stop_ids
    assert trajectory.token_ids[trajectory.turns[-1].end :].tolist() == CHAT.observe("w3 w2", closed=closed)
    assert not trajectory.action_mask[trajectory.turns[-1].end :].any()


def test_an_episode_that_ends_at_its_last_turn_is_terminated_and_keeps_nothing_after_the_action() -> None:
    (trajectory,) = play([Counting()], [1], max_turns=2)
    assert (trajectory.terminated, trajectory.truncated) == (True, False)
    assert trajectory.action_mask[-1]
    assert trajectory.rewards[-1] == 2


class CutShort(Counting):
    """Truncates itself after the first turn, as a time limit does."""

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        observation, reward, _, _, info = super().step(action)
        return observation, reward, False, True, info


def test_an_environment_that_truncates_is_believed() -> None:
    (trajectory,) = play([CutShort()], [3])
    assert (trajectory.terminated, trajectory.truncated, len(trajectory.turns)) == (False, True, 1)
    assert len(trajectory.token_ids) > trajectory.turns[0].end


@pytest.mark.parametrize("max_tokens", [7, 12, 15, 23])
def test_no_episode_is_longer_than_its_limit_and_one_that_reaches_it_is_truncated(max_tokens: int) -> None:
    trajectories = play([Counting() for _ in range(3)], range(12), max_tokens=max_tokens)
    assert any(t.truncated for t in trajectories)
    for t in trajectories:
        assert len(t.token_ids) == len(t.action_mask) == len(t.rollout_logprobs) == len(t.rewards) <= max_tokens
        assert t.valid
        assert t.turns
        assert t.terminated != t.truncated
        assert t.rewards[t.turns[-1].end - 1] == len(t.turns)


def test_a_prompt_without_room_for_an_action_makes_the_episode_invalid_and_says_so() -> None:
    (trajectory,) = play([Counting()], [1], max_tokens=4)
    assert not trajectory.valid
    assert "4 tokens" in trajectory.failure_reason
    assert not trajectory.turns


class SandboxDiedError(RuntimeError):
    pass


def failing(on_turn: int, error: Exception) -> Hook:
    def before(env: Counting) -> None:
        if env.episode == 3 and env.turn == on_turn:
            raise error

    return before


@pytest.mark.parametrize("on_turn", [0, 1])
def test_a_failure_of_the_machine_makes_one_episode_invalid_and_the_others_go_on(on_turn: int) -> None:
    envs = [Counting(failing(on_turn, SandboxDiedError("the shell is gone"))) for _ in range(2)]
    trajectories = play(envs, range(8))
    assert [t.seed for t in trajectories if not t.valid] == [3]
    assert trajectories[3].failure_reason == "SandboxDiedError: the shell is gone"
    assert not trajectories[3].terminated
    assert len(trajectories[3].turns) == on_turn
    sound = play([Counting()], range(8))
    assert [t.token_ids.tolist() for t in trajectories if t.valid] == [
        t.token_ids.tolist() for t in sound if t.seed != 3
    ]


@pytest.mark.parametrize(
    "error", [TypeError("a bug"), ValueError("no such instance"), gymnasium.error.ResetNeeded("reset")]
)
def test_a_bug_stops_the_run_and_gives_the_slots_back(error: Exception) -> None:
    engine = EmbeddedEngine(MODEL, n_slots=2, max_tokens=100)
    with pytest.raises(type(error), match=str(error)):
        collect(engine, CHAT, [Counting(failing(1, error)) for _ in range(2)], [EpisodeStart(3)] * 4, limits=Limits(4))
    assert not engine.busy
    assert [engine.open(), engine.open()] == [0, 1]


def test_what_counts_as_a_failure_of_the_machine() -> None:
    named = type("ConfigurationError", (Exception,), {})
    assert all(
        is_infrastructure_failure(e) for e in (OSError("disk"), TimeoutError(), SandboxDiedError(), RuntimeError())
    )
    assert not any(is_infrastructure_failure(e) for e in (KeyError(), AssertionError(), named(), RolloutError()))


def test_an_episode_that_the_environment_calls_invalid_is_invalid() -> None:
    (trajectory,) = play([Counting(info={"valid": False, "failure_reason": "graders died"})], [0])
    assert (trajectory.valid, trajectory.failure_reason) == (False, "graders died")


def test_a_slow_environment_does_not_stall_the_others() -> None:
    released = threading.Event()

    def before(env: Counting) -> None:
        if env.episode == 0 and env.turn == 1 and not released.wait(timeout=20):
            raise AssertionError("the others waited for the slow one")

    done: list[Trajectory] = []

    def on_episode(trajectory: Trajectory) -> None:
        done.append(trajectory)
        if len(done) == 9:
            released.set()

    trajectories = play([Counting(before) for _ in range(2)], range(10), on_episode=on_episode)
    assert done[-1].seed == 0
    assert [t.seed for t in trajectories] == list(range(10))


@pytest.mark.parametrize("lockstep", [False, True])
def test_environments_step_side_by_side(lockstep: bool) -> None:
    meeting = threading.Barrier(3, timeout=5)

    def before(env: Counting) -> None:
        if env.turn <= 1:
            meeting.wait()  # breaks, and with it the run, where an environment is alone

    envs = [Counting(before) for _ in range(3)]
    trajectories = play(envs, range(1, 4), lockstep=lockstep, max_new_tokens=100, max_turns=1, size=200)
    assert all(t.valid for t in trajectories)
    assert len({t.turns[0].end - t.turns[0].start for t in trajectories}) == 3  # the actions did not end together


def test_resets_get_their_seed_and_options_and_groups_are_kept() -> None:
    env = Counting()
    starts = [EpisodeStart(seed=5, options={"instance_id": "a"}, group=7)]
    (trajectory,) = play([env], starts)
    assert (env.options, trajectory.seed, trajectory.group) == ({"instance_id": "a"}, 5, 7)


def test_starts_are_read_as_environments_become_free() -> None:
    read = []

    def starts() -> Any:
        for seed in range(6):
            read.append(seed)
            yield EpisodeStart(seed)

    engine = EmbeddedEngine(MODEL, n_slots=2, max_tokens=100)
    seen: list[int] = []
    collect(
        engine, CHAT, [Counting(), Counting()], starts(), limits=Limits(4), on_episode=lambda t: seen.append(len(read))
    )
    assert seen[0] == 2
    assert read == list(range(6))


def test_tokens_are_those_sampled_even_where_text_would_encode_to_others() -> None:
    tokenizer = byte_level(CHATML)
    model = tiny_model("llama", tokenizer, seed=1)
    trajectories = play(
        [Counting() for _ in range(2)], range(6), model=model, chat=TemplateChat(tokenizer), max_new_tokens=10, size=400
    )
    altered = 0
    for trajectory in trajectories:
        truth = full_logprobs(model, trajectory.token_ids.tolist())[trajectory.action_mask]
        got = torch.from_numpy(trajectory.rollout_logprobs[trajectory.action_mask])
        torch.testing.assert_close(got, truth, rtol=1e-4, atol=1e-4)
        for turn in trajectory.turns:
            sampled = [i for i in trajectory.token_ids[turn.start : turn.end].tolist() if i != tokenizer.end_id]
            altered += tokenizer.encode(turn.action) != sampled
    assert altered > 5


def test_the_system_prompt_and_the_tools_of_the_environment_reach_the_policy() -> None:
    tokenizer = byte_level(CHATML)
    tools = [{"type": "function", "function": {"name": "bash"}}]
    env = Counting(info={"system_prompt": "be brief", "tools": tools})
    (trajectory,) = play([env], [0], model=tiny_model("llama", tokenizer), chat=TemplateChat(tokenizer), size=400)
    read = tokenizer.inner.decode(trajectory.token_ids[: trajectory.turns[0].start])
    assert read.startswith(
        '<|im_start|>system\n[{"type": "function", "function": {"name": "bash"}}]\nbe brief<|im_end|>'
    )


def test_info_keeps_what_json_can_hold() -> None:
    env = Counting(info={"count": np.int64(3), "rows": np.arange(2), "lock": threading.Lock(), "nested": {"a": [1]}})
    (trajectory,) = play([env], [0])
    assert trajectory.info == {"count": 3, "rows": [0, 1], "nested": {"a": [1]}, "at": 1}


class Broken(Counting):
    def __init__(self, observation: Any, reward: float) -> None:
        super().__init__()
        self.answer = observation, reward

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        return *self.answer, False, False, {}


@pytest.mark.parametrize(
    ("observation", "reward", "message"), [(3, 0.0, "is int, expected str"), ("w1", float("nan"), "reward is nan")]
)
def test_an_environment_that_breaks_its_contract_is_named(observation: Any, reward: float, message: str) -> None:
    with pytest.raises(RolloutError, match=message):
        play([Broken(observation, reward)], [0])


def test_arguments_that_cannot_work_are_refused() -> None:
    engine = EmbeddedEngine(MODEL, n_slots=1, max_tokens=50)
    with pytest.raises(ConfigurationError, match="1 slots"):
        collect(engine, CHAT, [Counting(), Counting()], [], limits=Limits(4))
    with pytest.raises(ConfigurationError, match="no environments"):
        collect(engine, CHAT, [], [], limits=Limits(4))
    with pytest.raises(ConfigurationError, match="max_turns"):
        Limits(4, max_turns=0)
    with pytest.raises(ConfigurationError, match="not in the vocabulary"):
        play([Counting()], [5], chat=CompactChat(words(1)))


def test_an_environment_that_does_not_answer_costs_its_episode_and_holds_nobody_up() -> None:
    hold = threading.Event()

    def wait(env: Counting) -> None:
        if env.episode == 1 and env.turn == 1:
            hold.wait(60)

    envs = [Counting(wait) for _ in range(2)]
    try:
        played = play(envs, range(6), limits=Limits(6, step_timeout_s=0.3))
    finally:
        hold.set()
    assert [t.valid for t in played] == [True, False, True, True, True, True]
    assert "did not answer for 0.3 s" in played[1].failure_reason
    again = play(envs, range(4), limits=Limits(6, step_timeout_s=30.0))
    assert all(t.valid for t in again)  # whoever uses it next has waited until it was done


def test_with_every_environment_gone_the_run_says_so() -> None:
    hold = threading.Event()
    try:
        with pytest.raises(RolloutError, match="none of 2 environments answers"):
            play(
                [Counting(lambda env: hold.wait(60)) for _ in range(2)], range(6), limits=Limits(6, step_timeout_s=0.1)
            )
    finally:
        hold.set()


def test_an_action_ends_with_a_stop_string_and_the_environment_reads_it() -> None:
    free = play([Counting()], [3])[0]
    word = free.turns[0].action.split()[1]
    stopped = play([Counting()], [3], limits=Limits(6, stop_strings=(word,)))[0]
    assert stopped.turns[0].action == free.turns[0].action[: free.turns[0].action.index(word) + len(word)]
    assert stopped.token_ids[stopped.turns[0].end] == CHAT.end_id  # the format closes what the policy left open
