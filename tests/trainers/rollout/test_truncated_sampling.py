"""With top-p, top-k and min-p the update computes the distribution that was sampled from, exactly."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from swe_trainers.algorithms.grpo import GRPO
from swe_trainers.algorithms.ppo import PPO
from swe_trainers.engines.embedded import EmbeddedEngine
from swe_trainers.engines.sampling import Sampling
from swe_trainers.errors import ConfigurationError
from swe_trainers.learning.batch import Batch
from swe_trainers.learning.forward import take_snapshot
from swe_trainers.learning.update import TokenLoss, accumulate
from swe_trainers.rollout.play import iter_episodes
from swe_trainers.rollout.settings import EpisodeSettings, EpisodeStart, Limits
from swe_trainers.rollout.trajectory import Trajectory, read_trajectories, write_trajectories
from swe_trainers.run_config import run_config
from tests.trainers.rollout import test_legal_actions as legal
from tests.trainers.rollout.test_play import MODEL, Counting, play
from tests.trainers.tiny import lake_run

SAMPLINGS = {
    "top_p": Sampling(top_p=0.8),
    "top_k": Sampling(top_k=3),
    "min_p": Sampling(min_p=0.2),
    "all, at a temperature": Sampling(0.7, top_k=9, top_p=0.9, min_p=0.05),
}


def episodes(sampling: Sampling, n: int = 8) -> list[Trajectory]:
    return play([Counting(), Counting()], range(n), sampling=sampling)


def kept_by_hand(probabilities: list[float], sampling: Sampling) -> set[int]:
    """By definition: the k most likely tokens, of those the fewest that reach p, of those min_p of the best."""
    order = sorted(range(len(probabilities)), key=lambda token: -probabilities[token])
    if sampling.top_k:
        order = order[: sampling.top_k]
    total, before, kept = sum(probabilities[token] for token in order), 0.0, []
    for token in order:
        if before / total < sampling.top_p:
            kept.append(token)
        before += probabilities[token]
    best = probabilities[order[0]]
    return {token for token in kept if probabilities[token] >= sampling.min_p * best}


@pytest.mark.parametrize("name", SAMPLINGS)
def test_the_sets_recorded_are_those_of_the_definition_and_the_log_probabilities_are_over_them(name: str) -> None:
    sampling, sizes = SAMPLINGS[name], []
    for played in episodes(sampling, 4):
        with torch.no_grad():
            logits = MODEL.causal_lm(input_ids=torch.from_numpy(played.token_ids)[None]).logits[0].double()
        for at in np.flatnonzero(played.action_mask):
            probabilities = (logits[at - 1] / sampling.temperature).softmax(-1).tolist()
            kept = kept_by_hand(probabilities, sampling)
            recorded = played.allowed_sets[played.allowed[at]] if played.allowed and played.allowed[at] >= 0 else None
            assert set(range(len(probabilities)) if recorded is None else recorded) == kept
            expected = math.log(probabilities[played.token_ids[at]] / sum(probabilities[token] for token in kept))
            assert played.rollout_logprobs[at] == pytest.approx(expected, abs=1e-5)
            sizes.append(len(kept))
    assert len(set(sizes)) > 1 or name == "top_k"


@pytest.mark.parametrize("name", SAMPLINGS)
@pytest.mark.parametrize("options", [{"pack": False}, {"pack": True}, {"pack": True, "share_prefixes": False}], ids=str)
def test_the_first_ratio_is_one_with_the_recorded_sets_and_not_without(name: str, options: dict[str, Any]) -> None:
    sampling = SAMPLINGS[name]
    played = episodes(sampling)
    settings = GRPO(group_size=2, episodes_per_update=8, minibatches=1, epochs=1, learning_rate=1e-3,
                    temperature=sampling.temperature, correction="truncate", **options)  # fmt: skip

    def update(trajectories: list[Trajectory]) -> dict[str, float]:
        return settings.update(settings.start(MODEL.copy()), trajectories)

    metrics = update(played)
    assert metrics["ratio_error_first"] < 1e-5 and metrics["logprob_gap"] < 1e-5
    assert metrics["correction"] == pytest.approx(1.0, abs=1e-5)  # mean of exp(policy − rollout)
    without = update([replace(t, allowed=(), allowed_sets=()) for t in played])
    assert without["correction"] < 0.97 and without["logprob_gap"] > 0.02


def test_gradients_of_loss_entropy_and_divergence_are_those_of_the_enumeration_in_float64() -> None:
    played = episodes(SAMPLINGS["all, at a temperature"], 3)
    batch = Batch.of(played)
    reference = MODEL.copy()
    with torch.no_grad():
        for parameter in reference.causal_lm.parameters():
            parameter.mul_(0.9)
    model, truth, other = MODEL.copy(), MODEL.copy().to(torch.float64), reference.copy().to(torch.float64)
    optimizer = PPO(learning_rate=1e-3).optimizer(model, None)
    accumulate(
        model,
        optimizer,
        batch,
        torch.arange(batch.n_sequences),
        lambda tokens: TokenLoss(tokens.logprobs + 0.3 * tokens.entropy + 0.7 * tokens.kl),  # type: ignore[operator]
        microbatch_tokens=10**6,
        temperature=0.7,
        aggregation="token",
        reference=reference,
    )
    total = torch.zeros((), dtype=torch.float64)
    for trajectory in played:
        ids = torch.from_numpy(trajectory.token_ids)[None]
        ours = truth.causal_lm(input_ids=ids).logits[0] / 0.7
        with torch.no_grad():
            theirs = other.causal_lm(input_ids=ids).logits[0] / 0.7
        for at in np.flatnonzero(trajectory.action_mask):
            which = trajectory.allowed[at]
            tokens = list(range(ours.shape[1])) if which < 0 else list(trajectory.allowed_sets[which])
            p, q = ours[at - 1, tokens].log_softmax(-1), theirs[at - 1, tokens].log_softmax(-1)
            chosen = p[tokens.index(int(trajectory.token_ids[at]))]
            total = total + chosen - 0.3 * (p.exp() * p).sum() + 0.7 * (p.exp() * (p - q)).sum()
    (total / int(batch.action_mask.sum())).backward()  # type: ignore[no-untyped-call]
    found = dict(model.causal_lm.named_parameters())
    compared = 0
    for name, parameter in truth.causal_lm.named_parameters():
        if parameter.grad is not None:
            got = found[name].grad
            assert got is not None, name
            scale = float(parameter.grad.abs().max())
            assert float((got.double() - parameter.grad).abs().max()) <= 2e-4 * scale + 1e-7, name
            compared += scale > 0
    assert compared > 5


def test_legal_actions_and_truncation_are_one_set() -> None:
    model = legal.MODEL
    engine = EmbeddedEngine(model, n_slots=2, max_tokens=120)
    settings = EpisodeSettings(Limits(1), Sampling(top_k=2))
    starts = [EpisodeStart(seed, group=seed) for seed in range(4)]
    ended = iter_episodes(engine, legal.CHAT, [legal.taxi(), legal.taxi()], starts, settings)
    played = [trajectory for each in ended for trajectory in each.trajectories]
    words = {model.tokenizer.encode(word)[0] for word in legal.WORDS}
    for trajectory in played:
        sets = [trajectory.allowed_sets[i] for i in trajectory.allowed if i >= 0]
        assert sets and all(len(each) <= 2 and set(each) <= words for each in sets)
    batch = Batch.of(played)
    found = take_snapshot(model, batch, microbatch_tokens=999, temperature=1.0).settle()
    assert float((found.logprobs - batch.rollout_logprobs)[batch.action_mask].abs().max()) < 1e-5


def test_the_sets_survive_files(tmp_path: Path) -> None:
    played = episodes(Sampling(top_p=0.8), 2)
    write_trajectories(tmp_path / "t.jsonl", played)
    for before, after in zip(played, read_trajectories(tmp_path / "t.jsonl"), strict=True):
        assert (after.allowed, after.allowed_sets) == (before.allowed, before.allowed_sets)
        assert after.allowed_sets


def test_a_server_that_returns_no_sets_is_refused_unless_the_difference_is_weighed(tmp_path: Path) -> None:
    server = {"kind": "vllm", "url": "http://127.0.0.1:1"}
    values = lake_run(tmp_path, rollout={"top_p": 0.8}, engine=server)
    with pytest.raises(ConfigurationError, match="does not return which tokens it kept"):
        run_config(values)
    run_config(lake_run(tmp_path, rollout={"top_p": 0.8}, engine=server, trainer={"correction": "truncate"}))
