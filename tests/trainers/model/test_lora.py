"""Adapters: only they are trained, and the reference is the model without them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Literal

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from swe_trainers.errors import ConfigurationError
from swe_trainers.model.language_model import AdapterFreeReference, LanguageModel
from swe_trainers.model.lora import LoRA
from tests.trainers.tiny import FAMILIES, tiny_model

IDS = torch.tensor([[8, 9, 10, 11, 12, 13, 14]])
PLACES = (torch.arange(7)[None], torch.ones_like(IDS))


def logits(model: LanguageModel | AdapterFreeReference) -> torch.Tensor:
    hidden = model.trunk_hidden(IDS, *PLACES)
    return hidden @ model.unembedding.weight.T


def adapted(family: str = "llama", *, moved: bool = True) -> LanguageModel:
    model = tiny_model(family).add_lora(LoRA(rank=4, alpha=8), seed=1)
    if moved:
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "lora_B" in name:
                    parameter.copy_(torch.randn(parameter.shape, generator=generator) / 2)
    return model


@pytest.mark.parametrize("family", FAMILIES)
def test_new_adapters_do_not_change_outputs_and_only_they_and_the_value_head_are_trained(family: str) -> None:
    plain, model = tiny_model(family), adapted(family, moved=False)
    assert torch.equal(logits(model), logits(plain))
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.5)
    (logits(model).square().mean() + model.values(model.trunk_hidden(IDS, *PLACES)).sum()).backward()
    optimizer.step()
    changed = {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}
    assert changed
    assert all("lora_B" in name or name.startswith("value_head") for name in changed)
    assert not torch.equal(logits(model), logits(plain))


@pytest.mark.parametrize("family", FAMILIES)
def test_the_reference_of_a_model_with_new_adapters_shares_its_weights(family: str) -> None:
    model = adapted(family, moved=False)
    truth = logits(model).detach()
    reference = model.reference_copy()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.add_(0.3)
    assert torch.equal(logits(reference), truth)
    assert not torch.allclose(logits(model), truth)  # and they are on again
    assert isinstance(reference, AdapterFreeReference)
    assert {id(p) for p in reference.parameters()} == {id(p) for p in model.parameters()}
    assert reference.state_dict() == {}
    with pytest.raises(RuntimeError, match="has its own weights"):
        reference.load_state_dict(model.state_dict())


def test_the_reference_of_a_model_with_trained_adapters_is_a_copy() -> None:
    model = adapted()
    reference, truth = model.reference_copy(), logits(model).detach()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    assert torch.equal(logits(reference), truth)


def test_a_checkpoint_has_only_adapters_and_value_head() -> None:
    model, other = adapted(), adapted(moved=False)
    state = model.state_dict()
    assert all("lora_" in name or name.startswith("value_head") for name in state)
    assert sum(t.numel() for t in state.values()) < sum(p.numel() for p in model.parameters()) / 2
    other.load_state_dict(state)
    assert torch.equal(logits(other), logits(model))
    with pytest.raises(RuntimeError, match="does not belong to these adapters"):
        other.load_state_dict(tiny_model("llama").state_dict())


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # these two in PEFT's own loading
@pytest.mark.filterwarnings("ignore:The following .*_pattern keys:RuntimeWarning")
@pytest.mark.parametrize("family", ["llama", "gpt2", "qwen3", "qwen3-experts"])
def test_saved_adapters_are_merged_and_written_separately(family: str, tmp_path: Path) -> None:
    model = adapted(family)
    truth = logits(model).detach()
    model.save_pretrained(tmp_path / "model")
    again = LanguageModel.from_pretrained(tmp_path / "model")
    torch.testing.assert_close(logits(again), truth, rtol=1e-4, atol=1e-4)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    torch.testing.assert_close(theirs(IDS).logits, truth, rtol=1e-4, atol=1e-4)

    base = tiny_model(family)
    base.save_pretrained(tmp_path / "base")
    on_base = LanguageModel.from_pretrained(tmp_path / "base").add_lora(LoRA(rank=4, alpha=8))
    on_base.load_state_dict(model.state_dict())
    on_base.save_pretrained(tmp_path / "model")  # in the place of the former one
    alone = LanguageModel.from_pretrained(tmp_path / "model" / "adapter", tokenizer=base.tokenizer)
    torch.testing.assert_close(logits(alone), truth, rtol=1e-4, atol=1e-4)
    by_peft = PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(tmp_path / "base"), tmp_path / "model" / "adapter"
    )
    torch.testing.assert_close(by_peft(IDS).logits, truth, rtol=1e-4, atol=1e-4)


def test_adapters_of_a_bfloat16_model_are_float32() -> None:
    model = tiny_model("llama").to(torch.bfloat16).add_lora(LoRA(rank=4))
    kinds = {p.dtype for name, p in model.named_parameters() if "lora_" in name}
    assert kinds == {torch.float32}
    logits(model).float().sum().backward()


def test_adapters_that_do_not_fit_are_errors_of_one_line() -> None:
    with pytest.raises(ConfigurationError, match=r"lora.targets: .*nothing_like_this"):
        tiny_model("llama").add_lora(LoRA(targets=("nothing_like_this",)))
    with pytest.raises(ConfigurationError, match="adapters already"):
        adapted().add_lora(LoRA())
    with pytest.raises(ConfigurationError, match="rank: got 0"):
        LoRA(rank=0)


# Half of the widest step of NF4, from -1 to -0.696; half of one of 127 steps. Both of the largest weight, rounded up.
@pytest.mark.parametrize(("bits", "error"), [(4, 0.16), (8, 0.005)])
def test_adapters_learn_on_weights_in_few_bits(tmp_path: Path, bits: Literal[4, 8], error: float) -> None:
    """On a GPU, and where there is none on the CPU."""
    pytest.importorskip("bitsandbytes", reason="Try: pip install '.[gpu]'")
    torch.manual_seed(0)
    whole = tiny_model("llama", hidden_size=128, intermediate_size=128)  # rows of whole blocks
    whole.save_pretrained(tmp_path / "model")
    model = LanguageModel.from_pretrained(tmp_path / "model", bits=bits)
    # Where a CPU has AVX-512 BF16, bitsandbytes would replace these weights by others that have no gradients.
    assert not any(getattr(module, "support_avx512bf16_for_cpu", False) for module in model.modules())
    packed = {p.dtype for name, p in model.named_parameters() if "q_proj" in name}
    assert packed == {torch.uint8 if bits == 4 else torch.int8}
    inner, expected = (next(m for n, m in each.named_modules() if n.endswith("q_proj")) for each in (model, whole))
    with torch.no_grad():  # of an identity matrix a projection makes its weights
        identity = torch.eye(expected.in_features)
        difference = inner(identity.to(model.device)).cpu() - expected(identity)
        assert 0 < difference.abs().max() < error * expected(identity).abs().max()
    model.add_lora(LoRA())
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.05)
    losses = []
    for _ in range(5):
        losses.append(logits(model).square().mean())
        optimizer.zero_grad()
        losses[-1].backward()
        optimizer.step()
    assert losses[-1] < losses[0]
    model.save_pretrained(tmp_path / "trained")
    assert (tmp_path / "trained" / "adapter" / "adapter_config.json").is_file()
    with torch.no_grad():  # adapters on the weights as they were, less by what few bits cost
        again = LanguageModel.from_pretrained(tmp_path / "trained")
        assert (logits(again) - logits(model)).abs().max() < (logits(again) - logits(whole)).abs().max()


def test_few_bits_without_their_package_are_an_error_of_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny_model("llama").save_pretrained(tmp_path / "model")
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    for bits in (4, 8):
        with pytest.raises(
            ConfigurationError,
            match=rf"^bits: {bits}-bit weights need bitsandbytes. Try, in a clone of swegym-env: pip install",
        ):
            LanguageModel.from_pretrained(tmp_path / "model", bits=bits)


@pytest.mark.parametrize("family", ["llama", "gpt2", "qwen3"])
@pytest.mark.parametrize("lora", [False, True])
def test_recomputed_activations_give_the_same_gradients(family: str, lora: bool) -> None:
    gradients = []
    for recompute in (False, True):
        model = adapted(family) if lora else tiny_model(family)
        if recompute:
            model.recompute_activations()
            assert model.recomputes_activations
        logits(model).square().mean().backward()
        gradients.append({name: p.grad for name, p in model.named_parameters() if p.grad is not None})
    assert gradients[0].keys() == gradients[1].keys() != set()
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient)


def test_attention_kernels_give_the_same_result() -> None:
    plain = tiny_model("llama")
    for backend in ("math", "flash"):
        chosen = LanguageModel.from_config(plain.causal_lm.config, plain.tokenizer, attention=backend)
        chosen.load_state_dict(plain.state_dict())
        torch.testing.assert_close(logits(chosen), logits(plain), rtol=1e-4, atol=1e-4)
        assert chosen.causal_lm.config._attn_implementation == f"segments-{backend[:2]}"
