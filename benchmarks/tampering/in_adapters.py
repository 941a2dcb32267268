"""Runs in a peer's environment: plays scripts through our adapter by the peer's protocol, and prints the rewards."""

from __future__ import annotations

import json
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Play = Callable[[str], dict[str, Any]]


def openenv(dataset: str, instance: str) -> Play:
    """A server of OpenEnv, and its client over WebSocket."""
    import uvicorn

    from swegym_env.adapters.openenv import SwegymAction, make_app
    from swegym_env.adapters.openenv_client import SwegymClient

    server = uvicorn.Server(uvicorn.Config(make_app(dataset=dataset), port=0, log_level="error"))
    threading.Thread(target=server.run, daemon=True).start()
    while not server.started:
        time.sleep(0.05)
    url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"

    def play(script: str) -> dict[str, Any]:
        with SwegymClient(base_url=url).sync() as client:
            client.reset(instance_id=instance)
            client.step(SwegymAction(tool_name="bash", arguments={"command": script}))
            last = client.step("submit")
            assert client.state().outcome["reward"] == last.reward
            return {"reward": last.reward, "error": last.metadata["failure_reason"]}

    return play


def inspect(dataset: str, instance: str) -> Play:
    """`inspect eval` with a scripted model and Inspect's own tool `bash`."""
    import inspect_ai
    from inspect_ai.model import ModelOutput, ModelUsage, get_model

    from swegym_env.adapters.inspect_ai import swegym

    def call(name: str, **arguments: Any) -> ModelOutput:
        output = ModelOutput.for_tool_call("mockllm/model", name, arguments)
        output.usage = ModelUsage(input_tokens=1, output_tokens=1, total_tokens=2)
        return output

    def play(script: str) -> dict[str, Any]:
        task = swegym(dataset=dataset)
        task.dataset = task.dataset.filter(lambda sample: sample.id == instance)
        answers = [call("bash", command=script), call("submit", answer="done")]
        model = get_model("mockllm/model", custom_outputs=answers)
        with tempfile.TemporaryDirectory() as logs:
            (log,) = inspect_ai.eval(task, model=model, display="none", log_dir=logs)
            if log.status != "success":
                return {"reward": None, "error": str(log.error)[-400:]}
            score = log.samples[0].scores["verdict"]  # read from the folder now, not before
        return {"reward": score.value, "error": score.explanation or ""}

    return play


def nemo_gym(dataset: str, instance: str) -> Play:
    """NeMo Gym's sandbox API on the provider of our entry point."""
    from nemo_gym.sandbox import Sandbox, SandboxSpec, resolve_provider_config

    from swegym_env.adapters.nemo_gym import VERDICT

    config = resolve_provider_config("sandbox", {"sandbox": {"swegym": {"dataset": dataset}}})

    def play(script: str) -> dict[str, Any]:
        with (
            tempfile.TemporaryDirectory() as folder,
            Sandbox(config).start(SandboxSpec(image="any", metadata={"instance_id": instance})) as sandbox,
        ):
            sandbox.exec(script, timeout_s=60)
            sandbox.download(VERDICT, Path(folder) / "verdict.json")
            found = json.loads((Path(folder) / "verdict.json").read_text())
        return {"reward": found["reward"], "error": found["failure_reason"]}

    return play


def main() -> None:
    """Read the episodes from standard input, and print name → reward."""
    request = json.load(sys.stdin)
    adapters = {"openenv": openenv, "inspect": inspect, "nemo_gym": nemo_gym}
    play = adapters[request["adapter"]](request["dataset"], request["instance_id"])
    found = {}
    for name, script in request["scripts"].items():
        found[name] = play(script)
        print(name, found[name], file=sys.stderr)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
