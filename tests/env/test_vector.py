"""Vector environments: those of Gymnasium, and `ThreadVectorEnv` with the same semantics."""

import gc
import os

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

import swegym_env  # noqa: F401 - registers the environment
from swegym_env.agent.spaces import AnyText
from swegym_env.env import SWEBenchEnv
from swegym_env.vector import ThreadVectorEnv
from swegym_env.wrappers import ResolvedReward, StepPenalty

ARGUMENTS = {"dataset": "mini-edit", "action_format": "raw", "prompt": "terse", "max_turns": 3}
PLAN = [("echo one", "submit"), ("echo two", "echo again"), ("submit", "echo three")]


def _make():
    return SWEBenchEnv(**ARGUMENTS)


def _play(envs):
    observations, infos = envs.reset(seed=11)
    played = [(observations, list(infos["instance_id"]))]
    for actions in PLAN:
        observations, rewards, terminated, truncated, infos = envs.step(actions)
        played.append((observations, rewards.tolist(), terminated.tolist(), truncated.tolist(), list(infos["patch"])))
    envs.close()
    return played


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_threads_give_the_same_results_as_sync_vector_env(mode):
    serial = SyncVectorEnv([_make, _make], autoreset_mode=mode)
    assert _play(ThreadVectorEnv([_make, _make], autoreset_mode=mode)) == _play(serial)


@pytest.mark.parametrize("options", [{}, {"shared_memory": False}], ids=str)
def test_async_vector_env_gives_the_same_results(options):
    assert _play(AsyncVectorEnv([_make, _make], **options)) == _play(SyncVectorEnv([_make, _make]))


class _Repeats(gymnasium.Env):
    """Observes the action, and of a reset the seed."""

    def __init__(self):
        self.observation_space, self.action_space = AnyText(), AnyText()

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return f"{seed}", {}

    def step(self, action):
        return action, 0.0, action == "end", False, {}


TEXTS = ["", "a" * 300_000, "naïve — 你好 🐍 \0\n", "\udc80 no UTF-8", "short"]


@pytest.mark.parametrize(("context", "copy"), [("fork", True), ("fork", False), ("forkserver", True)])
def test_shared_memory_of_async_vector_env_keeps_every_text(context, copy):
    before = len(os.listdir("/proc/self/fd"))
    envs = AsyncVectorEnv([_Repeats, _Repeats], context=context, copy=copy)
    seen, _ = envs.reset(seed=3)
    first = seen
    assert tuple(seen) == ("3", "4")
    for text, other in zip(TEXTS, reversed(TEXTS), strict=True):
        seen, *_ = envs.step((text, other))
        assert tuple(seen) == (text, other) and seen[0] == text and seen[-1] == other and len(seen) == 2
    assert tuple(first) == (("3", "4") if copy else ("short", ""))  # without copies it is the same memory, as of arrays
    envs.step(("end", "a"))
    assert tuple(envs.step(("b", "c"))[0]) == ("None", "c")  # the first is reset
    observations, _ = envs.reset(seed=5, options={"reset_mask": np.array([False, True])})
    assert tuple(observations) == ("None", "6")
    envs.close()
    del envs, seen, first, observations
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= before + (context == "forkserver") * 8  # the server's own


def test_the_texts_of_processes_leave_no_descriptors():
    before = os.listdir("/proc/self/fd")
    for _ in range(3):
        AsyncVectorEnv([_Repeats] * 3).close()
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_a_reset_mask_resets_some_environments():
    envs = ThreadVectorEnv([_make, _make], autoreset_mode=AutoresetMode.DISABLED)
    first, _ = envs.reset(seed=1)
    envs.step(("submit", "echo on"))
    observations, _ = envs.reset(seed=1, options={"reset_mask": np.array([True, False])})
    assert observations[0] == first[0] and observations[1] == "on\n[exit code 0]"
    envs.close()


def test_make_vec_uses_threads():
    envs = gymnasium.make_vec("SWEBench-v0", num_envs=2, **ARGUMENTS)
    assert isinstance(envs, ThreadVectorEnv)
    observations, _ = envs.reset(seed=0)
    assert len(observations) == 2
    envs.close()


def test_info_has_the_reward_parts_of_wrapped_environments():
    envs = ThreadVectorEnv([lambda: StepPenalty(ResolvedReward(_make()))] * 2, autoreset_mode=AutoresetMode.DISABLED)
    envs.reset(seed=0)
    _, rewards, _, _, infos = envs.step(("submit", "echo on"))
    assert rewards.tolist() == [-1.01, -0.01]
    assert infos["reward"]["resolved"].tolist() == [-1.0, 0.0] and infos["reward"]["step"].tolist() == [-0.01, -0.01]
    envs.close()


def test_a_list_of_seeds_selects_the_tasks():
    envs = ThreadVectorEnv([_make, _make])
    together = list(envs.reset(seed=7)[1]["instance_id"])
    assert list(envs.reset(seed=[7, 8])[1]["instance_id"]) == together
    assert list(envs.reset(seed=[8, 7])[1]["instance_id"]) == together[::-1]
    envs.close()


def test_an_error_in_a_thread_is_raised_to_the_caller():
    envs = ThreadVectorEnv([_make, _make])
    with pytest.raises(gymnasium.error.ResetNeeded):
        envs.step(("ls", "ls"))
    envs.close()
