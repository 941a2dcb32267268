"""What `SWEAgent-v0` costs beyond the agent's own work: a turn, the start of an episode, many at once, many requests.

    python -m benchmarks.programs [--turns 300] [--at-once 64] [--requests 10000]

The agent keeps one connection, and says in each request how long it took itself since the last answer; the rest of the
step is this package's: HTTP, protocol, conversations, patch. Processor time is that of the thread that steps. A start
is compared with the same sandbox without an agent.
"""

from __future__ import annotations

import argparse
import os
import resource
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.records import Row, row, write_results
from swegym_env.env import SWEBenchEnv
from swegym_env.programs.env import SWEAgentEnv

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
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory(prefix="swegym-programs-") as name:
        folder = Path(name)
        (folder / "agent.yaml").write_text('command: exec python3 "$SWEGYM_AGENT/agent.py"')
        (folder / "agent.py").write_text(_AGENT)
        rows += starts(folder)
        rows += turns(folder, options.turns)
        rows += at_once(folder, options.at_once)
        rows += requests(folder, options.requests)
    place = write_results("programs", rows, ratios={}, packages=[], conditions={"load": os.getloadavg()[0]})
    for each in rows:
        print(f"{each.case:40} {each.metric:24} {each.median:10.3f} {each.unit} ({each.p10:.3f} to {each.p90:.3f})")
    print(place)


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


if __name__ == "__main__":
    main()
