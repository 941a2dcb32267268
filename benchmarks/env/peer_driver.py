"""Runs in the peers' environment: measures what each line of JSON on standard input requests, and prints the result."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from importlib.metadata import version

COMMAND = ":"
# mini-swe-agent's, as of the version that is installed.
FLAGS = ["--contain", "--cleanenv", "--fakeroot"]


def flags(root):
    """mini-swe-agent's flags, without `--fakeroot` if the user has no subordinate ids."""
    tried = subprocess.run(
        ["apptainer", "--quiet", "exec", *FLAGS, "--writable", root, "true"], check=False, capture_output=True
    )
    return FLAGS if tried.returncode == 0 else FLAGS[:-1]


class ApptainerExec:
    """`apptainer exec` for each command, with mini-swe-agent's flags, on a directory image."""

    def __init__(self, root):
        self.command = ["apptainer", "--quiet", "exec", *flags(root), "--writable", root, "bash", "-c", COMMAND]

    def step(self):
        subprocess.run(self.command, check=True, capture_output=True)

    def close(self):
        pass


class ApptainerInstance:
    """An instance, and `apptainer exec instance://` for each command."""

    def __init__(self, root):
        self.name = f"bench-{uuid.uuid4().hex[:8]}"
        subprocess.run(
            [
                "apptainer",
                "--quiet",
                "instance",
                "start",
                "--contain",
                "--cleanenv",
                "--writable-tmpfs",
                root,
                self.name,
            ],
            check=True,
            capture_output=True,
        )
        self.command = ["apptainer", "--quiet", "exec", f"instance://{self.name}", "bash", "-c", COMMAND]

    def step(self):
        subprocess.run(self.command, check=True, capture_output=True)

    def close(self):
        subprocess.run(
            ["apptainer", "--quiet", "instance", "stop", "-F", "-t", "0", self.name], check=False, capture_output=True
        )


class MiniSweAgent:
    """mini-swe-agent's own environments."""

    def __init__(self, environment):
        self.environment = environment

    def step(self):
        done = self.environment.execute({"command": COMMAND})
        assert done["returncode"] == 0, done

    def close(self):
        if hasattr(self.environment, "cleanup"):
            self.environment.cleanup()


def singularity(root):
    from minisweagent.environments.singularity import SingularityEnvironment

    return MiniSweAgent(SingularityEnvironment(image=root, executable="apptainer", exec_args=flags(root)))


def bubblewrap(_root):
    from minisweagent.environments.extra.bubblewrap import BubblewrapEnvironment

    return MiniSweAgent(BubblewrapEnvironment())


class SweRexLocal:
    """SWE-ReX's local runtime: a bash under pexpect without a sandbox."""

    def __init__(self, _root):
        from swerex.runtime.abstract import BashAction, CreateBashSessionRequest
        from swerex.runtime.local import LocalRuntime

        self.loop = asyncio.new_event_loop()
        self.runtime = LocalRuntime()
        self.action = BashAction(command=COMMAND)
        self.loop.run_until_complete(self.runtime.create_session(CreateBashSessionRequest()))

    def step(self):
        done = self.loop.run_until_complete(self.runtime.run_in_session(self.action))
        assert done.exit_code == 0, done

    def close(self):
        self.loop.run_until_complete(self.runtime.close())
        self.loop.close()


MAKERS = {
    "apptainer exec": ApptainerExec,
    "apptainer exec instance://": ApptainerInstance,
    "mini-swe-agent Singularity": singularity,
    "mini-swe-agent bubblewrap": bubblewrap,
    "SWE-ReX local": SweRexLocal,
}


def timed(action):
    began = time.perf_counter()
    action()
    return (time.perf_counter() - began) * 1e3


def made_and_stepped(make, root):
    began = time.perf_counter()
    peer = make(root)
    peer.step()
    took = (time.perf_counter() - began) * 1e3
    peer.close()
    return took


def main():
    answers = os.fdopen(os.dup(1), "w")  # peers print
    os.dup2(2, 1)
    root = sys.argv[1]
    live, missing = {}, {}
    for name, make in MAKERS.items():
        try:
            live[name] = make(root)
            live[name].step()
        except Exception as error:  # noqa: BLE001 - whatever is wrong with a peer, the others are measured
            live.pop(name, None)
            reason = getattr(error, "stderr", None) or str(error) or type(error).__name__
            missing[name] = " ".join((reason.decode() if isinstance(reason, bytes) else reason).split())[-300:]
    used = "flags of apptainer exec: " + " ".join(flags(root)) if shutil.which("apptainer") else ""
    versions = {name: version(name) for name in ("mini-swe-agent", "swe-rex")}
    for tool in ("apptainer", "bwrap"):
        if shutil.which(tool):
            versions[tool] = subprocess.run(
                [tool, "--version"], capture_output=True, text=True, check=False
            ).stdout.split()[-1]
    print(
        json.dumps({"names": list(live), "missing": missing, "versions": versions, "used": used}),
        file=answers,
        flush=True,
    )
    for line in sys.stdin:
        request = json.loads(line)
        if request["what"] == "step":
            measured = [timed(live[request["name"]].step) for _ in range(request["times"])]
        else:
            measured = [made_and_stepped(MAKERS[request["name"]], root) for _ in range(request["times"])]
        print(json.dumps({"milliseconds": measured}), file=answers, flush=True)
    for peer in live.values():
        peer.close()


if __name__ == "__main__":
    tempfile.tempdir = tempfile.mkdtemp(prefix="swegym-bench-peers-")
    try:
        main()
    finally:
        shutil.rmtree(tempfile.tempdir, ignore_errors=True)
