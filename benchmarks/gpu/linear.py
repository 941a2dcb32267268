"""Log-probabilities and entropies from hidden states, forward and backward, beside the bare matrix products."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu import peers
from benchmarks.gpu.rows import measure_calls
from benchmarks.gpu.timing import Bench, Call, Contender, Ratio
from swe_trainers.kernels import token_logprobs

__all__ = ["measure"]

SHAPES = ((8192, 4096, 151936), (8192, 1024, 151936), (8192, 2048, 151936))
TINY = ((4, 8, 40),)
LinearFunction = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, ...]]


def measure(bench: Bench) -> None:
    """All cases of the part."""
    shapes = TINY if bench.tiny else SHAPES
    for shape in shapes:
        _Linear(bench, *shape).measure()
    for shape in shapes:
        _Linear(bench, *shape).measure_scoring()
    for shape in shapes:
        _Linear(bench, *shape).measure_calls()


def ours(hidden: Tensor, weight: Tensor, ids: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    """The form on hidden states, by the Triton kernels also where their interpreter runs them."""
    return token_logprobs(hidden, weight, ids, backend="triton", check_values=False, **options)


class _Linear:
    """The cases of one shape."""

    def __init__(self, bench: Bench, n: int, d: int, v: int) -> None:
        self.bench, self.name = bench, f"N={n} D={d} V={v} bfloat16"
        make = partial(torch.empty, dtype=torch.bfloat16, device=bench.device)
        self.hidden, self.weight = make(n, d), make(v, d)
        self.ids = torch.empty(n, dtype=torch.int64, device=bench.device)
        self.upstream = torch.empty(2, n, device=bench.device)
        self.kept_rows = torch.arange(n, device=bench.device) % 5 == 0
        self.logits_bytes = n * v * 2
        self.refresh(0)

    def refresh(self, number: int) -> None:
        """New states and weights whose logits have a standard deviation of 3, labels and upstream gradients."""
        generator = torch.Generator(self.bench.device).manual_seed(1_000 + number)
        with torch.no_grad():
            self.hidden.normal_(generator=generator)
            self.weight.normal_(0, 3 / self.hidden.shape[1] ** 0.5, generator=generator)
        self.ids.random_(len(self.weight), generator=generator)
        self.upstream.normal_(generator=generator)

    def measure(self) -> None:
        """Forward and backward in turns."""
        kept = Ratio("rate of 3 bare products", "3 bare products")
        again = Ratio("rate of 4 bare products", "4 bare products")
        own = "ours, logits kept"
        contenders = [self._products(3), self._products(4)]
        contenders += [self._both(own, lambda: partial(ours, save_logits=True), (kept,))]
        contenders += [self._both("ours, recomputing", lambda: partial(ours, save_logits=False), (again,))]
        wide = partial(ours, logits_dtype=torch.float32)
        contenders += [
            self._both("ours, float32 logits kept", lambda: partial(wide, save_logits=True), (kept,)),
            self._both("ours, float32 logits recomputed", lambda: partial(wide, save_logits=False), (again,)),
            self._both("ours, recomputing, 80 % masked", self._masked, ()),
        ]
        behind = (Ratio("its rate, of ours with logits kept", own), Ratio("its rate, of ours", "ours, recomputing"))
        contenders += [self._both("torch eager", lambda: peers.eager_linear, behind)]
        contenders += [self._both("torch.compile", lambda: peers.compiled(peers.eager_linear), behind)]
        contenders += [self._both(name, load, behind) for name, load in peers.LINEAR.items()]
        self.bench.case(f"forward and backward {self.name}", contenders, refresh=self.refresh)

    def measure_scoring(self) -> None:
        """Forward alone, without gradients."""
        one = (Ratio("rate of 1 bare product", "1 bare product"),)
        contenders = [
            self._products(1),
            self._scoring("ours", lambda: ours, one),
            self._scoring("ours, float32 logits", lambda: partial(ours, logits_dtype=torch.float32), one),
            self._scoring("torch eager", lambda: peers.eager_linear, one),
            self._scoring("torch.compile", lambda: peers.compiled(peers.eager_linear), one),
        ]
        contenders += [self._scoring(name, load, one) for name, load in peers.LINEAR.items()]
        self.bench.case(f"scoring {self.name}", contenders, refresh=self.refresh)

    def _masked(self) -> LinearFunction:
        return partial(ours, row_mask=self.kept_rows, save_logits=False)

    def _products(self, count: int) -> Contender:
        """The matrix products: logits, with 3 both gradients too, and with 4 the logits again."""

        def call() -> None:
            with torch.no_grad():
                for _ in range(2 if count == 4 else 1):
                    logits = self.hidden @ self.weight.T
                if count > 1:
                    _ = logits @ self.weight
                    _ = logits.T @ self.hidden

        names = {1: "1 bare product", 3: "3 bare products", 4: "4 bare products"}
        return Contender(names[count], lambda: lambda: call)

    def _both(self, name: str, load: Callable[[], LinearFunction], ratios: tuple[Ratio, ...]) -> Contender:
        def make() -> Callable[[], Call]:
            function = load()
            inputs = [self.hidden.detach().requires_grad_(), self.weight.detach().requires_grad_()]
            return lambda: partial(self._gradients, function, inputs)

        return Contender(name, make, ratios, memory_of=self.logits_bytes, peer=peers.is_peer(name))

    def _gradients(self, function: LinearFunction, inputs: list[Tensor]) -> Any:
        outputs = function(*inputs, self.ids)
        # A peer that returns a sum gets a gradient of 1, which is less to compute.
        grads = [
            torch.ones_like(output) if output.ndim == 0 else grad.view_as(output)
            for grad, output in zip(self.upstream, outputs, strict=False)
        ]
        return torch.autograd.grad(outputs, inputs, grads)

    def _scoring(self, name: str, load: Callable[[], LinearFunction], ratios: tuple[Ratio, ...]) -> Contender:
        def make() -> Callable[[], Call]:
            function = load()

            def call() -> Any:
                with torch.no_grad():
                    return function(self.hidden, self.weight, self.ids)

            return lambda: call

        return Contender(name, make, ratios, memory_of=self.logits_bytes, peer=peers.is_peer(name), error=self._error)

    def _error(self, outputs: tuple[Tensor, ...]) -> float:
        """Of log-probabilities, or of losses, which are their negatives; per token where a peer returns the sum."""
        parts = zip(self.hidden.float().split(512), self.ids.split(512), strict=True)
        with torch.no_grad():
            weight = self.weight.float()
            expected = torch.cat([peers.eager_linear(rows, weight, ids)[0] for rows, ids in parts]).abs()
        if outputs[0].ndim == 0:
            return float((outputs[0].abs() - expected.sum()).abs()) / len(expected)
        return float((outputs[0].flatten().abs() - expected).abs().max())

    def measure_calls(self) -> None:
        """What each of our calls starts on the device, how often the host waits, and whether a CUDA graph holds it."""
        case = f"calls {self.name}"
        if self.bench.journal.is_done(case):
            return
        inputs = [self.hidden.detach().requires_grad_(), self.weight.detach().requires_grad_()]
        calls: dict[str, Call] = {"scoring": self._scoring("", lambda: ours, ()).make()()}
        for name, options in (("logits kept", {"save_logits": True}), ("recomputing", {"save_logits": False})):
            calls[name] = partial(self._gradients, partial(ours, **options), inputs)
        measure_calls(self.bench, case, calls, self.refresh)
        self.bench.journal.done(case)
