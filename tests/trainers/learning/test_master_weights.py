"""Training in bfloat16 moves the weights as training in float32 does."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.tensor import DTensor

from swe_trainers.algorithms.ppo import PPO
from swe_trainers.checkpoint import Checkpoints
from swe_trainers.learning.batch import Batch
from swe_trainers.learning.eight_bit import AdamW8bit, decode, encode
from swe_trainers.learning.learner import Learner, adamw
from swe_trainers.learning.master_weights import MasterAdamW, MasterAdamW8bit, Masters, halves, joined
from swe_trainers.learning.update import TokenLoss, accumulate, take_step
from swe_trainers.model.lora import LoRA
from swe_trainers.scale.accelerated import AcceleratedCheckpoints, accelerate
from swe_trainers.scale.checkpoints import ShardedCheckpoints, prime
from swe_trainers.scale.sharding import ScaleConfig, shard
from tests.trainers.learning.tiny import trajectory
from tests.trainers.ranks import on_ranks
from tests.trainers.tiny import tiny_model

STEPS = 50
SETTINGS = PPO(learning_rate=1e-6, microbatch_tokens=64, weight_decay=0.01)


def batch() -> Batch:
    random = torch.Generator().manual_seed(0)
    rows = [torch.randint(40, (16,), generator=random).tolist() for _ in range(8)]
    return Batch.of([trajectory(ids, [False, False] + [True] * 14) for ids in rows])


def imitation(tokens):
    return TokenLoss(-tokens.logprobs + 0.1 * tokens.values.square())


EIGHT_BITS = replace(SETTINGS, moments="8bit")


def started(dtype: torch.dtype, width: int = 32) -> object:
    model = tiny_model("qwen3", scale=1.0, hidden_size=width, intermediate_size=2 * width)
    model.causal_lm.to(torch.bfloat16).to(dtype)
    return model


def full(tensor: torch.Tensor) -> torch.Tensor:
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().float().clone()


def exact_weights(learner: Learner) -> dict[str, torch.Tensor]:
    """What the optimizer steps, by the parameters' names."""
    model = getattr(learner.model, "whole", learner.model)
    optimizer = getattr(learner.optimizer, "innermost", learner.optimizer)
    exact = optimizer.exact if isinstance(optimizer, (Masters, MasterAdamW8bit)) else lambda parameter: parameter
    return {name: full(exact(p)) for name, p in model.named_parameters()}


def trained(learner: Learner, steps: int = STEPS) -> dict[str, torch.Tensor]:
    """How far each weight has moved."""
    before, episodes = exact_weights(learner), batch()
    for _ in range(steps):
        accumulate(
            learner.model, learner.optimizer, episodes, torch.arange(8), imitation,
            microbatch_tokens=SETTINGS.microbatch_tokens,
        )  # fmt: skip
        take_step(learner.model, learner.optimizer, 1.0)
    return {name: weight - before[name] for name, weight in exact_weights(learner).items()}


def assert_same_direction(moved, expected):
    a, b = (torch.cat([each[name].flatten() for name in sorted(expected)]) for each in (moved, expected))
    assert float((a @ b) / (a.norm() * b.norm())) >= 0.99
    assert 0.97 <= float(a.norm() / b.norm()) <= 1.03
    assert float((a != 0).float().mean()) >= 0.99 * float((b != 0).float().mean())


@cache
def in_float32(width: int = 32) -> dict[str, torch.Tensor]:
    return trained(SETTINGS.learner(started(torch.float32, width)))


def test_fifty_steps_of_a_millionth_move_bfloat16_weights_as_float32_ones() -> None:
    model = started(torch.bfloat16)
    learner = SETTINGS.learner(model)
    moved = trained(learner)
    assert_same_direction(moved, in_float32())
    assert {p.dtype for p in model.causal_lm.parameters()} == {torch.bfloat16}  # which computes and plays
    for parameter, master in learner.optimizer._pairs:
        assert torch.equal(parameter, master.to(torch.bfloat16))
        moments = learner.optimizer.state[master]
        assert moments["exp_avg"].dtype == moments["exp_avg_sq"].dtype == master.dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_moments_of_eight_bits_move_weights_as_float32_ones(dtype: torch.dtype) -> None:
    learner = EIGHT_BITS.learner(started(dtype, 128))
    assert_same_direction(trained(learner), in_float32(128))
    coded = [each for each in learner.optimizer.state.values() if "exp_avg_scales" in each]
    assert len(coded) > 10 and {each["exp_avg"].dtype for each in coded} == {torch.int8}
    assert {each["exp_avg_sq"].dtype for each in coded} == {torch.uint8}
    bytes_kept = sum(t.numel() * t.element_size() for each in coded for t in each.values() if t.ndim)
    allowed = 2.2 if dtype == torch.float32 else 4.2  # the lower halves of the weights too
    assert bytes_kept <= allowed * sum(each["exp_avg"].numel() for each in coded)


@given(
    seed=st.integers(0, 999),
    numbers=st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False, max_value=2.0**127), max_size=20),
)
@settings(deadline=None, max_examples=60)
def test_a_float32_number_is_a_bfloat16_one_and_its_lower_half(seed: int, numbers: list[float]) -> None:
    random = torch.Generator().manual_seed(seed)
    ties = torch.randint(-(2**30), 2**30, (50,), generator=random, dtype=torch.int32) << 15 >> 15 << 15
    drawn = torch.randn(50, generator=random) * 10.0 ** torch.randint(-38, 38, (50,), generator=random)
    values = torch.cat([torch.tensor(numbers, dtype=torch.float32), drawn, ties.view(torch.float32)])
    values = values[values.isfinite() & (values.abs() < 2.0**127)]
    high, low_bits = halves(values)
    assert (high.dtype, low_bits.dtype) == (torch.bfloat16, torch.int16)
    assert torch.equal(joined(high, low_bits).view(torch.int32), values.view(torch.int32))
    nearest = values.to(torch.bfloat16)
    assert torch.equal((high.float() - values).abs(), (nearest.float() - values).abs())


def test_halves_are_stepped_as_whole_copies_and_take_two_bytes() -> None:
    """The same steps of the same numbers: with float32 weights, and with bfloat16 ones and their lower halves."""
    start = torch.randn(64, 128, generator=torch.Generator().manual_seed(0)).bfloat16()
    whole, narrow = torch.nn.Parameter(start.float()), torch.nn.Parameter(start.clone())
    exact = AdamW8bit([{"params": [whole]}], lr=1e-4, weight_decay=0.01)
    for by_hooks in (False, True):
        halved = MasterAdamW8bit([{"params": [narrow]}], by_hooks=by_hooks, lr=1e-4, weight_decay=0.01)
        for step in range(20):
            gradient = torch.randn(64, 128, generator=torch.Generator().manual_seed(step)).bfloat16()
            (narrow * gradient).sum().backward()
            (narrow * gradient).sum().backward()
            whole.grad = 2 * gradient.float()
            exact.step()
            halved.step()
            halved.zero_grad()
        assert torch.equal(halved.exact(narrow), whole) and narrow.dtype == torch.bfloat16
        assert halved.state[narrow]["low_bits"].dtype == torch.int16
        kept = sum(t.numel() * t.element_size() for t in halved.state[narrow].values() if t.ndim)
        assert kept <= 4.1 * narrow.numel()  # moments and the lower half
        with torch.no_grad():  # again, by hooks
            start = whole.bfloat16()
            narrow, whole = torch.nn.Parameter(start.clone()), torch.nn.Parameter(start.float())
        exact = AdamW8bit([{"params": [whole]}], lr=1e-4, weight_decay=0.01)


def test_lower_halves_of_weights_that_someone_else_changed_are_forgotten() -> None:
    weight = torch.nn.Parameter(torch.ones(64, 64, dtype=torch.bfloat16))
    optimizer = MasterAdamW8bit([{"params": [weight]}], lr=1e-3)
    weight.grad = torch.ones(64, 64)
    optimizer.step()
    assert not torch.equal(optimizer.exact(weight), weight.float())
    with torch.no_grad():
        weight.fill_(3.0)
    weight.grad = torch.zeros(64, 64)
    optimizer.param_groups[0]["lr"] = 0.0
    optimizer.step()
    assert torch.equal(optimizer.exact(weight), torch.full((64, 64), 3.0))


def test_gradients_that_hooks_accumulate_move_weights_as_float32_ones() -> None:
    """For a PyTorch whose tensors cannot have float32 gradients of bfloat16 parameters."""
    learner = SETTINGS.learner(started(torch.bfloat16))
    groups = [
        {**group, "params": [p for p in learner.model.parameters() if p.requires_grad and (p.ndim >= 2) == matrices]}
        for group, matrices in zip(learner.optimizer.param_groups, (True, False), strict=True)
    ]
    for parameter in learner.model.parameters():
        parameter.grad_dtype = parameter.dtype
    learner.optimizer = MasterAdamW(groups, by_hooks=True, lr=1e-6)
    moved = trained(learner)
    assert all(p.grad is None for p in learner.model.causal_lm.parameters())
    assert_same_direction(moved, in_float32())


@given(seed=st.integers(0, 999), rows=st.integers(1, 3), columns=st.integers(1, 300), exponent=st.integers(-12, 3))
@settings(deadline=None, max_examples=40)
def test_codes_are_near_their_values_and_right_on_average(seed: int, rows: int, columns: int, exponent: int) -> None:
    random = torch.Generator().manual_seed(seed)
    values = torch.randn(rows, columns, generator=random) * 10.0**exponent
    values[0, 0] = 0
    for moment, exact, power in (("exp_avg", values, 3), ("exp_avg_sq", values.square(), 4)):
        found = []
        for noise in (0.0, 1.0):  # rounded up as often as possible, and never
            codes, scales = encode(exact, moment, torch.full_like(values, noise))
            found.append(decode(codes, scales, moment))
        high, low = found
        inside = torch.nn.functional.pad(exact.abs(), (0, -columns % 128)).view(rows, -1, 128).amax(-1)
        torch.testing.assert_close(scales, inside, rtol=0, atol=0)
        largest = inside.repeat_interleave(128, 1)[:, :columns]
        steps = {"exp_avg": 127, "exp_avg_sq": 255}[moment]
        y = (exact.abs() / largest.clamp(min=1e-38)) ** (1 / power)
        allowed = largest * ((y + 1 / steps) ** power - (y - 1 / steps).clamp(min=0) ** power) * 1.01
        assert ((high - exact).abs() <= allowed).all() and ((low - exact).abs() <= allowed).all()
        assert (low.abs() <= exact.abs() * (1 + 1e-5)).all() and (high.abs() >= exact.abs() * (1 - 1e-5)).all()
        fraction = ((exact - low) / (high - low)).where(high != low, 0.5).clamp(0, 1)
        near = (
            decode(*encode(exact, moment, fraction + 0.01), moment),
            decode(*encode(exact, moment, fraction - 0.01), moment),
        )
        sure = (high != low) & (fraction > 0.02) & (fraction < 0.98)
        assert torch.equal(near[0][sure], low[sure]) and torch.equal(near[1][sure], high[sure])


def test_eight_bit_training_resumes_where_it_was(tmp_path: Path) -> None:
    learner = EIGHT_BITS.learner(started(torch.bfloat16, 128))
    trained(learner, 2)
    Checkpoints(tmp_path).save(1, {"learner": learner.state_dict()})
    straight = trained(learner, 2)
    again = EIGHT_BITS.learner(started(torch.bfloat16, 128))
    again.load_state_dict(Checkpoints(tmp_path).load()["learner"])
    resumed = trained(again, 2)
    assert all(torch.equal(moved, resumed[name]) for name, moved in straight.items())
    assert isinstance(again.optimizer, MasterAdamW8bit) and any(moved.any() for moved in straight.values())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("former", "present"), [(SETTINGS, EIGHT_BITS), (EIGHT_BITS, SETTINGS)])
def test_training_continues_from_moments_of_the_other_kind(former: PPO, present: PPO, dtype: torch.dtype) -> None:
    before = former.learner(started(dtype, 128))
    trained(before, 5)
    after = present.learner(started(dtype, 128))
    after.load_state_dict(copy.deepcopy(before.state_dict()))
    for name, weight in exact_weights(before).items():
        assert torch.equal(weight, exact_weights(after)[name]), name
    assert_same_direction(trained(after, 10), trained(before, 10))


def test_fused_steps_are_those_of_adamw() -> None:
    """On a GPU AdamW is fused; PyTorch has the same function for CPUs."""
    weights = [torch.nn.Parameter(torch.randn(9, 9, generator=torch.Generator().manual_seed(0))) for _ in range(2)]
    optimizers = [
        torch.optim.AdamW([weight], lr=1e-3, weight_decay=0.1, fused=fused)
        for weight, fused in zip(weights, (False, True), strict=True)
    ]
    for step in range(50):
        gradient = torch.randn(9, 9, generator=torch.Generator().manual_seed(step))
        for weight, optimizer in zip(weights, optimizers, strict=True):
            weight.grad = gradient.clone()
            optimizer.step()
    torch.testing.assert_close(*weights, rtol=1e-6, atol=1e-7)


def train_on_ranks(folder: Path, scale: ScaleConfig, chosen: PPO, width: int) -> None:
    model = started(torch.bfloat16, width)
    if scale.fsdp:
        model = shard(model, scale)
    learner = chosen.learner(model)
    if scale.accelerate:
        accelerate(learner, scale.accelerate, max_grad_norm=1.0)
    moved = trained(learner)
    if dist.get_rank() == 0:
        torch.save(moved, folder / "moved.pt")


@pytest.mark.parametrize(
    ("scale", "chosen", "width"),
    [
        (ScaleConfig(fsdp=True), SETTINGS, 32),
        (ScaleConfig(accelerate="ddp"), SETTINGS, 32),
        (ScaleConfig(fsdp=True), EIGHT_BITS, 128),
        pytest.param(ScaleConfig(accelerate="ddp"), EIGHT_BITS, 128, marks=pytest.mark.campaign),
    ],
    ids=["FSDP2", "DDP", "FSDP2 with 8 bits", "DDP with 8 bits"],
)
def test_two_ranks_move_bfloat16_weights_as_one_process_does_in_float32(
    scale: ScaleConfig, chosen: PPO, width: int, tmp_path: Path
) -> None:
    on_ranks(2, tmp_path, train_on_ranks, scale, chosen, width)
    assert_same_direction(torch.load(tmp_path / "moved.pt", weights_only=True), in_float32(width))


def test_one_rank_of_ddp_moves_bfloat16_weights_too(tmp_path: Path) -> None:
    """Torchrun with one process: Accelerate wraps the model in DDP, and its own `no_sync` does nothing."""
    on_ranks(1, tmp_path, train_on_ranks, ScaleConfig(accelerate="ddp"), SETTINGS, 32)
    assert_same_direction(torch.load(tmp_path / "moved.pt", weights_only=True), in_float32())


def assert_precision_of_shards(folder: Path) -> None:
    model = started(torch.bfloat16)
    sharded = shard(model.copy(), ScaleConfig(fsdp=True))
    assert {p.dtype for p in sharded.parameters()} == {torch.float32}
    ids = torch.arange(12)[None]
    hidden = sharded.trunk_hidden(ids, ids, torch.ones_like(ids))
    assert hidden.dtype == sharded.unembedding.weight.dtype == torch.bfloat16
    assert torch.equal(hidden, model.trunk_hidden(ids, ids, torch.ones_like(ids)))
    frozen = shard(model.reference_copy(), ScaleConfig(fsdp=True))
    assert {p.dtype for p in frozen.causal_lm.parameters()} == {torch.bfloat16}  # nothing steps them
    with_adapters = shard(model.copy().add_lora(LoRA(rank=2)), ScaleConfig(fsdp=True))
    for name, parameter in with_adapters.causal_lm.named_parameters():
        assert parameter.dtype == (torch.float32 if "lora_" in name else torch.bfloat16), name


def test_shards_are_float32_and_compute_in_bfloat16(tmp_path: Path) -> None:
    on_ranks(2, tmp_path, assert_precision_of_shards)


def test_gradients_of_micro_batches_add_up_in_float32() -> None:
    weight = torch.nn.Parameter(torch.zeros(1, dtype=torch.bfloat16))
    optimizer = MasterAdamW([{"params": [weight]}], lr=1.0)
    for _ in range(1000):  # a bfloat16 sum of ones stops growing at 256
        weight.sum().backward()
    assert weight.grad.dtype == torch.float32 and weight.grad.item() == 1000
    optimizer.zero_grad()
    assert weight.grad is None


def test_checkpoint_of_bfloat16_training_resumes_where_it_was(tmp_path: Path) -> None:
    learner = SETTINGS.learner(started(torch.bfloat16))
    trained(learner, 3)
    Checkpoints(tmp_path).save(1, {"learner": learner.state_dict()})
    saved = exact_weights(learner)
    straight = trained(learner, 3)
    again = SETTINGS.learner(started(torch.bfloat16))
    again.load_state_dict(Checkpoints(tmp_path).load()["learner"])
    for name, weight in exact_weights(again).items():
        assert torch.equal(weight, saved[name]), name
    resumed = trained(again, 3)
    for name, moved in straight.items():
        assert torch.equal(moved, resumed[name]), name
    assert any(moved.any() for moved in straight.values())


def save_on_ranks(folder: Path) -> None:
    learner = SETTINGS.learner(shard(started(torch.bfloat16), ScaleConfig(fsdp=True)))
    trained(learner, 3)
    ShardedCheckpoints(folder / "checkpoints", learner).save(1, {"learner": learner.state_dict()})
    torch.save(trained(learner, 3), folder / f"straight-{dist.get_rank()}.pt")
    resumed = SETTINGS.learner(shard(started(torch.bfloat16), ScaleConfig(fsdp=True)))
    resumed.load_state_dict(ShardedCheckpoints(folder / "checkpoints", resumed).load()["learner"])
    straight = torch.load(folder / f"straight-{dist.get_rank()}.pt")
    for name, moved in trained(resumed, 3).items():
        assert torch.equal(moved, straight[name]), name


@pytest.mark.campaign
def test_sharded_checkpoint_of_bfloat16_training_resumes_where_it_was(tmp_path: Path) -> None:
    on_ranks(2, tmp_path, save_on_ranks)


def save_eight_bits(folder: Path) -> None:
    learner = EIGHT_BITS.learner(shard(started(torch.bfloat16, 128), ScaleConfig(fsdp=True)))
    trained(learner, 2)
    ShardedCheckpoints(folder / "checkpoints", learner).save(1, {"learner": learner.state_dict()})
    state = [{name: whole(value) for name, value in each.items()} for each in learner.optimizer.state.values()]
    if dist.get_rank() == 0:
        torch.save(state, folder / "state.pt")


def load_eight_bits(folder: Path) -> None:
    learner = EIGHT_BITS.learner(shard(started(torch.bfloat16, 128), ScaleConfig(fsdp=True)))
    learner.load_state_dict(ShardedCheckpoints(folder / "checkpoints", learner).load()["learner"])
    saved = torch.load(folder / "state.pt", weights_only=True)
    found = list(learner.optimizer.state.values())
    assert len(found) == len(saved) and any("exp_avg_scales" in each for each in saved)
    for own, expected in zip(found, saved, strict=True):
        assert own.keys() == expected.keys()
        for name, value in expected.items():
            assert whole(own[name]).dtype == value.dtype and torch.equal(whole(own[name]), value), name
    assert all(moved.isfinite().all() for moved in trained(learner, 1).values())


def resume_eight_bits_of_ddp(folder: Path) -> None:
    def begun() -> tuple[Learner, AcceleratedCheckpoints]:
        learner = EIGHT_BITS.learner(started(torch.bfloat16, 128))
        accelerate(learner, "ddp", max_grad_norm=1.0)
        return learner, AcceleratedCheckpoints(folder / "checkpoints", learner)

    learner, checkpoints = begun()
    trained(learner, 2)
    checkpoints.save(1, {"learner": learner.state_dict()})
    straight = trained(learner, 2)
    again, checkpoints = begun()
    again.load_state_dict(checkpoints.load()["learner"])
    resumed = trained(again, 2)
    assert all(torch.equal(moved, resumed[name]) for name, moved in straight.items())
    assert any(moved.any() for moved in straight.values())


def test_eight_bit_training_by_accelerate_resumes_where_it_was(tmp_path: Path) -> None:
    on_ranks(2, tmp_path, resume_eight_bits_of_ddp)


@pytest.mark.parametrize("by_hooks", [False, True])
@pytest.mark.parametrize("kind", [MasterAdamW, MasterAdamW8bit])
def test_state_is_made_before_it_is_read_and_no_weight_changes(kind: type, by_hooks: bool) -> None:
    weight = torch.nn.Parameter(torch.randn(64, 128, generator=torch.Generator().manual_seed(0)).bfloat16())
    before, optimizer = weight.detach().clone(), kind([{"params": [weight]}], by_hooks=by_hooks, lr=1e-3)
    prime(optimizer)
    (state,) = optimizer.state.values()
    assert {"step", "exp_avg", "exp_avg_sq"} <= state.keys() and not state["exp_avg"].any()
    assert torch.equal(weight, before) and optimizer.param_groups[0]["lr"] == 1e-3


def whole(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


@pytest.mark.campaign
def test_eight_bit_moments_of_three_ranks_are_read_by_one_and_by_two(tmp_path: Path) -> None:
    on_ranks(3, tmp_path, save_eight_bits)
    for world in (1, 2):
        on_ranks(world, tmp_path, load_eight_bits)


def test_checkpoint_without_copies_starts_them_from_the_models_weights() -> None:
    model = started(torch.bfloat16)
    before = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    before.step()
    state = before.state_dict()
    other = started(torch.bfloat16)
    other.load_state_dict(model.state_dict())
    optimizer = MasterAdamW([{"params": list(other.parameters())}], lr=1e-2)
    optimizer.load_state_dict(state)
    assert len(optimizer._pairs) > 20
    for parameter, master in optimizer._pairs:
        assert torch.equal(master, parameter.float()) and optimizer.state[master]["exp_avg_sq"].dtype == torch.float32


def test_weights_that_someone_else_changed_are_not_reverted() -> None:
    model = started(torch.bfloat16)
    optimizer = adamw(model, learning_rate=1e-6)
    name, weight = next(iter(model.causal_lm.named_parameters()))
    with torch.no_grad():
        weight[0] += 1.0
    changed, master = weight.detach().clone(), {id(p): c for p, c in optimizer._pairs}[id(weight)]
    fraction = master[1].clone()
    weight.grad = torch.zeros_like(weight, dtype=torch.float32)
    optimizer.step()
    assert torch.equal(weight, changed) and torch.equal(master[0], changed[0].float()), name
    assert torch.equal(master[1], fraction)


def test_float32_models_and_adapters_have_plain_adamw() -> None:
    assert type(adamw(started(torch.float32), learning_rate=1.0)) is torch.optim.AdamW
    model = started(torch.bfloat16).add_lora(LoRA(rank=2))
    assert type(adamw(model, learning_rate=1.0)) is torch.optim.AdamW
