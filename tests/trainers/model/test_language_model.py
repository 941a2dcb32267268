"""The policy: hidden states equal those of transformers, packed sequences are independent, saved models load."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoConfig, AutoModelForCausalLM, LlamaForCausalLM

from swe_trainers.errors import ConfigurationError, ShapeError
from swe_trainers.learning.batch import Batch, lay_out
from swe_trainers.learning.forward import forward
from swe_trainers.model.language_model import LanguageModel
from swe_trainers.model.tokenizers import HuggingFaceTokenizer, train_sentencepiece
from tests.trainers.learning.tiny import trajectory
from tests.trainers.tiny import FAMILIES, full_logprobs, tiny_model, words

SMALL = {"hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 2, "num_hidden_layers": 1}
MODELS = {family: tiny_model(family) for family in FAMILIES}


def rows_of(*rows: list[int]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Ids, positions and segments of rows that are given as lists of sequence lengths; -n is n tokens of padding."""
    generator = torch.Generator().manual_seed(len(rows))
    segments, positions = [], []
    for lengths in rows:
        numbers = [0 if n < 0 else i + 1 for i, n in enumerate(lengths)]
        segments.append([s for s, n in zip(numbers, lengths, strict=True) for _ in range(abs(n))])
        positions.append([p for n in lengths for p in range(abs(n))])
    segment_ids = torch.tensor(segments)
    return torch.randint(4, 44, segment_ids.shape, generator=generator), torch.tensor(positions), segment_ids


def alone(model: LanguageModel, ids: torch.Tensor) -> torch.Tensor:
    """(T, D) transformers' own hidden states of one sequence on its own."""
    with torch.no_grad():
        hidden: torch.Tensor = model.trunk(input_ids=ids[None], use_cache=False).last_hidden_state[0]
    return hidden


layouts = st.lists(st.integers(1, 9), min_size=1, max_size=4)


@pytest.mark.parametrize("family", FAMILIES)
@given(first=layouts, second=layouts, left=st.integers(0, 3))
@settings(max_examples=15, deadline=None)
def test_packing_and_padding_do_not_change_hidden_states(
    family: str, first: list[int], second: list[int], left: int
) -> None:
    width = max(sum(first), sum(second) + left) + 1
    second = ([-left] if left else []) + second
    rows = [[*row, -(width - sum(abs(n) for n in row))] for row in (first, second)]
    ids, positions, segments = rows_of(*rows)
    model = MODELS[family]
    with torch.no_grad():
        hidden = model.trunk_hidden(ids, positions, segments)
    assert torch.isfinite(hidden).all()
    for row in range(2):
        for segment in set(segments[row].tolist()) - {0}:
            mine = segments[row] == segment
            torch.testing.assert_close(hidden[row, mine], alone(model, ids[row, mine]), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_token_affects_only_later_tokens_of_its_sequence(family: str) -> None:
    model = MODELS[family]
    ids, positions, segments = rows_of([6, 7, 5])
    changed = ids.clone()
    changed[0, 8] = (ids[0, 8] - 4 + 1) % 40 + 4  # the third token of the second sequence
    with torch.no_grad():
        before, after = model.trunk_hidden(ids, positions, segments), model.trunk_hidden(changed, positions, segments)
    moved = (before - after).abs().amax(-1)[0] > 1e-6
    reach = 13 if "windowed" not in family or "half" in family else min(13, 8 + 1 + 2 * 4)  # two layers of window 5
    assert moved.tolist() == [8 <= t < reach for t in range(18)]


def test_initial_values_are_zero_and_float32() -> None:
    model = tiny_model().to(torch.bfloat16)
    values = model.values(torch.randn(2, 3, 32, dtype=torch.bfloat16))
    assert values.dtype == torch.float32
    assert values.shape == (2, 3)
    assert not values.any()


def test_values_and_logits_are_linear_in_the_hidden_states() -> None:
    model = tiny_model("gpt2")
    with torch.no_grad():
        model.value_head.weight.copy_(torch.arange(32.0)[None])
        model.value_head.bias.fill_(3.0)
    hidden = torch.randn(2, 5, 32)
    torch.testing.assert_close(model.values(hidden), (hidden * torch.arange(32.0)).sum(-1) + 3, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(model.logits(hidden), hidden @ model.unembedding.weight.T)


@pytest.mark.parametrize("tie", [True, False])
def test_a_saved_model_loads_here_and_in_transformers(tmp_path: Path, tie: bool) -> None:
    tokenizer = train_sentencepiece(["def f(x):\n    return x\n"] * 3, 400)
    model = tiny_model("qwen3", tokenizer, tie_word_embeddings=tie)
    with torch.no_grad():
        model.value_head.weight.normal_()
    model.save_pretrained(tmp_path / "model")
    again = LanguageModel.from_pretrained(tmp_path / "model").eval()
    ids = torch.tensor([tokenizer.encode("return f(x)")])
    inputs = ids, torch.arange(ids.shape[1])[None], torch.ones_like(ids)
    with torch.no_grad():
        hidden = model.trunk_hidden(*inputs)
        torch.testing.assert_close(again.trunk_hidden(*inputs), hidden, rtol=0, atol=0)
        torch.testing.assert_close(again.values(hidden), model.values(hidden), rtol=0, atol=0)
        theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "model")(input_ids=ids).logits
        torch.testing.assert_close(theirs, model.logits(hidden), rtol=1e-4, atol=1e-4)
    assert again.tokenizer.encode("return f(x)") == ids[0].tolist()


def test_the_seed_determines_the_weights_without_the_global_random_state() -> None:
    state = torch.get_rng_state()
    one, same, other = (tiny_model(seed=seed).unembedding.weight for seed in (1, 1, 2))
    assert torch.equal(state, torch.get_rng_state())
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_a_reference_copy_does_not_change_with_the_policy() -> None:
    model = tiny_model()
    reference = model.reference_copy()
    before = reference.unembedding.weight.clone()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    assert torch.equal(reference.unembedding.weight, before)
    assert not any(parameter.requires_grad for parameter in reference.parameters())
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert reference.tokenizer is model.tokenizer


def test_training_mode_has_no_dropout() -> None:
    model = tiny_model("gpt2", resid_pdrop=0.5, attn_pdrop=0.5, embd_pdrop=0.5).train()
    llama = tiny_model("llama", attention_dropout=0.5).train()
    inputs = rows_of([9])
    for policy in (model, llama):
        torch.testing.assert_close(policy(*inputs), policy(*inputs), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"hidden_size": 32}, "no model_type"),
        ({"model_type": "lama"}, "'lama'.*no such model"),
        ({"model_type": "llama", "hiden_size": 32}, "'hiden_size'; did you mean hidden_size"),
        ({**SMALL, "model_type": "llama", "hidden_size": 31}, "llama: .*31"),
        ({**SMALL, "model_type": "llama", "hidden_size": "many"}, "llama: .*hidden_size.* expected int, got str"),
        ({**SMALL, "model_type": "llama", "initializer_range": 1.5}, "llama: .*initializer_range.* got 1.5"),
        ({**SMALL, "model_type": "llama", "hidden_act": "many"}, "llama: .*'many'"),
        ({**SMALL, "model_type": "llama", "head_dim": -1}, "llama: .*negative"),
        ({**SMALL, "model_type": ["llama"]}, "no model_type"),
        ({**SMALL, "model_type": "llama", "vocab_size": 10}, "46 ids"),
        ({**SMALL, "model_type": "gemma2", "num_key_value_heads": 2, "head_dim": 16}, "gemma2"),
        ({**SMALL, "model_type": "gpt_oss", "num_key_value_heads": 2, "head_dim": 16, "num_local_experts": 4},
         "attention sinks"),
        ({**SMALL, "model_type": "bert-generation", "initializer_range": 0.5},
         "bert-generation: its attention is not plain causal"),
        ({"model_type": "mamba", "hidden_size": 32, "num_hidden_layers": 1}, "mamba"),
    ],
)  # fmt: skip
def test_invalid_configurations_are_errors_with_a_reason(config: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        LanguageModel.from_config(config, words())


def test_a_model_whose_layers_do_not_get_the_cache_is_refused() -> None:
    """As all known families did with transformers 5.24, which had renamed the argument."""
    causal_lm = tiny_model("llama").causal_lm

    def lose(module: torch.nn.Module, args: tuple[object, ...], options: dict[str, object]) -> object:
        return args, {**options, **{name: None for name in ("past_key_values", "cache") if name in options}}

    causal_lm.model.layers[0].self_attn.register_forward_pre_hook(lose, with_kwargs=True)
    with pytest.raises(ConfigurationError, match="do not store keys and values"):
        LanguageModel(causal_lm, words())


@pytest.mark.parametrize(
    ("family", "options", "needed"),
    [
        ("llama", {"num_hidden_layers": 7}, 1),
        ("gpt2", {"num_hidden_layers": 7}, 1),
        ("qwen2-half-windowed", {"num_hidden_layers": 5, "max_window_layers": 3}, 4),
    ],
)
def test_a_model_is_checked_by_the_first_layers_that_hold_one_of_each_kind(
    family: str, options: dict[str, Any], needed: int
) -> None:
    called: set[torch.nn.Module] = set()

    def note(module: torch.nn.Module, *_: object) -> None:
        called.add(module)

    with torch.nn.modules.module.register_module_forward_hook(note):
        model = tiny_model(family, **options)
    layers = model.trunk.h if family == "gpt2" else model.trunk.layers
    assert len(layers) == options["num_hidden_layers"]
    assert [layer in called for layer in layers] == [True] * needed + [False] * (len(layers) - needed)


def test_a_saved_model_whose_attention_scores_are_capped_is_refused_for_that(tmp_path: Path) -> None:
    """And not for the attention of transformers that it does not support either."""
    shape: Any = {**SMALL, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": words().vocab_size}
    AutoModelForCausalLM.from_config(AutoConfig.for_model("gemma2", **shape)).save_pretrained(tmp_path)
    words().save(tmp_path)
    with pytest.raises(ConfigurationError, match="gemma2: attn_logit_softcapping is set"):
        LanguageModel.from_pretrained(tmp_path)


def test_a_missing_model_folder_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no such model folder"):
        LanguageModel.from_pretrained(tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigurationError, match="empty"):
        LanguageModel.from_pretrained(tmp_path / "empty")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"hidden_size": "many"}, r"tiny/config\.json: .*hidden_size.* expected int, got str"),
        ({"initializer_range": 1.5}, r"tiny/config\.json: .*initializer_range.* got 1.5"),
        ({"vocab_size": None}, r"tiny/config\.json: .*vocab_size.* expected int, got NoneType"),
        ({"hidden_act": "many"}, r"tiny/config\.json: .*'many'"),
        ({"model_type": ["llama"]}, r"tiny/config\.json: "),
        ({"num_key_value_heads": -1}, "tiny: its weights do not fit its config.json: .*negative"),
        ({"hidden_size": 64}, "tiny: its weights do not fit its config.json"),
        ({"num_hidden_layers": 3}, r"tiny: its weights lack model\.layers\.2\..* and 8 others"),
    ],
)
def test_a_wrong_value_in_the_configuration_of_a_model_is_one_line_that_names_it(
    tmp_path: Path, changed: dict[str, object], message: str
) -> None:
    tiny_model("llama").save_pretrained(tmp_path / "tiny")
    written = tmp_path / "tiny" / "config.json"
    written.write_text(json.dumps({**json.loads(written.read_text()), **changed}))
    with pytest.raises(ConfigurationError, match=message) as caught:
        LanguageModel.from_pretrained(tmp_path / "tiny")
    assert "\n" not in str(caught.value)


LOADING = """
import sys, time
from swe_trainers.errors import ConfigurationError
from swe_trainers.model.language_model import LanguageModel
from swe_trainers.model.tokenizers import load_tokenizer

waited, sleep = [], time.sleep
time.sleep = lambda seconds: (waited.append(seconds), sleep(seconds))  # between the retries of the hub's client
for load in (LanguageModel.from_pretrained, load_tokenizer):
    for name in ("me/other", "other folder", "me/tiny"):
        try:
            made = load(name)
            print(made.causal_lm.config.name_or_path if hasattr(made, "causal_lm") else made.vocab_size)
        except ConfigurationError as error:
            print(error)
print(sum(waited))
"""


@pytest.mark.parametrize("offline", [False, True])
def test_a_hub_that_cannot_be_reached_is_not_waited_for_and_its_cache_is_used(tmp_path: Path, *, offline: bool) -> None:
    place = tmp_path / "hub" / "models--me--tiny"
    (place / "refs").mkdir(parents=True)
    (place / "refs" / "main").write_text("0" * 40)
    (place / "snapshots" / ("0" * 40)).mkdir(parents=True)
    tokenizer = train_sentencepiece(["one fox and two hounds"], 300)
    tiny_model("llama", HuggingFaceTokenizer(tokenizer.to_hugging_face())).save_pretrained(
        place / "snapshots" / ("0" * 40)
    )
    environment = {
        **os.environ, "HF_HOME": str(tmp_path), "HF_ENDPOINT": "http://127.0.0.1:1",
        "HF_HUB_OFFLINE": str(int(offline)),
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", LOADING], env=environment, check=True, capture_output=True, text=True, timeout=300
    )
    *lines, seconds = done.stdout.splitlines()
    why = "HF_HUB_OFFLINE is set" if offline else "no connection to the hub: "
    for missing, invalid in (lines[:2], lines[3:5]):
        assert missing.startswith(f"me/other: no such folder, not in the hub's cache, and {why}")
        assert invalid.startswith("other folder: neither a folder nor a valid name")
    assert lines[2] == "me/tiny" and int(lines[5]) > 3
    assert float(seconds) < 2  # with its retries it waited 49 s for one name


def test_inputs_of_different_shapes_are_errors() -> None:
    ids, positions, segments = rows_of([4])
    with pytest.raises(ShapeError, match=r"\(1, 3\)"):
        tiny_model().trunk_hidden(ids, positions[:, :3], segments)


def test_float32_logits_are_those_of_generation_and_of_training():
    model = tiny_model().to(torch.bfloat16)
    ids = torch.arange(12)[None]
    states = model.trunk_hidden(ids, ids, torch.ones_like(ids)).detach()
    exact = states.double() @ model.unembedding.weight.double().T
    rounded = (model.logits(states).double() - exact).abs().max()
    model.float32_logits = True
    differentiable = model.copy().logits(states)
    with torch.no_grad():
        logits = model.copy().logits(states)
    assert logits.dtype == torch.float32 and differentiable.requires_grad
    torch.testing.assert_close(differentiable.detach(), logits)
    assert (logits.double() - exact).abs().max() < 0.01 * rounded
    batch = Batch.of([trajectory(ids[0].tolist(), [False] + [True] * 11)])
    (rows,) = lay_out(batch, torch.arange(1), max_tokens=64)
    seen = forward(model, rows)
    expected = torch.log_softmax(exact[0, :-1], -1).gather(1, ids[0, 1:, None])[:, 0]
    torch.testing.assert_close(seen.logprobs.double(), expected, atol=1e-4, rtol=1e-4)


CAPPED = {
    "granite": {"model_type": "granite", "logits_scaling": 4.0},
    "cohere": {"model_type": "cohere", "logit_scale": 0.25},
    "gemma3": {"model_type": "gemma3_text", "head_dim": 16, "final_logit_softcapping": 2.0},
}


@pytest.mark.parametrize("family", CAPPED)
def test_capped_and_scaled_logits_are_those_of_transformers_in_training_and_in_generation(family):
    config = {**SMALL, "num_key_value_heads": 2, **CAPPED[family]}
    model = LanguageModel.from_config(config, words(), seed=0)
    with torch.no_grad():
        for parameter in model.causal_lm.parameters():
            if parameter.ndim == 2:
                parameter.mul_(8.0)
    reference = model.reference_copy()
    with torch.no_grad():
        model.unembedding.weight.add_(torch.randn(model.unembedding.weight.shape) * 0.1)
    ids = [3, 9, 4, 17, 2, 30, 11, 8]
    places = torch.arange(len(ids))[None]
    states = model.trunk_hidden(torch.tensor([ids]), places, torch.ones_like(places))
    theirs = model.causal_lm(input_ids=torch.tensor([ids]), use_cache=False).logits
    torch.testing.assert_close(model.logits(states), theirs, atol=1e-4, rtol=1e-4)
    plain = torch.nn.functional.linear(states, *model.unembedding)
    assert (plain - theirs).abs().max() > 0.1
    batch = Batch.of([trajectory(ids, [False] + [True] * (len(ids) - 1))])
    (rows,) = lay_out(batch, torch.arange(1), max_tokens=64)
    seen = forward(model, rows, temperature=0.7, reference=reference)
    torch.testing.assert_close(seen.logprobs.detach(), full_logprobs(model, ids, 0.7)[1:], atol=1e-4, rtol=1e-4)
    log_p, log_q = (
        torch.log_softmax(m.causal_lm(input_ids=torch.tensor([ids]), use_cache=False).logits[0, :-1] / 0.7, -1)
        for m in (model, reference)
    )
    expected = torch.nn.functional.kl_div(log_q, log_p, log_target=True, reduction="none").sum(-1)
    assert expected.max() > 0.01
    torch.testing.assert_close(seen.kl.detach(), expected.detach(), atol=1e-4, rtol=1e-3)


class Doubled(LlamaForCausalLM):
    """A family whose logits are computed as no configuration says."""

    def forward(self, *arguments, **options):
        output = super().forward(*arguments, **options)
        output.logits = output.logits * 2
        return output


def test_families_whose_logits_or_scores_are_computed_otherwise_are_refused():
    causal_lm = tiny_model().causal_lm
    for change, message in (
        (lambda: Doubled(causal_lm.config), "logits are not the projection"),
        (lambda: causal_lm.config.__setattr__("attn_logit_softcapping", 50.0) or causal_lm, "attn_logit_softcapping"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            LanguageModel(change(), words())


def test_another_default_device_than_the_cpu_is_refused_with_what_chooses_one() -> None:
    model = tiny_model("qwen3")
    with torch.device("meta"), pytest.raises(ConfigurationError, match=r"default device is meta.*model\.device"):
        LanguageModel(model.causal_lm, model.tokenizer)
