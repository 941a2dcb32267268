"""verifiers' own commands in our sandboxes, with a scripted model: `scripts/test_adapter.sh verifiers` runs this."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import verifiers.v1 as vf

from benchmarks.scripted_model import Answer, ScriptedModel, call
from swegym_env.adapters.verifiers import SwegymRuntime
from swegym_env.sandbox.client import supervisor
from swegym_env.sandbox.linux.processes import descendants
from swegym_env.tasks.datasets import load_tasks
from tests.env.sandbox.test_reaping import eventually, gone, sandboxes, users
from tests.places import own_run_directory, small_run_directory
from tests.programs import ROOT

TASK, OTHER = (load_tasks("mini")[name] for name in ("mini__lrucache-001", "mini__lrucache-002"))


def repair(patch: str = TASK.patch) -> Answer:
    return call("bash", command=f"cd /testbed; git apply - <<'END'\n{patch}END")


SUBMIT = call("submit")


@pytest.fixture
def model() -> Iterator[ScriptedModel]:
    with closing(ScriptedModel()) as made:
        yield made


@pytest.fixture
def place() -> Iterator[Path]:
    """A run directory of its own, in which leftovers can be counted."""
    with own_run_directory() as directory:
        yield directory


def vf_eval(model: ScriptedModel, output: Path, *options: str) -> list[str]:
    client = ["--client.base-url", model.url, "--client.api-key-var", "NO_KEY"]
    return [
        "vf-eval",
        "swegym-verifiers",
        "-m",
        "scripted",
        *client,
        "--no-push",
        "--no-rich",
        "-o",
        str(output),
        *options,
    ]


def only(*names: str) -> list[str]:
    return ["--select.include.ids", json.dumps(names)]


def episodes_in(output: Path) -> list[vf.WireEpisode]:
    """What verifiers' own reader finds in the records of a run."""
    (records,) = output.glob("*/traces.jsonl")
    return [vf.WireEpisode.model_validate_json(line) for line in records.read_text().splitlines()]


def description(trace: vf.Trace) -> str:
    """Details of a trace, to explain a failed check."""
    shown = [str(message.content)[-300:] for message in trace.tool_messages]
    return f"{trace.stop_condition} {trace.info} {trace.rewards} {trace.errors} {shown}"


def run_program(command: list[str], home: Path) -> subprocess.CompletedProcess[str]:
    own = {**os.environ, "HOME": str(home), "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, env=own, cwd=home, capture_output=True, text=True, timeout=240, check=False)


def play(
    model: ScriptedModel, *script: Answer | Callable[[], Answer], agent: dict[str, Any] | None = None, **env: Any
) -> vf.Episode:
    """One episode on `TASK`, as `vf-eval` and prime-rl run it."""
    model.script[:] = script
    taskset = {"id": "swegym-verifiers", **env.pop("taskset", {})}
    seat = {"agent": agent} if agent else {}
    made = vf.load_environment(vf.resolve_env_config({"taskset": taskset, **seat, **env}))
    client = vf.EvalClientConfig(base_url=model.url, api_key_var="NO_KEY")
    context = vf.ModelContext(model="scripted", client=client, sampling=vf.SamplingConfig())

    async def run() -> vf.Episode:
        (task,) = made.taskset.include(ids=[TASK.instance_id])
        async with made.serving():
            return await made.run_episode(task, context)

    return asyncio.run(run())


def in_runtime(use: Callable[[SwegymRuntime], Awaitable[None]]) -> None:
    async def run() -> None:
        runtime = SwegymRuntime(TASK)
        try:
            await runtime.start()
            await use(runtime)
        finally:
            await runtime.stop()
        assert not await runtime.alive()

    asyncio.run(run())


def test_vf_eval_earns_one_with_the_repair_and_nothing_without(
    model: ScriptedModel, tmp_path: Path, place: Path
) -> None:
    model.script[:] = [
        call("bash", command="cd lrucache; ME=7"),
        call("bash", command="pwd; echo $ME; exit 3"),
        call("view", path="/testbed/lrucache/cache.py"),
        call("nothing"),
        repair(),  # of the first task; it does not apply to the other one
        SUBMIT,
    ]
    ran = run_program(vf_eval(model, tmp_path / "out", *only(TASK.instance_id, OTHER.instance_id)), tmp_path)
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-3000:]
    episodes = {episode.task.key: episode for episode in episodes_in(tmp_path / "out")}
    rewards = {name: episode.traces[0].reward for name, episode in episodes.items()}
    assert rewards == {TASK.instance_id: 1.0, OTHER.instance_id: 0.0}, description(episodes[TASK.instance_id].traces[0])
    (trace,) = episodes[TASK.instance_id].traces
    assert trace.ok and not trace.errors and trace.stop_condition == "agent_completed" and trace.num_turns == 6
    assert trace.info["swegym"]["fail_to_pass"] == [len(TASK.fail_to_pass)] * 2
    assert (
        trace.agent is not None
        and trace.agent.runtime is not None
        and str(trace.agent.runtime.id).startswith("swegym-")
    )
    shown = [str(message.content) for message in trace.tool_messages]
    assert shown[1].startswith("/testbed/lrucache\n7\n") and "exit code 3" in shown[1]
    assert "class " in shown[2] and "There is no function 'nothing'" in shown[3]
    (issue,) = [message for message in trace.messages if message.role == "user"]
    assert TASK.problem_statement in str(issue.content)
    (records,) = (tmp_path / "out").glob("*/traces.jsonl")
    hidden = TASK.test_patch.splitlines()[-1].removeprefix("+").strip()
    assert hidden and hidden not in records.read_text()
    assert not sandboxes(place)


def test_vf_validate_finds_solutions_valid_and_untouched_tasks_unsolved(tmp_path: Path) -> None:
    command = ["vf-validate", "swegym-verifiers", "--runtime.type", "subprocess", "--no-rich", "-n", "3"]
    ran = run_program([*command, "-o", str(tmp_path / "out")], tmp_path)
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-3000:]
    (summary,) = (tmp_path / "out").glob("*/summary.json")
    checks = json.loads(summary.read_text())["checks"]
    assert (checks["gold"]["valid"], checks["noop"]["valid"]) == (3, 3)


def test_what_the_machine_breaks_is_an_error_without_a_reward(model: ScriptedModel) -> None:
    def break_the_machine() -> Answer:
        pid = supervisor().pid
        below = descendants(pid)
        os.kill(pid, signal.SIGKILL)
        assert gone(below)
        return call("bash", command="ls")

    episode = play(model, repair(), break_the_machine, SUBMIT)
    (trace,) = episode.traces
    assert not episode.ok and not trace.ok, description(trace)
    assert trace.last_error is not None and trace.last_error.type == "SandboxError"
    assert trace.stop_condition == "sandbox_error" and trace.rewards == {}


def test_tests_that_the_machine_cannot_run_leave_no_reward(
    model: ScriptedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def break_the_machine() -> Answer:
        monkeypatch.setenv("SWEGYM_RUNDIR", str(tmp_path / "file" / "below"))
        return SUBMIT

    (tmp_path / "file").touch()
    (trace,) = play(model, repair(), break_the_machine).traces
    assert not trace.ok and trace.last_error is not None and trace.last_error.type == "SandboxError", description(trace)
    assert trace.rewards == {"resolved": None}


def test_a_sandbox_that_does_not_start_is_an_error_of_the_episode(
    model: ScriptedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SWEGYM_RUNDIR", str(tmp_path / "file" / "below"))
    (tmp_path / "file").touch()
    episode = play(model, SUBMIT)
    assert not episode.ok and not episode.traces
    assert [error.type for error in episode.errors] == ["SandboxError"]


@pytest.fixture
def small_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with small_run_directory(monkeypatch) as folder:
        yield folder


def test_an_agent_that_breaks_its_sandbox_earns_nothing(model: ScriptedModel, small_disk: Path) -> None:
    def fill_the_disk() -> Answer:
        pid = supervisor().pid
        os.kill(pid, signal.SIGSTOP)  # so nothing is measured while the disk fills
        threading.Thread(target=lambda: (eventually(lambda: is_full(small_disk)), os.kill(pid, signal.SIGCONT))).start()
        return call("bash", command="head -c 400M /dev/zero >/tmp/big")

    (trace,) = play(model, repair(), fill_the_disk, SUBMIT).traces
    assert trace.ok and trace.reward == 0.0 and trace.num_turns == 2


def is_full(place: Path) -> bool:
    status = os.statvfs(place)
    return status.f_bavail * status.f_frsize < 1 << 16


def test_limits_of_verifiers_end_the_episode_and_the_work_counts(model: ScriptedModel) -> None:
    (trace,) = play(model, repair(), call("bash", command="ls"), SUBMIT, agent={"max_turns": 2}).traces
    assert trace.ok and trace.reward == 1.0 and trace.stop_condition == "max_turns" and trace.num_turns == 2
    late = play(
        model, repair(), call("bash", command="sleep 3; git checkout ."), SUBMIT, agent={"timeout": {"rollout": 2}}
    )
    (trace,) = late.traces
    # The command that runs then is ended, before it undoes the repair.
    assert trace.ok and trace.is_timeout and trace.stop_condition == "agent_timeout" and trace.reward == 1.0


def test_an_answer_without_a_call_ends_the_episode(model: ScriptedModel) -> None:
    (trace,) = play(model, {"role": "assistant", "content": "It is a feature."}).traces
    assert trace.ok and trace.reward == 0.0
    assert [tool["function"]["name"] for tool in model.requests[0]["tools"]][-1] == "submit"
    assert model.requests[0]["messages"][0]["role"] == "system"


@pytest.mark.parametrize(
    ("agent", "wrong"), [({"runtime": {"type": "subprocess"}}, "runtime"), ({"harness": {"id": "null"}}, "harness")]
)
def test_what_would_have_no_effect_is_refused(model: ScriptedModel, agent: dict[str, Any], wrong: str) -> None:
    episode = play(model, SUBMIT, agent=agent)
    assert not episode.ok and not episode.traces
    assert wrong in episode.errors[0].message and not model.requests


def test_a_runtime_is_verifiers_own_contract() -> None:
    async def use(runtime: SwegymRuntime) -> None:
        assert isinstance(runtime, vf.Runtime) and runtime.type == "apptainer" and await runtime.alive()
        ran = await runtime.run(["sh", "-c", "echo $ME; echo two >&2; pwd; exit 3"], {"ME": "7 'eight'"})
        assert (ran.exit_code, ran.stdout, ran.stderr) == (3, "7 'eight'\n/testbed\n", "two\n")
        view = runtime.with_env({"TASK": "1"})
        assert (await view.run(["sh", "-c", "echo $TASK$ME"], {"ME": "2"})).stdout == "12\n"
        assert (await runtime.run(["sh", "-c", "echo .$TASK$ME"], {})).stdout == ".\n"
        assert (await runtime.run(["no-such-program"], {})).exit_code == 127
        await runtime.run(["sh", "-c", "(sleep 0.2; echo late >&2) >/dev/null &"], {})
        assert (await runtime.run(["sleep", "0.4"], {})).stderr == ""  # that is of the command before
        assert (await runtime.run(["cat"], {})).stdout == ""  # standard input is closed
        await runtime.write("made/for/it.bin", b"\0\xff12345")
        assert await runtime.read("/testbed/made/for/it.bin") == b"\0\xff12345"
        assert await runtime.read("made/for/it.bin", max_bytes=7) == b"\0\xff12345"
        for refused in (
            runtime.read("made/for/it.bin", max_bytes=6),
            runtime.read("none"),
            runtime.write("/proc/x", b""),
        ):
            with pytest.raises(vf.SandboxError):
                await refused
        together = await asyncio.gather(*(runtime.run(["echo", str(number)], {}) for number in range(8)))
        assert [each.stdout for each in together] == [f"{number}\n" for number in range(8)]
        with pytest.raises(ValueError, match="another user"):
            runtime.with_user("nobody")

    in_runtime(use)


def test_nothing_is_left_when_vf_eval_is_killed(model: ScriptedModel, tmp_path: Path, place: Path) -> None:
    model.script[:] = [call("bash", command="setsid sleep 1000 & sleep 1000")]
    own = {**os.environ, "HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        vf_eval(model, tmp_path, *only(TASK.instance_id)), env=own, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        assert model.reached.wait(60)
        assert eventually(lambda: bool(users(place)))
        below = descendants(process.pid)
        assert below
        process.kill()
    assert eventually(lambda: not users(place) and not sandboxes(place))
    assert gone(below)
