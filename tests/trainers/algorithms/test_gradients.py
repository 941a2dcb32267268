"""The mean gradient of every algorithm equals that of its formula, by enumeration of a small environment.

The world has three states and nine episodes: a first word leads on, a second one ends, and what is earned depends on
both. The policy gradient of that can be written down in full; an algorithm's own update, through its own code, has to
agree with it within four standard errors.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools

import numpy as np
import pytest
import torch

from swe_trainers.algorithms.grpo import DAPO, GRPO, GSPO, RLOO, DrGRPO
from swe_trainers.algorithms.ppo import PPO
from swe_trainers.algorithms.reinforce import REINFORCE, REINFORCEPlusPlus
from swe_trainers.algorithms.tree import MonteCarloTree
from swe_trainers.rollout.trajectory import Fork, Turn
from tests.trainers.learning.tiny import TinyPolicy, trajectory

EPISODES = list(itertools.product(range(3), repeat=2))
RETURNS = torch.tensor([1.0, -0.5, 0.3, 0.0, 2.0, -1.0, 0.7, 0.2, 1.5], dtype=torch.float64)
GROUP, GROUPS, UPDATES = 3, 200, 40
ONE_STEP = {"epochs": 1, "minibatches": 1, "max_grad_norm": 1e9, "microbatch_tokens": 10**6}
IN_GROUPS = {**ONE_STEP, "group_size": GROUP, "episodes_per_update": GROUP * GROUPS}


def world(seed=3):
    return TinyPolicy(vocabulary=3, seed=seed).double()


def logprobs(model):
    """(9,) log-probabilities of every episode, differentiable; an episode is [0, first word, 0, second word]."""
    rows = torch.tensor([[0, a, 0, b] for a, b in EPISODES])
    hidden = model.trunk_hidden(rows, torch.arange(4).expand(9, 4), torch.ones_like(rows))
    log_p = torch.log_softmax(model.head(hidden), -1)
    return sum(log_p[:, t].gather(1, rows[:, t + 1 : t + 2]).squeeze(1) for t in (0, 2))


def gradient(model, objective):
    """The gradient of the output layer: its weight and bias, (27,)."""
    parts = torch.autograd.grad(objective, [model.head.weight, model.head.bias])
    return torch.cat([part.flatten() for part in parts])


def of_the_return(model):
    return gradient(model, (logprobs(model).exp() * RETURNS).sum())


def of_groups(model):
    """The gradient of GRPO's objective, (R − mean) / deviation · log p, over all 9³ groups; constant advantages."""
    log_p = logprobs(model)
    groups = torch.tensor(list(itertools.product(range(9), repeat=GROUP)))  # (729, 3)
    likely = log_p.detach()[groups].sum(1).exp()
    returns = RETURNS[groups]
    deviation = returns.std(1, keepdim=True)
    advantages = (returns - returns.mean(1, keepdim=True)) / (deviation + 1e-6)
    return gradient(model, (likely[:, None] * advantages * log_p[groups]).sum() / GROUP)


def of_the_return_less_divergence(model, coefficient=0.5):
    log_p, reference = logprobs(model), logprobs(world(seed=4)).detach()
    return gradient(model, (log_p.exp() * (RETURNS - coefficient * (log_p - reference).detach())).sum())


def scaled(factor):
    return lambda model: factor(model) * of_the_return(model)


def deviation(model):
    likely = logprobs(model).detach().exp()
    return ((likely * RETURNS**2).sum() - (likely * RETURNS).sum() ** 2).sqrt()


CENTRED = (GROUP - 1) / GROUP  # the factor of the gradient if the mean includes the episode itself
CASES = {
    "reinforce": (REINFORCE(baseline="none", **ONE_STEP), of_the_return),
    "reinforce with baseline": (REINFORCE(**ONE_STEP), of_the_return),
    "reinforce with divergence": (
        REINFORCE(kl_coefficient=0.5, kl_placement="reward", **ONE_STEP),
        of_the_return_less_divergence,
    ),
    "ppo": (
        PPO(whiten_advantages=False, lam=1.0, value_coefficient=0.0, **ONE_STEP),
        scaled(lambda model: 1 / 2),  # the mean over two tokens an episode
    ),
    "rloo": (RLOO(**IN_GROUPS), of_the_return),
    "dr_grpo": (DrGRPO(**IN_GROUPS), scaled(lambda model: CENTRED)),
    "grpo": (GRPO(**IN_GROUPS), lambda model: of_groups(model) / 2),
    "dapo": (DAPO(**IN_GROUPS), lambda model: of_groups(model) / 2),
    "gspo": (GSPO(**IN_GROUPS), lambda model: of_groups(model) / 2),
    "reinforce++": (REINFORCEPlusPlus(**ONE_STEP), scaled(lambda model: 1 / (2 * deviation(model)))),
    "reinforce++ with groups": (
        REINFORCEPlusPlus(**IN_GROUPS),
        scaled(lambda model: CENTRED**0.5 / (2 * deviation(model))),
    ),
}


def sampled_tree(group, random, likely):
    """Four episodes of a tree with two branches at each of two forks: before the first word and before the second."""
    joint = likely.reshape(3, 3)
    episodes = []
    for way in range(2):
        a = random.choice(3, p=joint.sum(1) / joint.sum())
        for _ in range(2):
            b = random.choice(3, p=joint[a] / joint[a].sum())
            reward = float(RETURNS[3 * a + b])
            plain = trajectory([0, a, 0, b], [False, True, False, True], [0, 0, 0, reward], group=group)
            turns = (Turn("", "", 0.0, 1, 2), Turn("", "", reward, 3, 4))
            episodes.append(dataclasses.replace(plain, turns=turns, forks=(Fork(0, 0), Fork(1, 1 + way))))
    return episodes


def test_mean_gradient_of_trees_equals_the_exact_gradient():
    settings = MonteCarloTree(branching=2, max_depth=2, **ONE_STEP)
    model, random, found = world(), np.random.default_rng(0), []
    likely = logprobs(model).detach().exp().numpy()
    for _ in range(UPDATES):
        played = [episode for group in range(GROUPS // 2) for episode in sampled_tree(group, random, likely)]
        learner = settings.learner(copy.deepcopy(model), seed=0)
        learner.optimizer = torch.optim.SGD(learner.model.parameters(), lr=settings.learning_rate)
        settings.update(learner, played)
        after = learner.model.head
        step = [model.head.weight - after.weight, model.head.bias - after.bias]
        found.append(torch.cat([part.flatten() for part in step]).detach() / settings.learning_rate)
    exact = -of_the_return(model).detach() / 2  # the mean over two tokens an episode
    found = torch.stack(found)
    error = found.std(0) / UPDATES**0.5
    assert ((found.mean(0) - exact).abs() < 4 * error).all(), (found.mean(0) - exact) / error
    assert (exact.abs() / error).max() > 12


def estimates(settings):
    """(UPDATES, 27): the gradients of this many updates, each on freshly sampled episodes."""
    model, random = world(), np.random.default_rng(0)
    likely = logprobs(model).detach().exp().numpy()
    reference = world(seed=4) if settings.kl_coefficient else None
    found = []
    for _ in range(UPDATES):
        chosen = random.choice(9, size=GROUP * GROUPS, p=likely)
        played = [
            trajectory([0, a, 0, b], [False, True, False, True], [0, 0, 0, float(RETURNS[e])], group=number // GROUP)
            for number, e in enumerate(chosen)
            for a, b in [EPISODES[e]]
        ]
        learner = settings.learner(copy.deepcopy(model), reference=reference)
        learner.optimizer = torch.optim.SGD(learner.model.parameters(), lr=settings.learning_rate)
        settings.update(learner, played)
        after = learner.model.head
        step = [model.head.weight - after.weight, model.head.bias - after.bias]
        found.append(torch.cat([part.flatten() for part in step]).detach() / settings.learning_rate)
    return torch.stack(found)


@pytest.mark.parametrize("name", CASES)
def test_mean_gradient_equals_the_exact_gradient(name):
    settings, expected = CASES[name]
    exact = -expected(world()).detach()
    found = estimates(settings)
    error = found.std(0) / UPDATES**0.5
    assert ((found.mean(0) - exact).abs() < 4 * error).all(), (found.mean(0) - exact) / error
    # A wrong sign, a factor of two or a missing baseline would make the distance many times larger.
    assert (exact.abs() / error).max() > 12
