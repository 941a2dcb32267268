"""Fused norms, rotations and attention: the same results and gradients as the layers of transformers."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.overrides import TorchFunctionMode
from transformers import AutoModelForCausalLM, DynamicCache
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm, apply_rotary_pos_emb

from swe_trainers.engines.cache import SlotCache
from swe_trainers.kernels import triton_decoding, triton_layers
from swe_trainers.kernels.choice import decoding_kernels, layer_kernels
from swe_trainers.model.attention import SegmentLayout
from swe_trainers.model.fused import MLP, RMSNorm, fuse_layers, is_known_trunk, last_hidden, rms_norm, rotate
from swe_trainers.model.language_model import LanguageModel
from swe_trainers.model.lora import LoRA
from tests.trainers.tiny import FAMILIES, tiny_model

KNOWN = [family for family in FAMILIES if family not in ("gpt2", "qwen3-experts")]


def stock(model: LanguageModel) -> Any:
    """The same weights in the model as transformers makes it."""
    theirs = AutoModelForCausalLM.from_config(copy.deepcopy(model.causal_lm.config), attn_implementation="sdpa")
    theirs.load_state_dict(model.causal_lm.state_dict())
    assert not any(type(module) is RMSNorm for module in theirs.modules())
    return theirs.eval()


def shuffled_gains(model: LanguageModel) -> LanguageModel:
    """Gains other than 1: with those a forgotten one would not show."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1 and "norm" in name:
                parameter.copy_(torch.rand(parameter.shape, generator=generator) + 0.5)
    return model


def normed_in_steps(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    norm = Qwen3RMSNorm(len(weight), eps=epsilon)
    return torch.func.functional_call(norm, {"weight": weight}, (x,))


def test_rms_norm_and_its_gradients_equal_elementary_operations() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 3, 5, 7, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(7, dtype=torch.float64, requires_grad=True)
    truth = x / (x.pow(2).mean(-1, keepdim=True) + 1e-3).sqrt() * weight
    for norm in (rms_norm, pytorchs_norm):
        torch.testing.assert_close(norm(x, weight, 1e-3), truth, rtol=1e-12, atol=1e-12)
    assert torch.autograd.gradcheck(lambda x, w: rms_norm(x, w, 1e-3), (x, weight))
    with torch.no_grad():
        assert torch.equal(rms_norm(x, weight, 1e-3), rms_norm(x.detach(), weight.detach(), 1e-3))


@pytest.mark.parametrize("learns", [(True, False), (False, True)])
def test_rms_norm_computes_only_the_required_gradients(learns: tuple[bool, bool]) -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(4, 6), torch.rand(6) + 0.5
    grads = []
    for norm in (rms_norm, normed_in_steps):
        parts = [part.clone().requires_grad_(learn) for part, learn in zip((x, weight), learns, strict=True)]
        norm(*parts, 1e-6).square().sum().backward()
        assert [part.grad is not None for part in parts] == list(learns)
        grads.append(next(part.grad for part in parts if part.grad is not None))
    torch.testing.assert_close(grads[0], grads[1], rtol=1e-5, atol=1e-5)


def pytorchs_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    return torch.nn.functional.rms_norm(x, weight.shape, weight, epsilon)


def test_on_a_gpu_pytorchs_kernel_computes_the_norm() -> None:
    with FakeTensorMode():
        x, weight = (torch.empty(*shape, 6, dtype=torch.bfloat16, device="cuda") for shape in ((4,), ()))
        calls = []
        for own in (weight, weight.float()):  # of another dtype it is not one kernel
            with TorchFunctionCalls() as called:
                assert rms_norm(x, own, 1e-6).shape == x.shape
            calls.append("rms_norm" in called.names)
    assert calls == [True, False]


def test_on_a_gpu_a_kernel_of_ours_computes_large_norms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_layers, "rms_norm", lambda x, *_: x)
    calls = []
    with FakeTensorMode():
        for rows, gain in (
            (2**18, torch.bfloat16),
            (2**18, torch.float32),
            (2**18, torch.float64),
            (100, torch.float32),
        ):
            x = torch.empty(rows, 16, dtype=torch.bfloat16, device="cuda")
            calls.append(rms_norm(x, torch.empty(16, dtype=gain, device="cuda"), 1e-6) is x)
    assert calls == [True, True, False, False]


def test_on_a_gpu_layers_are_kernels_where_they_compute_these_numbers() -> None:
    with FakeTensorMode():
        low, exact = (torch.empty(4, 6, dtype=dtype, device="cuda") for dtype in (torch.bfloat16, torch.float64))
        assert layer_kernels(low, low) is triton_layers
        assert [layer_kernels(*pair) for pair in ((exact,), (low, low.float()), (low.cpu(),))] == [None] * 3


def test_on_a_gpu_a_kernel_attends_to_the_cache_of_heads_that_it_supports() -> None:
    gpu, cpu, low = torch.device("cuda"), torch.device("cpu"), torch.bfloat16
    chosen = [(gpu, low, 128), (gpu, torch.float32, 256), (gpu, torch.float64, 128), (gpu, low, 257), (cpu, low, 128)]
    assert [decoding_kernels(*case) is triton_decoding for case in chosen] == [True, True, False, False, False]


def test_mlps_with_another_activation_are_not_changed() -> None:
    config = copy.deepcopy(tiny_model("llama").causal_lm.config)
    assert any(type(module) is MLP for module in tiny_model("llama").modules())
    config.hidden_act = "gelu"
    other = AutoModelForCausalLM.from_config(config)
    assert fuse_layers(other)
    assert not any(type(module) is MLP for module in other.modules())


class TorchFunctionCalls(TorchFunctionMode):
    """The names of PyTorch's functions that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(function.__name__)
        return function(*args, **(kwargs or {}))


def test_rms_norm_in_bfloat16_is_as_exact_as_in_transformers() -> None:
    torch.manual_seed(0)
    exact = torch.randn(64, 48, dtype=torch.float64) * 5
    weight, upstream = torch.rand(48, dtype=torch.float64) + 0.5, torch.randn(64, 48, dtype=torch.float64)
    x = exact.bfloat16().double().requires_grad_()
    w = weight.bfloat16().double().requires_grad_()
    truth = x / (x.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * w
    truth.backward(upstream)
    errors = []
    for norm in (rms_norm, pytorchs_norm, normed_in_steps):
        low = x.detach().bfloat16().requires_grad_()
        out = norm(low, w.detach().bfloat16(), 1e-6)
        out.backward(upstream.bfloat16())
        assert out.dtype == low.grad.dtype == torch.bfloat16
        errors.append([float((a.double() - b).detach().square().mean()) for a, b in ((out, truth), (low.grad, x.grad))])
    for own in errors[:2]:
        assert all(ours <= theirs * 1.01 for ours, theirs in zip(own, errors[2], strict=True))


def test_rotary_positions_and_their_gradient_equal_transformers() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 5, 3, 8, dtype=torch.float64, requires_grad=True)
    angles = torch.randn(2, 5, 4, dtype=torch.float64)
    cosines, sines = (torch.cat([part, part], -1) for part in (angles.cos(), angles.sin()))
    theirs, _ = apply_rotary_pos_emb(x.transpose(1, 2), x.transpose(1, 2), cosines, sines)
    torch.testing.assert_close(rotate(x, cosines, sines), theirs.transpose(1, 2), rtol=1e-12, atol=1e-12)
    assert torch.autograd.gradcheck(lambda x: rotate(x, cosines, sines), (x,))


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("family", KNOWN)
def test_states_of_some_tokens_and_their_gradients_equal_those_of_all(family: str, packed: bool) -> None:
    model = shuffled_gains(tiny_model(family, scale=2.0)).double()
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(4, 40, (2, 13), generator=generator)
    first = 5 if packed else 13  # tokens of the first sequence of each row
    segments = (torch.arange(13) >= first).long().add(1).expand(2, 13).contiguous()
    positions = torch.cat([torch.arange(first), torch.arange(13 - first)]).expand(2, 13)
    places = torch.tensor([17, 3, 12, 3, 25])  # in no order, and one twice
    upstream = torch.randn(5, 32, dtype=torch.float64, generator=generator)
    inputs, trained, found = (ids, positions, segments), list(model.causal_lm.base_model.parameters()), []
    assert model.computes_states_at
    for states in (
        model.trunk_hidden(*inputs).reshape(-1, 32).index_select(0, places),
        model.hidden_at(*inputs, SegmentLayout.of(segments), places),
    ):
        found.append((states.detach(), *torch.autograd.grad(states, trained, upstream)))
    for whole, some in zip(*found, strict=True):
        torch.testing.assert_close(some, whole, rtol=1e-10, atol=1e-10)


def test_states_of_some_tokens_are_not_computed_alone_where_something_would_be_missed() -> None:
    assert not tiny_model("gpt2").computes_states_at
    assert not tiny_model("qwen3").recompute_activations().computes_states_at
    model = tiny_model("qwen3")
    assert model.computes_states_at
    model.trunk.layers[0].register_forward_hook(lambda *_: None)
    assert not model.computes_states_at


@pytest.mark.parametrize("family", KNOWN)
def test_hidden_states_and_gradients_equal_transformers(family: str) -> None:
    model = shuffled_gains(tiny_model(family, scale=2.0))
    theirs = stock(model)
    assert any(type(module) is RMSNorm for module in model.modules())
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(4, 40, (2, 13), generator=generator)
    upstream = torch.randn(2, 13, 32, generator=generator)
    own = model.trunk_hidden(ids, torch.arange(13).expand(2, 13), torch.ones_like(ids))
    other = theirs.base_model(input_ids=ids, use_cache=False).last_hidden_state
    torch.testing.assert_close(own, other, rtol=1e-5, atol=1e-5)
    own.backward(upstream)
    other.backward(upstream)
    for (name, a), b in zip(model.causal_lm.named_parameters(), theirs.parameters(), strict=True):
        if b.grad is not None:
            torch.testing.assert_close(
                a.grad, b.grad, rtol=1e-4, atol=1e-4, msg=lambda message, name=name: f"{name}: {message}"
            )


def test_other_model_families_are_not_changed() -> None:
    model = tiny_model("gpt2").causal_lm
    before = [type(module) for module in model.modules()]
    fuse_layers(model)
    assert [type(module) for module in model.modules()] == before
    assert not is_known_trunk(model.base_model)


@pytest.mark.parametrize("lora", [False, True])
def test_copied_and_unpickled_models_compute_the_same(lora: bool) -> None:
    model = shuffled_gains(tiny_model("qwen3"))
    if lora:
        model.add_lora(LoRA(rank=2))
    ids = torch.tensor([[5, 6, 7]])
    again = [copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
    with torch.no_grad():
        hidden = [each.trunk_hidden(ids, torch.arange(3)[None], torch.ones_like(ids)) for each in (model, *again)]
        next(iter(again[0].parameters())).zero_()
        assert torch.equal(hidden[0], model.trunk_hidden(ids, torch.arange(3)[None], torch.ones_like(ids)))
    assert torch.equal(hidden[0], hidden[1])
    assert torch.equal(hidden[0], hidden[2])


def read_in_turns(model: LanguageModel, ids: Tensor, sizes: list[list[int]], *, known: bool) -> list[Tensor]:
    """The last hidden states of rows of these sizes, turn by turn, by `last_hidden` or by transformers' own trunk."""
    cache, starts, found = SlotCache(len(ids), ids.shape[1]), torch.zeros(len(ids), dtype=torch.int64), []
    slots = torch.arange(len(ids))
    for turn in torch.tensor(sizes):
        column = torch.arange(int(turn.max()))
        positions = (starts[:, None] + column).clamp(max=ids.shape[1] - 1)
        row, at = (column < turn[:, None]).nonzero(as_tuple=True)
        length = int((starts + turn).max())
        fresh = not starts.any() and not model.mask_plan.windowed
        cache.plan(slots, row * len(column) + at, (row, positions[row, at]), None if fresh else length)
        key = torch.arange(length)
        masks = model.mask_plan.masks(key <= positions[:, None, :, None], positions[:, None, :, None], key)
        added = (
            {kind: torch.where(m, 0.0, -torch.inf) for kind, m in masks.items()}
            if isinstance(masks, dict)
            else (torch.where(masks, 0.0, -torch.inf))
        )
        read, last = ids.gather(1, positions), turn - 1
        with torch.no_grad():
            if known:
                found.append(last_hidden(model, read, positions, None if fresh else added, last, cache))
            else:
                hidden = model.run_trunk(read, positions, None if fresh else added, cache=cache)
                found.append(hidden[slots, last])
        starts = starts + turn
    return found


@pytest.mark.parametrize("lora", [False, True])
@pytest.mark.parametrize("family", KNOWN)
def test_last_hidden_states_equal_those_of_the_whole_trunk(family: str, lora: bool) -> None:
    model = shuffled_gains(tiny_model(family, scale=3.0))
    if lora:
        model.add_lora(LoRA(rank=2))
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "lora_" in name:
                    parameter.normal_(generator=torch.Generator().manual_seed(2))
    assert is_known_trunk(model.trunk)
    ids = torch.randint(4, 40, (3, 40), generator=torch.Generator().manual_seed(0))
    sizes = [[7, 1, 12], [1, 1, 1], [5, 9, 2], [1, 1, 1]]  # fresh, decoding, with a history, decoding
    lean = read_in_turns(model, ids, sizes, known=True)
    whole = read_in_turns(model, ids, sizes, known=False)
    for a, b in zip(lean, whole, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
    with torch.no_grad():
        for row in range(3):
            sums = torch.tensor(sizes)[:, row].cumsum(0).tolist()
            own = ids[row : row + 1, : sums[-1]]
            alone = model.trunk_hidden(own, torch.arange(sums[-1])[None], torch.ones_like(own))[0]
            for turn, end in enumerate(sums):
                torch.testing.assert_close(lean[turn][row], alone[end - 1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", KNOWN)
def test_attention_reads_the_cache_under_the_name_of_each_version_of_transformers(family: str) -> None:
    model = tiny_model(family)
    hidden = torch.randn((1, 4, 32), generator=torch.Generator().manual_seed(0))
    rotation = model.trunk.rotary_emb(hidden, torch.arange(4)[None])
    attention = model.trunk.layers[0].self_attn
    last = (rotation[0][:, 3:], rotation[1][:, 3:])
    visible = torch.zeros((1, 1, 1, 4))
    with torch.no_grad():
        whole, _ = attention(hidden, rotation, torch.full((4, 4), -torch.inf).triu(1)[None, None])
        for name in ("past_key_values", "cache"):  # up to 5.23, and from 5.24 on
            cache = DynamicCache()
            attention(hidden[:, :3], (rotation[0][:, :3], rotation[1][:, :3]), None, **{name: cache})
            step, _ = attention(hidden[:, 3:], last, visible, **{name: cache})
            torch.testing.assert_close(step[0, 0], whole[0, 3], rtol=1e-5, atol=1e-5)


def test_a_trunk_with_hooks_runs_its_own_forward_pass() -> None:
    model = tiny_model("llama")
    assert is_known_trunk(model.trunk)
    calls: list[int] = []
    hook = model.trunk.layers[1].register_forward_hook(lambda *_: calls.append(1))
    assert not is_known_trunk(model.trunk)
    read_in_turns(model, torch.randint(4, 40, (2, 9)), [[4, 3]], known=True)
    assert calls == [1]
    hook.remove()
    assert is_known_trunk(model.trunk)


def test_a_pass_that_was_planned_without_masks_updates_no_layer() -> None:
    cache = SlotCache(2, 16)
    both = torch.tensor([0, 1])
    cache.plan_step(both, both, both, 16, triton_decoding)
    with pytest.raises(AssertionError, match="planned for `attend`"):
        cache.update(torch.zeros(2, 1, 1, 8), torch.zeros(2, 1, 1, 8), 0)
    cache.plan(both, (slice(None), 0), (both, both), 16)
    assert cache.update(torch.ones(2, 1, 1, 8), torch.ones(2, 1, 1, 8), 0)[0].sum() == 16
