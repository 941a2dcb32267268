"""Play published ways to forge a verdict through the grading of other projects and through ours; count what pays.

    python -m benchmarks.tampering [--python .venv/adapters/peers/bin/python] [--only Harbor [--keep]]

A scripted agent runs each script in the repository, and then each project grades in its own way. The same runs play the
repair, which has to earn 1, and an agent that changes nothing, which has to earn 0: a project where these two do not
hold is not counted. Peers run with Apptainer, which all of them document for machines without Docker.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.options import require_python
from benchmarks.records import RESULTS, head
from benchmarks.tampering.attacks import EMPTY, HONEST, attacks
from benchmarks.tampering.place import Place, make_place, write_harbor_task
from swe_trainers.files import write_whole

ROOT = Path(__file__).parents[2]
PEERS = ROOT / ".venv/adapters/peers/bin/python"
Found = dict[str, dict[str, Any]]
"""Name of an episode → `reward`, None without one, and `error`."""
_WITHOUT_GRADING = {
    "mini-swe-agent": "its batch command writes predictions, which SWE-bench's harness grades",
    "SWE-ReX": "a runtime: its programs, such as SWE-agent, write predictions",
    "OpenEnv": "rewards are each environment's own; the package has none on repositories",
    "Inspect": "scorers are the task's own; its SWE-bench task is another package and runs in Docker or Kubernetes",
}


class Peers:
    """The projects that are attacked.

    Args:
        place: the task.
        python: of the environment in which Harbor, verifiers and SWE-bench are.
        scripts: name of an episode → what the agent does.
    """

    def __init__(self, place: Place, python: Path, scripts: Mapping[str, str]) -> None:
        self.place, self.python, self.scripts = place, python, scripts

    def harbor(self, mode: str, environment: str) -> Found:
        """Harbor's own command with its agent `oracle`, whose solution is the script."""
        folder = Path(tempfile.mkdtemp(dir=self.place.directory))
        names = {f"episode-{number:02}": name for number, name in enumerate(self.scripts)}
        for task, name in names.items():
            write_harbor_task(folder / "tasks" / task, self.place, self.scripts[name], separate=mode == "separate")
        chosen = ["-p", folder / "tasks", "-a", "oracle", "-o", folder / "jobs", "--job-name", "all", "-n", "1"]
        self._run([self.python.with_name("harbor"), "run", "-y", "-q", *chosen, "--env", environment])
        found: Found = {name: {"reward": None, "error": "no trial"} for name in self.scripts}
        for path in sorted((folder / "jobs/all").glob("*/result.json")):
            result = json.loads(path.read_text())
            rewards = (result.get("verifier_result") or {}).get("rewards") or {}
            error = (result.get("exception_info") or {}).get("exception_message", "")
            found[names[result["task_name"].rpartition("/")[2]]] = {
                "reward": rewards.get("reward"),
                "error": error[-400:],
            }
        return found

    def verifiers(self, *, ours: bool) -> Found:
        """Verifiers' Harbor tasks in its Apptainer runtime; `ours`: its commands' environment `swegym-verifiers`."""
        folder = Path(tempfile.mkdtemp(dir=self.place.directory))
        episodes = {}
        for number, (name, script) in enumerate(self.scripts.items()):
            write_harbor_task(folder / f"episode-{number:02}", self.place, script)
            episodes[name] = {"folder": str(folder / f"episode-{number:02}"), "script": script}
        request = {"episodes": episodes, "dataset": str(self.place.dataset) if ours else ""}
        return self._ask("in_verifiers.py", request)

    def swebench(self) -> Found:
        """The steps of SWE-bench's harness in containers: patch, test script, its own grading of the log.

        Its own containers are Docker's. A patch is what the agent's container has changed in the repository.
        """
        task, folder = self.place.task, Path(tempfile.mkdtemp(dir=self.place.directory))
        instance = {
            "instance_id": task.instance_id,
            "repo": "psf/requests",  # whose row in the harness' table tests by `pytest -rA`
            "version": "2.3",
            "base_commit": task.base_commit,
            "patch": task.patch,
            "test_patch": task.test_patch,
            "problem_statement": task.problem_statement,
            "hints_text": "",
            "created_at": "",
            "environment_setup_commit": task.base_commit,
            "FAIL_TO_PASS": json.dumps(task.fail_to_pass),
            "PASS_TO_PASS": json.dumps(task.pass_to_pass),
        }
        tests = self._ask("in_swebench.py", {"instance": instance})
        found: Found = {}
        logs = {}
        for number, (name, script) in enumerate(self.scripts.items()):
            take = f"git add -A && git diff --cached --binary {task.base_commit}"
            patch = self._contained(f"cd /testbed\n( {script} ) >/dev/null 2>&1\n{take}\n")
            if not patch.strip():
                found[name] = {"reward": 0.0, "error": "no patch"}
                continue
            log = folder / f"{number}.txt"
            apply = (
                "cd /testbed && base64 -d >/tmp/patch <<'END'\n"
                + base64.encodebytes(patch.encode()).decode()
                + "END\ngit apply -v /tmp/patch\n"
            )
            log.write_text(self._contained(f"( {apply} {tests} ) 2>&1"))
            logs[name] = {"path": str(log), "patch": patch}
        return {**found, **self._ask("in_swebench.py", {"instance": instance, "logs": logs})}

    def mini_swe_agent(self) -> Found:
        """mini-swe-agent's loop in our environment class, with our verdict."""
        from minisweagent.agents.default import DefaultAgent
        from minisweagent.models.test_models import DeterministicModel, make_output

        from swegym_env.adapters.mini_swe_agent import SwegymEnvironment

        found: Found = {}
        submit = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
        for name, script in self.scripts.items():
            model = DeterministicModel(outputs=[make_output(each, [{"command": each}]) for each in (script, submit)])
            environment = SwegymEnvironment(dataset=str(self.place.dataset), instance=self.place.task.instance_id)
            DefaultAgent(model, environment, system_template="", instance_template="", cost_limit=0).run()
            found[name] = _graded(environment.outcome)
        return found

    def swe_rex(self) -> Found:
        """SWE-ReX's session in our deployment, with our verdict."""
        from swerex.runtime.abstract import BashAction, CreateBashSessionRequest

        from swegym_env.adapters.swe_rex import SwegymDeployment

        async def play(script: str) -> dict[str, Any]:
            deployment = SwegymDeployment(dataset=str(self.place.dataset), instance=self.place.task.instance_id)
            await deployment.start()
            try:
                await deployment.runtime.create_session(CreateBashSessionRequest())
                await deployment.runtime.run_in_session(BashAction(command=script, check="ignore", timeout=60))
                return _graded(deployment.bench.outcome(deployment.bench.patch()))
            finally:
                await deployment.stop()

        return {name: asyncio.run(play(script)) for name, script in self.scripts.items()}

    def adapter(self, name: str) -> Found:
        """The adapter of a peer, through the peer's own protocol, with our verdict; see `in_adapters.py`."""
        python = self.python.parents[2] / name / "bin/python"
        request = {
            "adapter": name,
            "dataset": str(self.place.dataset),
            "instance_id": self.place.task.instance_id,
            "scripts": dict(self.scripts),
        }
        return dict(self._ask("in_adapters.py", request, python))

    def adapter_versions(self) -> dict[str, str]:
        """Of the peers that `adapter` plays and that are installed."""
        found = {}
        for name, package in (("openenv", "openenv"), ("inspect", "inspect-ai"), ("nemo_gym", "nemo-gym")):
            python = self.python.parents[2] / name / "bin/python"
            if python.exists():
                code = f"import importlib.metadata as m; print(m.version({package!r}))"
                found[package] = self._run([python, "-c", code]).strip()
        return found

    def versions(self) -> dict[str, str]:
        """Of the peers' packages."""
        names = ["harbor", "verifiers", "swebench"]
        code = f"import importlib.metadata as m, json; print(json.dumps({{n: m.version(n) for n in {names}}}))"
        apptainer = self._run(["apptainer", "--version"]).split()[-1]
        own = {name: version(name) for name in ("mini-swe-agent", "swe-rex")}
        return {**json.loads(self._run([self.python, "-c", code])), **own, "apptainer": apptainer}

    def _contained(self, script: str) -> str:
        flags = ["--containall", "--no-mount", "home,tmp", "--writable-tmpfs"]
        return self._run(
            ["apptainer", "--quiet", "exec", *flags, self.place.swebench, "bash"], stdin=script, check=False
        )

    def _ask(self, driver: str, request: Mapping[str, Any], python: Path | None = None) -> Any:
        place = Path(__file__).parent / driver
        return json.loads(self._run([python or self.python, place], stdin=json.dumps(request)).splitlines()[-1])

    def _run(self, command: list[str | Path], *, stdin: str = "", check: bool = True) -> str:
        home = self.place.directory / "home"
        home.mkdir(exist_ok=True)
        own = {
            **os.environ,
            "HOME": str(home),
            "PATH": f"{self.place.programs}:{os.environ['PATH']}",
            "PYTHONPATH": f"{ROOT}:{Path(__file__).parent}",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "SWEGYM_BASE_IMAGES": str(self.place.bases),
        }
        words = [str(word) for word in command]
        done = subprocess.run(words, input=stdin.encode(), env=own, capture_output=True, check=False)
        if check and done.returncode:
            raise RuntimeError(f"{words[:2]}: {done.stderr.decode(errors='replace')[-2000:]}")
        return done.stdout.decode(errors="replace")


def _graded(outcome: Mapping[str, Any] | None) -> dict[str, Any]:
    if outcome is None or not outcome["valid"]:
        return {"reward": None, "error": (outcome or {}).get("failure_reason", "no verdict")}
    return {"reward": outcome["reward"], "error": outcome["failure_reason"]}


def main() -> None:
    """Play everything, and write benchmarks/results/tampering.json."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--python", type=Path, default=PEERS, help="of the peers; scripts/test_adapter.sh peers --make makes it"
    )
    parser.add_argument("--only", action="append", help="part of the names of what to play; may be given again")
    parser.add_argument("--keep", action="store_true", help="with --only: keep the other results, each of its commit")
    options = parser.parse_args()
    if options.keep and not options.only:
        parser.error("--keep: with --only; without it everything is played and written")
    require_python(parser, "--python", options.python)
    with tempfile.TemporaryDirectory(prefix="swegym-tampering-") as folder:
        os.chmod(folder, 0o755)
        place = make_place(Path(folder))
        published = attacks(place.preload)
        scripts = {"empty": EMPTY, "honest": HONEST, **{each.name: each.script for each in published}}
        peers = Peers(place, options.python.absolute(), scripts)
        ours = "swegym_env.adapters.harbor:SwegymEnvironment"
        graders: dict[str, Callable[[], Found]] = {
            "SWE-bench harness": peers.swebench,
            "mini-swe-agent, swegym_env": peers.mini_swe_agent,
            "SWE-ReX, swegym_env": peers.swe_rex,
            "OpenEnv, swegym_env": lambda: peers.adapter("openenv"),
            "Inspect, swegym_env": lambda: peers.adapter("inspect"),
            "NeMo Gym, swegym_env": lambda: peers.adapter("nemo_gym"),
            "Harbor, singularity": lambda: peers.harbor("shared", "singularity"),
            "Harbor, singularity, separate verifier": lambda: peers.harbor("separate", "singularity"),
            "Harbor, swegym_env": lambda: peers.harbor("shared", ours),
            "verifiers, apptainer": lambda: peers.verifiers(ours=False),
            "verifiers, swegym_env": lambda: peers.verifiers(ours=True),
        }
        chosen = {name: play for name, play in graders.items() if any(part in name for part in options.only or [""])}
        with ThreadPoolExecutor(max_workers=3) as pool:
            running = {name: pool.submit(play) for name, play in chosen.items()}
        former = json.loads((RESULTS / "tampering.json").read_text()) if options.only else {"graders": {}, "peers": {}}
        results = {
            name: {"commit": former["commit"], **kept}
            for name, kept in former["graders"].items()
            if name in graders and name not in chosen
        }
        for name, future in running.items():
            found = future.result()
            paid = [each.name for each in published if found[each.name]["reward"] == 1]
            counted = found["honest"]["reward"] == 1 and found["empty"]["reward"] == 0
            results[name] = {
                "commit": head()["commit"],
                "counted": counted,
                "paid": len(paid),
                "of": len(published),
                "episodes": found,
            }
            print(f"{name:42} {len(paid):2} of {len(published)} pay{'' if counted else ' (not counted)'}")
        written = {
            **head(),
            "peers": {**former["peers"], **(peers.versions() if not options.only else {}), **peers.adapter_versions()},
            "task": "mini__calends-012 under pytest, on an image of this machine's programs and Python",
            "attacks": [{"name": each.name, "source": each.source, "script": each.script} for each in published],
            "graders": {name: results[name] for name in graders if name in results},
            "without_grading": _WITHOUT_GRADING,
        }
    if options.keep or not options.only:
        print(write_whole(RESULTS / "tampering.json", json.dumps(written, indent=1) + "\n"))


if __name__ == "__main__":
    main()
