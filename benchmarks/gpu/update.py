"""Whole updates on 32,768 packed tokens: tokens per second, and how much of the time is matrix products."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from benchmarks.gpu import models
from benchmarks.gpu.timing import Absent, Bench, Call, Contender, Ratio

__all__ = ["measure"]

PRODUCT = "bare product"
_PRODUCTS = ("gemm", "cutlass", "nvjet", "xmma", "matmul", "cublas", "flash", "fmha", "attention")
"""Parts of the names of kernels of matrix products and attention."""


def measure(bench: Bench) -> None:
    """All cases of the part."""
    for name, shared in (("ppo", False), ("grpo", False), ("grpo", True)):
        _measure(bench, name, shared=shared)
        bench.tidy()


def _measure(bench: Bench, name: str, *, shared: bool) -> None:
    half = ", half of the tokens shared in groups" if shared else ""
    case, calls = f"update {name} 1 B parameters{half}", f"calls of an update {name}{half}"
    if bench.journal.is_done(case) and bench.journal.is_done(calls):
        return
    model = models.policy(bench.device)
    batch = models.episodes(model.tokenizer.vocab_size, tiny=bench.tiny, shared=shared)
    update, alone = _updates(name, model, batch)
    tokens = sum(len(each.token_ids) for each in batch)
    acted = sum(int(each.action_mask.sum()) for each in batch)
    head = model.unembedding.weight.numel()
    trunk = sum(parameter.numel() for parameter in model.causal_lm.parameters()) - head
    operations = 6.0 * (trunk * tokens + head * acted)  # forward and backward; attention is not counted
    side = 64 if bench.tiny else 8192
    a, b = (torch.empty(side, side, dtype=torch.bfloat16, device=bench.device) for _ in range(2))

    def refresh(number: int) -> None:
        for x in (a, b):
            x.normal_(generator=torch.Generator(bench.device).manual_seed(1_000 + number))

    of_product = Ratio("its products, of the rate of a bare product", PRODUCT, operations / (2.0 * side**3))
    contenders = [
        Contender(PRODUCT, lambda: lambda: lambda: a @ b),
        Contender(name, lambda: lambda: update, () if shared else (of_product,), tokens=tokens),
    ]
    if shared:
        times = (Ratio("its rate, of the one with shared beginnings computed once", name),)
        contenders += [Contender(f"{name}, each episode alone", lambda: lambda: alone, times, tokens=tokens)]
    bench.case(case, contenders, refresh=refresh)
    if not bench.journal.is_done(calls):
        bench.attempt(calls, "host syncs", lambda: bench.host_syncs(update))
        bench.attempt(calls, "kernels and copies", lambda: bench.kernels(update))
        bench.attempt(calls, "share of products and attention", lambda: _share_of_products(bench, update))
        bench.attempt(calls, "peak memory beside weights and optimizer", lambda: bench.peak_bytes(update), unit="B")
        bench.journal.done(calls)


def _updates(name: str, model: Any, batch: list[Any]) -> tuple[Call, Call]:
    """An update as users get it, and one that computes each episode alone; of the same weights and optimizer."""
    from swe_trainers.algorithms.grpo import GRPO
    from swe_trainers.algorithms.ppo import PPO

    settings = {"ppo": PPO, "grpo": GRPO}[name](
        learning_rate=1e-6, epochs=1, minibatches=1, microbatch_tokens=32768, pack=True
    )
    learner, apart = settings.learner(model, seed=0), dataclasses.replace(settings, share_prefixes=False)
    return lambda: settings.update(learner, batch), lambda: apart.update(learner, batch)


def _share_of_products(bench: Bench, call: Call) -> float:
    """The fraction of the GPU's busy time in matrix products and attention."""
    if bench.device == "cpu":
        raise Absent("needs a GPU")
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        call()
        torch.cuda.synchronize()
    spent = {event.key: event.self_device_time_total for event in profile.key_averages()}
    longest = sorted(spent.items(), key=lambda pair: -pair[1])[:25]
    for key, microseconds in longest:
        print(f"  {microseconds / 1000:10.3f} ms  {key[:100]}")
    products = sum(us for key, us in spent.items() if any(word in key.lower() for word in _PRODUCTS))
    return float(products / sum(spent.values()))
