"""Vector environments: those of Gymnasium, and `ThreadVectorEnv` with the same semantics."""

import _thread
import gc
import os
import threading
import time

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

import swegym_env  # noqa: F401 - registers the environment
from swegym_env.agent.spaces import AnyText
from swegym_env.env import SWEBenchEnv
from swegym_env.errors import ConfigurationError
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


@pytest.mark.parametrize("mode", [*AutoresetMode, *(mode.value for mode in AutoresetMode)])
def test_make_vec_takes_an_autoreset_mode(mode):
    envs = gymnasium.make_vec("SWEBench-v0", num_envs=2, autoreset_mode=mode, **ARGUMENTS)
    assert envs.metadata["autoreset_mode"] == AutoresetMode(mode)
    envs.close()


def test_an_unknown_autoreset_mode_is_named_before_anything_starts():
    threads = threading.active_count()
    with pytest.raises(ConfigurationError, match=r"autoreset_mode: expected one of .*'SameStep'.*, got 'same_step'"):
        gymnasium.make_vec("SWEBench-v0", num_envs=2, autoreset_mode="same_step", **ARGUMENTS)
    assert threading.active_count() == threads


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


class _Fails(_Repeats):
    """Raises an error at "fail", and takes as long as an action "sleep …" says."""

    def step(self, action):
        if action == "fail":
            raise OSError("failed as asked")
        if action.startswith("sleep"):
            time.sleep(float(action.split()[1]))
        return super().step(action)


def test_after_an_error_of_one_environment_the_others_observe_their_own_next_actions():
    envs = ThreadVectorEnv([_Fails] * 3)
    envs.reset(seed=0)
    with pytest.raises(OSError, match="failed as asked"):
        envs.step(("one", "fail", "sleep 0.2"))
    assert envs.step(("two", "two", "two"))[0] == ("two", "two", "two")
    with pytest.raises(OSError, match="failed as asked"):
        envs.step(("three", "three", "fail"))
    assert envs.reset(seed=5)[0] == ("5", "6", "7")
    assert envs.step(("four", "five", "six"))[0] == ("four", "five", "six")
    envs.close()


def test_after_an_interrupt_no_environment_is_called_twice_at_once():
    envs = ThreadVectorEnv([_Fails] * 2)
    envs.reset(seed=0)
    threading.Timer(0.2, _thread.interrupt_main).start()
    with pytest.raises(KeyboardInterrupt):
        envs.step(("one", "sleep 1"))
    assert envs.reset(seed=5)[0] == ("5", "6")
    assert envs.step(("two", "three"))[0] == ("two", "three")
    envs.close()


def test_a_wrong_number_of_seeds_or_actions_and_a_closed_environment_are_named():
    envs = ThreadVectorEnv([_Repeats] * 2)
    for seed in ([1], np.int64(3)):
        with pytest.raises(ConfigurationError, match="seed: expected a number or a list of 2"):
            envs.reset(seed=seed)
    envs.reset(seed=0)
    with pytest.raises(ConfigurationError, match="actions: expected 2, got 1"):
        envs.step(("one",))
    assert envs.step(("one", "two"))[0] == ("one", "two")
    envs.close()
    for call in (envs.reset, lambda: envs.step(("one", "two"))):
        with pytest.raises(gymnasium.error.ClosedEnvironmentError):
            call()
    for number in (0, 1.5, "2"):
        with pytest.raises(ConfigurationError, match="num_envs: expected a whole number of 1 or more"):
            gymnasium.make_vec("SWEBench-v0", num_envs=number)
