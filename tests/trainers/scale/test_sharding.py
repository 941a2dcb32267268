"""What is learnt does not depend on how many ranks learn it, and a checkpoint of some is read by any others."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from swe_trainers.algorithms.ppo import PPO, ppo_learner, ppo_update
from swe_trainers.errors import CheckpointError, ConfigurationError
from swe_trainers.learning.batch import Batch
from swe_trainers.learning.forward import forward, sequence_group_of
from swe_trainers.learning.learner import Learner
from swe_trainers.learning.ranks import gathered, rows_of_rank
from swe_trainers.learning.update import TokenLoss, accumulate
from swe_trainers.policy.language_model import LanguageModel
from swe_trainers.policy.lora import LoRA
from swe_trainers.scale.accelerated import AcceleratedCheckpoints, accelerate
from swe_trainers.scale.checkpoints import ShardedCheckpoints
from swe_trainers.scale.sharding import (
    ScaleConfig,
    check_model,
    joined_ranks,
    reference,
    refresh,
    sequence_group,
    shard,
)
from tests.trainers.learning.tiny import trajectory
from tests.trainers.ranks import on_ranks
from tests.trainers.tiny import tiny_model

SETTINGS = PPO(microbatch_tokens=40, epochs=2, minibatches=2, learning_rate=1e-2, max_updates=4, kl_coefficient=0.1)


@dataclass(frozen=True)
class Case:
    """What is learnt, which one process learns too, and how it is spread over ranks."""

    lora: bool = False
    critic: bool = False
    pack: bool = False
    tied: bool = False
    scale: ScaleConfig | None = None

    @property
    def settings(self) -> PPO:
        return replace(SETTINGS, pack=self.pack, critic="separate" if self.critic else "shared")

    def on(self, **scale) -> Case:
        return replace(self, scale=ScaleConfig(**({} if "accelerate" in scale else {"fsdp": True}), **scale))


PLAIN, PACKED, CRITIC, LORA = Case(), Case(pack=True), Case(critic=True), Case(lora=True, tied=True)
LORA_CRITIC = Case(lora=True, critic=True, pack=True)


def episodes(seed: int) -> list:
    random = torch.Generator().manual_seed(seed)
    found = []
    for number in range(7):
        length = int(torch.randint(6, 30, (), generator=random))
        ids = torch.randint(40, (length,), generator=random).tolist()
        mask = [False, False] + [bool(k % 3) for k in range(length - 2)]
        rewards = [0.0] * length
        rewards[max(k for k in range(length) if mask[k])] = float(number % 3)
        found.append(trajectory(ids, mask, rewards=rewards))
    return found


def whole(tensor: torch.Tensor) -> torch.Tensor:
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()


def model_of(case: Case, seed: int) -> LanguageModel:
    model = tiny_model("qwen3", num_hidden_layers=3, seed=seed, tie_word_embeddings=case.tied)
    return model.add_lora(LoRA(rank=2), seed=seed) if case.lora else model


def learner_of(case: Case) -> Learner:
    model = model_of(case, 0)
    drifted = model if case.lora else model_of(case, 1)  # what must not be drifted from is another model
    critic = model_of(case, 2) if case.critic else None
    if case.scale is None:
        return ppo_learner(model, case.settings, seed=0, reference=drifted.reference_copy(), critic=critic)
    if case.scale.accelerate is not None:
        learner = ppo_learner(model, case.settings, seed=0, reference=drifted.reference_copy())
        accelerate(learner, case.scale.accelerate, max_grad_norm=case.settings.max_grad_norm)
        return learner
    group = sequence_group(case.scale)
    whole, model = model, shard(model.copy(), case.scale, group)
    frozen = reference(whole if case.lora else drifted, model, case.scale, group)
    if critic is not None:
        shard(critic, case.scale, group)
    return ppo_learner(model, case.settings, seed=0, reference=frozen, critic=critic)


def objective(tokens):
    value = tokens.values.square() + tokens.final_values.square().mean()
    return TokenLoss(
        -tokens.logprobs * tokens.values.detach() + 0.3 * tokens.entropy + value, {}, {"most": tokens.logprobs}
    )


def learnt(case: Case) -> dict[str, torch.Tensor | float]:
    """Gradients of one minibatch, and a whole update of four steps after that."""
    learner = learner_of(case)
    batch = Batch.of(episodes(0))
    measured = accumulate(
        learner.model, learner.optimizer, batch, torch.arange(7), objective, microbatch_tokens=40, temperature=0.8,
        pack=case.pack, critic=learner.critic,
    )  # fmt: skip
    found: dict[str, torch.Tensor | float] = {f"first/{name}": value for name, value in measured.items()}
    models = {"": learner.model} | ({"critic/": learner.critic} if learner.critic is not None else {})
    for prefix, model in models.items():
        model = getattr(model, "whole", model)
        found |= {f"grad/{prefix}{n}": whole(p.grad) for n, p in model.named_parameters() if p.grad is not None}
    found |= {f"update/{name}": value for name, value in ppo_update(learner, episodes(1), case.settings).items()}
    for prefix, model in models.items():
        model = getattr(model, "whole", model)
        found |= {f"weight/{prefix}{name}": whole(p) for name, p in model.named_parameters()}
    return found


@cache
def truth(case: Case) -> dict[str, torch.Tensor | float]:
    return learnt(replace(case, scale=None))


def learn_and_save(folder: Path, cases: list[Case]) -> None:
    found = [learnt(case) for case in cases]
    if dist.get_rank() == 0:
        torch.save(found, folder / "learnt.pt")


@pytest.mark.parametrize(
    ("world", "cases"),
    [
        (1, [PLAIN.on(), LORA.on()]),
        (
            2,
            [
                PLAIN.on(activation_checkpointing=True),
                CRITIC.on(cpu_offload=True),
                LORA.on(activation_checkpointing=True),
                LORA_CRITIC.on(cpu_offload=True, sequence_parallel=2),
                PLAIN.on(sequence_parallel=2),
                PACKED.on(accelerate="ddp"),
                LORA.on(accelerate="ddp"),
            ],
        ),
        (
            4,
            [
                PLAIN.on(),
                LORA_CRITIC.on(),
                PACKED.on(sequence_parallel=2, activation_checkpointing=True),
                PACKED.on(sequence_parallel=4),  # twice as many as heads of keys and values
                LORA.on(sequence_parallel=2),
            ],
        ),
    ],
)
def test_loss_gradients_and_updates_are_those_of_one_process(world: int, cases: list[Case], tmp_path: Path) -> None:
    on_ranks(world, tmp_path, learn_and_save, cases)
    for case, found in zip(cases, torch.load(tmp_path / "learnt.pt", weights_only=True), strict=True):
        expected = truth(replace(case, scale=None))
        assert found.keys() == expected.keys() and sum(name.startswith("grad/") for name in found) > 30
        assert "grad/value_head.weight" in found or case.critic
        for name, value in expected.items():
            # Adam divides small gradients by their own size, and their rounding with it: a fiftieth of one step.
            rounding = 2e-4 if name.startswith("weight/") else 2e-5
            torch.testing.assert_close(
                found[name], value, rtol=2e-4, atol=rounding, msg=lambda text, at=(case, name): f"{at}: {text}"
            )


def checkpoints_of(case: Case) -> type[ShardedCheckpoints]:
    return ShardedCheckpoints if case.scale.accelerate is None else AcceleratedCheckpoints


def train_and_checkpoint(folder: Path, cases: dict[str, Case]) -> None:
    for name, case in cases.items():
        learner = learner_of(case)
        checkpoints = checkpoints_of(case)(folder / name, learner, keep=1)
        for update in range(2):
            ppo_update(learner, episodes(update)[:4], case.settings)
            learner.updates += 1
            checkpoints.save(learner.updates, {"learner": learner.state_dict(), "stopped": False})
        ppo_update(learner, episodes(5), case.settings)
        after = {n: whole(p) for n, p in getattr(learner.model, "whole", learner.model).named_parameters()}
        if dist.get_rank() == 0:
            torch.save(after, folder / f"{name}.pt")


def resume_and_go_on(folder: Path, cases: dict[str, Case]) -> None:
    for name, case in cases.items():
        learner = learner_of(case)
        state = checkpoints_of(case)(folder / name, learner).load()
        learner.load_state_dict(state["learner"])
        assert learner.updates == 2 and learner.episodes == 8 and state["stopped"] is False
        ppo_update(learner, episodes(5), case.settings)
        expected = torch.load(folder / f"{name}.pt", weights_only=True)
        for parameter_name, parameter in getattr(learner.model, "whole", learner.model).named_parameters():
            torch.testing.assert_close(whole(parameter), expected[parameter_name], rtol=2e-4, atol=2e-4)


def test_a_checkpoint_of_two_ranks_is_resumed_by_one_and_by_four(tmp_path: Path) -> None:
    on_ranks(
        2, tmp_path, train_and_checkpoint, {"all": CRITIC.on(), "adapters": LORA.on(), "ddp": LORA.on(accelerate="ddp")}
    )
    (saved,) = (tmp_path / "all").iterdir()
    assert saved.name == "00000002"
    assert all(file.stat().st_mode & 0o077 == 0 for file in saved.iterdir() if file.name != "manifest.json")
    sizes = json.loads((saved / "manifest.json").read_text())["size_bytes"]
    assert {"state.pt", ".metadata"} < set(sizes)
    on_ranks(1, tmp_path, resume_and_go_on, {"all": CRITIC.on(), "adapters": LORA.on()})
    on_ranks(4, tmp_path, resume_and_go_on, {"all": CRITIC.on(), "adapters": LORA.on(sequence_parallel=2)})
    on_ranks(2, tmp_path, resume_and_go_on, {"ddp": LORA.on(accelerate="ddp")})


def test_a_torn_checkpoint_is_none(tmp_path: Path) -> None:
    on_ranks(1, tmp_path, train_and_checkpoint, {"torn": PLAIN.on()})
    part = next((tmp_path / "torn" / "00000002").glob("*.distcp"))
    part.write_bytes(part.read_bytes()[:-1])
    with joined_ranks(ScaleConfig(fsdp=True)), pytest.raises(CheckpointError, match="no complete checkpoint"):
        ShardedCheckpoints(tmp_path / "torn", learner_of(PLAIN.on())).load()


def saved_for_backward(learner: Learner) -> int:
    """Bytes that a micro-batch of one long row keeps until its backward pass, on this rank."""
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    batch = Batch.of([trajectory([3] * 192, [False] * 180 + [True] * 12)])
    group = sequence_group_of(learner.model)
    ((rows, _),) = rows_of_rank(batch, torch.arange(1), max_tokens=192, group=group)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        forward(learner.model, rows).logprobs.sum().backward()
    return sum(kept.values())


def assert_memory_is_saved_and_dtypes_may_be_mixed(folder: Path) -> None:
    plain = saved_for_backward(learner_of(PLAIN.on()))
    halved = saved_for_backward(learner_of(PLAIN.on(sequence_parallel=2)))
    recomputed = saved_for_backward(learner_of(PLAIN.on(activation_checkpointing=True)))
    assert halved < 0.6 * plain and recomputed < 0.4 * plain, (plain, halved, recomputed)

    for case in (PLAIN, LORA):  # a bfloat16 trunk under a float32 value head, and float32 adapters
        model = model_of(case, 0)
        for name, parameter in model.causal_lm.named_parameters():
            parameter.data = parameter.data.to(torch.float32 if "lora_" in name else torch.bfloat16)
        found = []
        for each in (model.copy(), shard(model.copy(), ScaleConfig(fsdp=True))):
            optimizer = torch.optim.SGD(each.parameters())
            accumulate(each, optimizer, Batch.of(episodes(0)), torch.arange(7), objective, microbatch_tokens=40)
            found.append({name: whole(p.grad) for name, p in each.named_parameters() if p.grad is not None})
        assert {gradient.dtype for gradient in found[0].values()} == (
            {torch.float32} if case.lora else {torch.float32, torch.bfloat16}
        )
        assert found[0].keys() == found[1].keys()
        for name, expected in found[0].items():  # of this rank's share alone, which nobody gathered
            dist.all_reduce(expected)
            error = (found[1][name] - expected / dist.get_world_size()).float().norm()
            assert error <= 0.02 * expected.float().norm() / dist.get_world_size(), (case, name)


def test_options_that_save_memory_save_it_and_dtypes_may_be_mixed(tmp_path: Path) -> None:
    on_ranks(2, tmp_path, assert_memory_is_saved_and_dtypes_may_be_mixed)


def assert_copies_are_whole_and_shares_in_order(folder: Path) -> None:
    model, copy = tiny_model("llama"), tiny_model("llama", seed=5)
    truth = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    refresh(copy, shard(model, ScaleConfig(fsdp=True)))
    for name, tensor in copy.state_dict().items():
        assert torch.equal(tensor, truth[name]), name
    with pytest.raises(ConfigurationError, match=r"3 does not divide the 2 attention heads.*Try: one of 1, 2$"):
        shard(copy, ScaleConfig(fsdp=True), sequence_group(ScaleConfig(fsdp=True, sequence_parallel=3)))
    with pytest.raises(ConfigurationError, match="2 does not divide the 3 ranks of torchrun"):
        sequence_group(ScaleConfig(fsdp=True, sequence_parallel=2))
    rank, world = dist.get_rank(), dist.get_world_size()
    assert gathered(list(range(7))[rank::world]) == list(range(7))


def test_a_whole_copy_has_the_sharded_weights_and_shares_come_together_in_order(tmp_path: Path) -> None:
    on_ranks(3, tmp_path, assert_copies_are_whole_and_shares_in_order)


def test_several_ranks_that_shard_nothing_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "WORLD_SIZE", "2")
    with pytest.raises(ConfigurationError, match=r"Try: scale\.fsdp true"), joined_ranks(ScaleConfig()):
        pass
    for useless in ({"cpu_offload": True}, {"activation_checkpointing": True}, {"sequence_parallel": 2}):
        with pytest.raises(ConfigurationError, match="no effect without fsdp"):
            ScaleConfig(**useless)
    with pytest.raises(ConfigurationError, match="not beside it"):
        ScaleConfig(fsdp=True, accelerate="ddp")
    model = tiny_model("llama").recompute_activations()
    with pytest.raises(ConfigurationError, match="DeepSpeed is not installed"):
        check_model(model, ScaleConfig(accelerate="zero2"))
    for useless in ({"cpu_offload": True}, {"activation_checkpointing": True}, {"sequence_parallel": 4}):
        with pytest.raises(ConfigurationError, match=f"scale.{next(iter(useless))}"):
            check_model(model, ScaleConfig(fsdp=True, **useless))
    with pytest.raises(ConfigurationError, match="sequence_parallel: got 0"):
        ScaleConfig(fsdp=True, sequence_parallel=0)
