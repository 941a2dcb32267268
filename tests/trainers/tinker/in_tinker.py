"""Tinker's official client on our server, and our trainer on such a server; run by `scripts/test_adapter.sh tinker`."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gymnasium
import httpx2 as httpx
import numpy as np
import pytest
import tinker
import torch
from torch import Tensor

from swe_trainers import GRPO, PPO, Trainer
from swe_trainers.engines.http import JsonClient, RefusedError
from swe_trainers.errors import ConfigurationError, EngineError
from swe_trainers.experiment import dry_run, run_experiment
from swe_trainers.learning.batch import Batch
from swe_trainers.learning.learner import adamw
from swe_trainers.learning.update import TokenLoss, accumulate, take_step
from swe_trainers.model.language_model import LanguageModel
from swe_trainers.model.lora import LoRA
from swe_trainers.planning.plan import plan_text
from swe_trainers.rollout.trajectory import Trajectory
from swe_trainers.run_config import run_config
from swe_trainers.tinker.policy import TinkerPolicy
from swe_trainers.tinker.server import TinkerServer
from tests.trainers.tiny import full_logprobs, tiny_model

KEY = "tml-secret"
SEQUENCES = ([3, 1, 4, 1, 5, 9, 2, 6], [2, 7, 1, 8], [1, 1, 2, 3, 5, 8])
SETTINGS: dict[str, Any] = {"learning_rate": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-4}


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINKER_TELEMETRY", "0")


@contextmanager
def serving(folder: Path, **options: Any) -> Iterator[TinkerServer]:
    tiny_model().save_pretrained(folder / "tiny")
    options = {"n_slots": 4, "max_tokens": 96, "api_key": KEY, "microbatch_tokens": 16, **options}
    with TinkerServer(folder / "tiny", **options) as server:
        yield server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TinkerServer]:
    with serving(tmp_path_factory.mktemp("tinker")) as running:
        yield running


@pytest.fixture
def service(server: TinkerServer) -> Iterator[Any]:
    client = tinker.ServiceClient(base_url=server.url, api_key=KEY)
    yield client
    client.close("success").result()


def inputs_of(seed: int) -> list[dict[str, Tensor]]:
    """For each sequence what its tokens but the first weigh, had as log-probabilities, and have as advantages."""
    generator = torch.Generator().manual_seed(seed)
    model, found = tiny_model(), []
    for ids in SEQUENCES:
        noise = torch.randn(3, len(ids) - 1, generator=generator)
        old = full_logprobs(model, ids)[1:] + 0.3 * noise[0]  # ratios on both sides of the clipping
        found.append({"weights": noise[1].abs(), "logprobs": old, "advantages": noise[2]})
    return found


FORMULAS: dict[str, tuple[tuple[str, ...], Callable[[Tensor, dict[str, Tensor]], Tensor]]] = {
    "cross_entropy": (("weights",), lambda now, given: -given["weights"] * now),
    "importance_sampling": (
        ("logprobs", "advantages"),
        lambda now, given: -(now - given["logprobs"]).exp() * given["advantages"],
    ),
    "ppo": (
        ("logprobs", "advantages"),
        lambda now, given: (
            -torch.minimum(
                (now - given["logprobs"]).exp() * given["advantages"],
                (now - given["logprobs"]).exp().clamp(0.9, 1.2) * given["advantages"],
            )
        ),
    ),
    "cispo": (
        ("logprobs", "advantages"),
        lambda now, given: -(now.detach() - given["logprobs"]).exp().clamp(0, 1.1) * given["advantages"] * now,
    ),
}
CONFIGS = {"ppo": {"clip_low_threshold": 0.9}, "cispo": {"clip_high_threshold": 1.1}}


def data_of(names: tuple[str, ...], given: list[dict[str, Tensor]]) -> list[Any]:
    return [
        tinker.Datum(
            model_input=tinker.ModelInput.from_ints(ids[:-1]),
            loss_fn_inputs={
                "target_tokens": tinker.TensorData(data=ids[1:], dtype="int64"),
                **{name: tinker.TensorData(data=each[name].tolist(), dtype="float32") for name in names},
            },
        )
        for ids, each in zip(SEQUENCES, given, strict=True)
    ]


def own_steps(loss: str, seeds: tuple[int, ...], *, clip: float) -> tuple[LanguageModel, list[float]]:
    """The same updates by this package's own trainer; the model after them, and the losses."""
    names, formula = FORMULAS[loss]
    model, losses = tiny_model(), []
    optimizer = adamw(model, learning_rate=1e-3, betas=(0.9, 0.999), epsilon=1e-4, weight_decay=0.1)
    batch = Batch.of([episode(ids) for ids in SEQUENCES])
    for seed in seeds:
        flat = {name: torch.cat([torch.cat([torch.zeros(1), x[name]]) for x in inputs_of(seed)]) for name in names}

        def objective(tokens: Any, flat: dict[str, Tensor] = flat) -> TokenLoss:
            return TokenLoss(3 * formula(tokens.logprobs, {name: x[tokens.index] for name, x in flat.items()}))

        measured = accumulate(
            model, optimizer, batch, torch.arange(3), objective,
            microbatch_tokens=64, aggregation="constant", aggregation_length=1,
        )  # fmt: skip
        losses.append(measured["loss"])
        take_step(model, optimizer, clip)
    return model, losses


def episode(ids: list[int], reward: float = 0.0, group: int = 0) -> Trajectory:
    """All tokens but the first are actions of the tiny model."""
    logprobs = full_logprobs(tiny_model(), ids).numpy()
    mask, rewards = np.arange(len(ids)) > 0, np.zeros(len(ids), np.float32)
    rewards[-1] = reward
    return Trajectory(np.array(ids), mask, logprobs, rewards, terminated=True, truncated=False, group=group)


@pytest.mark.parametrize("loss", FORMULAS)
def test_the_official_client_trains_as_our_own_update_does(service: Any, server: TinkerServer, loss: str) -> None:
    names, formula = FORMULAS[loss]
    client = service.create_lora_training_client(base_model="tiny", rank=0).result()
    params = tinker.AdamParams(**SETTINGS, weight_decay=0.1, grad_clip_norm=5.0)
    seeds = (1, 2)
    answers = []
    for seed in seeds:
        data, config = data_of(names, inputs_of(seed)), CONFIGS.get(loss)
        answers.append((client.forward_backward(data, loss, config), client.optim_step(params)))
    first = answers[0][0].result()
    now = [full_logprobs(tiny_model(), ids)[1:] for ids in SEQUENCES]
    for output, expected in zip(first.loss_fn_outputs, now, strict=True):
        assert torch.allclose(output["logprobs"].to_torch(), expected, atol=1e-5)
    value = sum(float(formula(each, given).sum()) for each, given in zip(now, inputs_of(1), strict=True))
    assert first.metrics["loss:sum"] == pytest.approx(value, rel=1e-5)
    own, losses = own_steps(loss, seeds, clip=5.0)
    assert answers[1][0].result().metrics["loss:sum"] == pytest.approx(losses[1], rel=1e-4)
    assert answers[1][1].result().metrics["grad_norm"] > 5
    path = client.save_weights_for_sampler("done").result().path
    saved = torch.load(server.states.file_of(path), weights_only=True)
    before = tiny_model().checkpoint_weights()
    for name, tensor in own.checkpoint_weights().items():
        assert torch.allclose(saved[name], tensor, atol=2e-6), name
    assert max(float((saved[name] - before[name]).abs().max()) for name in saved) > 1e-3


def test_what_is_sampled_has_the_probabilities_of_the_weights_that_were_saved(service: Any) -> None:
    client = service.create_lora_training_client(base_model="tiny", rank=0).result()
    client.forward_backward(data_of(("weights",), inputs_of(1)), "cross_entropy")
    client.optim_step(tinker.AdamParams(**SETTINGS, weight_decay=0.1)).result()
    trained = own_steps("cross_entropy", (1,), clip=float("inf"))[0]
    after = client.save_weights_and_get_sampling_client().result()
    named = client.save_weights_for_sampler("named").result().path
    prompt, params = tinker.ModelInput.from_ints([1, 2, 3]), tinker.SamplingParams(max_tokens=6, seed=5, stop=[])
    base = service.create_sampling_client(base_model="tiny").result()
    again = service.create_sampling_client(model_path=named).result()
    asked = [(each, each.sample(prompt, 2, params)) for each in (after, base, again, after)]  # all at once
    found = [answer.result().sequences for _, answer in asked]
    for sequences, model in zip(found, (trained, tiny_model(), trained, trained), strict=True):
        for sequence in sequences:
            expected = full_logprobs(model, [1, 2, 3, *sequence.tokens])[3:]
            assert torch.allclose(torch.tensor(sequence.logprobs), expected, atol=2e-4)
            assert (sequence.stop_reason, len(sequence.tokens)) == ("length", 6)
    assert found[0][0].tokens == found[2][0].tokens == found[3][0].tokens != found[0][1].tokens
    stopped = base.sample(
        prompt, 1, tinker.SamplingParams(max_tokens=50, seed=5, stop=[found[1][0].tokens[2]])
    ).result()
    assert stopped.sequences[0].stop_reason == "stop" and stopped.sequences[0].tokens == found[1][0].tokens[:3]


def test_a_saved_state_goes_on_as_if_nothing_had_happened(service: Any) -> None:
    data, params = data_of(("weights",), inputs_of(1)), tinker.AdamParams(**SETTINGS)
    client = service.create_lora_training_client(base_model="tiny", rank=4, seed=3).result()
    assert client.get_info().is_lora and client.get_info().lora_rank == 4

    def step(of: Any) -> float:
        passed = of.forward_backward(data, "cross_entropy")
        of.optim_step(params).result()
        return float(passed.result().metrics["loss:sum"])

    losses = [step(client)]
    path = client.save_state("first").result().path
    losses += [step(client), step(client)]
    resumed = service.create_training_client_from_state_with_optimizer(path).result()
    assert [step(resumed), step(resumed)] == losses[1:] and losses[2] < losses[1] < losses[0]
    anew = service.create_training_client_from_state(path).result()
    assert step(anew) == losses[1] and step(anew) != losses[2]


def test_mistakes_are_one_line_and_a_session_that_ends_leaves_nothing(tmp_path: Path) -> None:
    with serving(tmp_path, session_timeout_s=0.4, max_runs=1) as server:
        with pytest.raises(tinker.AuthenticationError):
            tinker.ServiceClient(base_url=server.url, api_key="tml-wrong").create_sampling_client(
                base_model="tiny"
            ).result()
        silent = tinker.ServiceClient(base_url=server.url, api_key=KEY)
        client = silent.create_lora_training_client(base_model="tiny", rank=0).result()
        data = data_of(("weights",), inputs_of(1))
        for refused, why in (
            (lambda: client.forward(data, "ppo"), "logprobs is missing"),
            (lambda: client.forward(data, "gspo"), "expected one of"),
            (lambda: silent.create_sampling_client(model_path="tinker://a/sampler_weights/../b"), "path"),
            (lambda: silent.create_lora_training_client("other"), "expected tiny"),
            (lambda: silent.create_lora_training_client("tiny"), "1 training runs already"),
        ):
            with pytest.raises(tinker.TinkerError, match=why):
                refused().result()
        assert len(server.runs) == 1
        time.sleep(0.5)  # its heartbeats are 10 s apart: as if the client were dead
        other = tinker.ServiceClient(base_url=server.url, api_key=KEY)
        other.create_lora_training_client("tiny", rank=0).result()
        other.close("success").result()
        assert len(server.runs) == 0
        states = server.states.folder
        assert states.exists()
    assert not states.exists()


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"sampling_params": {"max_tokens": "many"}}, "sampling_params.max_tokens: "),
        ({"sampling_params": {"max_tokens": 0}}, "sampling_params.max_tokens: "),
        ({"sampling_params": {"max_tokens": -3}}, "sampling_params.max_tokens: "),
        ({"sampling_params": {"max_tokens": 1.5}}, "sampling_params.max_tokens: "),
        ({"sampling_params": {"temperature": "warm"}}, "sampling_params.temperature: "),
        ({"sampling_params": {"temperature": -1}}, "temperature"),
        ({"sampling_params": {"top_k": [3]}}, "sampling_params.top_k: "),
        ({"sampling_params": {"top_p": 7}}, "top_p"),
        ({"sampling_params": {"seed": "s"}}, "sampling_params.seed: "),
        ({"sampling_params": {"stop": [1.5]}}, "sampling_params.stop"),
        ({"sampling_params": {"stop": [""]}}, "sampling_params.stop"),
        ({"sampling_params": {"stop": {"a": 1}}}, "sampling_params.stop"),
        ({"sampling_params": None}, "sampling_params: "),
        ({"prompt": {"chunks": [{"tokens": ["w1"]}]}}, "prompt.chunks.0.tokens.0: "),
        ({"prompt": {}}, "prompt.chunks: "),
        ({"prompt_logprobs": True}, "prompt_logprobs: not computed"),
        ({"topk_sample_logprobs": 3}, "topk_sample_logprobs: not computed"),
        ({"num_samples": 0}, "num_samples: "),
        ({"num_samples": 10**12}, "num_samples: "),
    ],
)
def test_wrong_values_of_a_request_to_sample_are_refused_and_the_server_goes_on(
    server: TinkerServer, wrong: dict[str, Any], why: str
) -> None:
    client = JsonClient(server.url, tries=1, timeout_s=10, api_key=KEY)
    session = client.post("/api/v1/create_session", {})["session_id"]
    sampler = client.post("/api/v1/create_sampling_session", {"session_id": session, "base_model": "tiny"})
    right = {
        "sampling_session_id": sampler["sampling_session_id"], "seq_id": 1, "num_samples": 1,
        "prompt": {"chunks": [{"type": "encoded_text", "tokens": [1, 2]}]}, "sampling_params": {"max_tokens": 2},
    }  # fmt: skip
    with pytest.raises(RefusedError, match=f"400: {why}"):
        client.post("/api/v1/asample", {**right, **wrong})
    begun = client.post("/api/v1/asample", right)
    found = httpx.post(
        f"{server.url}/api/v1/retrieve_future", json=begun, headers={"Authorization": f"Bearer {KEY}"}, timeout=10
    )
    assert found.status_code == 200 and found.headers["content-type"] == "application/x-protobuf"


STEP = {**SETTINGS, "weight_decay": 0.0, "grad_clip_norm": 0.0}


@pytest.mark.parametrize(
    ("path", "body", "why"),
    [
        ("create_model", [1], "body: "),
        ("create_model", {"model_seq_id": "first"}, "model_seq_id: "),
        ("create_model", {"base_model": ["tiny"]}, "base_model: "),
        ("create_model", {"lora_config": "large"}, "lora_config: "),
        ("create_model", {"lora_config": {"rank": -1}}, "lora_config.rank: "),
        ("create_model", {"optimizer_config": "adamw"}, "optimizer_config: "),
        ("optim_step", {"adam_params": None}, "adam_params: "),
        ("optim_step", {"adam_params": {**STEP, "beta1": 1}}, "adam_params.beta1: "),
        ("optim_step", {"adam_params": {**STEP, "learning_rate": "fast"}}, "adam_params.learning_rate: "),
        ("optim_step", {"adam_params": {**STEP, "eps": -1}}, "adam_params.eps: "),
        ("optim_step", {"adam_params": STEP, "model_id": 3}, "model_id: "),
        ("load_weights", {"path": 7, "optimizer": True}, "path: "),
        ("load_weights", {"path": "tinker://a/weights/b", "optimizer": {}}, "optimizer: "),
        ("save_weights", {"path": 1}, "path: "),
        ("save_weights_for_sampler", {"path": {}}, "path: "),
        ("save_weights_for_sampler", {"kind": "inflight"}, "kind: .*'snapshot'"),
        ("create_sampling_session", {"model_path": 1}, "model_path: "),
        ("session_heartbeat", {"session_id": None}, "session_id: "),
        ("get_info", {"model_id": []}, "model_id: "),
        ("retrieve_future", {"request_id": []}, "request_id: "),
    ],
)
def test_wrong_values_of_other_requests_are_refused_by_name(
    server: TinkerServer, path: str, body: Any, why: str
) -> None:
    client = JsonClient(server.url, tries=1, timeout_s=10, api_key=KEY)
    session = client.post("/api/v1/create_session", {})["session_id"]
    right = {"session_id": session, "model_seq_id": 0, "base_model": "tiny", "model_id": f"{session}:train:0"}
    sent = {**right, **body} if isinstance(body, dict) else body
    with pytest.raises(RefusedError, match=f"400: {why}"):
        client.post(f"/api/v1/{path}", sent)
    assert not server.runs


def test_requests_without_a_number_are_requests_of_their_own(server: TinkerServer) -> None:
    client = JsonClient(server.url, tries=1, timeout_s=10, api_key=KEY)
    session = client.post("/api/v1/create_session", {})["session_id"]
    sampler = client.post("/api/v1/create_sampling_session", {"session_id": session, "base_model": "tiny"})
    body = {
        "sampling_session_id": sampler["sampling_session_id"], "sampling_params": {"max_tokens": 2},
        "prompt": {"chunks": [{"type": "encoded_text", "tokens": [1, 2]}]},
    }  # fmt: skip
    numbered = [client.post("/api/v1/asample", {**body, "seq_id": 3})["request_id"] for _ in range(2)]
    without = [client.post("/api/v1/asample", body)["request_id"] for _ in range(2)]
    assert numbered[0] == numbered[1] and len({*numbered, *without}) == 3  # one that is sent again is the same


class Game(gymnasium.Env[str, str]):
    """One turn, whose reward depends on the action."""

    observation_space = action_space = gymnasium.spaces.Text(1000)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        return "w1 w2", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        return "", float(sum(map(ord, action)) % 2), True, False, {}


def test_our_trainer_trains_on_the_server_as_it_does_here(server: TinkerServer) -> None:
    algorithm = GRPO(
        learning_rate=1e-3,
        epochs=2,
        minibatches=2,
        episodes_per_update=6,
        group_size=3,
        adam_epsilon=1e-4,
        max_updates=2,
    )
    played = [
        episode(ids, reward, group) for group in (0, 1) for ids, reward in zip(SEQUENCES, (1.0, 0.0, 0.5), strict=True)
    ]
    own = tiny_model().add_lora(LoRA(rank=4), seed=5)
    policy = TinkerPolicy(server.url, "tiny", api_key=KEY, rank=4, seed=5)
    results = [
        list(Trainer(model, algorithm=algorithm, play=lambda *_: played, seed=1).iterate()) for model in (own, policy)
    ]
    for here, there in zip(*results, strict=True):
        for name in ("loss", "policy_loss", "kl/old", "ratio_max", "grad_norm", "clip_fraction"):
            assert there[name] == pytest.approx(here[name], rel=2e-3, abs=2e-6), name
    path = policy.client.save_weights_for_sampler("trained").result().path
    saved, before = torch.load(server.states.file_of(path), weights_only=True), tiny_model().checkpoint_weights()
    for name, tensor in own.checkpoint_weights().items():
        assert torch.allclose(saved[name], tensor, atol=5e-6), name
    assert max(float((saved[name] - before[name]).abs().max()) for name in saved) > 1e-3
    policy.close()


def test_our_trainer_plays_with_the_weights_of_the_server(server: TinkerServer, tmp_path: Path) -> None:
    algorithm = GRPO(learning_rate=3e-2, epochs=1, minibatches=1, episodes_per_update=8, group_size=8, max_updates=3)

    def trainer(policy: TinkerPolicy) -> Trainer:
        options = {"parallel": 4, "max_tokens": 64, "max_new_tokens": 8}
        return Trainer(policy, Game, algorithm, output_dir=tmp_path / "run", checkpoint_every=1, **options)

    policy = TinkerPolicy(server.url, "tiny", api_key=KEY, rank=0)
    metrics = list(trainer(policy).iterate(2))
    assert [each["episodes"] for each in metrics] == [8, 8] and metrics[0]["grad_norm"] > 0
    assert max(each["logprob_gap"] for each in metrics) < 1e-3  # what was played is what was trained, after a step too
    policy.close()
    fresh = TinkerPolicy(server.url, "tiny", api_key=KEY, rank=0)
    resumed = trainer(fresh)
    (last,) = resumed.iterate(3)
    assert resumed.learner.updates == 3 and last["logprob_gap"] < 1e-3
    fresh.close()


gymnasium.register("TinkerGame-v0", Game, disable_env_checker=True, order_enforce=False)


def test_a_run_is_configured_to_train_on_the_server_and_goes_on(
    server: TinkerServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TINKER_API_KEY", KEY)
    lengths = {"max_tokens": 64, "max_new_tokens": 8, "parallel": 4}
    trainer = {"algorithm": "grpo", "learning_rate": 3e-2, "episodes_per_update": 8, "group_size": 8, "max_updates": 2}
    values: dict[str, Any] = {
        "environment": {"id": "TinkerGame-v0", **lengths},
        "model": {"tinker": {"base_model": "tiny", "url": server.url, "rank": 0}},
        "trainer": trainer,
        "evaluation": {"episodes": 4},
        "output_dir": str(tmp_path / "run"),
    }
    plan = dry_run(run_config(values))
    assert not plan["problems"] and "on a server of Tinker's API" in plan_text(plan)
    assert run_experiment(run_config(values), console=False).updates == 2
    first = json.loads((tmp_path / "run/model.json").read_text())["path"]
    weights = torch.load(server.states.file_of(first, "weights"), weights_only=True)["model"]
    before = tiny_model().state_dict()
    assert max(float((weights[name] - before[name]).abs().max()) for name in before) > 1e-3
    rows = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert [row["grad_norm"] > 0 for row in rows if "grad_norm" in row] == [True, True]
    assert "eval/return" in rows[-1]
    more = {**values, "trainer": {**trainer, "max_updates": 3}}
    assert run_experiment(run_config(more), console=False, resume="changed").updates == 3


@pytest.mark.parametrize(
    ("section", "setting", "reason"),
    [
        ("model", {"dtype": "bfloat16"}, "dtype: has no effect on the server"),
        ("model", {"path": "tiny"}, "path: has no effect on the server"),
        ("engine", {"kind": "vllm", "url": "http://127.0.0.1:1"}, "engine: has no effect with model.tinker"),
        ("rollout", {"top_k": 3}, "rollout.top_k, top_p, min_p: has no effect with model.tinker"),
        ("scale", {"fsdp": True}, "scale: has no effect with model.tinker"),
    ],
)
def test_settings_without_effect_on_a_server_are_refused(section: str, setting: dict[str, Any], reason: str) -> None:
    values: dict[str, Any] = {
        "environment": {"id": "TinkerGame-v0"},
        "model": {"tinker": {"base_model": "tiny"}},
        "trainer": {"algorithm": "grpo"},
    }
    values[section] = {**values.get(section, {}), **setting}
    with pytest.raises(ConfigurationError, match=reason):
        run_config(values)


def test_what_the_api_cannot_do_is_refused_before_anything_is_played(server: TinkerServer) -> None:
    policy = TinkerPolicy(server.url, "tiny", api_key=KEY, rank=4)
    for algorithm, why in (
        (PPO(), "PPO"), (GRPO(entropy_coefficient=0.1), "entropy"), (GRPO(temperature=0.7), "temperature"),
        (GRPO(kl_coefficient=0.1), "reference"), (GRPO(stop_kl=0.1), "may_stop_early"),
    ):  # fmt: skip
        with pytest.raises(ConfigurationError, match=why):
            Trainer(policy, Game, algorithm)
    with pytest.raises(EngineError, match=r"not loaded: .*there are no such weights"):
        policy.load_state_dict({"path": "tinker://gone/weights/state-1"})
    with pytest.raises(EngineError, match="expected tiny"):
        TinkerPolicy(server.url, "other", api_key=KEY)
    policy.close()
