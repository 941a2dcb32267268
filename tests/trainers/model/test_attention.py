"""Attention of segments, some of which continue others, equals attention under an explicit mask."""

from __future__ import annotations

import collections
import dataclasses
import sys
import types
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from swe_trainers.algorithms.grpo import GRPO
from swe_trainers.learning.batch import lay_out
from swe_trainers.learning.forward import forward
from swe_trainers.model.attention import SegmentLayout, _varlen_options
from tests.trainers.learning.tiny import trajectory
from tests.trainers.tiny import tiny_model


def random_layout(rows: int, seed: int) -> tuple[SegmentLayout, torch.Tensor]:
    """Segments in rows with padding on the right, and the mask (B·T, B·T) of what each token sees."""
    random = np.random.default_rng(seed)
    sizes: list[list[int]] = [random.integers(1, 12, size=random.integers(1, 6)).tolist() for _ in range(rows)]
    width = max(map(sum, sizes)) + int(random.integers(0, 3))
    starts, parents, flat = [], [], []
    sees = torch.zeros(rows * width, rows * width, dtype=torch.bool)
    for row, of_row in enumerate(sizes):
        begin, first = row * width, len(flat)
        for size in of_row:
            parent = int(random.integers(first, len(flat))) if len(flat) > first and random.random() < 0.7 else -1
            own = slice(begin, begin + size)
            if parent >= 0:
                last = starts[parent] + flat[parent] - 1
                sees[own] = sees[last]
            sees[own, own] |= torch.ones(size, size, dtype=torch.bool).tril()
            starts.append(begin)
            parents.append(parent)
            flat.append(size)
            begin += size
    return SegmentLayout(*(torch.tensor(each) for each in (starts, flat, parents)), (rows, width)), sees


def attended(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, sees: torch.Tensor) -> torch.Tensor:
    """Softmax attention, written out; (n, H, D) all; 0 for tokens that see nothing."""
    repeats = query.shape[1] // key.shape[1]
    key, value = (each.repeat_interleave(repeats, 1) for each in (key, value))
    scores = torch.einsum("qhd,khd->hqk", query, key) / query.shape[-1] ** 0.5
    some = sees.any(1)
    weights = torch.zeros_like(scores)
    weights[:, some] = scores[:, some].masked_fill(~sees[some], -torch.inf).softmax(-1)
    return torch.einsum("hqk,khd->qhd", weights, value)


def varlen_attn(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *, scale, window_size, enable_gqa=False):
    """What PyTorch documents of its function for GPUs: the last query of a sequence is aligned with its last key."""
    assert enable_gqa == (query.shape[1] != key.shape[1]) and window_size[1] == 0
    assert cu_seq_q.dtype == cu_seq_k.dtype == torch.int32
    assert max_q == int(cu_seq_q.diff().max()) and max_k == int(cu_seq_k.diff().max())
    parts = []
    for n in range(len(cu_seq_q) - 1):
        q, k, v = query[cu_seq_q[n] : cu_seq_q[n + 1]], *(x[cu_seq_k[n] : cu_seq_k[n + 1]] for x in (key, value))
        at = torch.arange(len(k) - len(q), len(k))[:, None] - torch.arange(len(k))
        parts.append(attended(q, k, v, (at >= 0) & ((window_size[0] < 0) | (at <= window_size[0]))))
    return torch.cat(parts)


@given(
    rows=st.integers(1, 3), seed=st.integers(0, 9999), window=st.sampled_from([None, 1, 4]),
    heads=st.sampled_from([(2, 2), (4, 2)]), by=st.sampled_from(["buckets", "lengths"]),
)  # fmt: skip
@settings(deadline=None, max_examples=80)
def test_segments_see_themselves_and_what_they_continue(rows, seed, window, heads, by):
    layout, sees = random_layout(rows, seed)
    n = sees.shape[0]
    if window is not None:  # by positions, which are the number of tokens seen
        far = sees.sum(1)[:, None] - sees.sum(1)[None, :]
        seen = sees & (far < window)
    else:
        seen = sees
    generator = torch.Generator().manual_seed(seed)
    inputs = [torch.randn(n, h, 8, dtype=torch.float64, generator=generator) for h in (heads[0], heads[1], heads[1])]
    upstream = torch.randn(n, heads[0], 8, dtype=torch.float64, generator=generator)
    found = []
    with pytest.MonkeyPatch.context() as patch:
        module = types.ModuleType("torch.nn.attention.varlen")  # older versions of PyTorch have none
        module.varlen_attn = varlen_attn  # type: ignore[attr-defined]
        patch.setitem(sys.modules, module.__name__, module)
        for attend in (
            lambda *qkv: attended(*qkv, seen),
            lambda *qkv: getattr(layout, by)(torch.device("cpu")).attend(*qkv, scaling=None, window=window),
        ):
            leaves = [each.clone().requires_grad_() for each in inputs]
            output = attend(*leaves)
            # What padding contains is not used, and has no gradient.
            (output * upstream)[sees.any(1)].sum().backward()
            found.append((output, *(leaf.grad for leaf in leaves)))
    for ours, expected in zip(found[1], found[0], strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.skipif(
    _varlen_options() is None,
    reason="varlen_attn takes windows and a scale from PyTorch 2.11 on. Try: pip install torch==2.13.0",
)
@pytest.mark.parametrize("window", [None, 3])
def test_the_function_for_gpus_takes_the_arguments_that_it_is_given(window: int | None) -> None:
    """PyTorch's own, on tensors without data: it needs a GPU to compute."""
    layout = SegmentLayout(torch.tensor([0, 5, 9]), torch.tensor([5, 4, 2]), torch.tensor([-1, 0, 0]), (1, 12))
    query, key, value = (
        torch.empty(12, heads, 16, dtype=torch.bfloat16, device="meta", requires_grad=True) for heads in (4, 2, 2)
    )
    lengths = layout.lengths(query.device)
    assert lengths.queries.index is not None and (lengths.longest_query, lengths.longest_key) == (5, 9)
    output = lengths.attend(query, key, value, scaling=0.25, window=window)
    output.sum().backward()
    assert output.shape == query.shape and output.dtype == torch.bfloat16
    for leaf in (query, key, value):
        assert leaf.grad is not None and leaf.grad.shape == leaf.shape


def test_a_layout_is_found_from_segment_numbers() -> None:
    ids = torch.tensor([[1, 1, 2, 2, 2, 0], [3, 3, 3, 3, 3, 3]])
    layout = SegmentLayout.of(ids)
    assert layout.starts.tolist() == [0, 2, 6] and layout.sizes.tolist() == [2, 3, 6]
    assert layout.parents.tolist() == [-1, -1, -1] and not layout.whole_rows
    assert SegmentLayout.of(torch.tensor([[1, 1, 0], [1, 1, 1]])).whole_rows
    assert not SegmentLayout.of(torch.tensor([[0, 1, 1], [1, 1, 1]])).whole_rows


class Counted(TorchDispatchMode):
    """Counts the operations of PyTorch, those with a boolean mask as an index under a name of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: collections.Counter[str] = collections.Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function.overloadpacket.__name__
        if name == "index" and any(each is not None and each.dtype == torch.bool for each in args[1]):
            name = "index by mask"
        self.calls[name] += 1
        return function(*args, **(kwargs or {}))


WAITS = ("_local_scalar_dense", "nonzero", "index by mask", "masked_select", "_unique2", "equal")
"""Operations whose result, or its size, must be known on the host before the next one."""


def shared_episodes() -> list:
    """Eight episodes of seven different lengths, four with a prompt in common."""
    random = np.random.default_rng(0)
    prompt, found = random.integers(40, size=30).tolist(), []
    for number, length in enumerate([240, 150, 60, 12, 200, 100, 40, 12]):
        ids = (prompt if number < 4 else []) + random.integers(40, size=length).tolist()
        rewards = [0.0] * (len(ids) - 1) + [float(number % 3)]
        mask = [False] * 5 + [True] * (len(ids) - 5)
        found.append(trajectory(ids, mask, rewards, logprobs=[-3.0] * len(ids), group=number // 4))
    return found


@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize("pack", [False, True])
def test_a_micro_batch_waits_for_nothing_and_moves_few_tensors(pack: bool, share: bool) -> None:
    algorithm, calls = GRPO(pack=pack, minibatches=1, epochs=1, share_prefixes=share), {}
    for layers in (2, 3):
        model = tiny_model("qwen3", num_hidden_layers=layers)
        experience = algorithm.observe(algorithm.start(model), shared_episodes())
        experience.advantages = algorithm.advantages(experience)
        (rows,) = lay_out(experience.batch, torch.arange(8), max_tokens=4000, pack=pack, share=share)
        tokens = forward(model, rows)  # of the kernels, which have tests of their own, the results alone
        leaf = tokens.logprobs.detach().requires_grad_()
        tokens = dataclasses.replace(tokens, logprobs=leaf, entropy=tokens.entropy.detach())

        def step(model=model, rows=rows, tokens=tokens, experience=experience) -> None:
            here = rows.to("cpu")
            hidden = model.trunk_hidden(here.input_ids, here.position_ids, here.segment_ids, here.layout)
            hidden.sum().backward()
            result = algorithm.token_loss(tokens, experience, 0.0)
            result.loss.sum().backward()

        step()  # indices are made at the first use
        with Counted() as counted:
            step()
        calls[layers] = counted.calls
    assert not {name for name in WAITS if calls[3][name]}
    layer = calls[3] - calls[2]
    # Queries, keys and values go to their places and the result comes back, in both directions; as buckets of a
    # boolean mask each, seven lengths took 28 gathers by index, 14 by mask and 41 scatters.
    moves = {name: layer[name] for name in ("index", "index by mask", "index_put", "index_put_", "index_select")}
    plain = not pack and not share
    assert moves == {name: 8 - 2 * share if name == "index_select" and not plain else 0 for name in moves}
    assert layer["index_add_"] == 2 * share
