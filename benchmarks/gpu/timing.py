"""Times of several contenders in turns: what warms the chip or comes from other programs affects all equally.

In each round every contender is called once, on data made for that round, in an order drawn for that round: a chip that
a matrix product has made hot is slower for the next one, whoever's it is. Ratios are medians of the ratios inside
rounds. Compilation and autotuning happen before the first round.
"""

from __future__ import annotations

import contextlib
import gc
import random
import signal
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from benchmarks.gpu.journal import Journal
from benchmarks.gpu.machine import clocks

__all__ = [
    "LOST",
    "Absent",
    "Bench",
    "Call",
    "Contender",
    "ContextLostError",
    "Deadline",
    "OutOfTimeError",
    "Ratio",
    "returned_bytes",
]

LEAST_ROUNDS, MOST_ROUNDS = 7, 50
SECONDS_PER_CASE = 6.0
SECONDS_TO_PREPARE = 90.0
"""A peer that takes longer to import, compile and tune itself is a failure of its own; the others are measured."""
LOST = 70
"""Exit code of a process whose GPU context is lost."""
_BUSY_CYCLES = 1_500_000
"""The GPU is kept busy this long (some 0.8 ms) before each measured call, while the host queues its kernels."""

Call = Callable[[], Any]


class Absent(Exception):  # noqa: N818 - not an error: a reason for a missing row
    """A contender that cannot run here; the message is the reason."""


class OutOfTimeError(Exception):
    """The time of this invocation is over."""


class ContextLostError(Exception):
    """The GPU answers no more in this process."""


@dataclass(frozen=True)
class Ratio:
    """A contender's time as a ratio: `factor` · time of `reference` / own time.

    Attributes:
        metric: what it says, with the contender's name before it.
    """

    metric: str
    reference: str
    factor: float = 1.0


@dataclass(frozen=True)
class Contender:
    """One implementation.

    Attributes:
        name: of the rows.
        make: called once: imports what is needed, or raises `Absent`; returns `prepare`. That is called before each
            timed call, not timed itself, and returns the call, on data of its own if it overwrites them.
        ratios: rows beside the time.
        memory_of: size in bytes that the call's peak memory is compared with; 0 does not measure it.
        inputs: where the call may leave its result: memory that was there before it.
        tokens: of one call, for a row of tokens per second; 0 for none.
        peer: whether a failure is the peer's own and no failure of the benchmark.
        error: largest error of a call's result on the present data, for a row that shows that it computes the same.
    """

    name: str
    make: Callable[[], Callable[[], Call]]
    ratios: tuple[Ratio, ...] = ()
    memory_of: int = 0
    inputs: Sequence[torch.Tensor] = ()
    tokens: int = 0
    peer: bool = False
    error: Callable[[Any], float] | None = None


class Deadline:
    """The end of this invocation: a number of seconds from now, or `end`."""

    def __init__(self, seconds: float) -> None:
        self._ends, self._ended = time.monotonic() + seconds, False

    def end(self, *_: object) -> None:
        """End now; a handler of SIGTERM."""
        self._ended = True

    @property
    def remaining_s(self) -> float:
        """Seconds left."""
        return 0.0 if self._ended else max(0.0, self._ends - time.monotonic())

    def check(self) -> None:
        """Raises OutOfTimeError after the end."""
        if self.remaining_s <= 0:
            raise OutOfTimeError


@dataclass
class Bench:
    """What the parts measure with.

    Attributes:
        device: cuda or cpu.
        journal: where the rows go.
        deadline: of this invocation.
        with_peers: measure others' implementations beside ours.
        seconds_per_case: the rounds of a case end after this long.
        seconds_to_prepare: that a peer has until it has run twice.
    """

    device: str
    journal: Journal
    deadline: Deadline
    with_peers: bool = True
    seconds_per_case: float = SECONDS_PER_CASE
    seconds_to_prepare: float = SECONDS_TO_PREPARE

    @property
    def tiny(self) -> bool:
        """Whether sizes only show that everything runs."""
        return self.device == "cpu"

    def case(self, case: str, contenders: Sequence[Contender], *, refresh: Callable[[int], None]) -> None:
        """Measure contenders in turns, unless an earlier invocation did.

        Args:
            case: its name, unique within the part.
            refresh: writes new data for the round of this number into the contenders' inputs.

        Raises:
            OutOfTimeError: the deadline came; rows of the rounds until then are written, the case is not done.
            ContextLostError: a contender broke the GPU's context.
        """
        if self.journal.is_done(case):
            return
        self.deadline.check()
        started = clocks(self.device)
        ready = self._ready(case, contenders, refresh)
        times: dict[str, list[float]] = {name: [] for name in ready}
        hosts: dict[str, list[float]] = {name: [] for name in ready}
        ends = time.monotonic() + self.seconds_per_case
        out_of_time = False
        for number in range(1, (2 if self.tiny else MOST_ROUNDS + 1)):
            refresh(number)
            order = list(ready)
            random.Random(number).shuffle(order)
            for name in order:
                try:
                    seconds, host = self._time(ready[name])
                except Exception as error:  # noqa: BLE001 - as above; memory may be in pieces by now
                    del ready[name]
                    self._answer(case, name, error, peer=next(x.peer for x in contenders if x.name == name))
                else:
                    times[name].append(seconds)
                    hosts[name].append(host)
            out_of_time = self.deadline.remaining_s <= 0
            if out_of_time or (number >= LEAST_ROUNDS and time.monotonic() > ends):
                break
        few = out_of_time and len(next(iter(times.values()), [])) < LEAST_ROUNDS
        for contender in contenders:
            if contender.name in ready:
                self._write(case, contender, times, hosts, ready[contender.name], few=few)
        if out_of_time and few:
            raise OutOfTimeError
        self.journal.done(case, clocks_before=started, clocks_after=clocks(self.device))
        ready.clear()
        self.tidy()

    def _ready(
        self, case: str, contenders: Sequence[Contender], refresh: Callable[[int], None]
    ) -> dict[str, Callable[[], Call]]:
        """Those that ran twice without a failure, compiled and tuned."""
        died, ready = self.journal.died_in(case), {}
        for contender in contenders:
            if contender.name in died:
                continue
            if contender.peer and not self.with_peers:
                self.journal.absent(case, contender.name, "peers were left out")
                continue
            self.deadline.check()
            if self.journal.times_stuck(case, contender.name) > 1:
                self.journal.failed(case, contender.name, "did not return in two invocations", peer=contender.peer)
                continue
            self.journal.trying(case, contender.name, peer=contender.peer)
            try:
                with _at_most(self.seconds_to_prepare) if contender.peer else contextlib.nullcontext():
                    prepare = contender.make()
                    for number in range(1 if self.tiny else 2):
                        refresh(-number)
                        result = prepare()()
                    self.synchronize()
                self.journal.ready(case, contender.name)
                if contender.error is not None:
                    self.journal.add(case, f"{contender.name}: largest error", "nat", [contender.error(result)])
                del result
            except Absent as reason:
                self.journal.absent(case, contender.name, str(reason))
            except OutOfTimeError:
                raise
            except Exception as error:  # noqa: BLE001 - whatever a peer raises is its row, and the others are measured
                self._answer(case, contender.name, error, peer=contender.peer)
            else:
                ready[contender.name] = prepare
        return ready

    def attempt(self, case: str, metric: str, measure: Callable[[], float], *, unit: str = "1") -> None:
        """Write one number that is no time, or why there is none; see `case` for what ends the process."""
        if metric in self.journal.died_in(case):
            return
        self.deadline.check()
        self.journal.trying(case, metric)
        try:
            value = measure()
        except Absent as reason:
            self.journal.absent(case, metric, str(reason))
        except OutOfTimeError:
            raise
        except Exception as error:  # noqa: BLE001 - a failure is this row; the next one is measured
            self._answer(case, metric, error)
        else:
            self.journal.add(case, metric, unit, [value])

    def _answer(self, case: str, name: str, error: Exception, *, peer: bool = False) -> None:
        first = str(error).strip().splitlines()
        reason = f"{type(error).__name__}: {first[0] if first else ''}"[:400]
        error.__traceback__ = None  # its frames hold tensors
        try:
            self.synchronize()
        except Exception as lost:
            self.journal.failed(case, name, reason, peer=peer, died=True)
            raise ContextLostError(reason) from lost
        self.journal.failed(case, name, reason, peer=peer)
        self.tidy()

    def _write(
        self,
        case: str,
        contender: Contender,
        times: dict[str, list[float]],
        hosts: dict[str, list[float]],
        prepare: Callable[[], Call],
        *,
        few: bool,
    ) -> None:
        name, more = contender.name, {"partial": True} if few else {}
        if not times[name]:
            return  # the time was over before its first turn
        self.journal.add(case, name, "s", times[name], **more)
        if self.device == "cuda":
            self.journal.add(case, f"{name}: host", "s", hosts[name], **more)
        if contender.tokens:
            self.journal.add(case, f"{name}: tokens", "1/s", [contender.tokens / s for s in times[name]], **more)
        for ratio in contender.ratios:
            if times.get(ratio.reference):  # it may have failed in its first round
                pairs = zip(times[ratio.reference], times[name], strict=False)  # the last round may be incomplete
                values = [ratio.factor * reference / own for reference, own in pairs]
                self.journal.add(case, f"{name}: {ratio.metric}", "1", values, **more)
        if contender.memory_of and not few:
            size, inputs = contender.memory_of, contender.inputs
            self.attempt(case, f"{name}: extra memory", lambda: self.peak_bytes(prepare(), inputs) / size)

    def _time(self, prepare: Callable[[], Call]) -> tuple[float, float]:
        """Seconds of one call on the device, and of the host until the call returned."""
        call = prepare()
        if self.device == "cpu":
            began = time.perf_counter()
            call()
            return (time.perf_counter() - began,) * 2
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        torch.cuda._sleep(_BUSY_CYCLES)  # noqa: SLF001 - PyTorch's own tests and benchmarks keep a GPU busy with it
        begin.record()
        began = time.perf_counter()
        result = call()
        host = time.perf_counter() - began
        end.record()
        end.synchronize()
        del result
        return begin.elapsed_time(end) / 1000, host

    def peak_bytes(self, call: Call, inputs: Sequence[torch.Tensor] = ()) -> float:
        """Peak memory during a call, beyond what was allocated before it and what it returns outside its inputs."""
        if self.device == "cpu":
            raise Absent("needs a GPU, which counts allocations")
        self.tidy()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        returned = returned_bytes(call(), inputs)
        torch.cuda.synchronize()
        return float(torch.cuda.max_memory_allocated() - before - returned)

    def host_syncs(self, call: Call) -> float:
        """How often a call makes the host wait for the device, by PyTorch's own count."""
        if self.device == "cpu":
            return _reads_of_values(call)
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("warn")
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                call()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        return float(sum("synchronizing CUDA operation" in str(warning.message) for warning in caught))

    def kernels(self, call: Call) -> float:
        """How many kernels and copies a call starts on the device."""
        if self.device == "cpu":
            raise Absent("needs a GPU")
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            call()
            torch.cuda.synchronize()
        return float(sum(event.count for event in profile.key_averages() if event.self_device_time_total > 0))

    def captured(self, call: Call) -> Call:
        """A call as a CUDA graph; the call that replays it. Raises what the capture raises, `Absent` without a GPU."""
        if self.device == "cpu":
            raise Absent("needs a GPU")
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                call()
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = call()

        def replay() -> Any:
            graph.replay()
            return result

        return replay

    def synchronize(self) -> None:
        """Wait for the device; raises what its kernels raised."""
        if self.device == "cuda":
            torch.cuda.synchronize()

    def tidy(self) -> None:
        """Free what no tensor holds."""
        gc.collect()
        if self.device == "cuda":
            torch.cuda.empty_cache()


def returned_bytes(result: Any, inputs: Sequence[torch.Tensor]) -> int:
    """Size of the tensors of a result that lie in no memory of the inputs."""
    before = {x.untyped_storage().data_ptr() for x in inputs}
    tensors = [x for x in tree_leaves(result) if isinstance(x, torch.Tensor)]
    return sum(x.nbytes for x in tensors if x.untyped_storage().data_ptr() not in before)


@contextlib.contextmanager
def _at_most(seconds: float) -> Iterator[None]:
    """Raises TimeoutError inside the block, in whatever Python code runs then, after some seconds."""

    def end(*_: object) -> None:
        raise TimeoutError(f"not ready after {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, end)
    outer = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, *outer)


def _reads_of_values(call: Call) -> float:
    """Operations whose result the host must know: on a GPU each would wait for it."""
    from torch.utils._python_dispatch import TorchDispatchMode

    names = ("_local_scalar_dense", "nonzero", "is_nonzero", "masked_select", "unique", "equal")
    count = 0

    class Counter(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            nonlocal count
            count += func.overloadpacket.__name__ in names
            return func(*args, **(kwargs or {}))

    with Counter():
        call()
    return float(count)
