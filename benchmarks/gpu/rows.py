"""One pass over (N, V) bfloat16 logits: forward, backward and divergence, beside the bandwidth of a plain copy."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.gpu import peers
from benchmarks.gpu.timing import Absent, Bench, Call, Contender, Ratio
from swe_trainers.kernels import full_kl, token_logprobs_from_logits

__all__ = ["measure"]

SHAPES = ((8192, 151936), (1024, 151936))
TINY = ((3, 40),)
COPY = "copy"
RowFunction = Callable[..., Any]


def measure(bench: Bench) -> None:
    """All cases of the part."""
    shapes = TINY if bench.tiny else SHAPES
    _count_compilations(bench, *(shapes[0]))
    for n, v in shapes:
        _Rows(bench, n, v).measure()
    for n, v in shapes:
        _Rows(bench, n, v).measure_calls()


def ours(logits: Tensor, ids: Tensor, *, in_place: bool = False) -> tuple[Tensor, Tensor]:
    """The form on logits, by the Triton kernels also where their interpreter runs them."""
    return token_logprobs_from_logits(logits, ids, backend="triton", in_place=in_place, check_values=False)


def _ours_divergence(logits: Tensor, other: Tensor) -> Tensor:
    return full_kl(logits, other, backend="triton")


class _Rows:
    """The cases of one shape."""

    def __init__(self, bench: Bench, n: int, v: int) -> None:
        self.bench, self.name = bench, f"N={n} V={v} bfloat16"
        make = partial(torch.empty, n, v, dtype=torch.bfloat16, device=bench.device)
        self.logits, self.other = make(), make()
        self.ids = torch.empty(n, dtype=torch.int64, device=bench.device)
        self.upstream = torch.empty(2, n, device=bench.device)
        self.size_bytes = self.logits.numel() * 2
        self.refresh(0)

    def refresh(self, number: int) -> None:
        """New logits, of a standard deviation of 3 as a model's, labels and upstream gradients."""
        generator = torch.Generator(self.bench.device).manual_seed(1_000 + number)
        self.logits.normal_(0, 3, generator=generator)
        self.other.normal_(0, 3, generator=generator)
        self.ids.random_(self.logits.shape[1], generator=generator)
        self.upstream.normal_(generator=generator)

    def measure(self) -> None:
        """Times beside the copy."""
        overwrite = [(name, load, inplace) for name, (load, inplace) in peers.ROWS.items()]
        forward = [self._forward(name, load) for name, load, inplace in overwrite if not inplace]
        own = [("ours", lambda: ours), ("torch eager", lambda: peers.eager_rows)]
        own += [("torch.compile", lambda: peers.compiled(peers.eager_rows))]
        case = f"forward {self.name}"
        self.bench.case(case, [self._copy(), *(self._forward(*each) for each in own), *forward], refresh=self.refresh)
        both = [(name, load, False) for name, load in own]
        both.insert(0, ("ours in place", lambda: partial(ours, in_place=True), True))
        backward = [self._backward(*each) for each in (*both, *(x for x in overwrite if not x[0].startswith("Liger")))]
        self.bench.case(f"backward {self.name}", [self._copy(), *backward], refresh=self.refresh)
        whole = [self._both(*each) for each in (*both, *overwrite)]
        self.bench.case(f"forward and backward {self.name}", [self._copy(), *whole], refresh=self.refresh)
        pairs: list[tuple[str, Callable[[], RowFunction]]] = [("ours", lambda: _ours_divergence)]
        pairs += [("torch eager", lambda: peers.eager_divergence)]
        pairs += [("torch.compile", lambda: peers.compiled(peers.eager_divergence))]
        contenders = [self._divergence(*pair) for pair in pairs]
        self.bench.case(f"divergence forward {self.name}", [self._copy(), *contenders], refresh=self.refresh)
        contenders = [self._divergence_backward(*pair) for pair in pairs]
        self.bench.case(f"divergence backward {self.name}", [self._copy(), *contenders], refresh=self.refresh)

    def _copy(self) -> Contender:
        # It moves two matrices: at its bandwidth a call that moves m of them takes m / 2 of its time.
        return Contender(COPY, lambda: lambda: partial(self.other.copy_, self.logits))

    def _of_copy(self, matrices_moved: int) -> tuple[Ratio, ...]:
        return (Ratio("of the copy's bandwidth", COPY, matrices_moved / 2),)

    def _forward(self, name: str, load: Callable[[], RowFunction]) -> Contender:
        def make() -> Callable[[], Call]:
            function = load()

            def call() -> Any:
                with torch.no_grad():
                    return function(self.logits, self.ids)

            return lambda: call

        return Contender(
            name, make, self._of_copy(1), memory_of=self.size_bytes, peer=peers.is_peer(name), error=self._error
        )

    def _error(self, outputs: Sequence[Tensor]) -> float:
        """Of log-probabilities, or of losses, which are their negatives."""
        expected = torch.cat(
            [peers.eager_rows(*part)[0] for part in zip(self.logits.split(512), self.ids.split(512), strict=True)]
        )
        return float((outputs[0].flatten().abs() - expected.abs()).abs().max())

    def _outputs(self, function: RowFunction, inplace: bool) -> tuple[Tensor, list[Tensor]]:
        """A leaf and the outputs of a forward pass; a copy of the logits where they will be overwritten."""
        leaf = (self.other.copy_(self.logits) if inplace else self.logits).detach().requires_grad_()
        return leaf, list(function(leaf, self.ids))

    def _gradient(self, leaf: Tensor, outputs: Sequence[Tensor]) -> Any:
        grads = [grad.view_as(output) for grad, output in zip(self.upstream, outputs, strict=False)]
        return torch.autograd.grad(outputs, leaf, grads)

    def _backward(self, name: str, load: Callable[[], RowFunction], inplace: bool) -> Contender:
        def make() -> Callable[[], Call]:
            function = load()

            def prepare() -> Call:
                leaf, outputs = self._outputs(function, inplace)
                return lambda: self._gradient(leaf, outputs)

            return prepare

        return self._gradients_of(name, make, 2)

    def _gradients_of(self, name: str, make: Callable[[], Callable[[], Call]], matrices_moved: int) -> Contender:
        """A contender whose result, the gradient, may overwrite the copy of the logits."""
        ratios, inputs, peer = self._of_copy(matrices_moved), (self.logits, self.other), peers.is_peer(name)
        return Contender(name, make, ratios, memory_of=self.size_bytes, inputs=inputs, peer=peer)

    def _both(self, name: str, load: Callable[[], RowFunction], inplace: bool) -> Contender:
        def make() -> Callable[[], Call]:
            function = load()

            def prepare() -> Call:
                source = (self.other.copy_(self.logits) if inplace else self.logits).detach()

                def call() -> Any:
                    leaf = source.requires_grad_()
                    return self._gradient(leaf, list(function(leaf, self.ids)))

                return call

            return prepare

        return self._gradients_of(name, make, 3)

    def _divergence(self, name: str, load: Callable[[], RowFunction]) -> Contender:
        def make() -> Callable[[], Call]:
            function = load()

            def call() -> Any:
                with torch.no_grad():
                    return function(self.logits, self.other)

            def prepare() -> Call:
                self.other.copy_(self.logits).add_(1.0)  # the copy overwrote it
                self.other[:, ::2] -= 2.0
                return call

            return prepare

        return Contender(name, make, self._of_copy(2), memory_of=self.size_bytes, peer=peers.is_peer(name))

    def _divergence_backward(self, name: str, load: Callable[[], RowFunction]) -> Contender:
        def make() -> Callable[[], Call]:
            function = load()

            def prepare() -> Call:
                self.other.copy_(self.logits).add_(1.0)
                self.other[:, ::2] -= 2.0
                pair = [x.detach().requires_grad_() for x in (self.logits, self.other)]
                divergence = function(*pair)
                return lambda: torch.autograd.grad(divergence, pair, self.upstream[0])

            return prepare

        return Contender(name, make, self._of_copy(4), memory_of=2 * self.size_bytes, peer=peers.is_peer(name))

    def measure_calls(self) -> None:
        """What each of our calls starts on the device, how often the host waits, and whether a CUDA graph holds it."""
        case = f"calls {self.name}"
        if self.bench.journal.is_done(case):
            return
        forward = self._forward("", lambda: ours).make()()
        divergence = self._divergence("", lambda: _ours_divergence).make()()

        def both(*, in_place: bool) -> Call:
            leaf = self.logits.detach().requires_grad_()
            return lambda: self._gradient(leaf, ours(leaf, self.ids, in_place=in_place))

        def divergence_both() -> Any:
            pair = [x.detach().requires_grad_() for x in (self.logits, self.other)]
            return torch.autograd.grad(_ours_divergence(*pair), pair, self.upstream[0])

        calls = {
            "forward": forward,
            "forward and backward": both(in_place=False),
            "forward and backward in place": both(in_place=True),
            "divergence": divergence,
            "divergence and its backward": divergence_both,
        }
        measure_calls(self.bench, case, calls, self.refresh)
        self.bench.journal.done(case)


def measure_calls(bench: Bench, case: str, calls: dict[str, Call], refresh: Callable[[int], None]) -> None:
    """Measure how often each call waits for the device, and what it runs there.

    Captures of graphs come last, since a failed capture may disturb later measurements.
    """
    for name, call in calls.items():
        refresh(1)
        call()
        bench.attempt(case, f"{name}: host syncs", partial(bench.host_syncs, call))
        bench.attempt(case, f"{name}: kernels and copies", partial(bench.kernels, call))
    for name, call in calls.items():
        refresh(2)
        bench.attempt(case, f"{name}: captured in a CUDA graph", partial(_replays_equal, bench, call, refresh))


def _replays_equal(bench: Bench, call: Call, refresh: Callable[[int], None]) -> float:
    """1 if a replay on other data gives what the call itself gives on them.

    Raises:
        Absent: there is no GPU.
        AssertionError: it gives something else.
    """
    replay = bench.captured(call)
    refresh(3)
    expected = [x.clone() for x in _tensors(call())]
    refresh(3)
    for got, wanted in zip(_tensors(replay()), expected, strict=True):
        torch.testing.assert_close(got, wanted)
    return 1.0


def _tensors(result: Any) -> list[Tensor]:
    return [result] if isinstance(result, Tensor) else list(result)


def _count_compilations(bench: Bench, n: int, v: int) -> None:
    """Compilations of our kernels in 200 micro-batches of random sizes, in a process that compiled none before."""
    case = f"compilations V={v} bfloat16"
    if bench.journal.is_done(case):
        return

    def count() -> float:
        if bench.device == "cpu":
            raise Absent("the interpreter compiles nothing")
        import triton

        compiled = 0

        def compiling(*_: object, **__: object) -> None:
            nonlocal compiled
            compiled += 1

        before, triton.knobs.runtime.jit_post_compile_hook = triton.knobs.runtime.jit_post_compile_hook, compiling
        logits = torch.randn(n, v, dtype=torch.bfloat16, device=bench.device)
        ids = torch.randint(v, (n,), device=bench.device)
        ends = time.monotonic() + 60
        try:
            for number, size in enumerate(np.random.default_rng(0).integers(1, n, 200).tolist()):
                if time.monotonic() > ends:
                    raise TimeoutError(f"{compiled} compilations in the first {number} micro-batches took a minute")
                leaf = logits[:size].detach().requires_grad_()
                torch.autograd.grad([x.sum() for x in ours(leaf, ids[:size])], leaf)
        finally:
            triton.knobs.runtime.jit_post_compile_hook = before
        return float(compiled)

    bench.attempt(case, "in 200 micro-batches of random sizes", count)
    bench.journal.done(case)
