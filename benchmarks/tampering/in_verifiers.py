"""Runs in the peers' environment: plays scripts by verifiers, in its own runtime or in ours, and prints the rewards.

verifiers finds the taskset and the harness here by the name of this module.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import verifiers.v1 as vf
from openai import AsyncOpenAI
from verifiers.v1.tasksets.harbor import HarborConfig, HarborEnv, HarborTask, HarborTaskset
from verifiers.v1.tasksets.harbor.taskset import parse_task

from benchmarks.scripted_model import ScriptedModel, call

__all__ = ["FolderTaskset", "HarborEnv", "SolutionHarness"]


class FolderConfig(HarborConfig):
    """Attributes: folder: of one task in Harbor's format."""

    folder: str = ""


class FolderTaskset(HarborTaskset, vf.Taskset[HarborTask, FolderConfig]):
    """verifiers' tasks in Harbor's format, from a folder in place of Harbor's hub."""

    def load(self) -> Iterator[HarborTask]:
        """The one task."""
        yield HarborTask(parse_task(Path(self.config.folder), 0, self.config), self.config.task)


class SolutionHarness(vf.Harness[vf.HarnessConfig]):
    """An agent that asks its model once and runs the task's solution."""

    async def launch(
        self, ctx: Any, trace: Any, runtime: vf.Runtime, endpoint: str, secret: str, mcp_urls: Any, data: Any
    ) -> vf.ProgramResult:
        """See `Harness.launch`."""
        async with AsyncOpenAI(base_url=endpoint, api_key=secret) as client:
            await client.chat.completions.create(model=ctx.model, messages=[{"role": "user", "content": "Go."}])
        ran = await runtime.run(["bash", "-c", (Path(data.task_dir) / "solution/solve.sh").read_text()], {})
        return vf.ProgramResult(0, ran.stdout, ran.stderr)


def play(taskset: dict[str, Any], agent: dict[str, Any], script: str) -> dict[str, Any]:
    """One episode: its reward, or the error that it has in place of one."""
    env = vf.load_environment(vf.resolve_env_config({"taskset": taskset, **({"agent": agent} if agent else {})}))

    async def run(url: str) -> vf.Episode:
        client = vf.EvalClientConfig(base_url=url, api_key_var="NO_KEY")
        context = vf.ModelContext(model="scripted", client=client, sampling=vf.SamplingConfig())
        (task,) = env.taskset.load()
        async with env.serving():
            return await env.run_episode(task, context)

    calls = [call("bash", command=f"cd /testbed\n{script}"), call("submit")] if script else []
    with closing(ScriptedModel([*calls, {"role": "assistant", "content": "Done."}])) as model:
        episode = asyncio.run(run(model.url))
    errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
    if errors:
        return {"reward": None, "error": str(errors[-1].message)[-400:]}
    return {"reward": float(episode.traces[0].reward), "error": ""}


def main() -> None:
    """Read the episodes from standard input, and print name → reward."""
    request = json.load(sys.stdin)
    found = {}
    for name, episode in request["episodes"].items():
        if request["dataset"]:
            taskset = {"id": "swegym-verifiers", "dataset": request["dataset"]}
            found[name] = play(taskset, {}, episode["script"])
        else:
            taskset = {"id": "in-verifiers", "folder": episode["folder"]}
            agent = {"harness": {"id": "in-verifiers"}, "runtime": {"type": "apptainer"}}
            found[name] = play(taskset, agent, "")
        print(name, found[name], file=sys.stderr)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
