"""Training does not depend on the number of ranks, and any number of them resumes a checkpoint."""

from __future__ import annotations

import json
import os
import pickle
import resource
import shutil
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from swe_trainers.algorithms.ppo import PPO
from swe_trainers.errors import CheckpointError, ConfigurationError
from swe_trainers.learning.batch import Batch
from swe_trainers.learning.forward import forward, sequence_group_of
from swe_trainers.learning.learner import Learner
from swe_trainers.learning.ranks import rows_of_rank
from swe_trainers.learning.update import TokenLoss, accumulate
from swe_trainers.model.language_model import LanguageModel
from swe_trainers.model.lora import LoRA
from swe_trainers.process_group import gathered
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
    """A model and settings, which one process trains too, and how ranks share the work."""

    lora: bool = False
    critic: bool = False
    pack: bool = False
    tied: bool = False
    share: bool = False
    noise: bool = False
    scale: ScaleConfig | None = None

    @property
    def settings(self) -> PPO:
        critic = "separate" if self.critic else "shared"
        options = {"pack": self.pack, "critic": critic, "gradient_noise_every": int(self.noise)}
        return replace(SETTINGS, share_prefixes=self.scale is not None, **options)

    def episodes(self, seed: int) -> list:
        return episodes(seed, start=10 if self.share else 0)

    def on(self, **scale) -> Case:
        return replace(self, scale=ScaleConfig(**({} if "accelerate" in scale else {"fsdp": True}), **scale))


PLAIN, PACKED, CRITIC, LORA = Case(), Case(pack=True), Case(critic=True), Case(lora=True, tied=True)
SHARED = Case(share=True)
LORA_CRITIC = Case(lora=True, critic=True, pack=True)


def episodes(seed: int, start: int = 0) -> list:
    """Seven episodes whose first `start` tokens are the same."""
    random = torch.Generator().manual_seed(seed)
    found, common = [], torch.randint(40, (start,), generator=random).tolist()
    for number in range(7):
        length = int(torch.randint(6, 30, (), generator=random))
        ids = common + torch.randint(40, (length,), generator=random).tolist()
        length += start
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
    drifted = model if case.lora else model_of(case, 1)  # so that the KL to the reference is positive
    critic = model_of(case, 2) if case.critic else None
    if case.scale is None:
        return case.settings.learner(model, seed=0, reference=drifted.reference_copy(), critic=critic)
    if case.scale.accelerate is not None:
        learner = case.settings.learner(model, seed=0, reference=drifted.reference_copy())
        accelerate(learner, case.scale.accelerate, max_grad_norm=case.settings.max_grad_norm)
        return learner
    group = sequence_group(case.scale)
    whole, model = model, shard(model.copy(), case.scale, group)
    frozen = reference(whole if case.lora else drifted, model, case.scale, group)
    if critic is not None:
        shard(critic, case.scale, group)
    return case.settings.learner(model, seed=0, reference=frozen, critic=critic)


def objective(tokens):
    value = tokens.values.square() + tokens.final_values.square().mean()
    return TokenLoss(
        -tokens.logprobs * tokens.values.detach() + 0.3 * tokens.entropy + value, {}, {"most": tokens.logprobs}
    )


def trained(case: Case) -> dict[str, torch.Tensor | float]:
    """Gradients of one minibatch, then the metrics and weights of an update of four optimizer steps."""
    learner = learner_of(case)
    batch = Batch.of(case.episodes(0))
    measured = accumulate(
        learner.model, learner.optimizer, batch, torch.arange(7), objective, microbatch_tokens=40, temperature=0.8,
        pack=case.pack, share=case.settings.share_prefixes, critic=learner.critic,
    )  # fmt: skip
    found: dict[str, torch.Tensor | float] = {f"first/{name}": value for name, value in measured.items()}
    models = {"": learner.model} | ({"critic/": learner.critic} if learner.critic is not None else {})
    for prefix, model in models.items():
        model = getattr(model, "whole", model)
        found |= {f"grad/{prefix}{n}": whole(p.grad) for n, p in model.named_parameters() if p.grad is not None}
    found |= {f"update/{name}": value for name, value in case.settings.update(learner, case.episodes(1)).items()}
    for prefix, model in models.items():
        model = getattr(model, "whole", model)
        found |= {f"weight/{prefix}{name}": whole(p) for name, p in model.named_parameters()}
    return found


@cache
def truth(case: Case) -> dict[str, torch.Tensor | float]:
    return trained(replace(case, scale=None))


def train_and_save(folder: Path, cases: list[Case]) -> None:
    found = [trained(case) for case in cases]
    if dist.get_rank() == 0:
        torch.save(found, folder / "trained.pt")


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
                replace(PLAIN, noise=True).on(),
                SHARED.on(),
                replace(SHARED, pack=True).on(sequence_parallel=2, activation_checkpointing=True),
                replace(SHARED, pack=True).on(accelerate="ddp"),
                LORA.on(accelerate="ddp"),
            ],
        ),
        pytest.param(
            4,
            [
                PLAIN.on(),
                LORA_CRITIC.on(),
                PACKED.on(sequence_parallel=2, activation_checkpointing=True),
                PACKED.on(sequence_parallel=4),  # twice as many as heads of keys and values
                LORA.on(sequence_parallel=2),
            ],
            marks=pytest.mark.campaign,
        ),
    ],
)
def test_losses_gradients_and_updates_equal_those_of_one_process(world: int, cases: list[Case], tmp_path: Path) -> None:
    on_ranks(world, tmp_path, train_and_save, cases)
    for case, found in zip(cases, torch.load(tmp_path / "trained.pt", weights_only=True), strict=True):
        expected = dict(truth(replace(case, scale=None)))
        if world > 1:  # the representation is looked at in one process only
            expected = {name: value for name, value in expected.items() if "representation/" not in name}
        assert found.keys() == expected.keys() and sum(name.startswith("grad/") for name in found) > 30
        assert "grad/value_head.weight" in found or case.critic
        for name in ("first/computed_fraction", "update/computed_fraction"):  # the only number that may differ
            assert expected.pop(name) == 1 and (0.6 < found.pop(name) < 0.95 if case.share else found.pop(name) == 1)
        for name, value in expected.items():
            # Adam normalises small gradients and their rounding errors: a fiftieth of an optimizer step.
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
            case.settings.update(learner, episodes(update)[:4])
            learner.updates += 1
            checkpoints.save(learner.updates, {"learner": learner.state_dict(), "stopped": False})
        case.settings.update(learner, episodes(5))
        after = {n: whole(p) for n, p in getattr(learner.model, "whole", learner.model).named_parameters()}
        if dist.get_rank() == 0:
            torch.save(after, folder / f"{name}.pt")


def resume_and_update(folder: Path, cases: dict[str, Case]) -> None:
    for name, case in cases.items():
        learner = learner_of(case)
        state = checkpoints_of(case)(folder / name, learner).load()
        learner.load_state_dict(state["learner"])
        assert learner.updates == 2 and learner.episodes == 8 and state["stopped"] is False
        case.settings.update(learner, episodes(5))
        expected = torch.load(folder / f"{name}.pt", weights_only=True)
        for parameter_name, parameter in getattr(learner.model, "whole", learner.model).named_parameters():
            torch.testing.assert_close(whole(parameter), expected[parameter_name], rtol=2e-4, atol=2e-4)


def test_checkpoint_of_two_ranks_is_resumed_by_one_and_by_four(tmp_path: Path) -> None:
    on_ranks(
        2, tmp_path, train_and_checkpoint, {"all": CRITIC.on(), "adapters": LORA.on(), "ddp": LORA.on(accelerate="ddp")}
    )
    (saved,) = (tmp_path / "all").iterdir()
    assert saved.name == "00000002"
    assert all(file.stat().st_mode & 0o077 == 0 for file in saved.iterdir() if file.name != "manifest.json")
    sizes = json.loads((saved / "manifest.json").read_text())["size_bytes"]
    assert {"state.pt", ".metadata"} < set(sizes)
    on_ranks(1, tmp_path, resume_and_update, {"all": CRITIC.on(), "adapters": LORA.on()})
    on_ranks(4, tmp_path, resume_and_update, {"all": CRITIC.on(), "adapters": LORA.on(sequence_parallel=2)})
    on_ranks(2, tmp_path, resume_and_update, {"ddp": LORA.on(accelerate="ddp")})


def test_truncated_checkpoint_is_not_loaded(tmp_path: Path) -> None:
    on_ranks(1, tmp_path, train_and_checkpoint, {"torn": PLAIN.on()})
    part = next((tmp_path / "torn" / "00000002").glob("*.distcp"))
    part.write_bytes(part.read_bytes()[:-1])
    with joined_ranks(ScaleConfig(fsdp=True)), pytest.raises(CheckpointError, match=r"distcp: \d+ bytes, \d+ were"):
        ShardedCheckpoints(tmp_path / "torn", learner_of(PLAIN.on())).load()


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def shards(path: Path) -> list[Path]:
    return sorted(path.glob("*.distcp"))


def without_checksums(path: Path) -> None:
    manifest = json.loads((path / "manifest.json").read_bytes())
    (path / "manifest.json").write_text(json.dumps({key: manifest[key] for key in ("step", "size_bytes")}))


def replace_index(path: Path) -> None:
    """By one that would make a folder where it is unpickled, in a checkpoint that cannot be verified."""
    index = pickle.dumps(MakesFolder(path.parent / "ran"))
    (path / ".metadata").write_bytes(index)
    without_checksums(path)
    manifest = json.loads((path / "manifest.json").read_bytes())
    manifest["size_bytes"][".metadata"] = len(index)
    (path / "manifest.json").write_text(json.dumps(manifest))


class MakesFolder:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


DAMAGES = {
    "flipped in the shard of rank 0": lambda path, older: flip(shards(path)[0]),
    "flipped in the shard of rank 1": lambda path, older: flip(shards(path)[1]),
    "flipped in the index": lambda path, older: flip(path / ".metadata"),
    "flipped elsewhere": lambda path, older: flip(path / "state.pt"),
    "zeroed": lambda path, older: shards(path)[1].write_bytes(bytes(shards(path)[1].stat().st_size)),
    "truncated": lambda path, older: os.truncate(shards(path)[0], 9),
    "missing": lambda path, older: shards(path)[1].unlink(),
    "no JSON": lambda path, older: (path / "manifest.json").write_bytes(b"{"),
    "wrong types": lambda path, older: (path / "manifest.json").write_text('{"step": 2, "size_bytes": [".metadata"]}'),
    "empty": lambda path, older: (shutil.rmtree(path), path.mkdir()),
    "mixed": lambda path, older: shutil.copy(shards(older)[1], shards(path)[1]),
}


def assert_the_one_before_is_loaded(folder: Path) -> None:
    first, learner = dist.get_rank() == 0, learner_of(PLAIN.on())
    checkpoints = ShardedCheckpoints(folder / "whole", learner)
    expected = []
    for update in range(2):
        learner.updates = update + 1
        checkpoints.save(learner.updates, {"learner": learner.state_dict()})
        expected.append({name: whole(each) for name, each in learner.model.named_parameters()})
        SETTINGS.update(learner, episodes(update)[:2])
    assert len(shards(folder / "whole" / "00000002")) == 2

    def copy_of(name: str) -> tuple[ShardedCheckpoints, Path]:
        place = folder / name.replace(" ", "-")
        if first:
            shutil.copytree(folder / "whole", place)
        return ShardedCheckpoints(place, learner), place

    for name, damage in DAMAGES.items():
        damaged, place = copy_of(name)
        if first:
            damage(place / "00000002", place / "00000001")
        dist.barrier()
        found = damaged.newest()
        (line,) = found.notes
        assert line.endswith(": resumed from 00000001; kept as 00000002.damaged"), (name, line)
        assert found.path.name == "00000001" and found.state["learner"]["updates"] == 1, name
        learner.load_state_dict(found.state["learner"])
        for parameter, tensor in learner.model.named_parameters():
            assert torch.equal(whole(tensor), expected[0][parameter]), (name, parameter)
        assert sorted(path.name for path in place.iterdir()) == ["00000001", "00000002.damaged"], name

    former, place = copy_of("former")
    if first:
        without_checksums(place / "00000002")
    dist.barrier()
    found = former.newest()
    assert found.path.name == "00000002" and "loaded without verification" in found.notes[0]

    hostile, place = copy_of("hostile")
    if first:
        replace_index(place / "00000002")
    dist.barrier()
    with pytest.raises(CheckpointError, match="no part of an index"):
        hostile.newest()
    assert not (place / "ran").exists()

    full, place = copy_of("full")  # a rank that cannot write its part tells the others
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limits[0] if first else 1000, limits[1]))
    try:
        with pytest.raises(CheckpointError, match="checkpoint 3 was not written"):
            full.save(3, {"learner": learner.state_dict()})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    dist.barrier()
    assert sorted(path.name for path in place.iterdir()) == ["00000001", "00000002"]


@pytest.mark.campaign
def test_damaged_checkpoint_of_two_ranks_is_kept_aside_and_the_one_before_is_loaded(tmp_path: Path) -> None:
    on_ranks(2, tmp_path, assert_the_one_before_is_loaded)


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
        for name, expected in found[0].items():  # of this rank's rows alone, which were not reduced
            dist.all_reduce(expected)
            error = (found[1][name] - expected / dist.get_world_size()).float().norm()
            assert error <= 0.02 * expected.float().norm() / dist.get_world_size(), (case, name)


def test_memory_options_reduce_saved_activations_and_dtypes_can_be_mixed(tmp_path: Path) -> None:
    on_ranks(2, tmp_path, assert_memory_is_saved_and_dtypes_may_be_mixed)


def assert_copies_are_full_and_lists_in_order(folder: Path) -> None:
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


def test_full_copy_has_the_sharded_weights_and_gathered_lists_keep_their_order(tmp_path: Path) -> None:
    on_ranks(3, tmp_path, assert_copies_are_full_and_lists_in_order)


def test_scale_settings_without_effect_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "WORLD_SIZE", "2")
    with pytest.raises(ConfigurationError, match=r"Try: scale\.fsdp true"), joined_ranks(ScaleConfig()):
        pass
    for useless in ({"cpu_offload": True}, {"activation_checkpointing": True}, {"sequence_parallel": 2}):
        with pytest.raises(ConfigurationError, match="no effect without fsdp"):
            ScaleConfig(**useless)
    with pytest.raises(ConfigurationError, match="cannot be combined with fsdp"):
        ScaleConfig(fsdp=True, accelerate="ddp")
    model = tiny_model("llama").recompute_activations()
    with pytest.raises(ConfigurationError, match="DeepSpeed is not installed"):
        check_model(model, ScaleConfig(accelerate="zero2"))
    for useless in ({"cpu_offload": True}, {"activation_checkpointing": True}, {"sequence_parallel": 4}):
        with pytest.raises(ConfigurationError, match=f"scale.{next(iter(useless))}"):
            check_model(model, ScaleConfig(fsdp=True, **useless))
    with pytest.raises(ConfigurationError, match="sequence_parallel: got 0"):
        ScaleConfig(fsdp=True, sequence_parallel=0)
