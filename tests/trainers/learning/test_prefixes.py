"""Beginnings that trajectories share are computed once, and nothing else changes."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from swe_trainers.algorithms import ALGORITHMS, find_algorithm
from swe_trainers.algorithms.algorithm import Algorithm
from swe_trainers.learning.batch import Batch, lay_out
from swe_trainers.learning.forward import forward, take_scores, take_snapshot, take_values
from swe_trainers.learning.ranks import rows_of_rank
from swe_trainers.learning.update import TokenLoss, accumulate
from swe_trainers.model.attention import takes_prefixes
from swe_trainers.model.language_model import LanguageModel
from swe_trainers.rollout.trajectory import Fork, Trajectory, Turn
from tests.trainers.learning.tiny import TinyPolicy, trajectory
from tests.trainers.tiny import tiny_model

VOCABULARY = 40


def grown(count: int, seed: int, *, samples: bool = True) -> list[Trajectory]:
    """Trajectories of a random tree: each continues a beginning of an earlier one, or begins anew.

    Beginnings end anywhere, within actions too; some trajectories are equal, and some have a second sample that begins
    as an earlier one does.
    """
    random = np.random.default_rng(seed)
    made: list[tuple[list[int], list[bool]]] = []
    found = []
    for number in range(count):
        tokens: list[int] = []
        mask: list[bool] = []
        starts: list[int] = []
        for _ in range(1 + (samples and random.random() < 0.3)):
            own, acts = [int(random.integers(VOCABULARY))], [False]
            if made and random.random() < 0.8:
                known, marks = made[random.integers(len(made))]
                kept = int(random.integers(1, len(known) + 1))
                own, acts = known[:kept], list(marks[:kept])
            more = int(random.integers(0 if len(own) > 2 else 3, 24))
            own = own + random.integers(VOCABULARY, size=more).tolist()
            acts = acts + (random.random(more) < 0.6).tolist()
            starts.append(len(tokens))
            tokens, mask = tokens + own, mask + acts
            made.append((own, acts))
        mask[-1] = True
        rewards = [float(random.normal()) if acted else 0.0 for acted in mask]
        logprobs = [-float(random.uniform(1, 5)) if acted else 0.0 for acted in mask]
        each = trajectory(tokens, mask, rewards, logprobs=logprobs, terminated=number % 3 != 0, group=number // 4)
        found.append(dataclasses.replace(each, sample_starts=tuple(starts)))
    return found


def double(family: str = "qwen3", **options: Any) -> Any:
    model = tiny_model(family, scale=4.0, **options).double()
    with torch.no_grad():
        model.value_head.weight.normal_(generator=torch.Generator().manual_seed(1))
    return model


def seen_of(model: Any, batch: Batch, *, share: bool, pack: bool, budget: int) -> tuple[torch.Tensor, ...]:
    """Everything that `forward` computes, and the gradient of a sum in which every number has a weight of its own."""
    kinds = 3
    every = torch.zeros(kinds, len(batch.token_ids), dtype=torch.float64)
    final = torch.zeros(batch.n_sequences, dtype=torch.float64)
    model.zero_grad(set_to_none=True)
    for rows in lay_out(batch, torch.arange(batch.n_sequences), max_tokens=budget, pack=pack, share=share):
        assert rows.input_ids.numel() <= budget or len(rows.sequences) == 1
        tokens = forward(model, rows)
        numbers = torch.stack([tokens.logprobs, tokens.entropy, tokens.values])
        weights = torch.cos(torch.arange(1, kinds + 1)[:, None] * (1.0 + tokens.index)).double()
        loss = (weights * numbers).sum() + (torch.sin(1.0 + rows.sequences) * tokens.final_values).sum()
        loss.backward()
        every[:, tokens.index], final[rows.sequences] = numbers.detach().double(), tokens.final_values.detach().double()
    gradient = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    return every, final, gradient


def assert_alike(batch: Batch, model: Any, *, pack: bool, budget: int) -> None:
    expected = seen_of(model, batch, share=False, pack=pack, budget=budget)
    found = seen_of(model, batch, share=True, pack=pack, budget=budget)
    for own, other in zip(found, expected, strict=True):
        torch.testing.assert_close(own, other, rtol=1e-9, atol=1e-9 * float(other.abs().max()))


MODELS = {family: double(family) for family in ("llama", "qwen3", "gpt2", "mistral-windowed", "qwen2-half-windowed")}


@given(
    count=st.integers(2, 7), seed=st.integers(0, 9999), budget=st.sampled_from([40, 120, 2000]), pack=st.booleans(),
    family=st.sampled_from(sorted(MODELS)),
)  # fmt: skip
@settings(deadline=None, max_examples=40)
def test_shared_beginnings_change_no_number_and_no_gradient(count, seed, budget, pack, family):
    assert_alike(Batch.of(grown(count, seed)), MODELS[family], pack=pack, budget=budget)


def grouped(groups: int = 2, size: int = 8, prompt: int = 32, answer: int = 32) -> list[Trajectory]:
    """Groups of episodes with a prompt in common, half of each episode's tokens, and actions of their own."""
    random = np.random.default_rng(0)
    found = []
    for group in range(groups):
        start = random.integers(VOCABULARY, size=prompt).tolist()
        for number in range(size):
            ids = [*start, number, *random.integers(VOCABULARY, size=answer - 1).tolist()]
            rewards = [0.0] * (prompt + answer - 1) + [float(random.normal())]
            each = trajectory(
                ids, [False] * prompt + [True] * answer, rewards, logprobs=[0.0] * prompt + [-3.0] * answer,
                terminated=number % 4 != 0, group=group,
            )  # fmt: skip
            turn = Turn("", "", rewards[-1], start=prompt, end=prompt + answer)
            found.append(dataclasses.replace(each, turns=(turn,), forks=(Fork(0, 0),)))
    return found


@pytest.mark.parametrize("pack", [False, True])
def test_a_prompt_of_eight_episodes_is_computed_once(pack):
    episodes = grouped()
    batch, everything = Batch.of(episodes), torch.arange(16)
    (rows,) = lay_out(batch, everything, max_tokens=10**6, pack=pack, share=True)
    assert rows.n_tokens == 2 * (32 + 8 * 32)
    for row, place in enumerate(rows.last.tolist()):  # every token at its position, in the order of its episode
        ids = rows.input_ids.flatten()
        assert int(rows.position_ids.flatten()[place]) == 63
        assert ids[place - 31 : place + 1].tolist() == episodes[int(rows.sequences[row])].token_ids[32:].tolist()
    # Of episodes of which half is shared by eight, 1/2 · 1/8 + 1/2 must be computed; where half of what is computed is
    # shared by eight, 2 / (1 + 8) of the tokens trained on.
    fractions = {}
    for prompt in (32, 256):
        model = MODELS["llama"]
        measured = accumulate(
            model, torch.optim.SGD(model.parameters()), Batch.of(grouped(prompt=prompt)), everything,
            lambda tokens: TokenLoss(tokens.logprobs), microbatch_tokens=10**6, pack=pack, share=True,
        )  # fmt: skip
        fractions[prompt] = measured["computed_fraction"]
    assert fractions == {32: pytest.approx(0.5625), 256: pytest.approx(2 / 9)}


@pytest.mark.parametrize("pack", [False, True])
@pytest.mark.parametrize("budget", [70, 200, 10**6])
def test_trees_are_divided_where_they_exceed_a_micro_batch(budget, pack):
    batch = Batch.of(grouped())
    laid = lay_out(batch, torch.randperm(16), max_tokens=budget, pack=pack, share=True)
    assert sorted(s for rows in laid for s in rows.sequences.tolist()) == list(range(16))
    assert all(rows.input_ids.numel() <= budget for rows in laid)
    computed = sum(rows.n_tokens for rows in laid)
    # In 200 tokens there is room for the prompt and five answers; three are in a tree of their own.
    assert computed == {70: 16 * 64, 200: 2 * (2 * 32 + 8 * 32), 10**6: 2 * (32 + 8 * 32)}[budget]


SETTINGS: dict[str, dict[str, Any]] = {
    "ppo": {"critic": "separate"},
    "grpo": {"kl_coefficient": 0.1, "kl_estimator": "full", "correction": "truncate"},
    "gspo": {"kl_coefficient": 0.1},
    "rloo": {"kl_coefficient": 0.1},
    "reinforce_plus_plus": {"group_size": 8},
    "monte_carlo_tree": {"branching": 4, "max_depth": 1},
    "reward_model": {"kind": "process"},
}


def stepped(settings: Algorithm, episodes: list[Trajectory]) -> tuple[dict[str, torch.Tensor], dict[str, float]]:
    """The gradients of an update of one step, by the parameters' names, and its metrics."""
    learner = settings.start(double())
    modules = [learner.model, *([] if learner.critic is None else [learner.critic])]
    parameters = [p for module in modules for p in module.parameters()]
    before = [p.detach().clone() for p in parameters]
    learner.optimizer = torch.optim.SGD(parameters, lr=1.0)
    metrics = settings.update(learner, episodes)
    moved = [a - p.detach() for a, p in zip(before, parameters, strict=True)]
    return {str(number): each / metrics["learning_rate"] for number, each in enumerate(moved)}, metrics


@pytest.mark.parametrize("name", ALGORITHMS)
def test_shared_beginnings_change_no_gradient_of_any_algorithm(name):
    kind, episodes = find_algorithm(name), grouped(prompt=16, answer=8)
    one_step = {} if name in ("cloning", "reward_model") else {"epochs": 1, "minibatches": 1}
    found = {
        share: stepped(kind(**SETTINGS.get(name, {}), **one_step, max_grad_norm=1e9, share_prefixes=share), episodes)
        for share in (False, True)
    }
    (expected, metrics), (gradients, shared_metrics) = found[False], found[True]
    assert any(bool(each.any()) for each in expected.values())
    for number, each in expected.items():
        # Old log-probabilities, advantages and weights of the loss are float32.
        torch.testing.assert_close(gradients[number], each, rtol=1e-5, atol=1e-6 * float(each.abs().max()) + 1e-12)
    if name != "reward_model":
        assert metrics["computed_fraction"] == 1 and shared_metrics["computed_fraction"] < 0.75
    for key in metrics.keys() - {"computed_fraction"}:
        assert shared_metrics[key] == pytest.approx(metrics[key], rel=1e-4, abs=1e-5), key


def test_snapshots_values_and_scores_are_those_of_the_whole_episodes():
    batch, model = Batch.of(grown(6, 5)), MODELS["qwen3"]
    plain = take_snapshot(model, batch, microbatch_tokens=100)
    shared = take_snapshot(model, batch, microbatch_tokens=100, share=True)
    values = take_values(model, batch, microbatch_tokens=100, share=True)
    torch.testing.assert_close(shared.logprobs, plain.logprobs)
    for name in ("values", "final_values"):
        torch.testing.assert_close(getattr(shared, name), getattr(plain, name))
        torch.testing.assert_close(getattr(values, name), getattr(plain, name))
    marked = batch.action_mask & (torch.arange(len(batch.token_ids)) % 3 == 0)
    scores = [
        take_scores(model, batch, marked, microbatch_tokens=99, pack=True, share=share) for share in (False, True)
    ]
    torch.testing.assert_close(scores[1], scores[0])


def test_a_model_that_cannot_share_gets_whole_episodes():
    model, batch = TinyPolicy(VOCABULARY), Batch.of(grouped())
    measured = accumulate(
        model, torch.optim.SGD(model.parameters()), batch, torch.arange(16),
        lambda tokens: TokenLoss(tokens.logprobs), microbatch_tokens=200, share=True,
    )  # fmt: skip
    assert measured["computed_fraction"] == 1


def test_episodes_without_a_common_beginning_are_laid_out_as_before():
    random = np.random.default_rng(0)
    batch = Batch.of([trajectory(random.integers(9, size=30).tolist(), [False] + [True] * 29) for _ in range(9)])
    for pack in (False, True):
        laid = [lay_out(batch, torch.arange(9), max_tokens=90, pack=pack, share=share) for share in (False, True)]
        for plain, shared in zip(*laid, strict=True):
            assert torch.equal(plain.input_ids, shared.input_ids) and shared.copies is None


@given(seed=st.integers(0, 999), count=st.integers(1, 12), world=st.integers(1, 5))
@settings(deadline=None, max_examples=40)
def test_ranks_divide_trees_in_nearly_equal_parts(seed, count, world):
    batch = Batch.of(grown(count, seed))
    numbers = torch.randperm(count, generator=torch.Generator().manual_seed(seed)).tolist()
    parts = batch.prefixes.divide(numbers, world)
    if parts is None:
        return
    assert len(parts) == world and sorted(i for part in parts for i in part) == list(range(count))
    costs = [batch.prefixes.forest([numbers[i] for i in part]).n_tokens if part else 0 for part in parts]
    together = batch.prefixes.forest(numbers).n_tokens
    assert max(costs) <= together / world + 2 * int(batch.lengths.max())
    assert len(rows_of_rank(batch, torch.tensor(numbers), max_tokens=100, share=True)) >= 1


def test_a_kernel_without_masks_gets_whole_episodes():
    gpu, cpu = torch.device("cuda"), torch.device("cpu")
    assert [takes_prefixes(kernel, gpu) for kernel in ("auto", "efficient", "math", "flash", "cudnn")] == [
        True, True, True, False, False,
    ]  # fmt: skip
    assert takes_prefixes("flash", cpu)
    model = tiny_model("qwen3", seed=3)
    for attention in ("auto", "math", "flash"):
        again = LanguageModel(model.causal_lm, model.tokenizer, attention=attention)
        assert_alike(Batch.of(grouped(1, 4)), again.double(), pack=True, budget=500)
