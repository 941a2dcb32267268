"""How the Triton kernels are launched: on the GPU of their tensors, and compiled a few times a process."""

from __future__ import annotations

import ast
import weakref
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from swe_trainers.kernels import linear, triton_decoding, triton_products, triton_rows
from swe_trainers.kernels.linear import Plan, busiest_width, forward_shape, tile_shape

triton = pytest.importorskip("triton")
PACKAGE = Path(triton_rows.__file__).parents[1]


class Hopper:
    """Triton's driver of an H200 that is not there: kernels are specialised for it, and none is launched."""

    def get_current_target(self):
        return triton.backends.compiler.GPUTarget("cuda", 90, 32)

    def get_current_device(self):
        return 0

    def get_current_stream(self, device):
        return 0


@pytest.fixture
def compiled(monkeypatch):
    """The specialisations that Triton is asked for; each would be one compilation."""
    found = set()

    def hook(*, key, fn, **_):
        found.add((fn.name, key))
        return True  # neither compile nor launch

    monkeypatch.setattr(triton.runtime.driver, "_active", Hopper())
    monkeypatch.setattr(triton.knobs.runtime, "jit_cache_hook", hook)
    members = [vars(module).values() for module in (triton_decoding, triton_products, triton_rows)]
    kernels = [member for each in members for member in each if isinstance(member, triton.runtime.JITFunction)]
    for kernel in kernels:
        kernel.device_caches.clear()
    yield found
    for kernel in kernels:
        kernel.device_caches.clear()


def tiles_of(n, vocabulary, dtype, shape):
    """Tiles of logits as `linear` makes them of a micro-batch on a GPU; memory that nothing touches."""
    height, width = shape
    stride = -(-width // 64) * 64
    memory = torch.empty(height, stride, dtype=dtype)
    for top in range(0, n, height):
        for left in range(0, vocabulary, width):
            part = slice(top, min(top + height, n))
            yield part, left, memory[: part.stop - top, : min(width, vocabulary - left)]


@pytest.mark.parametrize("vocabulary", [151_936, 50_257, 128_256])
def test_two_hundred_random_micro_batches_compile_six_times_at_most(vocabulary, compiled):
    random = torch.Generator().manual_seed(0)
    for n in torch.randint(1, 9000, (200,), generator=random).tolist():
        height, width = forward_shape(n, vocabulary, 2)
        slots = triton_rows.slots(height, width)
        sums = torch.empty(-(-vocabulary // width) * slots, 4, n)
        statistics = torch.empty(5, n)
        labels, temperature = torch.zeros(n, dtype=torch.int64), torch.ones(()).expand(n)
        for part, left, tile in tiles_of(n, vocabulary, torch.bfloat16, (height, width)):
            own = sums[left // width * slots :][:slots, :, part]
            triton_rows.sum_tile(tile, own, labels[part], temperature[part], first=left)
        for part, left, tile in tiles_of(n, vocabulary, torch.bfloat16, tile_shape(n, vocabulary, 2, gpu=True)):
            triton_rows.gradient_(tile, labels[part], temperature[part], *statistics[:, part], first=left)
        triton_rows.statistics(sums, labels, temperature, vocabulary)
    assert {name for name, _ in compiled} == {"_sums_kernel", "_merge_kernel", "_gradient_kernel"}
    assert len(compiled) <= 6, len(compiled)


def test_rows_of_any_number_and_alignment_compile_the_kl_kernels_once_each(compiled):
    for n in range(1, 40):
        p, q = torch.empty(2, n, 1024, dtype=torch.bfloat16)
        sums = torch.empty(1, 5, n)
        triton_rows.kl_sum_tile(p, q, 1.0 / n, sums)
        rows = triton_rows.kl_statistics(sums)
        triton_rows.kl_backward(p, q, 1.0 / n, rows, torch.empty(n + 3)[3:], torch.empty_like(p), torch.empty_like(q))
    assert len(compiled) == 3, len(compiled)


def test_rows_of_logits_of_any_number_compile_four_times_at_most(compiled):
    for n in (*range(1, 40), 3000):
        logits, ids = torch.empty(n, 50_304, dtype=torch.bfloat16), torch.zeros(n, dtype=torch.int64)
        triton_rows.row_statistics(logits, ids, torch.ones(()).expand(n), second=False)
        triton_rows.row_statistics(logits[:, :40_001], ids, torch.ones(()).expand(n), second=False)
    assert len(compiled) <= 4, compiled


def test_products_without_logits_of_any_number_of_rows_compile_once_each(compiled):
    weight = torch.empty(1000, 64, dtype=torch.bfloat16)
    for n in range(1, 40):
        rows, labels, temperature = weight[:n], torch.zeros(n + 1, dtype=torch.int64), torch.ones(()).expand(n)
        triton_products.sum_product(rows, weight, labels[1:], temperature, second=False, rounded=True)
        given = rows, weight, labels[1:], temperature, *torch.empty(5, n)
        triton_products.gradient_product(*given, out=torch.empty(n, 1000, dtype=torch.bfloat16), rounded=True)
    assert len(compiled) == 2, len(compiled)


@pytest.mark.parametrize(("hip", "major", "found"), [(None, 9, 132), (None, 10, 0), ("6.4", 9, 0)])
def test_products_without_logits_are_for_nvidias_hopper_gpus(hip, major, found, monkeypatch):
    properties = SimpleNamespace(major=major, multi_processor_count=132)  # an MI300's major is 9 too
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    monkeypatch.setattr(torch.version, "hip", hip)
    assert triton_products._hopper_multiprocessors.__wrapped__(torch.device("cuda", 0)) == found


def test_decoding_steps_of_any_number_of_rows_compile_three_kernels_once_each(compiled):
    keys, values = torch.empty(2, 40, 1, 512, 64, dtype=torch.bfloat16)
    table = torch.zeros(40, 5, dtype=torch.int64)  # of slots and positions, as `StaticDecoding` has them
    for n in range(1, 40):
        query, key = (torch.empty(n, heads, 64, dtype=torch.bfloat16) for heads in (3, 1))
        slots, positions = table[:n, 2], table[:n, 1]
        rotation = torch.empty(2, n, 64, dtype=torch.bfloat16)
        triton_decoding.store_token(query, key, key, tuple(rotation), keys, values, slots, positions)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(triton_decoding, "multiprocessors", lambda _, n=n: n)
            triton_decoding.attend(query, keys, values, slots, positions, length=384)  # 3 programs divide each row
    assert len(compiled) == 3, sorted(name for name, _ in compiled)


SHAPES = {
    "cpu": lambda n, vocabulary: tile_shape(n, vocabulary, 2, gpu=False),
    "gpu": lambda n, vocabulary: tile_shape(n, vocabulary, 2, gpu=True),
    "gpu, forward": lambda n, vocabulary: forward_shape(n, vocabulary, 2),
}


@pytest.mark.parametrize("n", [1, 777, 8192, 40_000])
@pytest.mark.parametrize("vocabulary", [7, 50_257, 151_936])
@pytest.mark.parametrize("kind", SHAPES)
def test_tiles_fit_their_budget_and_are_about_equally_wide(n, vocabulary, kind):
    rows, columns = SHAPES[kind](n, vocabulary)
    on_gpu = max(linear._GPU_FRACTION * n * vocabulary * 2, linear._GPU_LEAST_TILE_BYTES)
    most = linear._CPU_TILE_BYTES if kind == "cpu" else on_gpu
    assert rows * columns * 2 <= max(most, rows * linear._COLUMN_MULTIPLE * 2)
    tiles = -(-vocabulary // columns)
    assert vocabulary - (tiles - 1) * columns >= columns - linear._COLUMN_MULTIPLE * tiles
    assert Plan(rows, columns, keep=False).columns <= vocabulary


@pytest.mark.parametrize("hidden", [1024, 2048, 4096])
def test_tiles_of_a_gradient_keep_an_h200_busy(hidden):
    """The blocks of each product's result are nearly a multiple of its 132 multiprocessors, where that can be."""
    _, most = tile_shape(8192, 151_936, 2, gpu=True, sum_bytes=2 * hidden)
    columns = busiest_width(most, 8192, hidden, 151_936, 132)
    assert most / 2 < columns <= most and columns % linear._COLUMN_MULTIPLE == 0
    for height, width in ((8192, columns), (columns, hidden)):
        blocks = -(-height // 128) * -(-width // 256)
        assert blocks / (-(-blocks // 132) * 132) > 0.9
    assert busiest_width(500, 8192, hidden, 500, 132) == 500
    assert busiest_width(300, 8192, hidden, 151_936, 132) == 300


def test_every_kernel_is_launched_on_the_gpu_of_its_tensors():
    """One function launches, inside a device guard. Without two GPUs no test can see the wrong one being used."""
    places = []
    for file in PACKAGE.rglob("*.py"):
        tree = ast.parse(file.read_text())
        kernels = {
            node.name
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef) and any("triton.jit" in ast.unparse(d) for d in node.decorator_list)
        }
        for function in ast.walk(tree):
            if not isinstance(function, ast.FunctionDef):
                continue
            for call in ast.walk(function):
                if isinstance(call, ast.Call) and isinstance(call.func, ast.Subscript):
                    launched = ast.unparse(call.func.value)
                    if launched in kernels or launched == "kernel":
                        guarded = any(
                            isinstance(block, ast.With)
                            and ast.unparse(block.items[0].context_expr) == "torch.cuda.device_of(first)"
                            and call in ast.walk(block)
                            for block in ast.walk(function)
                        )
                        places.append((file.name, function.name, guarded))
    assert places == [("triton_rows.py", "launch", True)]


class Peak(TorchDispatchMode):
    """The most bytes of tensors made under this mode that are alive at once."""

    def __init__(self):
        super().__init__()
        self.now, self.peak, self._known = 0, 0, set()

    def _free(self, key, size):
        self.now -= size
        self._known.discard(key)

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        given = [x.untyped_storage()._cdata for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        self._known.update(given)  # what was there before is not counted
        result = function(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                if storage._cdata not in self._known:
                    self._known.add(storage._cdata)
                    self.now += storage.nbytes()
                    weakref.finalize(storage, self._free, storage._cdata, storage.nbytes())
        self.peak = max(self.peak, self.now)
        return result


@pytest.mark.parametrize("logits_dtype", [None, torch.float32])
@pytest.mark.parametrize("hidden", [1024, 2048, 4096])
def test_forward_and_backward_take_five_percent_of_the_logits_beside_what_they_return(hidden, logits_dtype, compiled):
    """On tensors without memory, with the tiles of a GPU: every allocation is made, and no kernel is launched."""
    n, vocabulary = 8192, 151_936
    rows = torch.empty(n, hidden, dtype=torch.bfloat16, device="meta", requires_grad=True)
    weight = torch.empty(vocabulary, hidden, dtype=torch.bfloat16, device="meta", requires_grad=True)
    ids, temperature = torch.empty(n, dtype=torch.int64, device="meta"), torch.ones((), device="meta").expand(n)
    size_bytes = 2 if logits_dtype is None else 4
    beside = 0 if logits_dtype is None else 2
    shape = tile_shape(n, vocabulary, size_bytes, gpu=True, sum_bytes=2 * hidden, gradient_bytes=beside)
    forward = forward_shape(n, vocabulary, size_bytes)
    plan = Plan(*shape, keep=False, logits_dtype=logits_dtype, forward=forward)
    with Peak() as seen:
        outputs = linear.project(rows, weight, None, ids, temperature, plan=plan, kernels=triton_rows)
        gradients = torch.autograd.grad(outputs, [rows, weight], [torch.ones(n, device="meta")] * 2)
    returned = sum(x.numel() * x.itemsize for x in (*outputs, *gradients))
    assert [x.dtype for x in gradients] == [torch.bfloat16] * 2
    assert len(compiled) == 3
    assert seen.peak > returned
    assert seen.peak - returned <= 0.05 * n * vocabulary * size_bytes


class Products(TorchDispatchMode):
    """The checks of PyTorch 2.9's products with a dtype of their own on GPUs, which tensors without memory lack."""

    def __init__(self):
        super().__init__()
        self.seen = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = str(function)
        if name.startswith(("aten.mm.dtype", "aten.addmm.dtype")):
            self.seen.add(name)
            dtypes = {x.dtype for x in args if isinstance(x, torch.Tensor)}
            assert len(dtypes) == 1, f"{name}: self and mat2 must have the same dtype, but got {dtypes}"
        return function(*args, **(kwargs or {}))


def test_gradients_are_summed_in_float32_by_products_that_pytorch_2_9_has(compiled, monkeypatch):
    monkeypatch.setattr(linear, "_ADDS_TO_FLOAT32", False)
    rows, weight = (torch.empty(n, 64, dtype=torch.bfloat16, device="meta", requires_grad=True) for n in (40, 1000))
    ids, temperature = torch.empty(40, dtype=torch.int64, device="meta"), torch.ones((), device="meta").expand(40)
    with Products() as products:
        plan = Plan(16, 300, keep=False)  # several tiles add to each gradient
        outputs = linear.project(rows, weight, None, ids, temperature, plan=plan, kernels=triton_rows)
        gradients = torch.autograd.grad(outputs, [rows, weight], [torch.ones(40, device="meta")] * 2)
    assert [x.dtype for x in gradients] == [torch.bfloat16] * 2
    assert products.seen == {"aten.mm.dtype"}
