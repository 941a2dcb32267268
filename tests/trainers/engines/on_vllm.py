"""The engine with a real vLLM on a CPU: `make test-vllm` (vLLM has a separate virtual environment)."""

from __future__ import annotations

import copy
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import tokenizers
import torch
from transformers import PreTrainedTokenizerFast

from benchmarks.services import free_port
from swe_trainers.engines.http import JsonClient
from swe_trainers.engines.sampling import Sampling
from swe_trainers.engines.served import ServedEngine
from swe_trainers.engines.server_process import ServerProcess
from swe_trainers.engines.vllm import VLLM
from swe_trainers.engines.weights import WeightSync, check_server, write_served
from swe_trainers.errors import EngineError
from swe_trainers.model.language_model import LanguageModel
from swe_trainers.model.tokenizers import HuggingFaceTokenizer
from swe_trainers.rollout.adapters import AnyText
from swe_trainers.rollout.background import BackgroundPlayer
from swe_trainers.rollout.play import Player
from swe_trainers.rollout.settings import EpisodeSettings, EpisodeStart, Limits
from tests.trainers.tiny import full_logprobs, tiny_model

PYTHON = os.environ.get("VLLM_PYTHON", ".venv-vllm/bin/python")
WIDE = {
    "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
    "max_position_embeddings": 512, "scale": 4.0,
}  # fmt: skip


def tokenizer() -> HuggingFaceTokenizer:
    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel({f"w{i}": i for i in range(46)}, unk_token="w0"))
    return HuggingFaceTokenizer(PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="w45", unk_token="w0"))


@contextmanager
def vllm(folder: Path, model: LanguageModel, *options: str) -> Iterator[ServedEngine]:
    with process_and_engine(folder, model, *options) as (_, engine):
        yield engine


@contextmanager
def process_and_engine(
    folder: Path, model: LanguageModel, *options: str
) -> Iterator[tuple[ServerProcess, ServedEngine]]:
    write_served(model, folder)
    port = free_port()
    command = [
        PYTHON, "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder), "--port", str(port),
        "--dtype", "float32", "--max-model-len", "256", "--max-num-seqs", "8",
        "--enforce-eager", *options,
    ]  # fmt: skip
    os.environ.update(VLLM_SERVER_DEV_MODE="1", VLLM_CPU_KVCACHE_SPACE="1", VLLM_NO_USAGE_STATS="1")
    url = f"http://127.0.0.1:{port}"
    with ServerProcess(command, url, folder.parent / "vllm.log", start_timeout_s=240) as process:
        client = JsonClient(url, timeout_s=60, revive=process.revive)
        engine = ServedEngine(client, VLLM(str(folder)), n_slots=6, max_tokens=256)
        yield process, engine


def changed(model: LanguageModel) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))


def test_vllm_matches_the_policy_and_takes_new_weights(tmp_path: Path) -> None:
    model = tiny_model("qwen3", tokenizer(), tie_word_embeddings=False, **WIDE)
    with vllm(tmp_path / "model", model, "--logprobs-mode", "processed_logprobs") as engine:
        check_server(engine, training=True)
        sync = WeightSync(model, engine, tmp_path / "model", tolerance=1e-3)
        sync.check(Sampling(), 0)
        changed(model)
        with pytest.raises(EngineError, match="does not compute with the policy's weights"):
            sync.check(Sampling(), 1)
        sync.send(1, Sampling(0.7))  # the same probe prompt: a prefix cache that was kept would show
        slots = {engine.open(): [i, 2 * i + 1, 5] for i in range(6)}
        for slot, ids in slots.items():
            engine.submit(
                slot,
                ids,
                max_new_tokens=20,
                stop_ids={7, 11},
                sampling=Sampling(0.7),
                random=np.random.default_rng(slot),
            )
        samples = []
        while engine.busy:
            samples += engine.step()
        assert {sample.slot for sample in samples} == set(slots)
        for sample in samples:
            ids = [*slots[sample.slot], *sample.token_ids]
            truth = full_logprobs(model, ids, 0.7)[-len(sample.token_ids) :]
            torch.testing.assert_close(torch.tensor(sample.logprobs), truth, rtol=1e-3, atol=1e-3)
            assert (sample.end == "stop") == (sample.token_ids[-1] in {7, 11})
            assert sample.end == "stop" or len(sample.token_ids) == 20
            assert not {7, 11} & set(sample.token_ids[:-1])


def test_logprobs_before_temperature_are_detected(tmp_path: Path) -> None:
    model = tiny_model("qwen3", tokenizer(), tie_word_embeddings=False, **WIDE)
    with vllm(tmp_path / "model", model) as engine:
        sync = WeightSync(model, engine, tmp_path / "model", tolerance=1e-3)
        sync.check(Sampling(), 0)
        with pytest.raises(EngineError, match="processed_logprobs"):
            sync.check(Sampling(0.7), 0)


def test_wrongly_reloaded_tied_embeddings_stop_the_run(tmp_path: Path) -> None:
    model = tiny_model("qwen3", tokenizer(), tie_word_embeddings=True, **WIDE)
    with vllm(tmp_path / "model", model, "--logprobs-mode", "processed_logprobs") as engine:
        sync = WeightSync(model, engine, tmp_path / "model", tolerance=1e-3)
        sync.check(Sampling(), 0)
        changed(model)
        with pytest.raises(EngineError, match="tied embeddings"):  # vLLM 0.32 keeps the former projection in silence
            sync.send(1, Sampling())


@pytest.mark.timeout(900)  # the server starts three times
def test_killed_server_returns_with_the_current_weights_or_is_refused(tmp_path: Path) -> None:
    model = tiny_model("qwen3", tokenizer(), tie_word_embeddings=False, **WIDE)
    options = ("--logprobs-mode", "processed_logprobs")
    with process_and_engine(tmp_path / "model", model, *options) as (process, engine):
        sync = WeightSync(model, engine, tmp_path / "model", tolerance=1e-3)
        process.prove = partial(sync.prove, JsonClient(engine.client.url, timeout_s=60, tries=2))
        changed(model)
        sync.send(1, Sampling(0.7))
        sent = copy.deepcopy(model)
        changed(model)  # the policy learns on
        slots = [engine.open() for _ in range(4)]
        for slot in slots:
            engine.submit(
                slot, [1, 2, slot], max_new_tokens=100, stop_ids=(), sampling=Sampling(0.7),
                random=np.random.default_rng(slot),
            )  # fmt: skip
        os.killpg(process.pid, signal.SIGKILL)  # in the middle of them
        samples = []
        while engine.busy:
            samples += engine.step()
        assert process.starts == 2 and len(samples) == 4
        for sample in samples:
            truth = full_logprobs(sent, [1, 2, sample.slot, *sample.token_ids], 0.7)[3:]
            torch.testing.assert_close(torch.tensor(sample.logprobs), truth, rtol=1e-3, atol=1e-3)
        write_served(model, tmp_path / "model")  # a folder that was changed behind its back
        os.killpg(process.pid, signal.SIGKILL)
        with pytest.raises(EngineError, match=r"update 1, started again"):
            engine.client.get("/v1/models")


def test_suspended_episodes_continue_after_a_weight_change(tmp_path: Path) -> None:
    former = tiny_model("qwen3", tokenizer(), tie_word_embeddings=False, **WIDE)
    model = copy.deepcopy(former)
    with vllm(tmp_path / "model", model, "--logprobs-mode", "processed_logprobs") as engine:
        sync = WeightSync(model, engine, tmp_path / "model", tolerance=1e-3)
        sync.check(Sampling(), 0)
        envs = [Echoing() for _ in range(4)]
        settings = EpisodeSettings(Limits(max_new_tokens=6))
        player = BackgroundPlayer(Player(engine, Words(), envs, settings), renews_actions=False)
        player.begin([((i,), EpisodeStart(seed=i)) for i in range(40)])
        found = player.ended(60)
        changed(model)
        with player.paused(between_episodes=False):
            assert not engine.busy
            sync.send(1, Sampling())
        while len(found) < 40:
            found += player.ended(60)
        player.close()
    mixed = 0
    for _, (trajectory,) in found:
        versions = np.array(trajectory.weight_versions)
        mixed += len(set(versions[trajectory.action_mask].tolist())) == 2
        for version, weights in enumerate((former, model)):
            truth = full_logprobs(weights, trajectory.token_ids.tolist())[versions == version]
            rollout_logprobs = torch.from_numpy(trajectory.rollout_logprobs)[versions == version]
            torch.testing.assert_close(rollout_logprobs, truth, rtol=1e-3, atol=1e-3)
    assert mixed > 0


class Words:
    """A chat of bare words: `w45` ends an action."""

    stop_ids = frozenset({45})
    end_id = 45

    def start(self, observation: str, *, system: str | None = None, tools: Any = None) -> list[int]:
        return [3, int(observation[1:]), 4]

    def observe(self, observation: str, *, closed: bool) -> list[int]:
        return [3, int(observation[1:]), 4]

    def action_text(self, token_ids: Any) -> str:
        return " ".join(f"w{i}" for i in token_ids)


class Echoing(gymnasium.Env[str, str]):
    """Five turns of a word each, which take a moment."""

    observation_space = AnyText()
    action_space = AnyText()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.turn = 0
        return "w1", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        time.sleep(0.1)
        self.turn += 1
        return f"w{self.turn}", 0.0, self.turn == 5, False, {}
