"""From rewards and values to advantages, over the policy's own tokens only, or one for each whole episode."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from swe_trainers.errors import ShapeError

__all__ = [
    "GroupBaseline",
    "GroupScale",
    "Sharing",
    "conversation_shares",
    "explained_variance",
    "generalized_advantages",
    "group_advantages",
    "groups_with_signal",
    "returns_to_go",
    "tree_advantages",
    "whiten",
]

GroupBaseline = Literal["mean", "leave_one_out"]
GroupScale = Literal["group", "batch", "none"]
Sharing = Literal["token", "conversation", "last"]


def conversation_shares(
    action_mask: Tensor, sequence_of_token: Tensor, conversation: Tensor, *, sharing: Sharing
) -> Tensor:
    """The share of each conversation in the advantages of its episode: a factor for each token.

    Rewards, values and baselines are those of the whole episode, in the order of time; only the weight of a token in
    the policy's gradient changes.

    Args:
        action_mask: (N,) bool.
        sequence_of_token: (N,) int64, the episode of each token.
        conversation: (N,) int64, its conversation in the episode.
        sharing: every `token` counts the same; every `conversation` does, however many tokens it has, and the factors
            of an episode's action tokens have mean 1; or only the conversation in which the episode's `last` action is.
    Returns:
        (N,) float32; 0 where `action_mask` is False.
    """
    if sharing == "token":
        return action_mask.float()
    shares = torch.zeros(len(action_mask))
    acts = action_mask.nonzero().squeeze(1)  # (A,)
    episode, part = sequence_of_token[acts], conversation[acts]
    pairs, of_pair, sizes = torch.unique(torch.stack([episode, part]), dim=1, return_inverse=True, return_counts=True)
    if sharing == "last":
        ends = torch.ones(len(acts), dtype=torch.bool)
        ends[:-1] = episode[1:] != episode[:-1]
        chosen = torch.zeros(pairs.shape[1])
        chosen[of_pair[ends]] = 1.0
        shares[acts] = chosen[of_pair]
        return shares
    _, of_episode, n_conversations = torch.unique(pairs[0], return_inverse=True, return_counts=True)
    tokens = torch.zeros(len(n_conversations)).index_add(0, of_episode, sizes.float())
    shares[acts] = (tokens[of_episode] / n_conversations[of_episode] / sizes)[of_pair]
    return shares


def generalized_advantages(
    rewards: Tensor, values: Tensor, action_mask: Tensor, *, gamma: float, lam: float, bootstrap: Tensor
) -> Tensor:
    """Generalised advantage estimation over the policy's own tokens (Schulman et al. 2016, eq. 16).

    Observation tokens are skipped, not discounted through: the successor of a turn's last action token is the next
    turn's first.

    Args:
        rewards: (B, T) float32, placed on action tokens.
        values: (B, T) float32, of the state before each token.
        action_mask: (B, T) bool, True where the policy chose the token.
        gamma: discount a token of the policy.
        lam: 0 gives one-step temporal differences, 1 gives returns less values.
        bootstrap: (B,) float32, value after the last action token; 0 where the episode terminated.
    Returns:
        (B, T) float32, not whitened; 0 where `action_mask` is False.
    Raises:
        ShapeError: shapes disagree.
    """
    if not rewards.shape == values.shape == action_mask.shape or bootstrap.shape != rewards.shape[:1]:
        got = f"{tuple(rewards.shape)}, {tuple(values.shape)}, {tuple(action_mask.shape)}, {tuple(bootstrap.shape)}"
        raise ShapeError(f"rewards, values, action_mask, bootstrap: got {got}, expected (B, T) three times and (B,)")
    counts = action_mask.sum(1)
    n_actions = int(counts.max()) if counts.numel() else 0
    present = torch.arange(n_actions, device=counts.device)[None, :] < counts[:, None]  # (B, A)
    own_rewards, own_values = (_compress(x, action_mask, present) for x in (rewards, values))
    advantages = torch.zeros_like(own_values)
    # After a row's last action token comes the bootstrap value, and nothing more to accumulate.
    next_value, next_advantage = bootstrap.to(values.dtype), torch.zeros_like(bootstrap, dtype=values.dtype)
    for t in reversed(range(n_actions)):
        here = present[:, t]
        delta = own_rewards[:, t] + gamma * next_value - own_values[:, t]
        next_advantage = torch.where(here, delta + gamma * lam * next_advantage, next_advantage)
        next_value = torch.where(here, own_values[:, t], next_value)
        advantages[:, t] = next_advantage
    result = torch.zeros_like(values)
    result[action_mask] = advantages[present]
    return result


def returns_to_go(rewards: Tensor, action_mask: Tensor, *, gamma: float) -> Tensor:
    """Discounted return from each action token on; gamma applies per action token.

    Args:
        rewards: (B, T) float32, placed on action tokens.
        action_mask: (B, T) bool, True where the policy chose the token.
        gamma: discount a token of the policy.
    Returns:
        (B, T) float32; 0 where `action_mask` is False.
    """
    nothing = torch.zeros_like(rewards)
    return generalized_advantages(rewards, nothing, action_mask, gamma=gamma, lam=1.0, bootstrap=nothing.sum(1))


def group_advantages(
    returns: Tensor,
    group: Tensor,
    *,
    baseline: GroupBaseline = "mean",
    scale: GroupScale,
    earned: Tensor | None = None,
    epsilon: float = 1e-6,
) -> Tensor:
    """Advantage of an episode over its group: (R − baseline) / (deviation + ε) (Shao et al. 2024, 4.1.2).

    As in `whiten`, a deviation below 1 counts as 1 where all episodes (of the group, or of the batch) have earned the
    same: they then differ by a penalty alone, which would become as large as a real signal, whatever its coefficient.

    Args:
        returns: (S,) float32, of whole episodes.
        group: (S,) int64, equal where episodes started from the same state.
        baseline: the `mean` of the group, or that of its other episodes, which makes the estimate of the gradient
            unbiased (`leave_one_out`: Kool et al. 2019; Ahmadian et al. 2024).
        scale: divide by the deviation within the `group` (GRPO), by that of the whole `batch`, or by nothing
            (Dr. GRPO: Liu et al. 2025, 3.1).
        earned: (S,) float32, the returns without the penalty for the KL to the reference; None: there is none.
        epsilon: added to the deviation, which is the unbiased one.
    Returns:
        (S,) float32; 0 for an episode that is alone in its group.
    """
    mean, deviation, count = _by_group(returns.double(), group)
    difference = returns.double() - mean
    if baseline == "leave_one_out":
        difference = difference * count / (count - 1).clamp(min=1)
    if scale == "group":
        if earned is not None:
            differing = torch.isin(group, groups_with_signal(earned, group))
            deviation = torch.where(differing, deviation, deviation.clamp_min(1.0))
        difference = difference / (deviation + epsilon)
    elif scale == "batch" and len(returns) > 1:
        spread = returns.double().std()
        if earned is not None and not _differ(earned):
            spread = spread.clamp_min(1.0)
        difference = difference / (spread + epsilon)
    return difference.to(returns.dtype)


def tree_advantages(rewards: Tensor, action_mask: Tensor, offsets: Tensor, group: Tensor, forks: Tensor) -> Tensor:
    """Advantage of each branch of a tree over the other branches of its fork.

    The value of a branch is the mean return from its fork on, over all episodes through the branch (Monte Carlo values
    of steps: Kazemnejad et al. 2024, 4.1). Its baseline is the mean of the other branches, which does not depend on the
    action, so the estimate is unbiased. The advantage is that of all action tokens up to the next fork. If only one
    branch of a fork is left, it is 0.

    Args:
        rewards: (N,) float32, placed on action tokens.
        action_mask: (N,) bool.
        offsets: (S + 1,) int64, where each trajectory's tokens begin.
        group: (S,) int64, the tree that each belongs to.
        forks: (F, 3) int64: trajectory, first token of the turn that differs, number of the fork within its tree.
    Returns:
        (N,) float32; 0 before the first fork and where `action_mask` is False.
    """
    # In float64: sums over the whole batch, whose differences would be rounded to float32 of the whole sum.
    earned = torch.cat([torch.zeros(1), rewards.where(action_mask, 0.0)]).double().cumsum(0)
    advantages = torch.zeros_like(rewards)
    stretches = []  # (first token, end, fork, branch, earned from the fork on)
    for at, (sequence, start, node) in enumerate(forks.tolist()):
        following = forks[at + 1].tolist() if at + 1 < len(forks) and forks[at + 1, 0] == sequence else None
        end = int(offsets[sequence + 1])
        # A branch has the name of the fork that it leads to, or of the episode that it ends.
        branch = (True, following[2]) if following else (False, sequence)
        stretches.append(
            (
                start,
                following[1] if following else end,
                (int(group[sequence]), node),
                branch,
                earned[end] - earned[start],
            )
        )
    by_fork: dict[tuple[int, int], dict[tuple[bool, int], list[Tensor]]] = {}
    for _, _, fork, branch, worth in stretches:
        by_fork.setdefault(fork, {}).setdefault(branch, []).append(worth)
    for start, end, fork, branch, _ in stretches:
        worths = {name: torch.stack(found).mean() for name, found in by_fork[fork].items()}
        others = [worth for name, worth in worths.items() if name != branch]
        if others:
            advantages[start:end] = worths[branch] - torch.stack(others).mean()
    return advantages.where(action_mask, 0.0)


def groups_with_signal(returns: Tensor, group: Tensor) -> Tensor:
    """The groups whose episodes have different returns; the others have no gradient (Yu et al. 2025, 3.2).

    Args:
        returns: (S,) float32. group: (S,) int64.
    Returns:
        (G,) int64, ascending.
    """
    numbers, member_of = torch.unique(group, return_inverse=True)
    low, high = (
        torch.zeros_like(numbers, dtype=returns.dtype).scatter_reduce(0, member_of, returns, how, include_self=False)
        for how in ("amin", "amax")
    )
    differing: Tensor = numbers[high > low]
    return differing


def whiten(x: Tensor, mask: Tensor, *, returns: Tensor) -> Tensor:
    """Mean 0 and variance 1 over the entries where `mask` is True; 0 elsewhere. A constant becomes 0.

    If all episodes have the same return, as is common while rewards are rare, `x` contains only errors of the critic or
    penalties. Divided by their deviation they would be as large as a real signal, and the policy would converge on them
    before it has seen a reward. Therefore a deviation below 1 is not scaled to 1 in this case.

    Args:
        x: (...) float32.
        mask: (...) bool.
        returns: (S,) float32, of the episodes of the entries.
    """
    kept = x[mask].double()  # the mean of equal numbers is that number
    result = torch.zeros_like(x)
    if kept.numel():
        deviation = kept.std(correction=0) + 1e-8
        scale = deviation if _differ(returns) else deviation.clamp_min(1.0)
        result[mask] = ((kept - kept.mean()) / scale).to(x.dtype)
    return result


def _differ(returns: Tensor) -> bool:
    """Whether they differ by more than the rounding of a float32 sum."""
    if not returns.numel():
        return False
    spread, largest = returns.max() - returns.min(), returns.abs().max()
    return bool(spread > 1e-6 * largest)


def explained_variance(values: Tensor, returns: Tensor) -> float:
    """1 − Var(returns − values) / Var(returns): 1 is a perfect critic, 0 no better than a constant.

    Args:
        values, returns: (A,) float32.
    Returns:
        NaN where the returns do not vary.
    """
    spread = returns.var(correction=0)
    return float(1 - (returns - values).var(correction=0) / spread) if returns.numel() and spread > 0 else float("nan")


def _compress(x: Tensor, mask: Tensor, present: Tensor) -> Tensor:
    """(B, T) to (B, A): the masked entries of each row moved to its front."""
    front = torch.zeros(present.shape, dtype=x.dtype, device=x.device)
    front[present] = x[mask]
    return front


def _by_group(x: Tensor, group: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, unbiased deviation (0 for one member) and size of each entry's own group; (S,) each."""
    _, member_of, sizes = torch.unique(group, return_inverse=True, return_counts=True)
    count = sizes.to(x.dtype)
    mean = torch.zeros_like(count).index_add(0, member_of, x) / count
    squares = torch.zeros_like(count).index_add(0, member_of, (x - mean[member_of]).square())
    deviation = (squares / (count - 1).clamp(min=1)).sqrt()
    return mean[member_of], deviation[member_of], count[member_of]
