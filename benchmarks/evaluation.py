"""`swe-eval` on 200 episodes of `mini`: the fraction of CPU time in sandboxes and tests, and in our code.

A scripted model behind a loopback server of the chat API reads files, runs the repository's tests, repairs three of
four tasks, runs the tests again and submits. CPU seconds are counted for

    sandboxes    everything inside sandboxes: the agent's commands, the hidden tests, negative controls
    supervisor   the process that starts and monitors sandboxes
    evaluation   `swe-eval` itself: requests, patches, records, and the programs that it runs on the host
    model        the scripted server, not part of an evaluation

with a control group if possible, else with the counters of the whole machine, which must then be idle. Writes
benchmarks/results/evaluation.json. Fractions of wall-clock time are meaningful on an idle machine only.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from benchmarks.records import row, write_results

_TICK = os.sysconf("SC_CLK_TCK")


def answer(tasks: dict[str, Any], body: dict[str, Any]) -> str:
    """The scripted model's next answer; the messages determine its turn, the prompt its task."""
    texts = [message["content"] for message in body["messages"]]
    prompt = next(text for message, text in zip(body["messages"], texts, strict=True) if message["role"] == "user")
    task = next(task for start, task in tasks.items() if start in prompt)
    turn = sum(message["role"] == "assistant" for message in body["messages"])
    file = task.patch.partition("--- a/")[2].partition("\n")[0]
    repairs = int(task.instance_id[-3:]) % 4 != 0
    repair = f"git apply - <<'END_OF_PATCH'\n{task.patch}END_OF_PATCH" if repairs else f"sed -i '$a # seen' {file}"
    tests = "eval $SWEGYM_TEST_COMMAND 2>&1 | tail -n 20"
    script = [
        "ls -R | head -n 40 && git log --oneline",
        f"cat -n {file}",
        tests,
        repair,
        f"{tests}; git diff",
        "submit",
    ]
    return f"<execute>{script[min(turn, len(script) - 1)]}</execute>"


def serve() -> None:
    """Serve the scripted model until killed; the first line on standard output is the address."""
    from swegym_env.tasks.datasets import load_tasks

    tasks = {task.problem_statement.strip(): task for task in load_tasks("mini")}

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            text = answer(tasks, json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            message = {"role": "assistant", "content": text}
            usage = {"prompt_tokens": 1000, "completion_tokens": 50}
            data = json.dumps({"choices": [{"message": message, "finish_reason": "stop"}], "usage": usage}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        print(f"http://127.0.0.1:{server.server_port}/v1", flush=True)
        server.serve_forever()


@contextmanager
def served() -> Iterator[tuple[str, int]]:
    """The address and the process id of the scripted model."""
    command = [sys.executable, "-m", "benchmarks.evaluation", "--serve"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip(), process.pid
        finally:
            process.kill()


def cpu_seconds(pid: int) -> tuple[float, float]:
    """CPU seconds of a process and of the descendants that it has waited for."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    own, children = (int(fields[11]) + int(fields[12])), (int(fields[13]) + int(fields[14]))
    return own / _TICK, children / _TICK


def supervisors() -> list[int]:
    """The sandbox supervisors of this process."""
    found = []
    for thread in Path("/proc/self/task").iterdir():
        found += [int(pid) for pid in (thread / "children").read_text().split()]
    return [pid for pid in found if b"linux.supervisor" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def machine_busy_ticks(stat: str) -> int:
    """How long processors worked, by `/proc/stat`: neither idle, nor waiting for disks, nor lent to other guests."""
    user, nice, system, _idle, _iowait, irq, softirq, _steal = map(int, stat.split()[1:9])
    return user + nice + system + irq + softirq


class Account:
    """CPU seconds of this process and of everything it starts from now on."""

    def __init__(self) -> None:
        self.name, self._file, self._unit = "machine", Path("/proc/stat"), 0.0
        name = f"bench-swegym-{os.getpid()}"  # the names of sandboxes' groups begin with "swegym-"
        self._group: Path | None = None
        for kind, group, file, unit in (
            ("cpuacct", Path("/sys/fs/cgroup/cpuacct") / name, "cpuacct.usage", 1e-9),
            ("cgroup2", Path("/sys/fs/cgroup") / name, "cpu.stat", 1e-6),
        ):
            try:
                group.mkdir()
                (group / "cgroup.procs").write_text(str(os.getpid()))
            except OSError:
                with contextlib.suppress(OSError):
                    group.rmdir()
                continue
            if (group / file).exists():
                self.name, self._file, self._unit, self._group = kind, group / file, unit, group
                break

    def seconds(self) -> float:
        """So far."""
        text = self._file.read_text()
        if self.name == "machine":
            return machine_busy_ticks(text) / _TICK
        return int(text.split()[1 if self.name == "cgroup2" else 0]) * self._unit

    def close(self) -> None:
        """Remove the control group; what is left in it goes on in the one above."""
        if self._group is not None:
            for pid in (self._group / "cgroup.procs").read_text().split():
                with contextlib.suppress(ProcessLookupError):
                    (self._group.parent / "cgroup.procs").write_text(pid)
            self._group.rmdir()


def measure(options: argparse.Namespace, url: str, server: int, output: Path) -> tuple[dict[str, float], str]:
    """Wall-clock and CPU seconds of one evaluation, and the method of counting."""
    from swe_trainers.cli.main import main_eval
    from swegym_env.sandbox.client import end_all

    command = ["--model", "scripted", "--base-url", url, "--dataset", "mini", "--slice", f":{options.episodes}"]
    command += ["--n-parallel", str(options.n_parallel), "--output", str(output), "--env.sandbox", options.sandbox]
    with contextlib.closing(Account()) as account:
        began, own_before, model_before = time.perf_counter(), time.process_time(), cpu_seconds(server)[0]
        all_before, helpers_before = account.seconds(), _waited_for()
        try:
            if main_eval(command) != 0:
                raise SystemExit("swe-eval did not end well")
            wall, own = time.perf_counter() - began, time.process_time() - own_before
            evaluation = own + _waited_for() - helpers_before
            model = cpu_seconds(server)[0] - model_before
            supervisor = sum(cpu_seconds(pid)[0] for pid in supervisors())
            everything = account.seconds() - all_before - (model if account.name == "machine" else 0.0)
        finally:
            end_all()  # their control groups are in the account's
    return {
        "wall": wall,
        "sandboxes": everything - evaluation - supervisor,
        "supervisor": supervisor,
        "evaluation": evaluation,
        "model": model,
    }, account.name


def _waited_for() -> float:
    """CPU seconds of the ended children of this process."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--episodes", type=int, default=200)
    parser.add_argument("--n-parallel", type=int, default=6 * (os.cpu_count() or 1))
    parser.add_argument("--sandbox", default="auto")
    parser.add_argument("--output", type=Path, help="of the results")
    parser.add_argument("--serve", action="store_true", help="be the scripted model")
    options = parser.parse_args()
    if options.serve:
        serve()
        return
    cores = os.cpu_count() or 1
    with tempfile.TemporaryDirectory(prefix="swegym-bench-") as folder, served() as (url, server):
        found, counted_by = measure(options, url, server, Path(folder) / "evaluation")
        summary = json.loads((Path(folder) / "evaluation" / "summary.json").read_text(encoding="utf-8"))
    used = sum(found[name] for name in ("sandboxes", "supervisor", "evaluation", "model"))
    rows = [row(f"{options.episodes} episodes, counted by {counted_by}", name, "s", [value])
            for name, value in found.items()]  # fmt: skip
    ratios = {
        "sandboxes_of_all_cores": found["sandboxes"] / (cores * found["wall"]),
        "sandboxes_of_cpu_used": found["sandboxes"] / used,
        "evaluation_of_cpu_used": found["evaluation"] / used,
        "evaluation_cpu_ms_per_episode": 1e3 * found["evaluation"] / options.episodes,
        "episodes_per_s": options.episodes / found["wall"],
        "resolve_rate": summary["resolve_rate"],
        "invalid": summary["invalid"],
        "n_parallel": options.n_parallel,
        "load_average": os.getloadavg()[0],
    }
    path = write_results("evaluation", rows, ratios=ratios, packages=["gymnasium"], path=options.output)
    for name, value in {**found, **ratios}.items():
        print(f"{name:32} {value:10.3f}")
    print(path)


if __name__ == "__main__":
    main()
