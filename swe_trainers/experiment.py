"""From a configuration to a run: the environments, the model, the engine and the trainer that it describes."""

from __future__ import annotations

import json
import tempfile
import threading
from contextlib import ExitStack, closing
from functools import partial
from typing import Any

import gymnasium
import torch

from swe_trainers.algorithms.reward_model import load_judge
from swe_trainers.checkpoint import Checkpoints
from swe_trainers.config import named
from swe_trainers.engines.connect import Generation, connect, on_device
from swe_trainers.errors import ConfigurationError, TrainerError
from swe_trainers.files import write_whole
from swe_trainers.learning.forward import HostedPolicy
from swe_trainers.learning.learner import Learner
from swe_trainers.learning.rewards import Judge, judged
from swe_trainers.logging import Run
from swe_trainers.model.chat import chat_format
from swe_trainers.model.language_model import LanguageModel
from swe_trainers.model.tokenizers import Tokenizer, WordTokenizer, load_tokenizer
from swe_trainers.planning.architecture import weights_are_here
from swe_trainers.planning.plan import plan_run
from swe_trainers.planning.preflight import check_run
from swe_trainers.process_group import broadcast, rank
from swe_trainers.provenance import write_provenance
from swe_trainers.report.curves import plot_metrics
from swe_trainers.report.examples import Examples
from swe_trainers.report.page import RunningReport, write_report
from swe_trainers.resume import Former, Resume, Settings
from swe_trainers.rollout.adapters import TextAdapter
from swe_trainers.rollout.demonstrations import read_conversations
from swe_trainers.rollout.environments import EnvPool, make_text_env
from swe_trainers.rollout.rollouts import LocalWorkers, Rollouts, Workers
from swe_trainers.rollout.trajectory import Trajectory, read_trajectories, write_trajectories
from swe_trainers.run_config import (
    EnvironmentConfig,
    ModelConfig,
    RewardConfig,
    RolloutConfig,
    RunConfig,
    TinkerConfig,
)
from swe_trainers.scale.accelerated import AcceleratedCheckpoints, accelerate
from swe_trainers.scale.checkpoints import ShardedCheckpoints
from swe_trainers.scale.ray_rollouts import RayWorkers
from swe_trainers.scale.ray_worker import WorkerSetup
from swe_trainers.scale.sharding import check_model, joined_ranks, reference, refresh, sequence_group, shard
from swe_trainers.trainer import Callback, Rewards, Trainer

__all__ = [
    "dry_run",
    "make_env",
    "make_envs",
    "make_model",
    "make_players",
    "make_rollouts",
    "make_tokenizer",
    "run_experiment",
]


def run_experiment(
    config: RunConfig,
    *,
    console: bool = True,
    resume: Resume = "same",
    json_logs: bool = False,
    pause: threading.Event | None = None,
) -> Learner:
    """Train as configured, into `config.output_dir`; a run that is there is resumed.

    Writes `config.yaml`, `training.log`, `metrics.jsonl`, `examples.jsonl`, `report.html`, `checkpoints/` and, at the
    end, `curves.png` and `model/` in Hugging Face's format; of a model on a server `model.json`, with its name there.

    Args:
        config: the whole run.
        console: log to the terminal as well.
        resume: what becomes of a run that is there.
        json_logs: write log lines as JSON objects.
        pause: see `Trainer`.
    Raises:
        ConfigurationError: the run that is there has other settings, and `resume` is "same".
        KeyboardInterrupt: `pause` was set before the run was complete; it continues from a checkpoint.
        TrainerError: something that is configured is not available here, or the run failed.
    """
    if resume == "same":
        Settings.of(config).refuse_changes()
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    torch.manual_seed(config.seed)
    check_run(config)
    try:
        with ExitStack() as stack:
            # What can be refused is refused first: a wrong configuration leaves no output directory behind.
            stack.enter_context(joined_ranks(config.scale))
            model, rollouts = make_players(config, stack, training=True)
            if isinstance(model, LanguageModel):
                check_model(model, config.scale)
            demonstrations = None if config.demonstrations is None else _read_demonstrations(config, model)
            rewards = None if config.reward is None else _rewards(config.reward, model)
            settings = Settings.of(config)
            former = Former(settings, settings.settle(resume) if rank() == 0 else {})
            run = stack.enter_context(_open_run(config, stack, console=console, json_logs=json_logs))
            stack.callback(_close_envs, rollouts, run)
            settings.write(run)
            learner, checkpoints = _make_learner(config, model, rollouts)
            trainer = Trainer(
                model,
                rollouts,
                config.trainer,
                callbacks=_callbacks(config, run, former),
                rollout=config.rollout,
                demonstrations=demonstrations,
                rewards=rewards,
                evaluation=config.evaluation,
                max_seconds=float("inf") if config.max_seconds is None else config.max_seconds,
                pause=pause,
                checkpoint_every=config.checkpoint_every,
                keep_checkpoints=config.keep_checkpoints,
                compare_kernels_every=config.compare_kernels_every,
                learner=learner,
                run=run,
                checkpoints=checkpoints,
            )
            updates = config.trainer.total_updates(trainer.demonstrations)
            run.info(f"{config.algorithm} on {config.environment.id}: {updates} updates, into {config.output_dir}")
            trainer.train()
            if trainer.paused:
                raise KeyboardInterrupt
            former.close(run)
            if config.scale.fsdp:
                assert isinstance(model, LanguageModel) and isinstance(learner.model, LanguageModel)
                refresh(model, learner.model)
            if rank() == 0:
                if isinstance(model, HostedPolicy):  # the weights stay on the server, under this name
                    write_whole(run.directory / "model.json", json.dumps(model.state_dict()) + "\n")
                else:
                    trainer.save(run.directory / "model")
                    write_provenance(
                        run.directory / "model",
                        config.environment,
                        config.model.chat,
                        config.evaluation.success_above,
                        config.rollout,
                    )
                plot_metrics(run.directory / "metrics.jsonl", run.directory / "curves.png")
                write_report([run.directory])
            run.info(
                f"done: {learner.updates} updates, {learner.episodes} episodes, "
                f"{learner.seconds:.0f} s in {run.directory}"
            )
        return learner
    except OSError as error:
        raise TrainerError(
            f"{config.output_dir}: the run cannot be written: {error.strerror or error}. Try: free space there. "
            "Started again, it is resumed from its last checkpoint"
        ) from error


def _close_envs(rollouts: Rollouts, run: Run) -> None:
    """Close the environments while the log is open."""
    for failure in rollouts.close():
        run.warning(failure.reason)
        run.detail(failure.traceback)


def _open_run(config: RunConfig, stack: ExitStack, *, console: bool, json_logs: bool) -> Run:
    """The run's directory; ranks other than the first write to a temporary one."""
    if rank():
        return Run(stack.enter_context(tempfile.TemporaryDirectory(prefix="swe-rank-")), console=False)
    return Run(config.output_dir, console=console, json_logs=json_logs, loggers=config.metrics_loggers)


def _make_learner(
    config: RunConfig, model: LanguageModel | HostedPolicy, rollouts: Rollouts
) -> tuple[Learner, Checkpoints | None]:
    """The learner, spread over ranks as the section `scale` says, and its checkpoints; None for the trainer's own."""
    scale, algorithm = config.scale, config.trainer
    if isinstance(model, HostedPolicy):
        return algorithm.start(model, seed=config.seed), None
    directory = config.output_dir / "checkpoints" / config.algorithm
    if scale.fsdp:  # the whole model plays, sharded ones are trained
        group = sequence_group(scale)
        sharded = shard(model.copy(), scale, group)
        learner = algorithm.learner(
            sharded,
            seed=config.seed,
            reference=reference(model, sharded, scale, group) if algorithm.needs_reference else None,
            critic=shard(model.copy(), scale, group) if algorithm.needs_critic else None,
        )
        rollouts.before_playing = lambda: refresh(model, sharded)
        return learner, ShardedCheckpoints(directory, learner, keep=config.keep_checkpoints)
    learner = algorithm.start(model, seed=config.seed)
    if scale.accelerate is not None:
        accelerate(learner, scale.accelerate, max_grad_norm=algorithm.max_grad_norm)
        return learner, AcceleratedCheckpoints(directory, learner, keep=config.keep_checkpoints)
    return learner, None


def _callbacks(config: RunConfig, run: Run, former: Former) -> list[Callback]:
    """What a run writes beside metrics and checkpoints: changed settings, batches, example episodes, the report."""
    report, examples = RunningReport(run.directory), list[Examples]()

    def write(trainer: Trainer, metrics: dict[str, Any]) -> None:
        del metrics
        former.record(trainer.learner.updates)
        update = trainer.learner.updates - 1
        if config.save_batch_every and update % config.save_batch_every == 0:
            write_trajectories(run.directory / "batches" / f"{update:08d}.jsonl", trainer.episodes)
        if rank():
            return
        if not examples:
            examples.append(Examples(run.directory / "examples.jsonl", updates=update))
        if update % config.checkpoint_every == 0:
            examples[0].keep(update, trainer.episodes)
        report.refresh()

    return [write]


def dry_run(config: RunConfig) -> dict[str, Any]:
    """What a run would need and what would stop it here; see `plan_run`. No model is loaded, no episode played."""
    problem, vocabulary = "", None
    try:
        with closing(make_env(config.environment, training=True)) as env:
            hosted = config.model.tinker is not None
            if not hosted and (config.model.path is None or weights_are_here(config.model.path)):
                tokenizer = make_tokenizer(config.model, env)
                chat_format(tokenizer, config.model.chat)
                vocabulary = tokenizer.vocab_size
    except TrainerError as error:
        problem = str(error)
    return plan_run(config, problem=problem, vocabulary=vocabulary)


def _read_demonstrations(config: RunConfig, model: LanguageModel | HostedPolicy) -> list[Trajectory]:
    """Recorded trajectories, or written conversations; the first line of the file shows which."""
    path = config.demonstrations
    assert path is not None
    try:
        with path.open(encoding="utf-8") as file:
            written = '"messages"' in file.readline()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path}: no demonstrations can be read: {error}") from error
    if written:
        return read_conversations(path, chat_format(model.tokenizer, config.model.chat), model.tokenizer)
    return read_trajectories(path)


def _rewards(config: RewardConfig, policy: LanguageModel | HostedPolicy) -> Rewards:
    """A judge's rewards of played episodes."""
    if config.judge is not None:
        judge: Judge = named(config.judge, "judge")
    else:
        assert config.model is not None and isinstance(policy, LanguageModel)
        judge = load_judge(config.model, policy, per_turn=config.per_turn)
    return partial(judged, judge=judge, weight=config.weight, keep_environment=config.keep_environment)


def make_players(
    config: RunConfig, stack: ExitStack, *, training: bool
) -> tuple[LanguageModel | HostedPolicy, Rollouts]:
    """The model, and the rollouts with its environments and its engine, which the stack closes."""
    if config.model.tinker is not None:
        return _hosted_players(config, stack, config.model.tinker)
    ray = config.scale.ray if training else None
    if ray is None:
        played, evaluated = make_envs(config, stack)
        model = make_model(config.model, played[0], seed=config.seed, training=training)
    else:  # environments are where the workers are; one is made here for its vocabulary
        played = evaluated = EnvPool([])
        with closing(make_env(config.environment, training=True)) as env:
            model = make_model(config.model, env, seed=config.seed)
    chat, is_leader = chat_format(model.tokenizer, config.model.chat), rank() == 0

    def generation() -> Generation:
        return connect(
            config.engine,
            model,
            stack,
            n_slots=config.environment.parallel,
            max_tokens=config.environment.max_tokens,
            folder=config.output_dir / "serving",
            training=training,
            is_leader=is_leader,
            ahead=training and config.rollout.max_staleness > 0,
        )

    workers: Workers
    if ray is not None:
        embedded = config.engine.in_process

        def setup() -> WorkerSetup:
            return WorkerSetup(
                partial(make_envs, config),
                config.engine,
                config.environment.max_tokens,
                chat,
                model=model.copy().requires_grad_(False).eval().to("cpu") if embedded else None,
                device="cuda" if ray.gpus_per_worker else None,
                threads=config.threads,
            )

        served = generation() if is_leader and not embedded else None
        workers = cluster = RayWorkers(ray, setup, stack, policy=model if embedded else None, generation=served)
        if is_leader:  # the other ranks play nothing
            cluster.join()
    else:
        first = generation() if is_leader else None
        broadcast(None)  # a server is up before the other ranks look for it
        workers = LocalWorkers(first or generation(), chat, played, evaluated, lockstep=config.environment.lockstep)
    rollouts = make_rollouts(workers, config.environment, config.rollout, config.seed)
    stack.callback(rollouts.close)
    return model, rollouts


def _hosted_players(config: RunConfig, stack: ExitStack, server: TinkerConfig) -> tuple[HostedPolicy, Rollouts]:
    """The same of a model on a server, which samples there too."""
    from swe_trainers.tinker.policy import TinkerPolicy  # its package is an extra

    played, evaluated = make_envs(config, stack)
    tokenizer = None if config.model.tokenizer is None else load_tokenizer(config.model.tokenizer)
    policy = TinkerPolicy(server.url, server.base_model, rank=server.rank, seed=config.seed, tokenizer=tokenizer)
    stack.callback(policy.close)
    generation = policy.generation(config.environment.parallel, config.environment.max_tokens)
    chat, lockstep = chat_format(policy.tokenizer, config.model.chat), config.environment.lockstep
    workers = LocalWorkers(generation, chat, played, evaluated, lockstep=lockstep)
    rollouts = make_rollouts(workers, config.environment, config.rollout, config.seed)
    stack.callback(rollouts.close)
    return policy, rollouts


def make_rollouts(workers: Workers, environment: EnvironmentConfig, rollout: RolloutConfig, seed: int) -> Rollouts:
    """Rollouts as a run configures them.

    Args:
        workers: environments and engines.
        environment, rollout: sections of the run.
        seed: of the run.
    """
    return Rollouts(
        workers,
        rollout.limits(environment.max_new_tokens, environment.max_tokens, environment.max_turns),
        seed=seed,
        history=rollout.history,
        constrained=rollout.constrained,
        grammar=rollout.grammar,
        max_staleness=rollout.max_staleness,
        partial=rollout.partial,
    )


def make_envs(config: RunConfig, stack: ExitStack) -> tuple[EnvPool, EnvPool]:
    """Environments for training and for evaluation, as many, which the stack closes; they may be the same."""

    def envs(*, training: bool) -> EnvPool:
        make = partial(make_env, config.environment, training=training)
        with ExitStack() as made:
            envs = [made.enter_context(closing(make())) for _ in range(config.environment.parallel)]
            made.pop_all()
        pool = EnvPool(envs, make)
        stack.callback(pool.close)
        return pool

    played = envs(training=True)
    apart = config.environment.training_wrappers and config.evaluation.episodes
    return played, envs(training=False) if apart else played


def make_env(
    config: EnvironmentConfig, *, training: bool = False, hint: str = "--environment.adapter text"
) -> gymnasium.Env[str, str]:
    """An environment with its wrappers.

    Args:
        config: the environment's section.
        training: put the wrappers for training around it too.
        hint: what the error suggests if the observation space is not text.
    Raises:
        ConfigurationError: the environment or a wrapper does not exist or does not accept its arguments, or the actions
            or observations are not text.
    """

    def wrapped(env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
        for wrapper in (*config.wrappers, *(config.training_wrappers if training else ())):
            env = named(wrapper.name, "wrapper")(env, **wrapper.kwargs)
        return TextAdapter(env, **config.adapter_kwargs) if config.adapter == "text" else env

    return make_text_env(config.id, config.kwargs, wrapped, hint=hint)


def make_model(
    config: ModelConfig, env: gymnasium.Env[str, str] | None, *, seed: int, training: bool = True
) -> LanguageModel:
    """A model by path, or of random weights.

    Args:
        config: the model's section.
        env: whose adapter's words belong to a vocabulary of words.
        seed: of random weights.
        training: with adapters and recomputed activations, as configured.
    Raises:
        ConfigurationError: it is not available.
    """
    if config.tinker is not None:
        raise ConfigurationError("model.tinker: its weights are on a server. Try: swe-train, which evaluates there")
    tokenizer = make_tokenizer(config, env)
    chat_format(tokenizer, config.chat)  # a template that cannot be trained with is refused before weights are loaded
    dtype = {"float32": torch.float32, "bfloat16": torch.bfloat16}[config.dtype]
    if config.path is not None:
        model = LanguageModel.from_pretrained(
            config.path, dtype=dtype, tokenizer=tokenizer, attention=config.attention, bits=config.bits
        )
    else:
        model = LanguageModel.from_config(config.architecture, tokenizer, seed=seed, attention=config.attention)
        if config.head_gain is not None:
            model.initialise_head(config.head_gain, seed=seed)
        model = model.to(dtype)
    model.float32_logits = config.float32_logits
    device = ("cuda" if torch.cuda.is_available() else "cpu") if config.device == "auto" else config.device
    model = on_device(model, device, "model.device")
    if training and config.lora is not None:
        model.add_lora(config.lora, seed=seed)
    return model.recompute_activations() if training and config.recompute_activations else model


def make_tokenizer(config: ModelConfig, env: gymnasium.Env[str, str] | None) -> Tokenizer:
    """Make the tokenizer of a model.

    Args:
        config: the model's section.
        env: an environment; if its adapter lists words, a tokenizer of words includes them.
    Raises:
        ConfigurationError: the tokenizer is not available.
    """
    if config.tokenizer == "words":
        own = env.get_wrapper_attr("vocabulary")() if env and env.has_wrapper_attr("vocabulary") else []
        # A list in the configuration may lack words; an environment's own list is complete.
        return WordTokenizer.from_texts([*config.words, *own], unknown=bool(config.words))
    if config.sentencepiece is not None:
        return config.sentencepiece.train()
    source = config.tokenizer or config.path
    assert source is not None
    return load_tokenizer(source)
