"""`--dry-run`: the plan of a run, without its weights."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from swe_trainers.cli.main import main
from swe_trainers.errors import ConfigurationError
from swe_trainers.planning.architecture import architecture_of
from swe_trainers.planning.memory import estimate_memory
from swe_trainers.run_config import run_config
from tests.trainers.tiny import tiny_model

EXAMPLES = sorted((Path(__file__).parents[3] / "examples" / "configs").glob("*.yaml"))
QWEN3_14B = {"model_type": "qwen3", "hidden_size": 5120, "intermediate_size": 17408, "num_hidden_layers": 40,
             "num_attention_heads": 40, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936,
             "tie_word_embeddings": False}  # fmt: skip


def configured(**sections: Any) -> Any:
    return run_config(
        {
            "environment": {"id": "Any-v0", "parallel": 16, "max_tokens": 32768},
            "model": {"path": "nobody/model-14b", "dtype": "bfloat16", "recompute_activations": True},
            "trainer": {"algorithm": "grpo", "microbatch_tokens": 32768},
            "engine": {"kind": "vllm", "url": "http://elsewhere:1", "weights": "/w"},
            **sections,
        }
    )


@pytest.fixture(autouse=True)
def _offline(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_configuration_has_a_plan_without_weights(path, capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("SWE_RUNS", str(tmp_path))
    code = main([str(path), "--dry-run", "--json"])
    plan = json.loads(capsys.readouterr().out)
    assert code == int(bool(plan["problems"]))
    if plan["model"]["parameters"] is None:  # the model of a stage before, which was not run
        assert str(tmp_path) in plan["model"]["name"]
        return
    assert all(row["peak_bytes"] > 0 for row in plan["memory"])
    assert plan["disk"]["needed_bytes"] > 0
    assert list(tmp_path.iterdir()) == []
    assert main([str(path), "--dry-run"]) == code
    shown = capsys.readouterr().out
    assert shown.startswith("algorithm ")
    assert "memory      about " in shown


def test_parameters_are_counted_exactly_from_a_configuration(tmp_path):
    model = tiny_model("qwen3")
    model.causal_lm.save_pretrained(tmp_path)
    found = architecture_of(str(tmp_path), {})
    assert (found.source, found.exact) == ("a local folder", True)
    assert found.parameters == sum(p.numel() for p in model.causal_lm.parameters())
    assert (found.layers, found.hidden, found.query_width, found.kv_width) == (2, 32, 32, 16)
    published = architecture_of(None, QWEN3_14B)
    assert published.parameters == 14_768_307_200  # the sum of its tensors as published
    assert published.adapter_parameters(32, ()) == 128_450_560  # PEFT's count for all-linear and r=32


def test_counting_a_small_vocabulary_is_silent():
    """GPT-2's special tokens have ids beyond the vocabulary of a word tokenizer."""
    messages = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())
    logger = logging.getLogger("transformers")  # propagates nothing, so that caplog sees nothing
    logger.addHandler(handler)
    try:
        found = architecture_of(None, {"model_type": "gpt2", "n_embd": 8, "n_layer": 1, "n_head": 2}, vocabulary=16)
    finally:
        logger.removeHandler(handler)
    assert found.vocabulary == 16 and messages == []


def test_a_model_without_attention_is_an_error_of_one_line():
    with pytest.raises(ConfigurationError, match="'mamba': it has no attention heads"):
        architecture_of(None, {"model_type": "mamba", "hidden_size": 32, "num_hidden_layers": 1, "vocab_size": 8})


def test_without_a_configuration_the_size_is_estimated_from_the_name():
    found = architecture_of("nobody/Qwen3-14B-Instruct-2507", {})
    exact = architecture_of(None, QWEN3_14B)
    assert (found.exact, found.parameters) == (False, 14_000_000_000)
    for name in ("layers", "hidden", "kv_width", "vocabulary"):
        assert 2 / 3 < getattr(found, name) / getattr(exact, name) < 3 / 2, name
    assert architecture_of("nobody/0.6b-chat", {}).parameters == 600_000_000
    assert architecture_of("nobody/model", {}) is None
    assert architecture_of("nobody/v2beta", {}) is None


def test_sharding_adapters_and_quantisation_reduce_memory():
    model = architecture_of(None, QWEN3_14B)

    def peak(ranks: int = 1, scale: Any = None, **settings: Any) -> float:
        base = {"path": "nobody/model-14b", "dtype": "bfloat16", "recompute_activations": True}
        config = configured(model={**base, **settings}, scale=scale or {})
        return estimate_memory(config, model, ranks=ranks).peak / 1e9

    whole = peak()
    # bfloat16 weights; float32 copies of them, gradients and two moments; AdamW's temporaries; and what is beside them
    assert (2 + 4 + 4 + 8) * 14.77 < whole < (2 + 4 + 4 + 8 + 4) * 14.77 + 40
    assert peak(8, {"fsdp": True}) < whole / 1.5
    assert peak(8, {"fsdp": True}) < peak(2, {"fsdp": True})
    assert peak(8, {"fsdp": True, "cpu_offload": True}) < peak(8, {"fsdp": True})
    adapters = peak(lora={"rank": 32})
    assert 29.5 < adapters < whole / 2
    assert adapters - peak(lora={"rank": 32}, bits=4) == pytest.approx((14.77 - 1.56) * (2 - 0.52), rel=0.02)
    assert peak(recompute_activations=False) > whole + 50


def test_only_the_embedded_engine_needs_memory_for_a_cache():
    model = architecture_of(None, QWEN3_14B)
    served = estimate_memory(configured(), model)
    embedded = estimate_memory(configured(engine={}), model)
    assert served.cache == 0
    assert embedded.cache == 2 * 2 * 40 * 1024 * 16 * 32768  # keys and values, bytes, layers, width, slots, tokens
    assert estimate_memory(configured(trainer={"algorithm": "grpo", "kl_coefficient": 0.1}), model).copies > 29e9


def test_a_plan_lists_the_problems_that_prevent_the_run(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.yaml").write_text(
        "environment: {id: 'nomodule:X-v0'}\n"
        "model: {path: nobody/model-14b, dtype: bfloat16}\n"
        "trainer: {algorithm: grpo}\nwandb_project: p\n"
    )
    assert main(["run.yaml", "--dry-run"]) == 1
    shown = capsys.readouterr().out
    assert "about 14 B parameters" in shown
    assert "estimated from the size in its name" in shown
    listed = shown.partition("problems that prevent the run here:\n")[2].splitlines()
    assert [line[:12] for line in listed] == ["  - environm", "  - wandb_pr", "  - model.pa"]
    assert list(tmp_path.iterdir()) == [tmp_path / "run.yaml"]
