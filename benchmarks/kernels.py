"""`make bench-gpu`: the kernels beside their peers on one GPU, in one run.

    .venv/bin/python -m benchmarks.kernels [--only rows,linear,update] [--quick] [--output PATH]

rows    one pass over (N, V) bfloat16 logits, forward and in place backward, against the copy bandwidth of the same run
linear  hidden × weight, forward and backward, against the bare cuBLAS products that it needs; 0 % and 80 % masked
update  one PPO update of a random Qwen3 of about 1 B parameters on 32k packed tokens: how much is not matrix products

Peers take part where they are installed: liger-kernel, cut-cross-entropy, quack-kernels, flash-attn, trl. What is not
there is named in the results. `--quick` takes small shapes, also on a CPU: it shows that the benchmark runs.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.records import Row, row, write_results
from swe_trainers.kernels import token_logprobs, token_logprobs_from_logits
from swe_trainers.kernels.dispatch import row_kernels

SHAPES = [(n, d, v) for d, v in ((1024, 151936), (4096, 128256), (4096, 151936)) for n in (1024, 8192, 32768)]
QUICK = [(64, 32, 1000)]
SECONDS_PER_CASE = 1.0
PEERS = ("liger-kernel", "cut-cross-entropy", "quack-kernels", "flash-attn", "trl")


@dataclass
class Results:
    """Rows and ratios as they come."""

    rows: list[Row] = field(default_factory=list)
    ratios: dict[str, float] = field(default_factory=dict)

    def add(self, case: str, metric: str, unit: str, values: list[float]) -> float:
        """Keep one figure, tell it, and return its median."""
        kept = row(case, metric, unit, values)
        self.rows.append(kept)
        print(
            f"{case:64} {metric:24} {kept.median:12.4g} {unit}   [{kept.p10:.4g}, {kept.p90:.4g}] n={kept.n}",
            flush=True,
        )
        return kept.median

    def ratio(self, name: str, value: float) -> None:
        """Keep one ratio of figures of this run."""
        self.ratios[name] = value
        print(f"{name:88} {value:8.3f}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="rows,linear,update", help="parts, with commas")
    parser.add_argument("--quick", action="store_true", help="small shapes, also without a GPU")
    parser.add_argument("--output", type=Path, help="default: benchmarks/results/kernels.json")
    options = parser.parse_args()
    if not torch.cuda.is_available() and not options.quick:
        print("bench-gpu: no GPU here. Try: --quick, which shows that the benchmark runs", file=sys.stderr)
        return 2
    parts: dict[str, Callable[[Results, list[tuple[int, int, int]]], None]] = {
        "rows": bench_rows,
        "linear": bench_linear,
        "update": bench_update,
    }
    chosen = options.only.split(",")
    unknown = sorted(set(chosen) - set(parts))
    if unknown:
        parser.error(f"--only: no part {unknown[0]!r}; there are {', '.join(parts)}")
    results = Results()
    for name in chosen:
        parts[name](results, QUICK if options.quick else SHAPES)
    absent = [package for package in PEERS if _version(package) is None]
    if absent:
        print(f"peers that are not installed: {', '.join(absent)}")
    if not options.quick or options.output:
        device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
        for package in absent:
            results.ratios[f"absent: {package}"] = 1.0
        present = [package for package in ("torch", "triton", "transformers", *PEERS) if _version(package)]
        ratios = {f"on {device}": 1.0, **results.ratios}
        write_results("kernels", results.rows, ratios=ratios, packages=present, path=options.output)
    return 0


def seconds(step: Callable[[], Any], *, at_least: int = 5) -> list[float]:
    """Times of single calls, after two that are not counted."""
    device = _device()
    for _ in range(2):
        step()
    times: list[float] = []
    ended = time.perf_counter() + SECONDS_PER_CASE
    while len(times) < at_least or (time.perf_counter() < ended and len(times) < 100):
        if device == "cuda":
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            step()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end) / 1000)
        else:
            began = time.perf_counter()
            step()
            times.append(time.perf_counter() - began)
    return times


def extra_bytes(step: Callable[[], Any]) -> int:
    """Most memory during a call beyond what was held before it and what it returns."""
    if _device() != "cuda":
        return 0
    step()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    held = step()
    torch.cuda.synchronize()
    kept = torch.cuda.memory_allocated() - before
    del held
    return int(torch.cuda.max_memory_allocated() - before - kept)


def _device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _peer(module: str, attribute: str) -> Any:
    """A peer's function, or None where it is not installed."""
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, RuntimeError):
        return None


def bench_rows(results: Results, shapes: list[tuple[int, int, int]]) -> None:
    """The row kernel, against the bandwidth of a copy."""
    for n, v in sorted({(n, v) for n, _, v in shapes}):
        _rows_of(results, n, v)


def _rows_of(results: Results, n: int, v: int) -> None:
    logits = torch.randn(n, v, device=_device(), dtype=torch.bfloat16)
    ids = torch.randint(v, (n,), device=_device())
    upstream = torch.randn(2, n, device=_device())
    size, case = logits.numel() * 2, f"rows N={n} V={v}"
    rate = 2 * size / results.add(case, "copy", "s", _copy_seconds(logits))

    def timed(name: str, bytes_moved: int, step: Callable[[], Any]) -> None:
        try:
            taken = results.add(case, name, "s", seconds(step))
        except torch.cuda.OutOfMemoryError:
            print(f"{case} {name}: out of memory")
            return
        results.ratio(f"{case}: {name}, of the copy bandwidth", bytes_moved / taken / rate)

    for name, forward in row_forwards():
        timed(f"{name} forward", size, partial(forward, logits, ids))
    held = logits.requires_grad_()
    outputs = token_logprobs_from_logits(held, ids, in_place=True)
    # The same pass again and again, over what the last one left: the kernel does not care what the numbers are.
    node = _row_gradient(held, ids, upstream, outputs)
    timed("ours backward in place", 2 * size, node)


def _row_gradient(logits: Tensor, ids: Tensor, upstream: Tensor, outputs: tuple[Tensor, Tensor]) -> Callable[[], Any]:
    """The backward pass alone, as autograd would call it."""
    kernels, tile = row_kernels(None, logits), logits.detach()
    ones = torch.ones(len(logits), device=logits.device)
    zeros, entropy = torch.zeros_like(ones), outputs[1].detach()
    return lambda: kernels.gradient_(tile, ids, ones, zeros, zeros, entropy, upstream[0], upstream[1])


def _copy_seconds(logits: Tensor) -> list[float]:
    other = torch.empty_like(logits)
    return seconds(lambda: other.copy_(logits))


def row_forwards() -> Iterator[tuple[str, Callable[[Tensor, Tensor], Any]]]:
    """Ours, and what peers have for the same: without gradients."""

    def eager(logits: Tensor, ids: Tensor) -> Any:
        log_p = torch.log_softmax(logits.float(), -1)
        return log_p.gather(1, ids[:, None]), -(log_p.exp() * log_p).sum(-1)

    yield "ours", token_logprobs_from_logits
    yield "torch eager", eager
    if _device() == "cuda":
        yield "torch.compile", torch.compile(eager)
    cross_entropy = _peer("flash_attn.ops.triton.cross_entropy", "cross_entropy_loss")
    if cross_entropy is not None:
        yield "flash-attn (no entropy)", cross_entropy
    quack = _peer("quack.cross_entropy", "cross_entropy_fwd")
    if quack is not None:
        yield "QuACK (no entropy)", quack
    selective = _peer("trl.trainer.utils", "selective_log_softmax")
    if selective is not None:
        yield "TRL (no entropy)", selective


def bench_linear(results: Results, shapes: list[tuple[int, int, int]]) -> None:
    """Forward and backward from hidden states, against the products alone."""
    for n, d, v in shapes:
        torch.manual_seed(0)
        hidden = torch.randn(n, d, device=_device(), dtype=torch.bfloat16).requires_grad_()
        weight = (torch.randn(v, d, device=_device(), dtype=torch.bfloat16) / d**0.5).requires_grad_()
        _linear_of(results, f"linear N={n} D={d} V={v}", hidden, weight)


def _linear_of(results: Results, case: str, hidden: Tensor, weight: Tensor) -> None:
    n, inputs = len(hidden), [hidden, weight]
    ids = torch.randint(len(weight), (n,), device=_device())
    upstream, mask = torch.randn(2, n, device=_device()), torch.arange(n, device=_device()) % 5 == 0
    full = n * len(weight) * 2
    products = {c: results.add(case, f"{c} bare products", "s", seconds(partial(bare, *inputs, c))) for c in (3, 4)}
    taken: dict[str, float] = {}
    for name, loss in linear_losses(upstream):

        def step(loss: Callable[..., Tensor] = loss) -> Any:
            return torch.autograd.grad(loss(hidden, weight, ids, None), inputs)

        try:
            taken[name] = results.add(case, name, "s", seconds(step, at_least=3))
            results.add(case, f"{name}: extra memory, of full logits", "1", [extra_bytes(step) / full])
        except torch.cuda.OutOfMemoryError:
            print(f"{case} {name}: out of memory")
    for name, count in (("ours, logits kept", 3), ("ours, recomputing", 4)):
        if name in taken:
            results.ratio(f"{case}: {name}, rate of {count} bare products", products[count] / taken[name])
    ours = min(time_s for name, time_s in taken.items() if name.startswith("ours"))
    for name, time_s in taken.items():
        if not name.startswith("ours"):
            results.ratio(f"{case}: times faster than {name}", time_s / ours)

    def masked() -> Any:
        out = token_logprobs(hidden, weight, ids, row_mask=mask, save_logits=False)
        return torch.autograd.grad(out, inputs, grad_outputs=list(upstream))

    few = results.add(case, "ours, recomputing, 80 % masked", "s", seconds(masked, at_least=3))
    results.ratio(f"{case}: times faster with 80 % masked", taken["ours, recomputing"] / few)


def bare(hidden: Tensor, weight: Tensor, count: int) -> None:
    """The products that the gradients need: logits, both gradients, and the logits again where they are not kept."""
    with torch.no_grad():
        logits = hidden @ weight.T
        if count == 4:
            logits = hidden @ weight.T
        _ = logits @ weight
        _ = logits.T @ hidden


def linear_losses(upstream: Tensor) -> Iterator[tuple[str, Callable[..., Tensor]]]:
    """Name and loss; peers that have no entropy leave it out, which spares them work."""

    def weigh(outputs: tuple[Tensor, Tensor]) -> Tensor:
        return (outputs[0] * upstream[0]).sum() + (outputs[1] * upstream[1]).sum()

    def eager(hidden: Tensor, weight: Tensor, ids: Tensor, _: None) -> Tensor:
        log_p = torch.log_softmax((hidden @ weight.T).float(), -1)
        return weigh((log_p.gather(1, ids[:, None]).squeeze(1), -(log_p.exp() * log_p).sum(-1)))

    for name, keep in (("ours, recomputing", False), ("ours, logits kept", True)):
        yield name, lambda h, w, ids, _, keep=keep: weigh(token_logprobs(h, w, ids, save_logits=keep))
    yield "torch eager", eager
    if _device() == "cuda":
        yield "torch.compile", torch.compile(eager)
    cce = _peer("cut_cross_entropy", "linear_cross_entropy")
    if cce is not None:
        yield (
            "cut-cross-entropy (no entropy)",
            lambda h, w, ids, _: -(cce(h, w, ids, reduction="none") * upstream[0]).sum(),
        )
    liger = _peer("liger_kernel.transformers.functional", "liger_fused_linear_cross_entropy")
    if liger is not None:
        yield "Liger (no entropy, mean only)", lambda h, w, ids, _: _first(liger(h, w, ids))
    quack = _peer("quack.linear_cross_entropy", "chunked_linear_cross_entropy")
    if quack is not None:
        yield "QuACK (no entropy, sum only)", lambda h, w, ids, _: _first(quack(h, w, ids, reduction="sum"))


def _first(output: Any) -> Tensor:
    first: Tensor = output[0] if isinstance(output, tuple) else output
    return first


def bench_update(results: Results, shapes: list[tuple[int, int, int]]) -> None:
    """One PPO update, and the share of the GPU's time that no matrix product of the model takes."""
    from swe_trainers.algorithms.ppo import PPO, ppo_learner, ppo_update

    quick = shapes == QUICK
    model = qwen3(quick=quick)
    size = sum(parameter.numel() for parameter in model.parameters())
    batch = conversations(2048 if quick else 32768, model.tokenizer.vocab_size)
    settings = PPO(learning_rate=1e-6, epochs=1, minibatches=1, microbatch_tokens=32768, pack=True)
    learner = ppo_learner(model, settings, seed=0)

    def update() -> Any:
        return ppo_update(learner, batch, settings)

    case = f"PPO update {size / 1e9:.2f} B parameters, {sum(len(t.token_ids) for t in batch)} tokens"
    times = seconds(update, at_least=3)
    tokens = sum(len(t.token_ids) for t in batch)
    results.add(case, "tokens a second", "1/s", [tokens / t for t in times])
    if _device() != "cuda":
        return
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        update()
        torch.cuda.synchronize()
    spent = {event.key: event.self_device_time_total for event in profile.key_averages()}
    words = ("gemm", "cutlass", "nvjet", "flash", "fmha", "attention", "xmma", "matmul")
    products = sum(us for name, us in spent.items() if any(word in name.lower() for word in words))
    results.ratio(f"{case}: share of time outside matrix products and attention", 1 - products / sum(spent.values()))


def qwen3(*, quick: bool) -> Any:
    """A Qwen3 of random weights, about 1 B parameters."""
    from swe_trainers.policy.language_model import LanguageModel
    from swe_trainers.policy.word_tokenizer import WordTokenizer

    sizes = {"hidden_size": 1536, "intermediate_size": 6144, "num_hidden_layers": 20, "num_attention_heads": 16}
    if quick:
        sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    words = WordTokenizer([f"w{number}" for number in range(1000 if quick else 151900)])
    config = {"model_type": "qwen3", "num_key_value_heads": sizes["num_attention_heads"] // 2, "head_dim": 128, **sizes}
    config |= {"max_position_embeddings": 8192, "tie_word_embeddings": True}
    model = LanguageModel.from_config(config, words)
    return model.to(_device()) if quick else model.to(_device(), torch.bfloat16)


def conversations(tokens: int, vocabulary: int) -> list[Any]:
    """Episodes of 2,048 tokens in four turns, one token in five the policy's own."""
    from swe_trainers.rollout.trajectory import Trajectory

    draw, length = np.random.default_rng(0), 512 if tokens < 8192 else 2048
    turn = np.arange(length) % (length // 4)
    acted = turn >= length // 4 - length // 20  # the last fifth of each turn
    episodes = []
    for _ in range(tokens // length):
        rewards = np.zeros(length, np.float32)
        rewards[-1] = draw.integers(2)
        episodes.append(
            Trajectory(
                token_ids=draw.integers(10, vocabulary, length),
                action_mask=acted,
                rollout_logprobs=np.full(length, -np.log(vocabulary), np.float32),
                rewards=rewards,
                terminated=True,
                truncated=False,
                valid=True,
                failure_reason="",
                group=0,
            )
        )
    return episodes


if __name__ == "__main__":
    sys.exit(main())
