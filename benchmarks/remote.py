"""Sandboxes over HTTP beside local ones: the additional time of a step, and the commands per second of a server.

    steps     the same commands in the same environment, alternating: local, on a server, in a pool (direct),
              in a pool that relays
    steady    64 clients with one container each start 330 commands per second in all, at random moments (Poisson)
              independent of late responses; latency counts from the planned start, so a client's delay is included
    closed    the same clients, each sending the next command after the response: the highest rate. The mean latency is
              64 / rate, so this shows the rate and how evenly clients are served
    cost      CPU time of a command in each process during the closed load, and of a lease in the pool

Server, pool and clients share this machine; clients are separate processes. Writes benchmarks/results/remote.json.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import secrets
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.records import Row, row, write_results
from benchmarks.services import Served, processor_s, served
from swegym_env.env import SWEBenchEnv
from swegym_env.sandbox import SandboxSpec, open_sandbox

COMMANDS = ("true", "ls", "echo $((6 * 7)) > /tmp/x", "sed -n 1,20p setup.py 2>/dev/null | wc -l")
RATE = 330.0
PROCESSES = 2


def step_times(places: dict[str, str], rounds: int) -> dict[str, list[float]]:
    """Place → milliseconds of each step; the places alternate, so that noise affects all equally."""
    found: dict[str, list[float]] = {name: [] for name in places}
    envs = {name: SWEBenchEnv(sandbox=place, max_turns=None, pool=0) for name, place in places.items()}
    for env in envs.values():
        env.reset(seed=0)
    for number in range(rounds):
        for name, env in envs.items():
            action = f"<execute>{COMMANDS[number % len(COMMANDS)]}</execute>"
            began = time.perf_counter()
            env.step(action)
            found[name].append((time.perf_counter() - began) * 1e3)
    for env in envs.values():
        env.close()
    return found


@dataclass(frozen=True)
class Load:
    """The result of a load.

    Attributes:
        rate: commands per second.
        times: latency of each, in milliseconds.
        processor_ms: process → CPU time of a command.
    """

    rate: float
    times: list[float]
    processor_ms: dict[str, float]

    @property
    def p99(self) -> float:
        return sorted(self.times)[int(0.99 * len(self.times))]


def load(pool: Served, server: Served, clients: int, seconds: float, rate: float | None) -> Load:
    """Load a pool and its server with `rate` commands per second; None: as many as possible."""
    count = clients // PROCESSES
    arguments = ["--work-on", pool.url, "--clients", str(count), "--seconds", str(seconds)]
    arguments += ["--rate", str(rate * count / clients)] if rate else []
    command = [sys.executable, "-m", "benchmarks.remote", *arguments]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with ExitStack() as stack:
        workers = [
            stack.enter_context(subprocess.Popen([*command, "--seed", str(number)], **pipes))
            for number in range(PROCESSES)
        ]
        for worker in workers:
            assert worker.stdout.readline() == "ready\n"
        before = _processor_s(pool, server)
        for worker in workers:
            worker.stdin.write("begin\n")
            worker.stdin.flush()
        reports = [json.loads(worker.stdout.readline()) for worker in workers]
        used = {name: seconds - before[name] for name, seconds in _processor_s(pool, server).items()}
        used["client"] = sum(each["processor_s"] for each in reports)
    times = [ms for each in reports for ms in each["ms"]]
    spent = {name: seconds / len(times) * 1e3 for name, seconds in used.items()}
    return Load(sum(each["rate"] for each in reports), times, spent)


def _processor_s(pool: Served, server: Served) -> dict[str, float]:
    return {
        "pool": processor_s(pool.process.pid),
        "server": processor_s(server.process.pid),
        "sandboxes": processor_s(server.process.pid, below=True),
    }


def lease_ms(pool: Served, leases: int = 64) -> float:
    """CPU time of the pool for a lease, from request to release, without a command."""
    sandboxes = [open_sandbox(SandboxSpec(workdir="/tmp"), backend=pool.url) for _ in range(leases)]
    before = processor_s(pool.process.pid)
    for sandbox in sandboxes:
        sandbox.start()
        sandbox.close()
    return (processor_s(pool.process.pid) - before) / leases * 1e3


def work_on(url: str, clients: int, seconds: float, rate: float | None, seed: int) -> None:
    """The work of one client process; prints its rate and times as a line of JSON."""
    sandboxes = [open_sandbox(SandboxSpec(workdir="/tmp"), backend=url) for _ in range(clients)]
    _each(sandboxes, lambda sandbox: sandbox.start())
    _each(sandboxes, lambda sandbox: sandbox.run(":"))
    print("ready", flush=True)
    sys.stdin.readline()
    times: list[float] = []
    begin, used = time.perf_counter(), time.process_time()

    def work(number: int) -> None:
        chance = random.Random(f"{seed}/{number}")
        due = begin
        while True:
            due = due + chance.expovariate(rate / clients) if rate else time.perf_counter()
            if due > begin + seconds:
                return
            time.sleep(max(0.0, due - time.perf_counter()))
            sandboxes[number].run(":", timeout_s=30)
            times.append((time.perf_counter() - due) * 1e3)

    _each(range(clients), work)
    report = {
        "rate": len(times) / (time.perf_counter() - begin),
        "ms": times,
        "processor_s": time.process_time() - used,
    }
    print(json.dumps(report), flush=True)
    sys.stdin.read()  # until the CPU time of the sandboxes has been read too
    _each(sandboxes, lambda sandbox: sandbox.close())


def _each(things: Iterable[Any], work: Callable[[Any], None]) -> None:
    threads = [threading.Thread(target=work, args=(thing,)) for thing in things]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=400, help="steps at each place (default 400)")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=8.0, help="of each load (default 8)")
    parser.add_argument("--sandbox", default="auto")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--work-on", metavar="URL", help=argparse.SUPPRESS)
    parser.add_argument("--rate", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work_on:
        work_on(options.work_on, options.clients, options.seconds, options.rate, options.seed)
        return
    os.environ["SWEGYM_TOKEN"] = secrets.token_hex(16)
    rows: list[Row] = []
    ratios: dict[str, float] = {}
    with ExitStack() as stack:
        capacity = str(options.clients + 8)
        server = stack.enter_context(served("serve", "--capacity", capacity, "--sandbox", options.sandbox))
        states = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        pool, relay = (
            stack.enter_context(served("pool", "--nodes", server.url, "--state", str(states / name), *extra))
            for name, extra in (("pool", ()), ("relay", ("--relay",)))
        )
        places = {"local": options.sandbox, "server": server.url, "pool": pool.url, "relay": relay.url}
        steps = step_times(places, options.rounds)
        rows += [row(name, "step", "ms", times) for name, times in steps.items()]
        local = statistics.median(steps["local"])
        for name in list(steps)[1:]:
            ratios[f"step_{name}_minus_local_ms"] = statistics.median(steps[name]) - local
        for name, service in (("pool", pool), ("relay", relay)):
            for kind, rate in (("steady", RATE), ("closed", None)):
                found = load(service, server, options.clients, options.seconds, rate)
                rows += [row(f"{name}, {kind}", "rate", "commands/s", [found.rate])]
                rows += [row(f"{name}, {kind}", "exec", "ms", found.times)]
                ratios |= {f"{name}_{kind}_commands_per_s": found.rate, f"{name}_{kind}_p99_ms": found.p99}
            rows += [row(name, f"command, {part}", "ms of CPU", [ms]) for part, ms in found.processor_ms.items()]
        rows += [row("pool", "lease, pool", "ms of CPU", [lease_ms(pool)])]
    ratios["load_average"] = os.getloadavg()[0]  # well above 2, and the tails come from other processes
    packages = ["fastapi", "uvicorn", "httptools", "uvloop"]
    path = write_results("remote", rows, ratios=ratios, packages=packages, path=options.output)
    for name, value in ratios.items():
        print(f"{name:30} {value:10.2f}")
    print(path)


if __name__ == "__main__":
    main()
