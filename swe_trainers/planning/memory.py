"""How much memory a run will take where it computes: a formula, held against measured peaks in the tests.

With P parameters, P_t trainable ones, L layers, D hidden, F intermediate, Q and K the widths of queries and keys, N
tokens of a micro-batch, a bytes of a number of the trunk:

    weights        a P       (4 or 8 bits: of all but the embeddings), and a P for each frozen copy
    gradients      a P_t     (adapters are float32)
    optimiser      2 a P_t   AdamW's moments
    step           a P_t     AdamW's temporaries, when no activations are held
    activations    a N L (4 D + 3 Q + 3 K + 4 F), what a layer keeps for its backward pass: residual and norms, heads,
                   the four of a gated feed-forward layer. In families that `policy.fused` does not know
                   6 D + 5 Q + 5 K + 4 F, and in bfloat16 their norms keep float32
    … recomputed   a N L D
    working        the tiles of `kernels.linear` and the float32 gradient of the hidden states; where activations are
                   recomputed, or those of one layer, if they are more
    cache          2 a L K × slots × longest episode, in the process that generates

FSDP2 over W ranks: gradients, optimiser and the weights that learn are divided by W; beside them stand a whole copy
that plays, the embeddings gathered, and two layers gathered with their gradients. Sequence parallelism divides N.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from swe_trainers.algorithms.reinforcement import Reinforcement
from swe_trainers.planning.architecture import Architecture
from swe_trainers.run_config import RunConfig

__all__ = ["Memory", "checkpoint_bytes", "estimate_memory", "model_bytes"]

_TILE_BYTES = 64 << 20
"""The kernels' least tile on a GPU; on a CPU it is half of that."""
_TILE_SHARE = 0.04
_CUDA_BYTES = 1 << 30
"""What CUDA, cuBLAS and the allocator's gaps take before anything is computed."""


@dataclass(frozen=True)
class Memory:
    """Bytes on one device, at the worst moment.

    Attributes:
        weights: those that learn and those that play.
        copies: a frozen reference, a critic of its own, a judge.
        gradients, optimiser: of what is trained.
        activations: of one micro-batch.
        working: tiles of logits, or one layer's activations computed again.
        cache: keys and values of the episodes that are played.
        runtime: CUDA's own.
        step: the optimiser's temporaries, which take the place of activations and working memory.
        start: while copies are made, before anything is sharded.
    """

    weights: int
    copies: int
    gradients: int
    optimiser: int
    activations: int
    working: int
    cache: int
    runtime: int
    step: int
    start: int

    @property
    def peak(self) -> int:
        """The greatest sum of what is held at one time."""
        kept = self.weights + self.copies + self.gradients + self.optimiser + self.cache
        return self.runtime + max(kept + max(self.activations + self.working, self.step), self.start)

    def parts(self) -> Mapping[str, int]:
        """What the peak is made of, by name; the greater of step and activations, and no start that is not the peak."""
        kept = {
            name: getattr(self, name) for name in ("weights", "copies", "gradients", "optimiser", "cache", "runtime")
        }
        if self.activations + self.working >= self.step:
            return {**kept, "activations": self.activations, "working": self.working}
        return {**kept, "step": self.step}


def estimate_memory(
    config: RunConfig, model: Architecture, *, judge: Architecture | None = None, ranks: int = 1, cuda: bool = True
) -> Memory:
    """Memory of each device that learns, by the formula above.

    Args:
        config: of the run.
        model: its shape.
        judge: the shape of a reward model, which is held whole in float32.
        ranks: processes over which FSDP shards.
        cuda: the device is a GPU.
    """
    settings = config.trainer
    number_bytes = _number_bytes(config)
    trained, trained_size = _trained(config, model)
    policy = model_bytes(config, model)
    sharded = ranks if config.scale.fsdp else 1
    copies = _copies(config, model)
    weights = policy
    if config.scale.fsdp:
        share = 0 if config.scale.cpu_offload else policy // sharded
        layer = (policy - number_bytes * model.embedding_parameters) // model.layers
        weights = policy + share + number_bytes * model.embedding_parameters + 2 * layer
        copies = copies // sharded
    copies += 4 * judge.parameters if judge is not None else 0
    on_device = not config.scale.cpu_offload
    gradients = trained_size * trained // sharded
    if config.scale.fsdp:
        gradients += number_bytes * model.embedding_parameters
    tokens = -(-max(settings.microbatch_tokens, config.environment.max_tokens) // config.scale.sequence_parallel)
    layer_numbers = _layer_activations(model, number_bytes)
    working = _logits(model, tokens, number_bytes, cuda=cuda)
    held = model.layers * layer_numbers
    if config.model.recompute_activations or config.scale.activation_checkpointing:
        held, working = model.layers * model.hidden, max(working, int(number_bytes * tokens * layer_numbers))
    plays = isinstance(settings, Reinforcement) and config.engine.kind == "embedded"
    slots = config.environment.parallel if plays else 0
    if plays and config.rollout.max_staleness and config.engine.device is None:
        copies += policy  # what plays ahead has weights of its own
    kv = 2 * number_bytes * model.layers * model.kv_width * slots * config.environment.max_tokens
    next_logits = 3 * 4 * slots * model.vocabulary  # logits and probabilities of the next token, float32
    return Memory(
        weights=weights,
        copies=copies,
        gradients=gradients if on_device else number_bytes * model.embedding_parameters,
        optimiser=2 * trained_size * trained // sharded if on_device else 0,
        activations=int(number_bytes * tokens * held),
        working=max(working, next_logits),
        cache=kv,
        runtime=_CUDA_BYTES if cuda else 0,
        step=trained_size * trained // sharded if on_device else 0,
        start=2 * policy if config.scale.fsdp else 0,
    )


def model_bytes(config: RunConfig, model: Architecture) -> int:
    """Of one copy of the policy, adapters included."""
    number_bytes = _number_bytes(config)
    body = model.parameters - model.embedding_parameters
    # Each number of 4 bits comes with its share of a doubly quantised scale for each 64.
    packed = {None: number_bytes, 8: 1.0, 4: 0.52}[config.model.bits]
    trained, trained_size = _trained(config, model)
    adapters = trained * trained_size if config.model.lora is not None else 0
    return int(body * packed) + number_bytes * model.embedding_parameters + adapters


def checkpoint_bytes(config: RunConfig, model: Architecture) -> int:
    """Of one checkpoint: what is trained, its moments, and the frozen copies."""
    trained, trained_size = _trained(config, model)
    return 3 * trained * trained_size + _copies(config, model)


def _number_bytes(config: RunConfig) -> int:
    return {"float32": 4, "bfloat16": 2}[config.model.dtype]


def _trained(config: RunConfig, model: Architecture) -> tuple[int, int]:
    """How many parameters, and bytes of each."""
    if config.model.lora is not None:
        return model.adapter_parameters(config.model.lora.rank, config.model.lora.targets), 4
    return model.parameters, _number_bytes(config)


def _copies(config: RunConfig, model: Architecture) -> int:
    """Whole models beside the policy: adapters need no reference of their own, but a critic has its trunk anew."""
    one = model_bytes(config, model)
    settings = config.trainer
    reference = isinstance(settings, Reinforcement) and settings.kl_coefficient > 0 and config.model.lora is None
    trained, trained_size = _trained(config, model)
    critic = one + 3 * trained * trained_size if getattr(settings, "critic", "shared") == "separate" else 0
    return one * reference + critic


def _layer_activations(model: Architecture, number_bytes: int) -> float:
    """Numbers a token that one layer keeps."""
    if model.fused:
        return 4 * model.hidden + 3 * model.query_width + 3 * model.kv_width + 4 * model.intermediate
    norms = 4 * model.hidden + 1.5 * (model.query_width + model.kv_width) if number_bytes == 2 else 0.0
    return 6 * model.hidden + 5 * model.query_width + 5 * model.kv_width + 4 * model.intermediate + norms


def _logits(model: Architecture, tokens: int, number_bytes: int, *, cuda: bool) -> int:
    """Tiles, and the gradients of the hidden states in float32 and as they are."""
    full = tokens * model.vocabulary * number_bytes
    tile = max(int(_TILE_SHARE * full), _TILE_BYTES) if cuda else _TILE_BYTES // 2
    tiles = 2 if cuda else 1  # a CPU goes through one in blocks that fit its cache
    return tiles * min(tile, full) + tokens * model.hidden * (4 + 2 * number_bytes)
