"""`token_logprobs` and its form on logits: one meaning, computed by the back end that suits the tensors."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from swe_trainers.errors import ConfigurationError, ShapeError, TrainerError
from swe_trainers.kernels.allowed import AllowedTokens
from swe_trainers.kernels.choice import row_kernels
from swe_trainers.kernels.comparison import current_comparison
from swe_trainers.kernels.compiled import linear_logprobs, logits_logprobs
from swe_trainers.kernels.linear import VocabularyShard, default_plan, project
from swe_trainers.kernels.reference import logits_logprobs_reference, token_logprobs_reference
from swe_trainers.kernels.torch_rows import RowStatistics

__all__ = [
    "check_floating",
    "check_head",
    "check_row_mask",
    "check_soft_cap",
    "spread_rows",
    "token_logprobs",
    "token_logprobs_from_logits",
]

_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def token_logprobs(
    hidden: Tensor,
    weight: Tensor,
    ids: Tensor,
    *,
    bias: Tensor | None = None,
    temperature: float | Tensor = 1.0,
    row_mask: Tensor | None = None,
    backend: str | None = None,
    chunk_rows: int | None = None,
    chunk_columns: int | None = None,
    save_logits: bool | str = "auto",
    logits_dtype: torch.dtype | None = None,
    soft_cap: float | None = None,
    shard: VocabularyShard | None = None,
    allowed: AllowedTokens | None = None,
    check_values: bool | None = None,
) -> tuple[Tensor, Tensor]:
    """Log-probability of each row's token and entropy of each row's distribution, both differentiable.

    The (..., V) logits are never materialised as a whole. Rows outside `row_mask` are removed before the projection:
    they cost nothing, and their contents affect no output and no gradient.

    Example:
        >>> hidden = model(input_ids).last_hidden_state  # (B, T, D)
        >>> logprobs, entropy = token_logprobs(hidden[:, :-1], lm_head.weight, input_ids[:, 1:], temperature=0.7)

        With the vocabulary on several processes, each holds some rows of the weight and calls the function on the same
        hidden states:

        >>> rows = 152_064 // dist.get_world_size()
        >>> shard = VocabularyShard(start=dist.get_rank() * rows, vocabulary=152_064, group=dist.group.WORLD)
        >>> logprobs, entropy = token_logprobs(hidden, my_rows_of_the_weight, ids, shard=shard)

    Args:
        hidden: (..., D) floating, the state that predicts the token.
        weight: (V, D) the unembedding; with a `shard`, the rows of this process.
        ids: (...) int64, the token of each row, in [0, V) where `row_mask` is True.
        bias: (V,) or None.
        temperature: positive; divides the logits. A number, or (...) with one for each row; differentiable.
        row_mask: (...) bool, True where a row counts; None for all rows.
        backend: one of `BACKENDS`; None chooses the fastest that supports these tensors.
        chunk_rows: rows that are projected together, which bounds the memory; None chooses by the device.
        chunk_columns: columns of the vocabulary that are projected together; None chooses.
        save_logits: keep the logits for the backward pass, which saves one of four matrix products; "auto" keeps them
            if there is enough memory.
        logits_dtype: torch.float32 keeps the logits of bfloat16 or float16 states unrounded. At a logit of 23 rounding
            to bfloat16 changes log-probabilities by 0.015 on average. Tiles take twice the memory; None rounds.
        soft_cap: logits, bias included, become cap · tanh(logit / cap), as in Gemma 2, before the temperature divides
            them. A constant factor of the logits is a temperature of its inverse.
        shard: the part of the vocabulary on this process, if it is divided over several. All of them make this call on
            the same rows. Outputs and the hidden states' gradient are those of the whole vocabulary on each.
        allowed: (...) which tokens each row may choose; None for all tokens. The distribution is the softmax over those
            alone, and columns of the vocabulary that no row may choose are not projected.
        check_values: raise an error for a token outside the vocabulary or a temperature that is not positive, which
            waits for a GPU. Without it the outputs and gradients of such rows are NaN. None: not on a GPU, nor in
            a function that `torch.compile` compiles.
    Returns:
        (logprobs, entropy), each (...) float32 in nats (float64 if `hidden` is), 0 where `row_mask` is False.
    Raises:
        ShapeError: shapes or dtypes disagree, or a token is outside the vocabulary.
        ConfigurationError: the back end is unknown or does not support these tensors.
    """
    check_head(hidden, weight, bias)
    for name, value in (("chunk_rows", chunk_rows), ("chunk_columns", chunk_columns)):
        if value is not None and value < 1:
            raise ConfigurationError(f"{name}: got {value}, expected at least 1")
    if save_logits not in (True, False, "auto"):
        raise ConfigurationError(f"save_logits: got {save_logits!r}, expected true, false or auto")
    check_soft_cap(soft_cap)
    if logits_dtype not in (None, torch.float32):
        raise ConfigurationError(f"logits_dtype: got {logits_dtype}, expected torch.float32 or None")
    vocabulary = weight.shape[0] if shard is None else shard.vocabulary
    check = _checks(hidden, backend) if check_values is None else check_values
    selected = _SelectedRows("hidden", hidden, ids, temperature, row_mask, vocabulary, check=check)
    rows = selected.rows
    if allowed is not None:
        allowed, weight, bias = selected.restrict(allowed, ids, weight, bias, divided=shard is not None, check=check)
    if backend == "reference":
        if shard is not None:
            raise ConfigurationError("backend: reference does not support a shard. Try: torch")
        outputs = token_logprobs_reference(
            rows,
            weight,
            selected.ids,
            bias=bias,
            temperature=selected.temperature,
            soft_cap=soft_cap,
            allowed=allowed,
        )
        return selected.spread(*outputs)
    if allowed is not None and soft_cap is not None:
        if shard is not None:
            raise ConfigurationError("allowed: does not support a soft_cap where the vocabulary is divided")
        logits = allowed.capped_logits(rows, weight, bias, soft_cap)
        options: dict[str, Any] = {"temperature": selected.temperature, "backend": backend, "check_values": False}
        return selected.spread(*token_logprobs_from_logits(logits, selected.ids, **options))
    device = rows.device.type
    if torch.is_autocast_enabled(device):
        rows = rows.to(torch.get_autocast_dtype(device))
    wide = logits_dtype is not None and rows.dtype in (torch.bfloat16, torch.float16)
    if torch.compiler.is_compiling() and shard is None:
        outputs = linear_logprobs(
            rows.contiguous(),
            weight,
            bias,
            selected.ids,
            selected.temperature,
            backend=backend,
            chunk_rows=chunk_rows,
            chunk_columns=chunk_columns,
            wide=wide,
            soft_cap=soft_cap,
            allowed=allowed,
        )
        return selected.spread(*outputs)
    kernels = row_kernels(backend, rows)
    plan = default_plan(
        rows,
        weight.shape[0],
        chunk_rows=chunk_rows,
        chunk_columns=chunk_columns,
        save_logits=save_logits,
        logits_dtype=logits_dtype if wide else None,
        soft_cap=soft_cap,
    )
    comparison = current_comparison()
    if comparison is not None and shard is None:
        comparison.compare(kernels, rows, weight, bias, selected.ids, selected.temperature, soft_cap, allowed)
    with torch.autocast(device, enabled=False):
        outputs = project(
            rows.contiguous(),
            weight,
            bias,
            selected.ids,
            selected.temperature,
            plan=plan,
            kernels=kernels,
            shard=shard,
            allowed=allowed,
        )
    return selected.spread(*outputs)


def token_logprobs_from_logits(
    logits: Tensor,
    ids: Tensor,
    *,
    temperature: float | Tensor = 1.0,
    row_mask: Tensor | None = None,
    backend: str | None = None,
    in_place: bool = False,
    soft_cap: float | None = None,
    check_values: bool | None = None,
) -> tuple[Tensor, Tensor]:
    """`token_logprobs` of given logits, for models that return only those.

    Example:
        >>> logits = model(input_ids).logits  # (B, T, V)
        >>> logprobs, entropy = token_logprobs_from_logits(logits[:, :-1], input_ids[:, 1:])

    Args:
        logits: (..., V) floating.
        ids: (...) int64, in [0, V) where `row_mask` is True.
        temperature: positive; a number, or (...) with one for each row; differentiable.
        row_mask: (...) bool, True where a row counts; None for all rows.
        backend: one of `BACKENDS`; None chooses the fastest that supports these tensors.
        in_place: the backward pass writes its gradient over `logits`, which saves a tensor of their size; `logits` must
            not be read afterwards. Only without a `row_mask`.
        soft_cap, check_values: as of `token_logprobs`.
    Returns:
        (logprobs, entropy), as `token_logprobs`.
    Raises:
        ShapeError: shapes or dtypes disagree, or a token is outside the vocabulary.
        ConfigurationError: the back end is unknown or does not support these tensors; or `in_place` with a `row_mask`,
            where the selected rows are a copy.
    """
    if in_place and row_mask is not None:
        raise ConfigurationError(
            "in_place: has no effect with a row_mask, whose rows are a copy. Try: without in_place"
        )
    check_soft_cap(soft_cap)
    check = _checks(logits, backend) if check_values is None else check_values
    selected = _SelectedRows("logits", logits, ids, temperature, row_mask, logits.shape[-1], check=check)
    rows = selected.rows
    if backend == "reference":
        return selected.spread(*logits_logprobs_reference(rows, selected.ids, selected.temperature, soft_cap))
    if torch.compiler.is_compiling() and not in_place:
        outputs = logits_logprobs(rows, selected.ids, selected.temperature, backend=backend, soft_cap=soft_cap)
        return selected.spread(*outputs)
    rows = rows.resolve_neg()  # the gradient is written into memory, where a lazy minus sign is not
    if rows.stride(-1) != 1 or (in_place and _overlap(rows)):
        rows = rows.contiguous()
    kernels = row_kernels(backend, rows)
    given = rows, selected.ids, selected.temperature, kernels, soft_cap
    if torch.is_grad_enabled() and (rows.requires_grad or selected.temperature.requires_grad):
        return selected.spread(*_FromLogits.apply(*given, in_place))  # type: ignore[no-untyped-call]
    found = kernels.row_statistics(*(x.detach() for x in given[:3]), second=False, soft_cap=soft_cap)
    return selected.spread(found.logprobs, found.entropies)


def check_head(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    """Raises ShapeError unless states (..., D), weight (V, D) and bias (V,) belong together."""
    if weight.ndim != 2 or hidden.shape[-1:] != weight.shape[1:]:
        raise ShapeError(f"hidden {tuple(hidden.shape)} and weight {tuple(weight.shape)}: expected (..., D) and (V, D)")
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ShapeError(f"bias: got shape {tuple(bias.shape)}, expected {tuple(weight.shape[:1])}")
    for name, tensor in (("weight", weight), ("bias", bias)):
        if tensor is not None:
            check_floating(name, tensor)
            if tensor.device != hidden.device:
                raise ShapeError(f"{name}: on {tensor.device}, and hidden on {hidden.device}: expected one device")


def _checks(tensor: Tensor, backend: str | None) -> bool:
    """Whether values are checked: reading them costs little and is not compiled."""
    return (not tensor.is_cuda or backend == "reference") and not torch.compiler.is_compiling()


def _overlap(rows: Tensor) -> bool:
    """Whether rows (N, V) with contiguous columns share memory, as those of an expanded tensor do."""
    return len(rows) > 1 and rows.stride(0) < rows.shape[1]


class _FromLogits(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        ids: Tensor,
        temperature: Tensor,
        kernels: ModuleType,
        soft_cap: float | None,
        in_place: bool,
    ) -> tuple[Tensor, Tensor]:
        found: RowStatistics = kernels.row_statistics(
            logits, ids, temperature, second=ctx.needs_input_grad[2], soft_cap=soft_cap
        )
        ctx.kernels, ctx.soft_cap, ctx.in_place, ctx.overwritten = kernels, soft_cap, in_place, False
        saved = logits if ctx.needs_input_grad[0] else None
        ctx.save_for_backward(
            saved, ids, temperature, found.maxima, found.log_totals, found.entropies, found.deviations, found.variances
        )
        return found.logprobs, found.entropies

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_logprobs: Tensor, grad_entropies: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.overwritten:
            raise TrainerError(
                "token_logprobs_from_logits: a second backward pass, but the first wrote its gradient over the logits. "
                "Try: in_place=False"
            )
        logits, ids, temperature, maxima, log_totals, entropies, deviations, variances = ctx.saved_tensors
        g, h = (grad.to(log_totals.dtype).contiguous() for grad in (grad_logprobs, grad_entropies))
        grad_logits = None
        if logits is not None:
            logits = logits.detach()
            out = None if ctx.in_place else torch.empty_like(logits, memory_format=torch.contiguous_format)
            statistics = ids, temperature, maxima, log_totals, entropies, g, h
            ctx.kernels.gradient_(logits, *statistics, soft_cap=ctx.soft_cap, out=out)
            grad_logits = logits if out is None else out
            ctx.overwritten = ctx.in_place
        grad_temperature = None
        if variances is not None:
            grad_temperature = (h * variances - g * deviations) / temperature
        return grad_logits, None, grad_temperature, None, None, None


class _SelectedRows:
    """The N rows where `row_mask` is True, checked, with their ids and temperatures, each (N, …).

    Without `check` no value is read; the kernels make the outputs of an unsound row NaN.

    Raises:
        ShapeError: shapes or dtypes disagree, a token is outside the vocabulary, or a temperature is not positive.
    """

    def __init__(
        self,
        name: str,
        tensor: Tensor,
        ids: Tensor,
        temperature: float | Tensor,
        row_mask: Tensor | None,
        vocabulary: int,
        *,
        check: bool,
    ) -> None:
        check_floating(name, tensor)
        for other_name, other in (("ids", ids), ("row_mask", row_mask)):
            if other is not None and other.device != tensor.device:
                raise ShapeError(f"{other_name}: on {other.device}, and {name} on {tensor.device}: expected one device")
        if ids.shape != tensor.shape[:-1]:
            raise ShapeError(f"ids: got shape {tuple(ids.shape)}, expected {tuple(tensor.shape[:-1])}")
        if ids.dtype != torch.int64:
            raise ShapeError(f"ids: got {ids.dtype}, expected torch.int64")
        check_row_mask(row_mask, ids.shape)
        self._shape = ids.shape
        self._keep = None if row_mask is None else row_mask.reshape(-1).nonzero().squeeze(1)  # (N,)
        exact = torch.float64 if tensor.dtype == torch.float64 else torch.float32
        if isinstance(temperature, Tensor):
            divisor = temperature.to(tensor.device, exact)
        else:  # filled on the device, where a copy from here would wait for it
            divisor = torch.full((), temperature, dtype=exact, device=tensor.device)
        if divisor.ndim and divisor.shape != self._shape:
            raise ShapeError(
                f"temperature: got shape {tuple(divisor.shape)}, expected a number or {tuple(self._shape)}"
            )
        divisor = divisor if divisor.ndim == 0 else self._select(divisor.reshape(-1))
        self.rows = self._select(tensor.reshape(-1, tensor.shape[-1]))
        self.ids = self._select(ids.reshape(-1))
        self.temperature = divisor.expand(self.ids.shape)
        if check and self.ids.numel():
            low, high = torch.aminmax(self.ids)
            if low < 0 or high >= vocabulary:
                outside = int(low) if low < 0 else int(high)
                raise ShapeError(f"ids: token {outside} lies outside the vocabulary of {vocabulary}")
            if not bool((divisor > 0).all()):
                raise ShapeError("temperature: expected positive numbers")

    def restrict(
        self,
        allowed: AllowedTokens,
        ids: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        *,
        divided: bool,
        check: bool,
    ) -> tuple[AllowedTokens, Tensor, Tensor | None]:
        """What these rows (N,) may choose, and the part of the head that they choose from; `ids` become its columns.

        Args:
            allowed: of all rows. ids: of all rows.
            weight, bias: the head, or this process's part of it where it is `divided`, which then stays whole.
            check: raise an error for a token that its row may not choose.
        """
        allowed = allowed.select(self._keep, ids)
        if check:
            allowed.check(self.ids)
        if divided:
            return allowed.whole(), weight, bias
        weight, bias = allowed.narrow(weight, bias)
        self.ids = allowed.labels(self.ids)
        return replace(allowed, columns=None, vocabulary=len(weight)), weight, bias

    def _select(self, rows: Tensor) -> Tensor:
        return rows if self._keep is None else rows.index_select(0, self._keep)

    def spread(self, logprobs: Tensor, entropy: Tensor) -> tuple[Tensor, Tensor]:
        """The two outputs at the places of their rows."""
        return spread_rows(logprobs, self._keep, self._shape), spread_rows(entropy, self._keep, self._shape)


def check_floating(name: str, tensor: Tensor) -> None:
    """Raises ShapeError unless the tensor's dtype is one that the kernels compute with."""
    if tensor.dtype not in _DTYPES:
        raise ShapeError(f"{name}: got {tensor.dtype}, expected floating point: float16, bfloat16, float32 or float64")


def check_soft_cap(soft_cap: float | None) -> None:
    """Raises ConfigurationError unless the cap is None or positive."""
    if soft_cap is not None and not 0 < soft_cap < float("inf"):
        raise ConfigurationError(f"soft_cap: got {soft_cap}, expected a positive number or None")


def check_row_mask(row_mask: Tensor | None, shape: torch.Size) -> None:
    """Raises ShapeError unless the mask is None or bool of this shape."""
    if row_mask is not None and (row_mask.shape != shape or row_mask.dtype != torch.bool):
        raise ShapeError(f"row_mask: got {row_mask.dtype} {tuple(row_mask.shape)}, expected bool {tuple(shape)}")


def spread_rows(values: Tensor, keep: Tensor | None, shape: torch.Size) -> Tensor:
    """Put values (N,) of the rows with numbers `keep` (N,) into a tensor of `shape`, 0 elsewhere; None: all rows."""
    if keep is None:
        return values.reshape(shape)
    empty = torch.zeros(shape.numel(), dtype=values.dtype, device=values.device)
    return empty.index_copy(0, keep, values).reshape(shape)
