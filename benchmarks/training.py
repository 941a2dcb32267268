"""`make bench-train`: an update beside TRL's, multi-turn generation beside `generate`, and the scaling of an update.

The model is a Qwen3 of 2.36 million parameters with random weights, in float32. Each workload runs in a separate
process, so that its peak memory is separate; processes alternate, so that noise affects all equally.

    update      16 episodes of 10 turns, 256 to 768 tokens each, 80 % (or none) of them observations: 2 epochs of one
                optimizer step, including the old policy's log-probabilities. TRL's GRPO does the same passes with its
                own methods; TRL has no PPO any more, so our PPO with critic is compared with it too. `equal`: all
                episodes of 512 tokens, without padding.
    generation  8 or 32 episodes of 10 turns with 96 or 384 observed and 24 generated tokens each, beside `generate` on
                the whole history of all episodes at every turn
    growth      an update of 4,096 to 65,536 tokens in episodes of 512
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from benchmarks.records import Row, row, write_results
from benchmarks.repeating import Worker
from benchmarks.training_workloads import FULL, SMALL, Sizes, make_work

SHARES = ("0.8", "0.0", "0.0:equal")
WARM_UP = 1  # warm-up rounds


def work(part: str, sizes: Sizes, threads: int) -> None:
    """The worker process: for each input line it runs its workload once and prints the cost."""
    torch.set_num_threads(threads)
    did, tokens = make_work(part, sizes)
    before_mib = _memory_mib("VmRSS")
    for _ in sys.stdin:
        Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
        began = time.perf_counter()
        did()
        seconds = time.perf_counter() - began
        peak = _memory_mib("VmHWM")
        print(json.dumps({"seconds": seconds, "tokens": tokens, "peak": peak, "grown": peak - before_mib}), flush=True)


def _memory_mib(field: str) -> float:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(field))


def measured(parts: Sequence[str], sizes: str, rounds: int, threads: int) -> dict[str, list[dict[str, float]]]:
    """All workloads alternately, `rounds` times after the warm-up."""
    options = ("--sizes", sizes, "--threads", str(threads))
    workers = {part: Worker("benchmarks.training", part, *options) for part in parts}
    found: dict[str, list[dict[str, float]]] = {part: [] for part in parts}
    try:
        for number in range(WARM_UP + rounds):
            for part, worker in workers.items():
                once = worker.measure()
                if number >= WARM_UP:
                    found[part].append(once)
                print(f"{part:24} {once['tokens'] / once['seconds']:9.0f} tokens/s {once['peak']:6.0f} MiB", flush=True)
    finally:
        for worker in workers.values():
            worker.close()
    return found


def ratios_of(found: dict[str, list[dict[str, float]]], sizes: Sizes) -> dict[str, float]:
    """Each ratio is the median of the ratios of the rounds."""

    def speed(a: str, b: str) -> float:
        pairs = zip(found[a], found[b], strict=True)
        return float(np.median([x["tokens"] / x["seconds"] / (y["tokens"] / y["seconds"]) for x, y in pairs]))

    def peak(a: str, b: str, kind: str) -> float:
        return max(x[kind] for x in found[a]) / max(y[kind] for y in found[b])

    ratios = {}
    for share in SHARES:
        for own in ("grpo", "ppo"):
            a, b, named = f"update:{own}:{share}", f"update:trl:{share}", f"{own} / TRL, {share} observed"
            if a in found and b in found:
                ratios[f"speed of {named}"] = speed(a, b)
                ratios[f"peak memory of {named}"] = peak(a, b, "peak")
                ratios[f"memory taken by the update of {named}"] = peak(a, b, "grown")
    for how in (part.partition(":")[2] for part in found if part.startswith("engine")):
        if f"generate:{how}" in found:
            ratios[f"speed of the engine / generate, episodes and tokens observed a turn {how}"] = speed(
                f"engine:{how}", f"generate:{how}"
            )
    first, *others = (f"growth:{n}" for n in sizes.growth)
    for other in others:
        if first in found and other in found:
            name = f"time a token at {other.partition(':')[2]} / at {sizes.growth[0]} tokens"
            ratios[name] = speed(first, other)
    return ratios


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="*", help="a pattern of parts, such as 'update:*:0.8', '*:8:96', 'growth:*'")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--sizes", choices=["full", "small"], default="full", help="small only shows that it runs")
    parser.add_argument("--output", type=Path, help="where the results go; by default benchmarks/results/training.json")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    sizes = {"full": FULL, "small": SMALL}[options.sizes]
    if options.worker:
        work(options.worker, sizes, options.threads)
        return 0
    groups = [[f"update:{who}:{share}" for who in ("trl", "grpo", "ppo")] for share in SHARES]
    played = [f"{batch}:{observed}" for batch in sizes.batches for observed in sizes.observed]
    groups += [[f"{who}:{how}" for who in ("generate", "engine")] for how in played]
    groups += [[f"growth:{n}" for n in sizes.growth]]
    found: dict[str, list[dict[str, float]]] = {}
    for parts in groups:
        found |= measured(fnmatch.filter(parts, options.only), options.sizes, options.rounds, options.threads)
    rows: list[Row] = []
    for part, times in found.items():
        rows.append(row(part, "throughput", "tokens/s", [once["tokens"] / once["seconds"] for once in times]))
        rows.append(row(part, "time", "s", [once["seconds"] for once in times]))
        rows.append(row(part, "peak memory", "MiB", [once["peak"] for once in times]))
        rows.append(row(part, "memory taken by it", "MiB", [once["grown"] for once in times]))
    ratios = ratios_of(found, sizes)
    path = write_results(
        "training", rows, ratios=ratios, packages=["torch", "transformers", "trl"], path=options.output
    )
    print(json.dumps(ratios, indent=1), path, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
