"""`SWEBenchEnv` in real sandboxes: the contract of its observations, rewards and infos."""

import dataclasses
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env

import swegym_env  # noqa: F401 - registers the environment
from swegym_env.env import SWEBenchEnv
from swegym_env.errors import ConfigurationError, SandboxError, UnknownTaskError
from swegym_env.making.settings import MakeSettings
from swegym_env.making.validation import Limits as MakeLimits
from swegym_env.prepare import prepare
from swegym_env.programs.spec import AgentSpec
from swegym_env.sandbox.api import Imports, Limits, SandboxSpec
from swegym_env.sandbox.images.building import PullOptions
from swegym_env.tasks.data import mini_edit
from swegym_env.tasks.task import TaskSet
from tests.places import public_directory

TASK = mini_edit.generate(0)


def _gold_commands(task):
    """The gold patch as commands: git applies it inside the sandbox."""
    return [f"git apply - <<'END_OF_PATCH'\n{task.patch}END_OF_PATCH", "submit"]


def _without_index(patch):
    """A patch without its lines of object ids, which the gold patches of mini-edit do not have."""
    return "".join(line for line in patch.splitlines(keepends=True) if not line.startswith("index "))


@pytest.fixture
def env():
    env = SWEBenchEnv(tasks=[TASK, mini_edit.generate(1)], action_format="raw", prompt="terse", max_turns=6)
    yield env
    env.close()


@pytest.mark.filterwarnings("ignore:.*not within the:UserWarning")
def test_the_environment_passes_the_gymnasium_checker():
    env = gymnasium.make("SWEBench-v0", dataset="mini-edit", action_format="raw")
    check_env(env.unwrapped, skip_render_check=True)
    env.close()


def test_the_id_may_be_prefixed_with_the_module_name():
    env = gymnasium.make("swegym_env:SWEBench-v0", dataset="mini-edit")
    observation, info = env.reset(seed=3)
    assert info["instance_id"].startswith("mini-edit__train-")
    assert observation in env.observation_space
    assert "<execute>submit</execute>" in info["system_prompt"]
    env.close()


def test_instance_ids_select_the_task_at_reset(env):
    assert env.instance_ids == (TASK.instance_id, mini_edit.generate(1).instance_id)
    kodcode = gymnasium.make("KodCode-v0")
    name = kodcode.get_wrapper_attr("instance_ids")[-1]
    assert kodcode.reset(options={"instance_id": name})[1]["instance_id"] == name
    kodcode.close()


def test_the_gold_patch_resolves_the_task(env):
    observation, info = env.reset(seed=0, options={"instance_id": TASK.instance_id})
    assert observation == TASK.problem_statement
    assert info["system_prompt"] == ""
    apply, submit = _gold_commands(TASK)
    observation, reward, terminated, truncated, info = env.step(apply)
    assert (observation, reward, terminated, truncated) == ("[exit code 0]", 0.0, False, False)
    assert _without_index(info["patch"]) == TASK.patch
    assert info["exit_code"] == 0
    _, reward, terminated, truncated, info = env.step(submit)
    assert (reward, terminated, truncated) == (1.0, True, False)
    assert info["resolved"] is True and info["valid"] is True
    assert info["fail_to_pass"] == (1, 1)
    assert info["pass_to_pass"] == (len(TASK.pass_to_pass), len(TASK.pass_to_pass))
    assert info["end_reason"] == "submitted"


def test_tests_that_may_be_absent_from_the_log_are_no_failed_ones():
    task = dataclasses.replace(TASK, eval_type="fail_only", pass_to_pass=(*TASK.pass_to_pass, "absent"))
    env = SWEBenchEnv(tasks=[task], action_format="raw")
    for actions, resolved, failed in ((_gold_commands(task), True, ()), (["submit"], False, task.fail_to_pass)):
        env.reset(seed=0)
        *_, info = [env.step(action) for action in actions][-1]
        assert (info["resolved"], info["failed_tests"]) == (resolved, failed)
    env.close()


def test_an_untouched_repository_is_not_resolved(env):
    env.reset(options={"instance_id": TASK.instance_id})
    observation, reward, terminated, _, info = env.step("submit")
    assert (observation, reward, terminated) == ("Submitted.", 0.0, True)
    assert info["exit_code"] == -1  # nothing ran
    assert info["resolved"] is False and info["valid"] is True
    assert info["fail_to_pass"] == (0, 1)
    assert info["patch"] == ""


def test_a_cold_reset_prepares_its_task_once(monkeypatch):
    prepared = []

    def counted(task, **arguments):
        prepared.append(task.instance_id)
        return prepare(task, **arguments)

    monkeypatch.setattr("swegym_env.env.prepare", counted)
    env = SWEBenchEnv(tasks=[TASK, mini_edit.generate(1)], pool=0)
    for _ in range(2):
        env.reset(options={"instance_id": TASK.instance_id})
    assert prepared == [TASK.instance_id] * 2
    env.close()


def test_a_failing_command_is_an_observation(env):
    env.reset(options={"instance_id": TASK.instance_id})
    observation, reward, terminated, truncated, info = env.step("ls /nowhere")
    assert "No such file" in observation and observation.endswith("[exit code 2]")
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert info["exit_code"] == 2


def test_text_without_an_action_is_an_action_error_and_runs_nothing():
    env = SWEBenchEnv(tasks=[TASK], action_format="execute")
    env.reset(seed=0)
    observation, _, terminated, _, info = env.step("I would like to think about it.")
    assert info["exit_code"] == -1
    assert observation == info["action_error"]
    assert "<execute>" in observation and not terminated
    assert info["exit_code"] == -1
    env.close()


def test_the_last_turn_is_graded_without_a_submission():
    env = SWEBenchEnv(tasks=[TASK], action_format="raw", max_turns=1)
    env.reset(seed=0)
    observation, reward, terminated, truncated, info = env.step(_gold_commands(TASK)[0])
    assert (reward, terminated, truncated) == (1.0, True, False)
    assert info["end_reason"] == "max_turns"
    assert observation.endswith("No turns are left.")
    env.close()


def test_the_episode_timeout_truncates_without_grading():
    env = SWEBenchEnv(tasks=[TASK], action_format="raw", episode_timeout_s=0.2)
    env.reset(seed=0)
    _, reward, terminated, truncated, info = env.step("sleep 0.3")
    assert (reward, terminated, truncated) == (0.0, False, True)
    assert info["end_reason"] == "time" and info["resolved"] is False
    env.close()


def test_a_command_timeout_does_not_end_the_episode():
    env = SWEBenchEnv(tasks=[TASK], action_format="raw", turn_timeout_s=0.5)
    env.reset(seed=0)
    observation, _, terminated, truncated, info = env.step("sleep 60")
    assert info["exit_code"] == 124 and "time limit" in observation
    assert not (terminated or truncated)
    assert env.step("echo still here")[0] == "still here\n[exit code 0]"
    env.close()


def test_the_limits_argument_applies_and_the_observation_names_the_limit():
    env = SWEBenchEnv(tasks=[TASK], action_format="raw", limits={"disk_bytes": 8 << 20})
    env.reset(seed=0)
    observation, _, ended, _, _ = env.step("head -c 20000000 /dev/zero > big; echo $?")
    assert "disk" in observation and not ended
    observation, *_ = env.step("rm big; echo room > small; cat small")
    assert "room" in observation
    env.close()


def test_reward_none_grades_nothing():
    env = SWEBenchEnv(tasks=[TASK], action_format="raw", reward="none")
    env.reset(seed=0)
    env.step(_gold_commands(TASK)[0])
    _, reward, terminated, _, info = env.step("submit")
    assert (reward, terminated) == (0.0, True)
    assert info["fail_to_pass"] is None and _without_index(info["patch"]) == TASK.patch
    env.close()


def test_step_without_an_episode_raises_reset_needed(env):
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step("ls")
    env.reset(seed=0)
    env.step("submit")
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step("ls")


def test_a_dead_sandbox_makes_the_episode_invalid(env):
    env.reset(options={"instance_id": TASK.instance_id})
    env._sandbox.close()  # as after a crash of the container
    _, reward, terminated, truncated, info = env.step("ls")
    assert (reward, terminated, truncated) == (0.0, False, True)
    assert info["valid"] is False and "SandboxError" in info["failure_reason"]
    assert info["end_reason"] == "error"
    env.reset(seed=0)
    assert env.step("echo back")[0] == "back\n[exit code 0]"


def test_restore_returns_to_a_snapshot_and_a_fork_is_independent(env):
    env.reset(options={"instance_id": TASK.instance_id})
    env.step("echo first > note.txt; cd /tmp")
    snapshot = env.snapshot()
    env.step("echo second > /testbed/note.txt")
    twin = env.fork()
    twin.step("rm /testbed/note.txt")
    assert "second" in env.step("cat /testbed/note.txt")[0]
    env.restore(snapshot)
    observation, *_ = env.step("pwd; cat /testbed/note.txt")
    assert observation == "/tmp\nfirst\n[exit code 0]"
    assert "No such file" in twin.step("cat /testbed/note.txt")[0]
    snapshot.discard()
    twin.close()


def test_restore_after_the_end_plays_on_from_a_snapshot(env):
    env.reset(options={"instance_id": TASK.instance_id})
    env.step("export A=1; echo first > note.txt; cd /tmp")
    snapshot = env.snapshot()
    assert env.step("submit")[2]
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step("pwd")
    for _ in range(2):
        env.restore(snapshot)
        observation, *_, info = env.step("pwd; cat /testbed/note.txt; echo $A")
        assert observation == "/tmp\nfirst\n1\n[exit code 0]" and "note.txt" in info["patch"]
        env.step(f"cd /testbed; {_gold_commands(TASK)[0]}")
        *_, info = env.step("submit")
        assert (info["end_reason"], info["resolved"]) == ("submitted", True)
    env.restore(snapshot)
    assert [env.step("true")[2] for _ in range(5)] == [False] * 4 + [True]  # the second of six turns is next
    snapshot.discard()
    with pytest.raises(SandboxError, match="discarded"):
        env.restore(snapshot)
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step("pwd")


def test_verdict_grades_the_current_work_without_changing_the_episode(env):
    env.reset(options={"instance_id": TASK.instance_id})
    before = env.snapshot()
    assert not env.verdict().resolved
    env.step(_gold_commands(TASK)[0])
    assert env.verdict().resolved
    env.restore(before)
    assert not env.verdict().resolved
    assert env.step("git status --short")[0] == "[exit code 0]"
    before.discard()


def test_last_turn_ends_the_episode_with_the_next_step(env):
    env.reset(options={"instance_id": TASK.instance_id})
    env.last_turn("tokens")
    observation, _, terminated, _, info = env.step("echo on")
    assert (observation, terminated, info["end_reason"]) == ("on\n[exit code 0]\nNo tokens are left.", True, "tokens")
    env.reset(options={"instance_id": TASK.instance_id})
    assert env.step("echo on")[2] is False
    env.last_turn("time")
    _, reward, terminated, truncated, info = env.step("echo on")
    assert (reward, terminated, truncated, info["end_reason"]) == (0.0, False, True, "time")


def test_render_mode_human_prints_each_turn(capsys):
    env = SWEBenchEnv(tasks=[TASK], action_format="raw", prompt="terse", render_mode="human")
    env.reset(seed=0)
    env.step("printf '\\033[31mred\\n'")
    printed = capsys.readouterr().out
    assert TASK.problem_statement in printed and ">>> printf" in printed and "\nred\n[exit code 0]" in printed
    assert "\033" not in printed and env.render() is None
    env.close()


def test_the_same_seed_gives_the_same_episode(env):
    first = [env.reset(seed=5)[1]["instance_id"], env.reset()[1]["instance_id"]]
    assert first == [env.reset(seed=5)[1]["instance_id"], env.reset()[1]["instance_id"]]


def test_render_mode_ansi_returns_the_last_turn():
    env = SWEBenchEnv(tasks=[TASK], action_format="raw", render_mode="ansi")
    env.reset(seed=0)
    env.step("echo shown")
    assert env.render() == "── turn 1 ──\n>>> echo shown\nshown\n[exit code 0]"
    env.close()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"dataset": "no-such-set"}, "no-such-set"),
        ({"reward": "resolve"}, "reward"),
        ({"max_turns": 0}, "max_turns"),
        ({"turn_timeout_s": -1.0}, "turn_timeout_s"),
        ({"observation_limit": 5}, "observation_limit"),
        ({"action_format": "yaml"}, "yaml"),
        ({"render_mode": "rgb_array"}, "render_mode"),
        ({"tasks": []}, "no task"),
        ({"sandbox": "docker"}, "no sandbox back end 'docker'; there are auto, apptainer"),
        ({"sandbox": "aptainer"}, "no sandbox back end 'aptainer'; did you mean apptainer. There are auto, apptainer"),
        ({"sandbox": None}, "no sandbox back end None; there are auto, apptainer"),
        ({"limits": {"memory": 1}}, "limits: unknown 'memory'; did you mean memory_bytes"),
        ({"limits": {"zzz": 1}}, "limits: unknown 'zzz'; there are turn_timeout_s, cpu_s, memory_bytes"),
        ({"limits": {"memory_bytes": "8G"}}, "limits: memory_bytes: expected a positive number, got '8G'"),
        ({"limits": {"memory_bytes": None}}, "limits: memory_bytes: expected a positive number, got None"),
        ({"limits": {"processes": 2.5}}, "limits: processes: expected a whole number, got 2.5"),
        ({"limits": {"processes": 1}}, "limits: processes: a sandbox needs at least 3, got 1"),
        ({"limits": {"descriptors": 15}}, "limits: descriptors: a sandbox needs at least 16, got 15"),
        ({"limits": {"inodes": 1.0}}, "limits: inodes: a sandbox needs at least 16, got 1.0"),
        ({"limits": {"inodes": float("inf")}}, "limits: inodes: expected a whole number, got inf"),
        ({"limits": 5}, "limits: expected a dictionary, got 5"),
        ({"chat_template": {"tool_use": "<tool_call>"}}, "chat_template: expected text, got a dict"),
        ({"max_turns": "5"}, "max_turns: expected None or a whole number of 1 or more, got '5'"),
        ({"max_turns": 2.5}, "max_turns: .*, got 2.5"),
        ({"max_turns": True}, "max_turns: .*, got True"),
        ({"turn_timeout_s": None}, "turn_timeout_s: expected a positive number, got None"),
        ({"turn_timeout_s": "6"}, "turn_timeout_s: .*, got '6'"),
        ({"episode_timeout_s": float("nan")}, "episode_timeout_s: expected None or a positive number, got nan"),
        ({"observation_limit": None}, "observation_limit: expected a whole number of 100 or more, got None"),
        ({"pool": 1.5}, "pool: expected a whole number of 0 or more, got 1.5"),
        ({"trust": "x"}, "trust: expected a number from 0 to 1, got 'x'"),
        ({"max_forgery_chance": "x"}, "max_forgery_chance: expected more than 0 and less than 1, got 'x'"),
        ({"max_forgery_chance": 1}, "max_forgery_chance: .*, got 1"),
        ({"prompt": "tersse"}, "no prompt 'tersse'"),
        ({"prompt": None}, "no prompt None"),
        ({"tools": 5}, "tools: expected names or folders, got 5"),
        ({"tools": "defualt"}, "no tool bundle 'defualt'; did you mean default"),
        ({"action_format": "hermez"}, "no action format 'hermez'; did you mean hermes"),
        ({"split": 3}, "no split 3"),
        ({"dataset": ""}, "no dataset ''"),
        ({"repos": 3}, "repos: expected a directory of clones, a clone, or a URL, got 3"),
        ({"repos": ""}, "repos: .*, got ''"),
        ({"tasks": "mini"}, "tasks: expected a sequence of Task, got str"),
        ({"tasks": 5}, "tasks: expected a sequence of Task, got int"),
        ({"tasks": [TASK, TASK.instance_id]}, "tasks: expected a sequence of Task, got one with str"),
    ],
)
def test_a_wrong_argument_is_named_in_one_line(arguments, named):
    with pytest.raises(ConfigurationError, match=named) as caught:
        SWEBenchEnv(**{"dataset": "mini-edit", **arguments})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("SWEBench-v0", {"max_turn": 5}, "SWEBenchEnv: no argument 'max_turn'; did you mean max_turns"),
        ("SWEAgent-v0", {"agents": "x"}, "SWEAgentEnv: no argument 'agents'; did you mean agent"),
        ("Harbor-v0", {"dataset": "x", "protection": "none"}, "HarborEnv: no argument 'protection'; did you mean prot"),
        ("KodCode-v0", {"example": []}, "KodCodeEnv: no argument 'example'; did you mean examples"),
        ("FileRepair-v0", {"zzzz": 1}, "FileRepairEnv: no argument 'zzzz'; there are dataset, split, strict_rows"),
        (
            "SWEBench-v0",
            {"dataset": TaskSet([TASK])},
            "dataset: expected a name or a file, got a TaskSet. Try: tasks=",
        ),
        ("SWEAgent-v0", {"dataset": [TASK]}, "dataset: expected a name or a file, got a list. Try: tasks="),
        ("KodCode-v0", {"dataset": TaskSet([TASK])}, "got a TaskSet. Try: examples="),
        ("VulnerabilityDetection-v0", {"dataset": TaskSet([TASK])}, "got a TaskSet. Try: examples="),
    ],
)
def test_errors_of_wrong_names_and_of_tasks_in_place_of_a_dataset_have_the_right_ones(name, arguments, message):
    with pytest.raises(ConfigurationError) as caught:
        gymnasium.make(name, **arguments)
    assert message in str(caught.value)
    with pytest.raises(ConfigurationError) as caught:
        gymnasium.make_vec(name, num_envs=2, **arguments)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Limits(turn_timeout=3), "Limits: no argument 'turn_timeout'; did you mean turn_timeout_s"),
        (lambda: SandboxSpec(limit=None), "SandboxSpec: no argument 'limit'; did you mean limits"),
        (lambda: SandboxSpec(zzzz=1), "SandboxSpec: no argument 'zzzz'; there are image, layers, workdir"),
        (lambda: Imports("-m", module=()), "Imports: no argument 'module'; did you mean modules"),
        (lambda: AgentSpec("true", installs=""), "AgentSpec: no argument 'installs'; did you mean install"),
        (lambda: PullOptions(retry=1), "PullOptions: no argument 'retry'; did you mean retries"),
        (lambda: MakeSettings(counts=1), "MakeSettings: no argument 'counts'; did you mean count"),
        (lambda: MakeLimits(fails=1), "Limits: no argument 'fails'; did you mean failing"),
    ],
)
def test_an_unknown_setting_in_python_is_answered_with_the_right_one(make, message):
    with pytest.raises(ConfigurationError) as caught:
        make()
    assert message in str(caught.value)


def test_wrong_examples_and_prompts_of_the_other_environments_are_named():
    for name in ("KodCode-v0", "FileRepair-v0", "VulnerabilityDetection-v0"):
        with pytest.raises(ConfigurationError, match=r"examples: expected a sequence of \w+, got one with Task"):
            gymnasium.make(name, examples=[TASK])
        with pytest.raises(ConfigurationError, match="no prompt 'nowhere'"):
            gymnasium.make(name, prompt="nowhere")
    with pytest.raises(ConfigurationError, match="no agent 'mini-swe-agnt'; did you mean mini-swe-agent"):
        gymnasium.make("SWEAgent-v0", agent="mini-swe-agnt")


def test_an_action_that_is_no_text_or_a_wrong_option_changes_nothing(env):
    env.reset(seed=0, options={"instance_id": TASK.instance_id})
    for action in (None, b"ls", 5, ["ls"]):
        with pytest.raises(ConfigurationError, match=f"step: expected the action as text, got {type(action).__name__}"):
            env.step(action)
    for options in (["instance_id"], "instance_id", 3, {1: 2, "x": 3}, {"instance": TASK.instance_id}):
        with pytest.raises(ConfigurationError, match=r"options: expected a dictionary|unknown option"):
            env.reset(options=options)
    assert env.step("echo on")[0] == "on\n[exit code 0]"


def test_a_second_thread_is_refused_and_disturbs_nothing(env):
    env.reset(seed=0)
    with ThreadPoolExecutor(1) as thread:
        first = thread.submit(env.step, "echo one; touch begun; sleep 1; echo one")
        time.sleep(0.3)
        for call in (lambda: env.step("echo two"), env.reset):
            with pytest.raises(ConfigurationError, match="another thread is using it"):
                call()
        assert first.result()[0] == "one\none\n[exit code 0]"
    assert env.step("echo three")[0] == "three\n[exit code 0]"  # one after the other, any thread may


def test_whole_numbers_of_limits_may_be_written_as_floats(env):
    limited = SWEBenchEnv(tasks=[TASK], action_format="raw", limits={"memory_bytes": 1e9, "processes": 64.0}, pool=0)
    limited.reset()
    assert limited.step("echo on")[0] == "on\n[exit code 0]"
    limited.close()


def test_an_environment_whose_first_reset_failed_can_be_reset_and_played():
    env = gymnasium.make("SWEBench-v0", tasks=[TASK], action_format="raw", pool=0)
    with pytest.raises(UnknownTaskError):
        env.reset(options={"instance_id": "a typo"})
    env.reset(seed=0)
    for word in ("one", "two"):
        assert env.step(f"echo {word}")[0] == f"{word}\n[exit code 0]"
    env.close()


def test_a_subclass_that_takes_any_argument_gets_what_it_is_given():
    class Own(SWEBenchEnv):
        def __init__(self, *, own, **others):
            super().__init__(**others)
            self.own = own

    assert Own(own=1, tasks=[TASK]).own == 1
    with pytest.raises(TypeError, match="owns"):
        Own(own=1, owns=2, tasks=[TASK])


def test_an_unknown_instance_or_option_or_prompt_is_named(env, tmp_path):
    with pytest.raises(UnknownTaskError, match="mini-edit__train-77"):
        env.reset(options={"instance_id": "mini-edit__train-77"})
    with pytest.raises(ConfigurationError, match="instance"):
        env.reset(options={"instance": "x"})
    with pytest.raises(ConfigurationError, match=r"system\.j2"):
        SWEBenchEnv(tasks=[TASK], prompt=str(tmp_path)).reset()
    (tmp_path / "system.j2").write_text("{{ nothing }}")
    (tmp_path / "task.j2").write_text("task")
    with pytest.raises(ConfigurationError, match="nothing"):
        SWEBenchEnv(tasks=[TASK], prompt=str(tmp_path)).reset()


PLAYED = """
import logging, os, sys
os.umask(int(sys.argv[2], 8))
logging.getLogger("swegym_env.long_work").disabled = True  # what it warns of depends on how busy the machine is
from swegym_env.cli.doctor import diagnose
from swegym_env.env import SWEBenchEnv
diagnose()  # it makes the directories first
env = SWEBenchEnv(sandbox=sys.argv[1], action_format="raw", tools="default")
env.reset(seed=0)
for action in ("echo a > new", "stat -c '%A %U %n' * .git/* /opt/swegym/*/*", "rm new; search def | tail -1"):
    observation, *_, info = env.step(action)
    print(observation, info["patch"])
env.step(f"git apply - <<'END_OF_PATCH'\\n{env.task.patch}END_OF_PATCH")
print(env.step("submit")[1])
"""


def test_an_owner_with_any_umask_plays_the_same_episode(backend):
    played = []
    for umask in ("022", "077"):
        with public_directory("work") as work, public_directory("run") as run:
            places = {"SWEGYM_WORKDIR": str(work / "new"), "SWEGYM_RUNDIR": str(run / "new")}
            environment = {**os.environ, **places, "PYTHONPATH": os.pathsep.join(sys.path)}
            command = [sys.executable, "-c", PLAYED, backend, umask]
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
            assert (done.returncode, done.stderr) == (0, "")
            played.append(done.stdout)
    assert played[0] == played[1] and played[0].endswith("\n1.0\n")
