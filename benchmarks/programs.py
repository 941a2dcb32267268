"""What `SWEAgent-v0` costs beyond the agent's own work: a turn, the start of an episode, many at once, many requests.

    python -m benchmarks.programs [--turns 300] [--at-once 64] [--requests 10000] [--only prefix] [--agents aider]

The agent keeps one connection, and says in each request how long it took itself since the last answer; the rest of the
step is this package's: HTTP, protocol, conversations, patch. Processor time is that of the thread that steps. A start
is compared with the same sandbox without an agent. Episodes of an agent that is imported once are compared with those
of the same agent started as usual, in turns: the seconds of a reset, and the processor time that the control groups of
the sandboxes count until the agent has ended. The first episode, which imports, is left out. "reset before the agent's
process" is the part of a reset until the process of the agent is there (for a fork: until it is forked).

`prefix` is described in `benchmarks.program_prefixes`. With `--only`, the other rows stay as they are in the results.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import resource
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.program_prefixes import ANSWERS, prefix
from benchmarks.records import RESULTS, Row, commit, row, write_results
from swegym_env.env import SWEBenchEnv
from swegym_env.programs.env import SWEAgentEnv
from swegym_env.programs.spec import load_agent
from swegym_env.sandbox.linux.cgroups import existing_groups

_AGENT = """
import http.client, json, sys, time
began = time.perf_counter()
connection = http.client.HTTPConnection("127.0.0.1", 8390)
messages = [{"role": "system", "content": "You are an agent. " * 200}, {"role": "user", "content": "0"}]
last = began
while True:
    body = json.dumps({"model": "m", "messages": messages})
    own = time.perf_counter() - last
    connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
    reply = connection.getresponse().read()
    last = time.perf_counter()
    message = json.loads(reply)["choices"][0]["message"]
    if message["content"] == "submit":
        break
    messages = [*messages[:2], *messages[2:][-38:], message, {"role": "user", "content": f"{own:.6f}"}]
"""


PARTS = ("overhead", "imports", "prefix")


def made(folder: Path, *, pool: int = 0) -> SWEAgentEnv:
    """An environment with that agent."""
    return SWEAgentEnv("mini", agent=str(folder), max_turns=None, reward="none", pool=pool)


def own_seconds(observation: str) -> float:
    """How long the agent took, by its last message."""
    return float(observation.rpartition("\n")[2])


def main() -> None:
    """Measure, and write benchmarks/results/programs.json."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--turns", type=int, default=300)
    parser.add_argument("--at-once", type=int, default=64)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--agents", nargs="+", choices=ANSWERS, default=list(ANSWERS), metavar="NAME")
    parser.add_argument("--episodes", type=int, default=16, help="of each way to start an agent")
    parser.add_argument("--recorded", type=int, default=200, help="episodes of each agent, for prefix")
    parser.add_argument("--parallel", type=int, default=2, help="recorded at once")
    options = parser.parse_args()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="swegym-programs-") as name:
        folder = Path(name)
        (folder / "agent.yaml").write_text('command: exec python3 "$SWEGYM_AGENT/agent.py"')
        (folder / "agent.py").write_text(_AGENT)
        if "overhead" in options.only:
            rows += starts(folder)
            rows += turns(folder, options.turns)
            rows += at_once(folder, options.at_once)
            rows += requests(folder, options.requests)
    for agent in options.agents:
        if "imports" in options.only and load_agent(agent).imports is not None:
            rows += imports(agent, options.episodes)
        if "prefix" in options.only:
            rows += prefix(agent, options.recorded, options.parallel)
    place = write(rows)
    for each in rows:
        print(f"{each.case:40} {each.metric:24} {each.median:10.3f} {each.unit} ({each.p10:.3f} to {each.p90:.3f})")
    print(place)


def write(rows: list[Row]) -> Path:
    """Write the results; cases that were not measured keep their rows, and each case names its commit and load."""
    path = RESULTS / "programs.json"
    before = json.loads(path.read_text()) if path.exists() else {"rows": []}
    measured = {each.case: {**commit(), "load": round(os.getloadavg()[0], 1)} for each in rows}
    kept = [Row(**each) for each in before["rows"] if each["case"] not in measured]
    earlier = {"commit": before.get("commit"), "dirty": before.get("dirty"), **before.get("conditions", {})}
    cases = {each.case: before.get("cases", {}).get(each.case, earlier) for each in kept} | measured
    return write_results("programs", [*kept, *rows], ratios={}, packages=[], cases=cases)


def starts(folder: Path) -> list[Row]:
    """Resets with an agent, ready ahead and not, beside resets of the same task without one."""
    plain = SWEBenchEnv("mini", reward="none", pool=0)
    env, warm = made(folder), made(folder, pool=1)
    taken: dict[str, list[float]] = {"without an agent": [], "with an agent": [], "with one that waits ahead": []}
    for number in range(11):
        for one, case in ((plain, "without an agent"), (env, "with an agent"), (warm, "with one that waits ahead")):
            began = time.perf_counter()
            one.reset(seed=0 if one is not warm or not number else None)
            if number:
                taken[case].append(time.perf_counter() - began)
        time.sleep(0.5)
    for one in (plain, env, warm):
        one.close()
    return [row("start of an episode", case, "s", values) for case, values in taken.items()]


def turns(folder: Path, number: int) -> list[Row]:
    """What of a step is not the agent's own."""
    env = made(folder)
    env.reset(seed=0)
    beyond, processor = [], []
    for at in range(number):
        began, cpu = time.perf_counter(), time.thread_time()
        observation = env.step(f"answer {at}")[0]
        beyond.append(1000 * (time.perf_counter() - began - own_seconds(observation)))
        processor.append(1000 * (time.thread_time() - cpu))
    env.close()
    return [
        row("a turn beyond the agent's own work", "wall", "ms", beyond),
        row("a turn beyond the agent's own work", "processor", "ms", processor),
    ]


def at_once(folder: Path, number: int) -> list[Row]:
    """Many agents at once: all resets, and turns of all."""
    envs = [made(folder) for _ in range(number)]
    with ThreadPoolExecutor(number) as threads:
        began = time.perf_counter()
        list(threads.map(lambda env: env.reset(seed=0), envs))
        reset_s = time.perf_counter() - began
        began = time.perf_counter()
        list(threads.map(lambda env: [env.step(f"answer {at}") for at in range(30)], envs))
        step_s = time.perf_counter() - began
    for env in envs:
        env.close()
    return [
        row(f"{number} agents at once", "all resets", "s", [reset_s]),
        row(f"{number} agents at once", "turns of all", "1/s", [30 * number / step_s]),
    ]


def requests(folder: Path, number: int) -> list[Row]:
    """Many requests of one episode: memory and descriptors after a tenth and after all."""
    env = made(folder)
    env.reset(seed=0)
    memory, descriptors = [], []
    for at in range(number):
        env.step(f"answer {at}")
        if at in (max(1, number // 10), number - 1):
            memory.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
            descriptors.append(len(os.listdir("/proc/self/fd")))
    env.close()
    return [
        row(f"{number} requests, last 90 %", "memory gained", "MB", [memory[-1] - memory[0]]),
        row(f"{number} requests, last 90 %", "descriptors gained", "", [descriptors[-1] - descriptors[0]]),
    ]


class Measured(SWEAgentEnv):
    """Notes the processor seconds of its sandboxes when its agent has ended."""

    counted: dict[str, float]

    def _end_all(self) -> str:
        self.counted = processor_s()
        return super()._end_all()


def agent_began_s(program: str) -> float:
    """When the newest process of an agent in a sandbox of this process began, in seconds since the machine's start."""
    began = []
    groups = existing_groups().items()
    for pid in [pid for name, group in groups if name.startswith(f"{os.getpid()}-") for pid in group.members()]:
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes()
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if (
            f"/{program}\0".encode() in words
            and b"/.swegym/imported.py" not in words
            and not words.startswith(b"/bin/bash")
        ):
            began.append(int(fields[19]) / os.sysconf("SC_CLK_TCK"))
    if not began:
        raise SystemExit(f"there is no process of {program}")
    return max(began)


def processor_s() -> dict[str, float]:
    """Processor seconds of each sandbox of this process that is there now."""
    groups = existing_groups().items()
    return {name: group.cpu_s() or 0.0 for name, group in groups if name.startswith(f"{os.getpid()}-")}


def imports(agent: str, number: int) -> list[Row]:
    """Short episodes, imported once and started as usual, in turns."""
    once = load_agent(agent)
    assert once.imports is not None
    program = str(once.imports["program"])
    usual = dataclasses.replace(once, imports=None)
    envs = {
        f"an episode of {agent}, {how}": Measured("mini", agent=spec, reward="none", pool=0)
        for how, spec in (("imported once", once), ("started as usual", usual))
    }
    resets: dict[str, list[float]] = {case: [] for case in envs}
    processor: dict[str, list[float]] = {case: [] for case in envs}
    before_process: dict[str, list[float]] = {case: [] for case in envs}
    for at in range(number + 1):
        for case, env in envs.items():
            before, began = processor_s(), time.clock_gettime(time.CLOCK_BOOTTIME)
            env.reset(seed=0)
            reset_s = time.clock_gettime(time.CLOCK_BOOTTIME) - began
            process_s = agent_began_s(program) - began
            answers = iter(ANSWERS[agent].short)
            while not any(env.step(next(answers, ANSWERS[agent].last))[2:4]):
                pass
            if at:
                resets[case].append(reset_s)
                before_process[case].append(process_s)
                processor[case].append(sum(used - before.get(name, 0.0) for name, used in env.counted.items()))
    problems = {env.imports_problem for env in envs.values()} - {""}
    for env in envs.values():
        env.close()
    if problems:
        raise SystemExit(f"{agent} is not imported once: {'; '.join(problems)}")
    return [
        row(case, metric, "s", values[case])
        for case in envs
        for metric, values in (
            ("reset", resets),
            ("reset before the agent's process", before_process),
            ("processor", processor),
        )
    ]


if __name__ == "__main__":
    main()
