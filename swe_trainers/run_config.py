"""The sections of a run's configuration: environment, model, trainer, evaluation, engine, rollout and more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import PlainValidator

from swe_trainers.algorithms import ALGORITHMS, algorithms_with, alternative, find_algorithm, name_of
from swe_trainers.algorithms.algorithm import Algorithm
from swe_trainers.algorithms.grpo import GroupRelative
from swe_trainers.config import Configuration, UserPath, as_yaml, build, nearest
from swe_trainers.engines.connect import EngineConfig
from swe_trainers.engines.grammar import Grammar
from swe_trainers.engines.sampling import Sampling
from swe_trainers.errors import ConfigurationError
from swe_trainers.logging import LOGGERS
from swe_trainers.model.attention import AttentionBackend
from swe_trainers.model.lora import LoRA
from swe_trainers.model.tokenizers import SentencePiece
from swe_trainers.rollout.history import HeadTail
from swe_trainers.rollout.settings import RESET_TIMEOUT_S, STEP_TIMEOUT_S, Limits
from swe_trainers.scale.sharding import ScaleConfig

__all__ = [
    "EngineConfig",
    "EnvironmentConfig",
    "EvaluationConfig",
    "ModelConfig",
    "RewardConfig",
    "RolloutConfig",
    "RunConfig",
    "ScaleConfig",
    "TinkerConfig",
    "WrapperConfig",
    "of_trained_weights",
    "run_config",
]

_SEEDS = 1 << 63
"""PyTorch takes seeds below this."""
_INSTEAD = {"max_updates": "epochs"}
"""A setting of some algorithms → what limits training in the others."""


@dataclass(frozen=True)
class WrapperConfig(Configuration):
    """One wrapper around an environment.

    Attributes:
        name: the class, as `module:Class`.
        kwargs: keyword arguments of the class.
    """

    name: str
    kwargs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class EnvironmentConfig(Configuration):
    """The environment, and the limits of an episode.

    Attributes:
        id: Gymnasium id; `module:Id` if a module must be imported to register it.
        kwargs: keyword arguments of `gymnasium.make`.
        wrappers: wrappers around the environment, the innermost first.
        training_wrappers: further wrappers, in training only, such as reward shaping; evaluation does not use them.
        adapter: `text` describes the spaces of numbers in words; `none` for an environment with text spaces.
        adapter_kwargs: keyword arguments of the adapter.
        parallel: number of environments that play at the same time.
        max_turns: maximum turns of an episode; null: the environment decides.
        max_tokens: maximum tokens of an episode, observations included.
        max_new_tokens: maximum tokens of an action.
        lockstep: environments and engine take turns, so that two runs are bitwise equal; slower.
    """

    id: str
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    wrappers: tuple[WrapperConfig, ...] = ()
    training_wrappers: tuple[WrapperConfig, ...] = ()
    adapter: Literal["none", "text"] = "none"
    adapter_kwargs: Mapping[str, Any] = field(default_factory=dict)
    parallel: int = 8
    max_turns: int | None = None
    max_tokens: int = 1024
    max_new_tokens: int = 256
    lockstep: bool = False

    def __post_init__(self) -> None:
        _at_least_one(self, "parallel", "max_tokens", "max_new_tokens")
        if self.max_turns is not None:
            _at_least_one(self, "max_turns")
        if self.max_new_tokens >= self.max_tokens:
            raise ConfigurationError(
                f"max_new_tokens: got {self.max_new_tokens}, expected less than max_tokens ({self.max_tokens}), which "
                "counts the observations too"
            )
        if self.adapter == "none" and self.adapter_kwargs:
            raise ConfigurationError("adapter_kwargs: have no effect with adapter none. Try: adapter text")


@dataclass(frozen=True)
class TinkerConfig(Configuration):
    """A model that samples and learns on a server with Tinker's API; the API key is in `$TINKER_API_KEY`.

    Attributes:
        base_model: name of the model on the server.
        url: address of the server; null: `$TINKER_BASE_URL` if it is set, else Thinking Machines' server.
        rank: rank of the low-rank adapters; 0 trains all weights, which only `swe-serve` supports.
    """

    base_model: str
    url: str | None = None
    rank: int = 16

    def __post_init__(self) -> None:
        if self.rank < 0:
            raise ConfigurationError(f"rank: got {self.rank}, expected 0 or more")


@dataclass(frozen=True)
class ModelConfig(Configuration):
    """The policy: pretrained weights, an architecture with random weights, or a model on a server.

    Attributes:
        path: folder of a model, or its name on the Hugging Face Hub; null for random weights.
        architecture: configuration of a model with random weights, with Hugging Face's keys, `model_type` included. A
            small model learns to copy sooner from an `initializer_range` near 1/√`hidden_size` than from the default
            0.02.
        tokenizer: folder or name of a tokenizer; `words`: exactly the words of `words`; `sentencepiece`: one that is
            trained first; null: the one in the model's folder.
        words: texts whose words make the vocabulary; the words of the text adapter are always included. Any other word
            is encoded as an unknown token, with a warning; without this list it is an error.
        sentencepiece: settings of the tokenizer `sentencepiece`; null with any other tokenizer.
        chat: chat format: `template`, the tokenizer's chat template; `compact`, a short one for models trained from
            random weights; null: `template` for a Hugging Face tokenizer, `compact` for one made here.
        dtype: data type of the weights.
        device: PyTorch device; `auto` uses a GPU if there is one.
        attention: attention kernel; `auto` leaves the choice to PyTorch.
        lora: train low-rank adapters (LoRA) and freeze the weights; null trains the weights.
        bits: load the weights in 4 or 8 bits with bitsandbytes; only adapters can then be trained. Slow on a CPU.
        recompute_activations: gradient checkpointing: less memory, more time.
        float32_logits: do not round logits to bfloat16, in training and in the embedded engine: exact
            log-probabilities, for more memory and time.
        head_gain: initialise the vocabulary projection of a model with random weights as an orthogonal matrix of this
            gain; 0.01 makes all tokens nearly equally likely at first. null leaves it to `architecture`.
        tinker: a model on a server with Tinker's API; only `tokenizer` (null for the server's) and `chat` have an
            effect beside it.
    """

    path: str | None = None
    architecture: Mapping[str, Any] = field(default_factory=dict)
    tokenizer: str | None = None
    words: tuple[str, ...] = ()
    sentencepiece: SentencePiece | None = None
    chat: Literal["compact", "template"] | None = None
    dtype: Literal["float32", "bfloat16"] = "float32"
    device: str = "auto"
    attention: AttentionBackend = "auto"
    lora: LoRA | None = None
    bits: Literal[4, 8] | None = None
    recompute_activations: bool = False
    float32_logits: bool = False
    head_gain: float | None = None
    tinker: TinkerConfig | None = None

    def __post_init__(self) -> None:
        if self.tinker is not None:
            of_server = ("tinker", "tokenizer", "chat")
            given = [f.name for f in fields(self) if f.name not in of_server and getattr(self, f.name) != _default(f)]
            if given or self.tokenizer in ("words", "sentencepiece"):
                raise ConfigurationError(f"{(given or ['tokenizer'])[0]}: has no effect on the server of `tinker`")
            return
        if self.head_gain is not None and not self.head_gain > 0:
            raise ConfigurationError(f"head_gain: got {self.head_gain}, expected a positive number")
        if self.head_gain is not None and self.path is not None:
            raise ConfigurationError("head_gain: has no effect on a model with weights. Try: null")
        if self.float32_logits and self.dtype == "float32":
            raise ConfigurationError("float32_logits: have no effect with dtype float32, whose logits are exact")
        if (self.path is None) == (not self.architecture):
            raise ConfigurationError("path: exactly one of path, architecture and tinker must be given")
        if self.path is None and self.tokenizer is None:
            raise ConfigurationError("tokenizer: a model with random weights needs one. Try: words, or a folder")
        if self.words and self.tokenizer != "words":
            raise ConfigurationError("words: have no effect unless tokenizer is words")
        if (self.sentencepiece is not None) != (self.tokenizer == "sentencepiece"):
            raise ConfigurationError("sentencepiece: needed by tokenizer sentencepiece, and without effect on another")
        if self.bits is not None and (self.path is None or self.lora is None):
            raise ConfigurationError("bits: weights in few bits are loaded and not trained. Try: a path, and lora")


@dataclass(frozen=True)
class RolloutConfig(Configuration):
    """How episodes are sampled.

    Attributes:
        stop_strings: an action ends after any of these texts.
        step_timeout_s, reset_timeout_s: seconds after which a step or a reset counts as failed: the episode is invalid
            and the environment is replaced by a new one; null: no limit.
        max_invalid_fraction: stop the run if a larger fraction of the episodes of an update or an evaluation is
            invalid; 1: never.
        history: how a conversation longer than `environment.max_tokens` is shortened; null: the episode ends. `last`
            shows the policy only the last observation in every turn: short contexts, for games whose observation is
            their whole state.
        constrained: sample actions only from `info["legal_actions"]`, a list of texts, in any environment that gives
            it. By default only the lists of the text adapter are used; its `unconstrained: true` lets the policy write
            any text. The same holds for `info["grammar"]`, a mapping like `grammar`.
        grammar: restrict actions to a `regex`, a `json_schema`, a grammar (`lark`), or calls of the environment's
            `tools` ("required" or "auto"), in sampling and in the update; null for free text. Needs llguidance (extra
            `grammar`) and the embedded engine or a vLLM server.
        top_k, top_p, min_p: truncation of the sampling distribution in training; see `Sampling`. The embedded engine
            records the tokens that were kept, and the update computes log-probabilities, entropies and KL over them. A
            server does not return them: there `trainer.correction` must correct the difference.
        max_staleness: by how many updates the weights that sample a token may be older than the weights that are
            trained on it. 0: rollouts and updates alternate; above 0: rollouts run during updates, and
            `trainer.correction` corrects the difference.
        partial: continue running episodes with the new weights after an update; each token counts for the weights that
            sampled it. False: running episodes are finished with the old weights first.
    """

    stop_strings: tuple[str, ...] = ()
    step_timeout_s: float | None = STEP_TIMEOUT_S
    reset_timeout_s: float | None = RESET_TIMEOUT_S
    max_invalid_fraction: float = 0.5
    history: HeadTail | Literal["last"] | None = None
    constrained: bool = False
    grammar: Grammar | None = None
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    max_staleness: int = 0
    partial: bool = False

    def __post_init__(self) -> None:
        self.sampling(1.0)
        if self.max_staleness < 0:
            raise ConfigurationError(f"max_staleness: got {self.max_staleness}, expected 0 or more")
        if self.partial and not self.max_staleness:
            raise ConfigurationError("partial: has no effect with max_staleness 0, where no episode sees an update")
        self.limits(1)
        if not 0 <= self.max_invalid_fraction <= 1:
            raise ConfigurationError(
                f"max_invalid_fraction: got {self.max_invalid_fraction}, expected a number from 0 to 1"
            )

    def limits(self, max_new_tokens: int, max_tokens: int | None = None, max_turns: int | None = None) -> Limits:
        """The limits of an episode; the arguments are as in `Limits`."""
        return Limits(
            max_new_tokens,
            max_tokens,
            max_turns,
            stop_strings=self.stop_strings,
            step_timeout_s=self.step_timeout_s,
            reset_timeout_s=self.reset_timeout_s,
        )

    def sampling(self, temperature: float) -> Sampling:
        """How tokens are sampled in training."""
        return Sampling(temperature, self.top_k, self.top_p, self.min_p)


@dataclass(frozen=True)
class EvaluationConfig(Configuration):
    """How the policy is evaluated before, during and after training.

    Attributes:
        episodes: episodes of an evaluation; 0: no evaluation.
        every: updates between evaluations; 0: only before the first and after the last update.
        temperature: sampling temperature; 0 is greedy.
        success_above: an episode with a return above this is a success (`eval/success`); null: not counted.
        stop_at_success: stop training when `eval/success` reaches this; null: never.
    """

    episodes: int = 0
    every: int = 0
    temperature: float = 1.0
    success_above: float | None = None
    stop_at_success: float | None = None

    def __post_init__(self) -> None:
        for name in ("episodes", "every", "temperature"):
            if getattr(self, name) < 0:
                raise ConfigurationError(f"{name}: got {getattr(self, name)!r}, expected 0 or more")
        Sampling(temperature=self.temperature)  # refuses what no token can be sampled at
        if self.stop_at_success is not None and (self.success_above is None or not self.episodes):
            raise ConfigurationError("stop_at_success: has no effect without episodes and success_above")


@dataclass(frozen=True)
class RewardConfig(Configuration):
    """Rewards of a judge, in training only; evaluation uses the environment's rewards.

    Attributes:
        model: folder of a trained reward model with the same vocabulary as the policy.
        judge: a function instead, as `module:function`: from episodes to one number per turn of each.
        per_turn: the reward of a turn is the increase of the model's score; False: the last turn gets the whole score.
        weight: the judge's rewards are multiplied by it.
        keep_environment: add them to the environment's rewards instead of replacing these.
    """

    model: UserPath | None = None
    judge: str | None = None
    per_turn: bool = False
    weight: float = 1.0
    keep_environment: bool = False

    def __post_init__(self) -> None:
        if (self.model is None) == (self.judge is None):
            raise ConfigurationError("model: exactly one of model and judge must be given")
        if self.judge is not None and self.per_turn:
            raise ConfigurationError("per_turn: has no effect with judge, which scores every turn")
        if not self.weight:
            raise ConfigurationError("weight: got 0, with which a judge has no effect")


def _build_algorithm(values: Any) -> Algorithm:
    """An algorithm of plain values, among them its name in the key `algorithm`.

    Raises:
        ConfigurationError: as `build`, and where a setting belongs to another algorithm.
    """
    if isinstance(values, Algorithm):
        return values
    if not isinstance(values, Mapping):
        raise ConfigurationError(f"algorithm: missing, got {values!r}")
    settings = dict(values)
    name = settings.pop("algorithm", None)
    if not (name in ALGORITHMS or (isinstance(name, str) and ":" in name)):
        got = "missing" if name is None else f"got {name!r}"
        instead = alternative(str(name))
        hint = f", which is not available. Try: {instead}" if instead else nearest(str(name), ALGORITHMS)
        raise ConfigurationError(f"algorithm: {got}{hint}")
    kind = find_algorithm(name)
    known = {f.name for f in fields(kind)}
    for key in sorted(settings.keys() - known):
        if others := algorithms_with(key):
            instead = f". Try: {_INSTEAD[key]}" if _INSTEAD.get(key) in known else ""
            raise ConfigurationError(f"{key}: has no effect on {name}, it belongs to {', '.join(others)}{instead}")
    return build(kind, settings)


@dataclass(frozen=True)
class RunConfig(Configuration):
    """The configuration of a run.

    Attributes:
        environment: the environment, and the limits of an episode.
        model: the policy.
        trainer: the algorithm (`trainer.algorithm`) and its settings, which differ between algorithms.
        evaluation: how the policy is evaluated.
        engine: what generates text.
        scale: training and rollouts over several processes and machines.
        rollout: how episodes are sampled.
        reward: rewards of a judge in training; null for the environment's rewards.
        output_dir: folder of the run; a run that is already there is resumed.
        seed: seed of random weights, episodes, sampling and shuffling.
        threads: threads of PyTorch on the CPU; null for its default.
        max_seconds: no update begins after this time, of which evaluations are a part; null: no limit.
        checkpoint_every: updates between checkpoints.
        compare_kernels_every: every so many updates, compute with a second kernel back end too and record the
            differences; 0: never.
        keep_checkpoints: number of newest checkpoints that are kept.
        save_batch_every: every so many updates, write the episodes to OUTPUT_DIR/batches/UPDATE.jsonl, for
            `swe-train replay-batch`; 0: never.
        demonstrations: what cloning and reward models learn from: a `.jsonl` of trajectories, as `save_batch_every`
            writes them, or of conversations, one `{"messages": [{"role": …, "content": …}, …]}` per line, with `tools`
            beside `messages` if the environment has tools.
        loggers: logging back ends for metrics, each name with its options, e.g. `{wandb: {project: p}}`.
        tensorboard: write TensorBoard events; the same as `loggers: {tensorboard: {}}`.
        wandb_project: log to this project of Weights & Biases; the same as `loggers: {wandb: {project: …}}`.
    """

    environment: EnvironmentConfig
    model: ModelConfig
    trainer: Annotated[Algorithm, PlainValidator(_build_algorithm)]
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    scale: ScaleConfig = field(default_factory=ScaleConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    reward: RewardConfig | None = None
    output_dir: UserPath = Path("runs/train")
    seed: int = 0
    threads: int | None = None
    max_seconds: float | None = None
    checkpoint_every: int = 10
    compare_kernels_every: int = 0
    keep_checkpoints: int = 2
    save_batch_every: int = 0
    demonstrations: UserPath | None = None
    loggers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, metadata={"registry": LOGGERS})
    tensorboard: bool = False
    wandb_project: str | None = None

    @property
    def metrics_loggers(self) -> dict[str, Mapping[str, Any]]:
        """All logging back ends with their options."""
        short: dict[str, Mapping[str, Any]] = {"tensorboard": {}} if self.tensorboard else {}
        if self.wandb_project is not None:
            short["wandb"] = {"project": self.wandb_project}
        return {**short, **self.loggers}

    @property
    def algorithm(self) -> str:
        """The name of the trainer's algorithm."""
        return name_of(self.trainer)

    def yaml(self) -> str:
        """The configuration as commented YAML, from which `run_config` makes an equal one."""
        return as_yaml(self, {"trainer": {"algorithm": self.algorithm}})

    def __post_init__(self) -> None:
        self._check_scale()
        _at_least_one(self, "checkpoint_every", "keep_checkpoints")
        for name in ("compare_kernels_every", "save_batch_every"):
            if getattr(self, name) < 0:
                raise ConfigurationError(f"{name}: got {getattr(self, name)}, expected 0 or more")
        if self.threads is not None:
            _at_least_one(self, "threads")
        if not 0 <= self.seed < _SEEDS:
            raise ConfigurationError(f"seed: got {self.seed}, expected 0 or more, and less than {_SEEDS}")
        if self.max_seconds is not None and not self.max_seconds > 0:
            raise ConfigurationError(f"max_seconds: got {self.max_seconds}, expected a positive number")
        offline = self.trainer.rollout_plan is None
        if offline != (self.demonstrations is not None):
            raise ConfigurationError(
                "demonstrations: needed by cloning and reward_model, and without effect on anything else"
            )
        if offline and (self.save_batch_every or self.rollout.history is not None):
            raise ConfigurationError("save_batch_every, rollout: have no effect on an algorithm that plays no episodes")
        if self.rollout.max_staleness:
            self._check_ahead(offline)
        elif self.engine.device is not None:
            raise ConfigurationError("engine.device: has no effect with rollout.max_staleness 0. Try: model.device")
        if self.scale.ray is not None and (offline or self.environment.lockstep):
            what = "an algorithm that plays no episodes" if offline else "lockstep, which takes turns with one engine"
            raise ConfigurationError(f"scale.ray: has no effect on {what}")
        if offline and self.reward is not None:
            raise ConfigurationError("reward: has no effect on an algorithm that plays no episodes")
        served = self.engine.kind != "embedded"
        if served and self.rollout.sampling(1.0).truncates and not self.trainer.corrects_staleness:
            raise ConfigurationError(
                f"rollout.top_k, top_p, min_p: engine.kind {self.engine.kind} does not return which tokens it kept, "
                "and the update would compute other probabilities than were sampled from. Try: engine.kind embedded, "
                "or trainer.correction truncate"
            )
        if self.model.tinker is not None:
            self._check_hosted()
        self._check_lengths()

    def _check_hosted(self) -> None:
        """Refuse what has no effect on a model with Tinker's API; its `learner` checks the algorithm."""
        rollout = self.rollout
        without_effect = {
            "engine": self.engine != EngineConfig(),
            "scale": self.scale != ScaleConfig(),
            "reward.model": self.reward is not None and self.reward.model is not None,
            "compare_kernels_every": self.compare_kernels_every,
            "demonstrations": self.demonstrations,
            "rollout.constrained": rollout.constrained,
            "rollout.grammar": rollout.grammar,
            "rollout.max_staleness": rollout.max_staleness,
            "rollout.top_k, top_p, min_p": rollout.sampling(1.0).truncates,
        }
        for name, asked in without_effect.items():
            if asked:
                raise ConfigurationError(f"{name}: has no effect with model.tinker, whose server samples and trains")

    def _check_lengths(self) -> None:
        """Refuse settings of the algorithm that the limits of an episode make impossible."""
        trainer, environment = self.trainer, self.environment
        if isinstance(trainer, GroupRelative) and trainer.overlong_limit is not None and self.rollout.history is None:
            first = trainer.overlong_limit - (trainer.overlong_buffer or 0)
            if first >= environment.max_tokens:
                raise ConfigurationError(
                    f"trainer.overlong_limit: the penalty begins at {first} action tokens, and no episode has more "
                    f"than environment.max_tokens ({environment.max_tokens})"
                )
        forks = None if trainer.rollout_plan is None else trainer.rollout_plan.branching
        if forks is not None and environment.max_turns is not None:
            last = (forks.max_depth - 1) * forks.every  # turns before the last fork
            if last >= environment.max_turns:
                raise ConfigurationError(
                    f"trainer.max_depth: the last fork is before turn {last + 1}, and no episode has more than "
                    f"environment.max_turns ({environment.max_turns})"
                )

    def _check_ahead(self, offline: bool) -> None:
        """Refuse settings that rollouts during updates cannot have."""
        if offline or self.environment.lockstep:
            what = "on an algorithm that plays no episodes" if offline else "on lockstep, which takes turns"
            raise ConfigurationError(f"rollout.max_staleness: has no effect {what}")
        if not self.trainer.corrects_staleness:
            raise ConfigurationError(
                "rollout.max_staleness: tokens of older weights would be trained on as if the policy had sampled them. "
                "Try: trainer.correction truncate, or mask"
            )

    def _check_scale(self) -> None:
        if self.scale.fsdp and self.model.bits is not None:
            raise ConfigurationError("scale.fsdp: weights in few bits are not sharded. Try: model.dtype bfloat16")
        if self.scale.accelerate is not None:
            if self.trainer.needs_critic:
                raise ConfigurationError(
                    "scale.accelerate: trains no separate critic. Try: trainer.critic shared, or scale.fsdp"
                )
            if self.scale.accelerate != "ddp" and self.trainer.may_stop_early:
                raise ConfigurationError(
                    "scale.accelerate: DeepSpeed cannot drop a minibatch after its backward pass. Try: stop_kl null"
                )
            if getattr(self.trainer, "gradient_noise_every", 0):
                raise ConfigurationError("trainer.gradient_noise_every: not with scale.accelerate. Try: 0")
            if getattr(self.trainer, "value_start", "model") != "model":
                raise ConfigurationError("trainer.value_start: not with scale.accelerate. Try: model")


def run_config(values: Mapping[str, Any]) -> RunConfig:
    """A run's configuration from what `read_config` gives; `trainer.algorithm` chooses the trainer's settings.

    Raises:
        ConfigurationError: as `build`, and where a setting belongs to another algorithm.
    """
    return build(RunConfig, values)


def of_trained_weights(model: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The section `model` of a run, for the weights that the run has trained.

    Args:
        model: the section, as `read_config` gives it.
        folder: of the weights.
    """
    kept = ("chat", "dtype", "device", "attention", "float32_logits")
    return {**{key: value for key, value in model.items() if key in kept}, "path": str(folder.absolute())}


def _default(of: Field[Any]) -> Any:
    return of.default if of.default_factory is MISSING else of.default_factory()


def _at_least_one(section: Any, *names: str) -> None:
    for name in names:
        if getattr(section, name) < 1:
            raise ConfigurationError(f"{name}: got {getattr(section, name)!r}, expected at least 1")
