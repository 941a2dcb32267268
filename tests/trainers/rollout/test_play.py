"""Episodes through environments on threads: trajectories are exact and independent of timing."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from swe_trainers.engines.embedded import EmbeddedEngine
from swe_trainers.engines.sampling import Sampling
from swe_trainers.errors import ConfigurationError, EngineError, RolloutError
from swe_trainers.model.chat import ChatFormat, CompactChat, TemplateChat
from swe_trainers.model.language_model import LanguageModel
from swe_trainers.rollout.adapters import AnyText
from swe_trainers.rollout.environments import ContractError, EnvPool, ends_the_run
from swe_trainers.rollout.play import iter_episodes
from swe_trainers.rollout.play import play as play_episodes
from swe_trainers.rollout.settings import EpisodeSettings, EpisodeStart, Limits
from swe_trainers.rollout.statistics import environment_statistics
from swe_trainers.rollout.trajectory import Trajectory, read_trajectories, write_trajectories
from tests.trainers.model.test_chat import CHATML, byte_level
from tests.trainers.tiny import full_logprobs, tiny_model, words

MODEL = tiny_model("llama", seed=3)
CHAT = CompactChat(MODEL.tokenizer)
Hook = Callable[["Counting"], None]


class Counting(gymnasium.Env[str, str]):
    """Shows `w<seed> w<turn>`; the reward of turn n is n; ends after `seed % 4 + 1` turns. Records all actions."""

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
    trajectories = play_episodes(engine, chat, envs, starts, limits=limits, **options)
    assert [engine.open() for _ in envs] == list(range(len(envs)))  # every slot was given back
    return trajectories


def jitter(env: Counting) -> None:
    time.sleep(random.random() * 0.004)


def test_reward_parts_are_summed_over_turns() -> None:
    parts = {"step": -0.5, "resolved": 1.0}
    played = play([Counting(info={"reward": parts})], [2, 0])  # of three turns, and of one
    assert [t.info["reward"] for t in played] == [{"step": -1.5, "resolved": 3.0}, {"step": -0.5, "resolved": 1.0}]
    counted = environment_statistics(played)
    assert (counted["reward/step"], counted["reward/resolved"]) == (-1.0, 2.0)


def test_reward_parts_that_are_numbers_of_numpy_are_recorded_too() -> None:
    (trajectory,) = play([Counting(info={"reward": {"step": np.float32(-0.5), "bonus": np.int64(2)}})], [0])
    assert trajectory.info["reward"] == {"step": -0.5, "bonus": 2.0}


def test_info_that_is_no_json_is_left_out_and_the_episode_can_be_written(tmp_path: Path) -> None:
    info = {"loss": float("nan"), "x": np.float32("inf"), "y": [1.0, float("-inf")], "z": object(), "speed": 0.5}
    played = play([Counting(info=info)], [0])
    assert played[0].info == {"speed": 0.5, "at": 1}
    write_trajectories(tmp_path / "played.jsonl", played)
    assert read_trajectories(tmp_path / "played.jsonl")[0].info == played[0].info


def test_trajectory_is_the_conversation_token_by_token() -> None:
    env = Counting()
    (trajectory,) = play([env], [2])
    expected: list[int] = []
    mask: list[bool] = []
    rewards: list[float] = []
    for n, turn in enumerate(trajectory.turns):
        text = f"w2 w{n}" if n else "w2"
        closed = not expected or expected[-1] in CHAT.stop_ids
        observed = CHAT.observe(text, closed=closed) if n else CHAT.start(text)
        action = trajectory.token_ids[turn.start : turn.end].tolist()
        assert (turn.observation, turn.action, turn.reward) == (text, CHAT.action_text(action), n + 1)
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
def test_logprobs_equal_the_forward_pass_and_are_zero_outside_actions(temperature: float) -> None:
    for trajectory in play([Counting(jitter) for _ in range(3)], range(12), sampling=Sampling(temperature)):
        truth = full_logprobs(MODEL, trajectory.token_ids.tolist(), temperature)
        got = torch.from_numpy(trajectory.rollout_logprobs)
        torch.testing.assert_close(
            got, torch.where(torch.from_numpy(trajectory.action_mask), truth, 0.0), rtol=1e-4, atol=1e-4
        )


def test_result_is_independent_of_timing_and_number_of_environments() -> None:
    runs = [
        play([Counting(jitter) for _ in range(n)], range(10), seed=5, lockstep=lockstep)
        for n, lockstep in [(1, False), (4, False), (4, True), (7, False)]
    ]
    for run in runs[1:]:
        assert [t.seed for t in run] == list(range(10))
        assert [t.token_ids.tolist() for t in run] == [t.token_ids.tolist() for t in runs[0]]
    other = play([Counting()], range(10), seed=6)
    assert [t.token_ids.tolist() for t in other] != [t.token_ids.tolist() for t in runs[0]]


@pytest.mark.parametrize(("available", "at_once"), [(4, 1), (50, 4)])
def test_short_memory_limits_the_episodes_under_way(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, available: int, at_once: int
) -> None:
    (tmp_path / "meminfo").write_text(f"MemTotal: 100 kB\nMemFree: 1 kB\nMemAvailable: {available} kB\n")
    monkeypatch.setattr("swe_trainers.rollout.play._MEMORY", str(tmp_path / "meminfo"))
    together, under_way, most = threading.Barrier(at_once, timeout=60), set[int](), list[int]()

    def count(env: Counting) -> None:
        if not env.turn:
            under_way.add(env.episode)
            together.wait()
            most.append(len(under_way))
        elif env.turn > env.episode % 4:
            under_way.remove(env.episode)

    played = play([Counting(count) for _ in range(4)], range(8), seed=5)
    assert max(most) == at_once
    alike = play([Counting() for _ in range(4)], range(8), seed=5, lockstep=True)
    assert [t.token_ids.tolist() for t in played] == [t.token_ids.tolist() for t in alike]


def test_two_lockstep_runs_are_bitwise_equal() -> None:
    first, second = (play([Counting(jitter) for _ in range(5)], range(20), lockstep=True) for _ in range(2))
    for one, two in zip(first, second, strict=True):
        assert one.rollout_logprobs.tobytes() == two.rollout_logprobs.tobytes()
        assert one.token_ids.tobytes() == two.token_ids.tobytes()


def test_max_turns_truncates_and_keeps_the_last_observation() -> None:
    (trajectory,) = play([Counting()], [3], max_turns=2)
    assert (trajectory.terminated, trajectory.truncated) == (False, True)
    assert len(trajectory.turns) == 2
    closed = int(trajectory.token_ids[trajectory.turns[-1].end - 1]) in CHAT.stop_ids
    assert trajectory.token_ids[trajectory.turns[-1].end :].tolist() == CHAT.observe("w3 w2", closed=closed)
    assert not trajectory.action_mask[trajectory.turns[-1].end :].any()


def test_episode_that_terminates_at_max_turns_is_terminated() -> None:
    (trajectory,) = play([Counting()], [1], max_turns=2)
    assert (trajectory.terminated, trajectory.truncated) == (True, False)
    assert trajectory.action_mask[-1]
    assert trajectory.rewards[-1] == 2


class CutShort(Counting):
    """Truncates itself after the first turn, as a time limit does."""

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        observation, reward, _, _, info = super().step(action)
        return observation, reward, False, True, info


def test_truncation_by_the_environment_is_kept() -> None:
    (trajectory,) = play([CutShort()], [3])
    assert (trajectory.terminated, trajectory.truncated, len(trajectory.turns)) == (False, True, 1)
    assert len(trajectory.token_ids) > trajectory.turns[0].end


@pytest.mark.parametrize("max_tokens", [7, 12, 15, 23])
def test_episode_at_max_tokens_is_truncated_and_never_longer(max_tokens: int) -> None:
    trajectories = play([Counting() for _ in range(3)], range(12), max_tokens=max_tokens)
    assert any(t.truncated for t in trajectories)
    for t in trajectories:
        assert len(t.token_ids) == len(t.action_mask) == len(t.rollout_logprobs) == len(t.rewards) <= max_tokens
        assert t.valid
        assert t.turns
        assert t.terminated != t.truncated
        assert t.rewards[t.turns[-1].end - 1] == len(t.turns)


def test_prompt_without_room_for_an_action_is_invalid() -> None:
    (trajectory,) = play([Counting()], [1], max_tokens=4)
    assert not trajectory.valid
    assert "max_tokens is 4" in trajectory.failure_reason
    assert not trajectory.turns


class SandboxDiedError(RuntimeError):
    pass


def failing(on_turn: int, error: Exception) -> Hook:
    def before(env: Counting) -> None:
        if env.episode == 3 and env.turn == on_turn:
            raise error

    return before


@pytest.mark.parametrize("on_turn", [0, 1])
def test_infrastructure_failure_invalidates_one_episode_and_others_continue(on_turn: int) -> None:
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
    "error", [ConfigurationError("no such task"), type("ConfigurationError", (Exception,), {})("no such task")]
)
def test_environment_that_is_asked_for_what_it_does_not_have_ends_the_run_and_slots_are_released(
    error: Exception,
) -> None:
    engine = EmbeddedEngine(MODEL, n_slots=2, max_tokens=100)
    with pytest.raises(ConfigurationError, match="no such task"):
        play_episodes(
            engine, CHAT, [Counting(failing(1, error)) for _ in range(2)], [EpisodeStart(3)] * 4, limits=Limits(4)
        )
    assert not engine.busy
    assert [engine.open(), engine.open()] == [0, 1]


def test_classification_of_failures() -> None:
    named = type("ConfigurationError", (Exception,), {})
    failures = (OSError("disk"), TimeoutError(), SandboxDiedError(), RuntimeError(), KeyError(), AssertionError())
    assert not any(ends_the_run(error) for error in (*failures, ContractError("a text"), SystemExit()))
    assert all(ends_the_run(error) for error in (named(), RolloutError(), EngineError()))


@pytest.mark.parametrize("valid", [False, np.bool_(False), 0])
def test_every_false_in_info_marks_an_episode_invalid(valid: Any) -> None:
    (trajectory,) = play([Counting(info={"valid": valid})], [0])
    assert not trajectory.valid


def test_episode_with_info_valid_false_is_invalid() -> None:
    (trajectory,) = play([Counting(info={"valid": False, "failure_reason": "graders died"})], [0])
    assert (trajectory.valid, trajectory.failure_reason) == (False, "graders died")


def test_slow_environment_does_not_stall_the_others() -> None:
    released = threading.Event()

    def before(env: Counting) -> None:
        if env.episode == 0 and env.turn == 1 and not released.wait(timeout=20):
            raise AssertionError("the others waited for the slow one")

    engine = EmbeddedEngine(MODEL, n_slots=2, max_tokens=120)
    starts = [EpisodeStart(seed) for seed in range(10)]
    ended: list[int] = []
    envs = [Counting(before) for _ in range(2)]
    for number, _, (trajectory,) in iter_episodes(engine, CHAT, envs, starts, EpisodeSettings(Limits(6))):
        assert trajectory.seed == number
        ended.append(number)
        if len(ended) == 9:
            released.set()
    assert ended[-1] == 0 and sorted(ended) == list(range(10))


@pytest.mark.parametrize("lockstep", [False, True])
def test_environments_step_in_parallel(lockstep: bool) -> None:
    meeting = threading.Barrier(3, timeout=5)

    def before(env: Counting) -> None:
        if env.turn <= 1:
            meeting.wait()  # breaks, and with it the run, where an environment is alone

    envs = [Counting(before) for _ in range(3)]
    trajectories = play(envs, range(1, 4), lockstep=lockstep, max_new_tokens=100, max_turns=1, size=200)
    assert all(t.valid for t in trajectories)
    assert len({t.turns[0].end - t.turns[0].start for t in trajectories}) == 3  # the actions did not end together


def test_reset_receives_seed_and_options_and_group_is_kept() -> None:
    env = Counting()
    starts = [EpisodeStart(seed=5, options={"instance_id": "a"}, group=7)]
    (trajectory,) = play([env], starts)
    assert (env.options, trajectory.seed, trajectory.group) == ({"instance_id": "a"}, 5, 7)


def test_starts_are_consumed_lazily() -> None:
    read = []

    def starts() -> Any:
        for seed in range(6):
            read.append(seed)
            yield EpisodeStart(seed)

    engine = EmbeddedEngine(MODEL, n_slots=2, max_tokens=100)
    envs = [Counting(), Counting()]
    seen = [len(read) for _ in iter_episodes(engine, CHAT, envs, starts(), EpisodeSettings(Limits(4)))]
    assert seen[0] == 2
    assert read == list(range(6))


def test_sampled_tokens_are_kept_even_if_text_encodes_differently() -> None:
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


def test_system_prompt_and_tools_reach_the_policy() -> None:
    tokenizer = byte_level(CHATML)
    tools = [{"type": "function", "function": {"name": "bash"}}]
    env = Counting(info={"system_prompt": "be brief", "tools": tools})
    (trajectory,) = play([env], [0], model=tiny_model("llama", tokenizer), chat=TemplateChat(tokenizer), size=400)
    read = tokenizer.inner.decode(trajectory.token_ids[: trajectory.turns[0].start])
    assert read.startswith(
        '<|im_start|>system\n[{"type": "function", "function": {"name": "bash"}}]\nbe brief<|im_end|>'
    )


def test_info_keeps_json_serializable_entries() -> None:
    env = Counting(info={"count": np.int64(3), "rows": np.arange(2), "lock": threading.Lock(), "nested": {"a": [1]}})
    (trajectory,) = play([env], [0])
    assert trajectory.info == {"count": 3, "rows": [0, 1], "nested": {"a": [1]}, "at": 1}


class Broken(Counting):
    """Its step returns what `change` makes of a right one, in every second episode."""

    def __init__(self, change: Callable[..., Any], method: str) -> None:
        super().__init__()
        self.change, self.method = change, method

    def reset(self, **options: Any) -> Any:
        result = super().reset(**options)
        return self.change(*result) if self.method == "reset" and self.episode % 2 else result

    def step(self, action: str) -> Any:
        result = super().step(action)
        return self.change(*result) if self.method == "step" and self.episode % 2 else result


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


def raising(error: BaseException) -> Callable[..., Any]:
    def change(*_: Any) -> Any:
        raise error

    return change


def endless(*result: Any) -> Any:
    return endless(*result)


def rewarding(reward: Any) -> Callable[..., Any]:
    return lambda observation, _, *rest: (observation, reward, *rest)


def nested(depth: int) -> Any:
    found: Any = 0
    for _ in range(depth):
        found = [found]
    return found


BROKEN: dict[str, tuple[str, Callable[..., Any], str]] = {
    "a number observed": ("step", lambda _, *rest: (3, *rest), "step: the observation is int, expected str"),
    "bytes observed": ("step", lambda _, *rest: (b"x", *rest), "the observation is bytes"),
    "an array observed": ("reset", lambda _, info: (np.zeros(3), info), "reset: the observation is ndarray"),
    "a reward of None": ("step", rewarding(None), "the reward is NoneType, expected a finite number"),
    "a reward of text": ("step", rewarding("1.0"), "the reward is str"),
    "a reward of nan": ("step", rewarding(float("nan")), "the reward is nan"),
    "a reward of -inf": ("step", rewarding(-np.inf), "the reward is -inf"),
    "a complex reward": ("step", rewarding(1j), "the reward is complex"),
    "NumPy's complex reward": ("step", rewarding(np.complex64(1)), "the reward is complex64"),
    "an array of rewards": ("step", rewarding(np.ones(1)), "the reward is ndarray"),
    "a list of rewards": ("step", rewarding([1.0]), "the reward is list"),
    "a reward beyond floats": ("step", rewarding(10**400), "the reward is int, expected a finite number"),
    "a reward beyond float32": ("step", rewarding(-1e39), "the reward is -1e+39, expected a finite number of float32"),
    "four values": ("step", lambda *result: result[:4], "step returned 4 values, expected (observation, reward"),
    "six values": ("step", lambda *result: (*result, 0), "step returned 6 values"),
    "no tuple": ("step", lambda *result: None, "step returned NoneType"),
    "a text for a tuple": ("step", lambda *result: "abcde", "step returned str"),
    "an observation alone": ("reset", lambda observation, info: observation, "reset returned str"),
    "five values of a reset": ("reset", lambda *result: (*result, 0, 0, 0), "reset returned 5 values"),
    "terminated is None": ("step", lambda o, r, *_: (o, r, None, False, {}), "step: terminated is NoneType"),
    "truncated is a text": ("step", lambda o, r, *_: (o, r, False, "no", {}), "step: truncated is str"),
    "no info": ("step", lambda o, r, *_: (o, r, False, False, None), "step: info is NoneType, expected dict"),
    "tools that are no list": ("reset", lambda o, _: (o, {"tools": 5}), "info['tools'] is int"),
    "a system prompt of bytes": ("reset", lambda o, _: (o, {"system_prompt": b""}), "info['system_prompt'] is bytes"),
    "parts of a reward that are texts": (
        "step", lambda o, r, *_: (o, r, False, False, {"reward": {"a": "1"}}), "info['reward']['a'] is str"),
    "validity that is a text": ("step", lambda o, r, *_: (o, r, True, False, {"valid": "?"}), "info['valid'] is str"),
    "a bug in step": ("step", raising(TypeError("a\n bug")), "TypeError: a bug"),
    "a bug in reset": ("reset", raising(gymnasium.error.ResetNeeded("x")), "ResetNeeded: x"),
    "an exit": ("step", raising(SystemExit(3)), "SystemExit: 3"),
    "an interrupt of its own": ("step", raising(KeyboardInterrupt()), "KeyboardInterrupt: "),
    "an error without text": ("step", raising(UnprintableError()), "UnprintableError: (its text is not available"),
    "endless recursion": ("step", endless, "RecursionError: maximum"),
}  # fmt: skip


@pytest.mark.parametrize("case", BROKEN)
def test_environment_that_breaks_its_contract_costs_its_episode_and_others_continue(case: str) -> None:
    method, change, reason = BROKEN[case]
    played = play([Broken(change, method) for _ in range(2)], range(6))
    assert [t.valid for t in played] == [True, False] * 3
    for trajectory in played[1::2]:
        assert reason in trajectory.failure_reason and "\n" not in trajectory.failure_reason
        assert trajectory.end_reason == "environment"
        raised = case.startswith(("a bug", "an exit", "an interrupt", "an error", "endless"))
        assert bool(trajectory.failure_traceback) == raised
        assert not raised or "in change" in trajectory.failure_traceback or "in endless" in trajectory.failure_traceback
    sound = play([Counting()], range(6))
    assert [t.token_ids.tolist() for t in played[::2]] == [t.token_ids.tolist() for t in sound[::2]]


@pytest.mark.parametrize(
    ("reward", "expected"),
    [(True, 1.0), (np.float32(0.5), 0.5), (np.int64(2), 2.0), (np.array(3.0), 3.0), (torch.tensor(4.0), 4.0),
     (np.bool_(True), 1.0)],
)  # fmt: skip
def test_scalars_of_any_library_are_rewards(reward: Any, expected: float) -> None:
    (trajectory,) = play([Broken(rewarding(reward), "step")], [1])
    assert trajectory.valid and [turn.reward for turn in trajectory.turns] == [expected] * 2


def test_info_that_json_cannot_hold_is_left_out() -> None:
    (trajectory,) = play([Counting(info={"deep": nested(100_000), "large": 10**400, "set": {1}, "kept": 1})], [0])
    assert trajectory.valid and trajectory.info.keys() == {"large", "kept", "at"}
    assert "environment/large" not in environment_statistics([trajectory])


def test_invalid_arguments_are_rejected() -> None:
    engine = EmbeddedEngine(MODEL, n_slots=1, max_tokens=50)
    with pytest.raises(ConfigurationError, match="1 slots"):
        play_episodes(engine, CHAT, [Counting(), Counting()], [], limits=Limits(4))
    with pytest.raises(ConfigurationError, match="no environments"):
        play_episodes(engine, CHAT, [], [], limits=Limits(4))
    with pytest.raises(ConfigurationError, match="max_turns"):
        Limits(4, max_turns=0)
    with pytest.raises(ConfigurationError, match="not in the vocabulary"):
        play([Counting()], [5], chat=CompactChat(words(1)))


@contextmanager
def held() -> Iterator[threading.Event]:
    """What environments wait for until the end of the block."""
    hold = threading.Event()
    try:
        yield hold
    finally:
        hold.set()


def hanging(hold: threading.Event, on_turn: int) -> Hook:
    return lambda env: hold.wait(60) if env.episode % 3 == 1 and env.turn == on_turn else None  # type: ignore[return-value]


@pytest.mark.parametrize(("on_turn", "limit"), [(0, "reset"), (1, "step")])
@pytest.mark.parametrize("lockstep", [False, True])
def test_environment_that_hangs_costs_its_episode_and_is_replaced(on_turn: int, limit: str, lockstep: bool) -> None:
    made: list[Closing] = []
    with held() as hold:

        def make() -> Closing:
            made.append(Closing(hanging(hold, on_turn)))
            return made[-1]

        pool = EnvPool([make()], make)
        limits = Limits(6, **{f"{limit}_timeout_s": 0.2, f"{'step' if on_turn == 0 else 'reset'}_timeout_s": 50})
        played = play(pool, range(6), limits=limits, lockstep=lockstep)  # type: ignore[arg-type]
        assert [t.valid for t in played] == [True, False, True, True, False, True]
        assert played[1].failure_reason == f"the environment did not respond to {limit} for 0.2 s"
        assert [len({id(threading) for threading in env.threads}) for env in made] == [1, 1, 1]
        assert [env.episodes for env in made] == [[0, 1], [2, 3, 4], [5]]
        again = play(pool, [0, 2], limits=limits)  # type: ignore[arg-type]
        assert all(t.valid for t in again) and [env.episodes for env in made[:2]] == [[0, 1], [2, 3, 4]]
        pool.close()
        assert [env.closed for env in made] == [0, 0, 1] and pool.failures == []
    for env in made[:2]:  # they answer at last, and are closed by the thread that waited for them
        assert env.gone.wait(20)
    assert [env.closed for env in made] == [1, 1, 1]


class Closing(Counting):
    """Notes its episodes, its threads and that it was closed."""

    def __init__(self, before: Hook | None = None) -> None:
        super().__init__(before)
        self.episodes: list[int] = []
        self.threads: set[threading.Thread] = set()
        self.closed, self.gone = 0, threading.Event()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        self.episodes.append(seed or 0)
        self.threads.add(threading.current_thread())
        return super().reset(seed=seed, options=options)

    def close(self) -> None:
        self.closed += 1
        self.gone.set()


def test_environment_that_hangs_and_cannot_be_replaced_is_never_used_again() -> None:
    with held() as hold:
        envs = [Closing(hanging(hold, 1)), Closing()]
        limits = Limits(6, step_timeout_s=0.3)
        played = play(envs, [1, 2, 3, 5], limits=limits)
        assert [t.valid for t in played] == [False, True, True, True]
    again = play(envs, range(4), limits=limits)
    assert all(t.valid for t in again)
    assert envs[0].episodes == [1] and len(envs[1].episodes) == 7 and envs[0].closed == 0


def test_run_ends_where_no_environment_is_left_and_not_before() -> None:
    limits = Limits(6, step_timeout_s=0.1)
    with held() as hold:
        envs = [Counting(lambda env: hold.wait(60)) for _ in range(2)]  # type: ignore[arg-type, return-value]
        played = play(envs, range(2), limits=Limits(6, reset_timeout_s=0.1))
        assert [t.valid for t in played] == [False, False]
        with pytest.raises(RolloutError, match="none of 2 environments responds"):
            play(envs, range(2), limits=limits)
        others = [Counting(lambda env: hold.wait(60) and None if env.turn else None) for _ in range(2)]
        with pytest.raises(RolloutError, match=r"none of 2 .* is: the environment did not respond to step for 0\.1 s"):
            play(others, range(3), limits=limits)


def test_environments_that_cannot_be_made_or_closed_are_reported_and_the_rest_goes_on() -> None:
    class Unclosable(Counting):
        def close(self) -> None:
            raise TypeError("close")

    tries = []

    def make() -> Counting:
        tries.append(1)
        if len(tries) == 2:
            raise OSError("no space")
        return Unclosable()

    pool = EnvPool([], make, size=2)
    played = play(pool, range(8), lockstep=True)  # type: ignore[arg-type]
    assert sorted(t.failure_reason for t in played) == [""] * 7 + ["OSError: no space"]
    pool.close()
    assert [failure.reason for failure in pool.failures] == ["an environment was not closed: TypeError: close"] * 2
    assert "raise TypeError" in pool.failures[0].traceback


def test_closing_does_not_wait_for_an_environment_that_hangs() -> None:
    with held() as hold:

        class Stuck(Counting):
            def close(self) -> None:
                hold.wait(60)

        pool = EnvPool([Stuck(), Counting()], Stuck)
        pool.close(timeout_s=0.1)
        assert [failure.reason for failure in pool.failures] == [
            "an environment was not closed: it was still running after 0.1 s"
        ]


def test_stop_string_ends_an_action_and_is_part_of_it() -> None:
    free = play([Counting()], [3])[0]
    word = free.turns[0].action.split()[1]
    stopped = play([Counting()], [3], limits=Limits(6, stop_strings=(word,)))[0]
    assert stopped.turns[0].action == free.turns[0].action[: free.turns[0].action.index(word) + len(word)]
    assert stopped.token_ids[stopped.turns[0].end] == CHAT.end_id  # the format closes what the policy left open
