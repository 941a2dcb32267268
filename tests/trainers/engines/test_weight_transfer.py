"""Weights sent from memory to memory: they arrive unchanged, are used for generation, and are rejected if wrong."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch

from swe_trainers.engines.http import JsonClient, RefusedError
from swe_trainers.engines.sampling import Sampling
from swe_trainers.engines.served import ServedEngine
from swe_trainers.engines.serving import ModelServer
from swe_trainers.engines.weight_transfer import WeightReceiver, WeightTransfer
from swe_trainers.engines.weights import WeightSync
from swe_trainers.errors import ConfigurationError, EngineError
from swe_trainers.model.chat import CompactChat
from swe_trainers.model.language_model import LanguageModel
from swe_trainers.model.lora import LoRA
from tests.trainers.engines.served import engine_of, served
from tests.trainers.tiny import full_logprobs, tiny_model


def changed(model: LanguageModel) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(5)))


@contextmanager
def connected(folder: Path, model: LanguageModel) -> Iterator[tuple[ModelServer, ServedEngine, WeightSync]]:
    with served(folder, model) as server:
        engine = engine_of(server)
        transfer = WeightTransfer(engine.client, "gloo", timeout_s=30)
        yield server, engine, WeightSync(model, engine, folder, tolerance=1e-4, transfer=transfer)
        transfer.close()


def sampled(engine: ServedEngine, prompt: list[int]) -> tuple[list[int], list[float], tuple[int, ...]]:
    slot = engine.open()
    engine.submit(slot, prompt, max_new_tokens=8, stop_ids=(), sampling=Sampling(), random=np.random.default_rng(0))
    while engine.busy:
        for sample in engine.step():
            engine.close(slot)
            return list(sample.token_ids), list(sample.logprobs), sample.versions
    raise AssertionError("nothing came back")


@pytest.mark.parametrize("kind", ["tied", "adapters"])
def test_weights_sent_from_memory_reach_the_server_with_their_version(tmp_path: Path, kind: str) -> None:
    model = tiny_model("qwen3", tie_word_embeddings=kind == "tied")
    if kind == "adapters":
        model.add_lora(LoRA(rank=2))
    with connected(tmp_path / "model", model) as (_, engine, sync):
        before = (tmp_path / "model" / "model.safetensors").read_bytes()
        for version in (3, 4):
            changed(model)
            with pytest.raises(EngineError, match="does not compute with the policy's weights"):
                sync.check(Sampling(), version)
            sync.send(version, Sampling())
            ids, logprobs, versions = sampled(engine, [5, 6, 7])
            truth = full_logprobs(tiny_merged(model), [5, 6, 7, *ids])[3:]
            torch.testing.assert_close(torch.tensor(logprobs), truth, rtol=1e-4, atol=1e-4)
            assert versions == (version,) * 8
        assert (tmp_path / "model" / "model.safetensors").read_bytes() == before  # no folder had a part in it


def tiny_merged(model: LanguageModel) -> LanguageModel:
    """The same policy as a plain model, through `checkpoint_weights` alone."""
    plain = tiny_model("qwen3", tie_word_embeddings=bool(model.causal_lm.config.tie_word_embeddings), seed=9)
    plain.load_checkpoint_weights(model.checkpoint_weights())
    return plain


def test_weights_can_be_sent_in_another_dtype(tmp_path: Path) -> None:
    model = tiny_model("llama")
    with connected(tmp_path / "model", model) as (server, engine, _):
        coarse = {name: tensor.bfloat16() for name, tensor in model.checkpoint_weights().items()}
        WeightTransfer(engine.client, "gloo", timeout_s=30).send(coarse)
        for name, tensor in server._model.checkpoint_weights().items():
            assert torch.equal(tensor, coarse[name].float()), name


def test_weights_reach_a_server_that_has_an_ipv6_address_only(tmp_path: Path) -> None:
    model = tiny_model("llama")
    model.save_pretrained(tmp_path / "model")
    with ModelServer(tmp_path / "model", CompactChat, host="::1", max_tokens=96) as server:
        assert server.url.startswith("http://[::1]:")
        engine = engine_of(server)
        transfer = WeightTransfer(engine.client, "gloo", timeout_s=30)
        changed(model)
        WeightSync(model, engine, tmp_path / "model", tolerance=1e-4, transfer=transfer).send(1, Sampling())
        for name, tensor in server._model.checkpoint_weights().items():
            assert torch.equal(tensor, model.checkpoint_weights()[name]), name
        transfer.close()


def test_restarted_server_rejoins_the_group(tmp_path: Path) -> None:
    model = tiny_model("llama")
    with connected(tmp_path / "model", model) as (server, _, sync):
        sync.send(1, Sampling())
        server.receiver = WeightReceiver()  # as a new server has it
        changed(model)
        sync.send(2, Sampling())
        for name, tensor in server._model.checkpoint_weights().items():
            assert torch.equal(tensor, model.checkpoint_weights()[name]), name


def test_running_requests_finish_with_the_old_weights(tmp_path: Path) -> None:
    model = tiny_model("llama")
    with connected(tmp_path / "model", model) as (_, engine, sync):
        truth = model.copy()
        slot = engine.open()
        engine.submit(
            slot, [5, 6], max_new_tokens=64, stop_ids=(), sampling=Sampling(), random=np.random.default_rng(0)
        )
        with pytest.raises(EngineError, match="requests are unfinished"):
            sync.send(1, Sampling())
        changed(model)
        transfer = WeightTransfer(engine.client, "gloo", timeout_s=30)
        transfer.send(model.checkpoint_weights())
        (sample,) = [sample for _ in range(1000) if engine.busy for sample in engine.step()]
        expected = full_logprobs(truth, [5, 6, *sample.token_ids])[2:]
        torch.testing.assert_close(torch.tensor(sample.logprobs), expected, rtol=1e-4, atol=1e-4)


def test_unknown_tensors_are_rejected_and_change_nothing(tmp_path: Path) -> None:
    model = tiny_model("llama")
    with connected(tmp_path / "model", model) as (server, engine, sync):
        calls = {
            "/start_weight_update": ({}, "no group was joined"),
            "/update_weights": ({"update_info": {"names": [], "dtype_names": [], "shapes": []}}, "no group was joined"),
            "/init_weight_transfer_engine": ({"init_info": {"nccl_unique_id_b64": "AAAA"}}, "weights come over gloo"),
        }
        for path, (body, message) in calls.items():
            with pytest.raises(RefusedError, match=f"400: .*{message}"):
                engine.client.post(path, body)
        sync.send(1, Sampling())
        for name, dtype, shape in (("lm_head.weight", "float32", [1]), ("other", "float32", [1]),
                                   ("model.norm.weight", "int8", [32])):  # fmt: skip
            update = {"names": [name], "dtype_names": [dtype], "shapes": [shape]}
            with pytest.raises(RefusedError, match=f"400: .*the model has no {name}"):
                engine.client.post("/update_weights", {"update_info": update})
        engine.client.post("/start_weight_update", {})
        with pytest.raises(RefusedError, match=r"400: .*missing"):
            engine.client.post("/finish_weight_update", {})
        sync.check(Sampling(), 1)
        for path in calls:
            with pytest.raises(RefusedError, match="401"):
                JsonClient(locked(server), tries=1).post(path, {})


def locked(server: ModelServer) -> str:
    server.api_key = "secret"
    return server.url


def test_unreachable_peers_are_one_line_errors() -> None:
    transfer = WeightTransfer(JsonClient("http://127.0.0.1:9", tries=1), "gloo", timeout_s=60)
    with pytest.raises(EngineError, match="/health: no answer"):
        transfer.send({"weight": torch.zeros(1)})
    with pytest.raises(ConfigurationError, match="no group there"):
        WeightReceiver().join(
            {"master_address": "127.0.0.1", "master_port": 9, "rank_offset": 1, "world_size": 2}, timeout_s=0.2
        )


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here, on which it works")
def test_nccl_without_a_gpu_is_rejected() -> None:
    with pytest.raises(ConfigurationError, match="there is no GPU here"):
        WeightTransfer(JsonClient("http://127.0.0.1:9"), "nccl", timeout_s=1)
