"""GPU resources of the kernels, measured without a GPU: instructions, barriers, registers, spills, width of accesses.

    .venv/bin/python benchmarks/kernel_resources.py [--architectures 80 90 100] [--output FILE] [--compare FILE]

Every kernel is compiled ahead of time for sm_80 (A100), sm_90 (H100, H200) and sm_100 (B200) in the variants that
training uses. Compiler and disassembler are part of Triton. `--output` adds the rows of this version of Triton to a
file; `--compare` fails if a number is 5 % larger than in a file, by the same version of Triton.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

sys.path.insert(0, str(Path(__file__).parents[1]))
from swe_trainers.kernels import triton_decoding, triton_layers, triton_products, triton_rows

ARCHITECTURES = (80, 90, 100)
# Rows of logits and the distances between them: `linear` makes them multiples of 64 elements.
ALIGNED = [["tt.divisibility", 16]]
MATRICES = ("logits", "other", "out", "grad_logits", "grad_other")
STRIDES = ("row_stride", "out_stride", "stride", "other_stride", "grad_stride", "grad_other_stride")
ACTIVATIONS = ("gate", "up", "grad_out", "grad_gate", "grad_up", "x", "weight", "grad_x", "cosines", "sines", "query",
               "keys", "values", "key", "value", "query_gain", "key_gain")  # fmt: skip
DISTANCES = ("x_batch", "x_token", "x_head", "cos_batch", "cos_token", "sin_batch", "sin_token", "query_row",
             "query_head", "cache_slot", "cache_head", "key_row", "key_head", "value_row", "value_head", "cos_row",
             "sin_row")  # fmt: skip
SIZES = ("width", "first", "vocabulary", "share", "blocks", "n", "parts", "temperature_stride", "tokens", "heads",
         "tiles", "slot_step", "position_step", "write_step", "window")  # fmt: skip
INDICES = ("labels", "slots", "positions", "writes")
FACTORS = ("cap", "scale", "epsilon")
LIMIT = 1.05
"""Of a number that may not grow."""
H200_BYTES, H200_UNITS, LANES = 4.8e12, 132, 128
"""Bytes a second and multiprocessors by the data sheet; lanes that one of them issues an instruction to a cycle."""
BYTES = {"sums bf16": 2, "sums bf16 final": 2, "gradient bf16": 4, "KL sums bf16": 4, "KL gradient of p bf16": 6,
         "KL gradient bf16": 8, "SwiGLU bf16": 6, "SwiGLU gradient bf16": 10, "rotation bf16": 8,
         "norm 128 bf16": 4, "norm 2048 bf16": 4, "norm gradient 128 bf16": 6,
         "norm gradient 2048 bf16": 6}  # fmt: skip
"""That a pass reads and writes for each logit, activation or pair; of long rows, and of many heads."""


@dataclass(frozen=True)
class Variant:
    """One kernel as training launches it.

    Attributes:
        name: of the kernel and its variant.
        kernel: the function.
        dtype: of the logits.
        constants: values of the compile-time arguments.
        elements: logits (pairs of logits for a KL or a rotation; numbers of keys and values) that one iteration of the
            main loop processes; without a loop, one program.
        aligned: rows begin at multiples of 16 bytes.
        warps: of a program.
        stages: of the main loop: blocks that are read ahead; None for Triton's own number.
        tiles: arguments that are matrices copied tile by tile, and the tiles' shapes.
        architectures: that the kernel is for.
    """

    name: str
    kernel: Any
    dtype: str
    constants: dict[str, Any]
    elements: int
    aligned: bool = True
    warps: int = triton_rows.WARPS
    stages: int | None = None
    tiles: dict[str, tuple[int, int]] = field(default_factory=dict)
    architectures: tuple[int, ...] = ARCHITECTURES


@dataclass(frozen=True)
class Resources:
    """Resources of one compiled kernel.

    Attributes:
        instructions: in the code.
        loop_instructions: of the main loop, a logit; of the whole code if there is no loop.
        loop_barriers: in the main loop, and shuffles, which wait for other threads of the warp.
        registers: per thread.
        spilled_bytes: per thread, stores and loads.
        shared_bytes: per block.
        wide_loads, wide_stores: of 16 bytes, in the main loop or, without one, in the code.
        narrow_loads, narrow_stores: of fewer bytes there, as far as they are of logits: at most 8 bytes and not of 4.
    """

    kernel: str
    architecture: int
    instructions: int
    loop_instructions: float
    loop_barriers: int
    registers: int
    spilled_bytes: int
    shared_bytes: int
    wide_loads: int
    narrow_loads: int
    wide_stores: int
    narrow_stores: int


def variants() -> Iterator[Variant]:
    """Every kernel, in the dtypes of training."""
    threads = {"THREADS": triton_rows.THREADS}
    row = triton_rows
    for dtype, lanes in (("bf16", 8), ("fp32", 4)):
        tile = 4 * triton_rows.THREADS * lanes
        sums = {**threads, "LANES": lanes, "SECOND": False, "BIAS": False, "CAP": False, "FINAL": False}
        gradient = {"BLOCK": triton_rows.GRADIENT_BLOCK, "BIAS": False, "CAP": False}
        pairs = {**threads, "LANES": lanes, "CAP": False}
        both = {"BLOCK": triton_rows.KL_BLOCK, "P": True, "Q": True, "CAP": False}
        yield Variant(f"sums {dtype}", row._sums_kernel, dtype, sums, tile)
        yield Variant(f"gradient {dtype}", row._gradient_kernel, dtype, gradient, triton_rows.GRADIENT_BLOCK)
        yield Variant(f"KL sums {dtype}", row._kl_sums_kernel, dtype, pairs, tile // 2)
        yield Variant(f"KL gradient {dtype}", row._kl_gradient_kernel, dtype, both, triton_rows.KL_BLOCK)
        yield Variant(f"KL gradient of p {dtype}", row._kl_gradient_kernel, dtype, {**both, "Q": False}, row.KL_BLOCK)
        layer, head = triton_layers, {"HALF": 64, "COLUMNS": 64, "HEADS": triton_layers.ROTATE_BLOCK // 64}
        block = {"BLOCK": layer.SWIGLU_BLOCK}
        yield Variant(f"SwiGLU {dtype}", layer._swiglu_kernel, dtype, block, layer.SWIGLU_BLOCK)
        yield Variant(f"SwiGLU gradient {dtype}", layer._swiglu_gradient_kernel, dtype, block, layer.SWIGLU_BLOCK)
        for width in (128, 2048):  # of a head, and of a hidden state
            norm = {"WIDTH": width, "COLUMNS": width, "ROWS": layer.NORM_BLOCK // width}
            learnt = {**norm, "OF_X": True, "OF_WEIGHT": True}
            yield Variant(f"norm {width} {dtype}", layer._norm_kernel, dtype, norm, layer.NORM_BLOCK)
            name = f"norm gradient {width} {dtype}"
            yield Variant(name, layer._norm_gradient_kernel, dtype, learnt, layer.NORM_BLOCK)
        rotation = {**head, "INVERSE": False}
        yield Variant(f"rotation {dtype}", layer._rotate_kernel, dtype, rotation, layer.ROTATE_BLOCK)
        if dtype == "bf16":
            for more in ("FINAL", "SECOND", "BIAS", "CAP"):
                yield Variant(f"sums {dtype} {more.lower()}", row._sums_kernel, dtype, {**sums, more: True}, tile)
            capped = {**gradient, "CAP": True}
            yield Variant(f"gradient {dtype} cap", row._gradient_kernel, dtype, capped, row.GRADIENT_BLOCK)
            narrow = {**sums, "LANES": 1}  # the compiler makes four iterations one
            yield Variant(f"sums {dtype} unaligned", row._sums_kernel, dtype, narrow, 16 * row.THREADS, aligned=False)
            one = {**sums, "THREADS": 32}
            yield Variant(f"sums {dtype} one warp", row._sums_kernel, dtype, one, 4 * 32 * lanes, warps=1)
    for final in (False, True):
        constants = {**threads, "SECOND": False, "FINAL": final}
        yield Variant(f"merge{' final' if final else ''}", row._merge_kernel, "fp32", constants, triton_rows.THREADS)
    yield Variant("KL merge", row._kl_merge_kernel, "fp32", threads, triton_rows.THREADS)
    yield from _products()
    yield from _decoding_variants()


def _products() -> Iterator[Variant]:
    """The products that keep no logits."""
    own = triton_products
    shape = {"ROWS": own.ROWS, "COLUMNS": own.COLUMNS, "DEPTH": own.DEPTH, "CAP": False}
    factors = {"rows": (own.ROWS, own.DEPTH), "weight": (own.COLUMNS, own.DEPTH)}
    written = {**factors, "out": (own.ROWS, own.COLUMNS // 2)}
    sums, gradient = own._sum_product_kernel, own._gradient_product_kernel
    for name, kernel, schedule, more, tiles in (
        ("product sums bf16", sums, own.EXACT_SUMS, {"ROUND": False, "SECOND": False}, factors),
        ("product sums bf16 second", sums, own.EXACT_SUMS, {"ROUND": False, "SECOND": True}, factors),
        ("product sums bf16 rounded", sums, own.ROUNDED_SUMS, {"ROUND": True, "SECOND": False}, factors),
        ("product gradient bf16", gradient, own.GRADIENT, {"ROUND": False}, written),
        ("product gradient bf16 rounded", gradient, own.GRADIENT, {"ROUND": True}, written),
    ):
        yield Variant(
            name,
            kernel,
            "bf16",
            {**shape, **more, "FLATTEN": schedule.flatten},
            own.ROWS * own.COLUMNS,
            warps=own.WARPS,
            stages=schedule.stages,
            tiles=tiles,
            architectures=(90,),
        )


def _decoding_variants() -> Iterator[Variant]:
    """With two query heads for each key-value head."""
    for name, dtype in (("bf16", torch.bfloat16), ("fp32", torch.float32)):
        for width in (64, 128, 256):
            shape = triton_decoding.attention_shape(2, width, dtype)
            warps, stages, read = shape.pop("num_warps"), shape.pop("num_stages"), 2 * shape["BLOCK"] * width
            for more in ("WHOLE", "WINDOW") if width == 128 else ("",):
                constants = {**shape, "WHOLE": more == "WHOLE", "WINDOW": more == "WINDOW"}
                title = f"attention {width} {name} {more.lower()}".strip()
                kernel = triton_decoding._attention_kernel
                yield Variant(title, kernel, name, constants, read, warps=warps, stages=stages)
        token = triton_decoding.token_shape(2, 128)
        warps, constants = token.pop("num_warps"), {**token, "NORM": True}
        yield Variant(f"new token {name}", triton_decoding._token_kernel, name, constants, 4 * 64, warps=warps)
    merged = {"WIDTH": 128, "COLUMNS": 128, "PARTS": 8}
    yield Variant("attention merge", triton_decoding._attention_merge_kernel, "bf16", merged, 8 * 128)


def measure(variant: Variant, architecture: int) -> Resources:
    """Compile one variant and read its resources."""
    kernel = variant.kernel
    names = list(kernel.arg_names)
    types = dict.fromkeys((*MATRICES, *ACTIVATIONS), f"*{variant.dtype}")
    types |= dict.fromkeys(STRIDES, "i64") | dict.fromkeys((*DISTANCES, *SIZES), "i32")
    types |= dict.fromkeys(FACTORS, "fp32") | dict.fromkeys(("slot_stride", "sum_stride"), "i64")
    types |= {"bias": f"*{variant.dtype}", "depth": "i32"} | dict.fromkeys(INDICES, "*i64")
    types |= {name: f"tensordesc<{variant.dtype}[{rows},{columns}]>" for name, (rows, columns) in variant.tiles.items()}
    wide = {*MATRICES, *STRIDES, *ACTIVATIONS, *DISTANCES, "bias", "weighted", "depth"} if variant.aligned else set()
    source = ASTSource(
        fn=kernel,
        signature={name: "constexpr" if name.isupper() else types.get(name, "*fp32") for name in names},
        constexprs={(names.index(name),): value for name, value in variant.constants.items()},
        attrs={(names.index(name),): ALIGNED for name in names if name in wide - variant.tiles.keys()},
    )
    target = GPUTarget("cuda", architecture, 32)
    stages = {} if variant.stages is None else {"num_stages": variant.stages}
    compiled = triton.compile(source, target=target, options={"num_warps": variant.warps, **stages})
    code, registers, spilled = _disassembled(compiled.asm["cubin"], compiled.metadata.name)
    loop = _main_loop(code) or [instruction for _, instruction in code]
    per_thread = variant.elements / (32 * variant.warps)
    counted = [_access(instruction) for instruction in loop]
    return Resources(
        variant.name,
        architecture,
        len(code),
        round(len(loop) / per_thread, 2),
        sum(bool(re.search(r"\b(?:BAR|SHFL)\b", instruction)) for instruction in loop),
        registers,
        spilled,
        compiled.metadata.shared,
        *(counted.count(kind) for kind in ("wide LDG", "narrow LDG", "wide STG", "narrow STG")),
    )


def _disassembled(binary: bytes, name: str) -> tuple[list[tuple[int, str]], int, int]:
    """Addresses and instructions, without padding; registers of a thread, and bytes that it spills to local memory."""
    tool = triton.knobs.nvidia.cuobjdump.path
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary)
        file.flush()
        usage = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True)
        listing = subprocess.run([tool, "-sass", file.name], capture_output=True, text=True, check=True)
    found = re.search(r"REG:(\d+)\s+STACK:(\d+)", usage.stdout + usage.stderr)
    if found is None:
        raise RuntimeError(f"{name}: no registers in the output of the disassembler: {usage.stdout[-300:]}")
    code = [
        (int(line[1], 16), line[2])
        for line in re.finditer(r"^\s+/\*([0-9a-f]+)\*/\s+(.*?)\s*;", listing.stdout, re.MULTILINE)
        if line[2] != "NOP"
    ]
    spills = sum(bool(re.search(r"\b(?:STL|LDL)\b", instruction)) for _, instruction in code)
    return code, int(found[1]), int(found[2]) + 4 * spills


def _main_loop(code: Sequence[tuple[int, str]]) -> list[str] | None:
    """The instructions of the longest loop that loads from global memory."""
    loops = []
    for address, instruction in code:
        jump = re.search(r"\bBRA\S*\s+(?:\S+,\s*)?0x([0-9a-f]+)", instruction)
        if jump and int(jump[1], 16) < address:
            body = [other for place, other in code if int(jump[1], 16) <= place <= address]
            if any("LDG" in other for other in body):
                loops.append(body)
    return max(loops, key=len, default=None)


def _access(instruction: str) -> str:
    """`wide` or `narrow`, and LDG or STG; '' for everything else and for numbers of 32 bits, which are not logits."""
    found = re.search(r"\b(LDG|STG)(?:STS)?((?:\.\w+)*)", instruction)  # LDGSTS reads into shared memory
    if not found:
        return ""
    parts = found[2].split(".")
    if "128" in parts:
        return f"wide {found[1]}"
    return f"narrow {found[1]}" if {"U16", "U8", "S16", "S8", "64"} & set(parts) else ""


def least_clock(row: dict[str, Any]) -> float | None:
    """Hertz at which an H200 issues a pass's instructions as fast as its memory moves their bytes; None for merges.

    Nothing is measured: below this clock the instructions limit the pass, whatever else does. The card's highest is
    1.98 GHz.
    """
    size = BYTES.get(row["kernel"])
    return None if size is None else row["loop_instructions"] / LANES / H200_UNITS * H200_BYTES / size


def grown(rows: Sequence[dict[str, Any]], known: Sequence[dict[str, Any]]) -> list[str]:
    """What is larger than before: one line for each number that grew by more than 5 %, and for each unknown kernel."""
    before = {(row["kernel"], row["architecture"]): row for row in known}
    problems = []
    for row in rows:
        key = row["kernel"], row["architecture"]
        if key not in before:
            problems.append(f"{key[0]} sm_{key[1]}: not in the file")
            continue
        for name, value in row.items():
            if name in ("kernel", "architecture"):
                continue
            last = before[key][name]
            worse = value < last if name.startswith("wide") else value > LIMIT * last
            if worse:
                problems.append(f"{key[0]} sm_{key[1]}: {name} {last} → {value}")
    return problems


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--architectures", type=int, nargs="+", default=ARCHITECTURES, choices=ARCHITECTURES)
    parser.add_argument("--output", type=Path, help="put the rows of this version of Triton into this file")
    parser.add_argument("--compare", type=Path, help="exit with 1 if a number is 5 %% larger than in this file")
    options = parser.parse_args()
    rows = [
        asdict(measure(variant, place))
        for place in options.architectures
        for variant in variants()
        if place in variant.architectures
    ]
    for row in rows:
        print(
            f"sm_{row['architecture']:<3} {row['kernel']:22} {row['loop_instructions']:6} a logit "
            f"{row['loop_barriers']:3} barriers {row['registers']:4} registers {row['spilled_bytes']:3} B spilled "
            f"{row['shared_bytes']:6} B shared  loads {row['wide_loads']} wide {row['narrow_loads']} narrow  "
            f"stores {row['wide_stores']} wide {row['narrow_stores']} narrow  {row['instructions']} in all"
            + (
                f"  {clock / 1e9:.2f} GHz on an H200"
                if row["architecture"] == 90 and (clock := least_clock(row))
                else ""
            )
        )
    if options.output:
        content = json.loads(options.output.read_text()) if options.output.exists() else {}
        content[triton.__version__] = rows
        options.output.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")
    if options.compare:
        known = json.loads(options.compare.read_text())
        if triton.__version__ not in known:
            print(f"{options.compare}: nothing of Triton {triton.__version__}, only of {', '.join(known)}")
            return 2
        problems = grown(rows, known[triton.__version__])
        print("\n".join(problems))
        return int(bool(problems))
    return 0


if __name__ == "__main__":
    sys.exit(main())
