"""`make bench-collecting`: environment steps per second of processor time while episodes of small models are played.

Each workload runs in a separate process with one thread; processes alternate, and the figures are processor time of
all threads of the process, so that other work on the machine changes them little.

    frozen_lake, taxi   the configurations in examples/configs, at a policy with its first weights
    cartpole            CartPole-v1 in words, as `benchmarks.learning` trains it
    NAME/plain          the same model in the same environments by a loop that records nothing: all sequences in step,
                        each one forward pass a turn, ids looked up in a table, a token drawn under a mask
    NAME/mlp            PPO's rollouts in Stable-Baselines3 with its MLP, in the environment with its own numbers
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import torch

from benchmarks.learning_tasks import configuration
from benchmarks.records import Row, row, write_results
from benchmarks.repeating import Worker
from swe_trainers.config import read_config
from swe_trainers.engines.sampling import Sampling
from swe_trainers.experiment import make_envs, make_model, make_rollouts
from swe_trainers.model.chat import chat_format
from swe_trainers.rollout.rollouts import LocalWorkers
from swe_trainers.run_config import RunConfig, run_config

Work = Callable[[], int]
"""Plays some episodes; returns how many steps they had."""

GAMES = ("frozen_lake", "taxi", "cartpole")
KINDS = ("", "/plain", "/mlp")
CONFIGS = Path(__file__).parents[1] / "examples" / "configs"
PLAIN_STEPS = 4000
WARM_UP = 1


def game_config(game: str) -> RunConfig:
    """The configuration of a run."""
    if game == "cartpole":
        return configuration("cartpole", "ppo", 0, Path(tempfile.gettempdir()))
    return run_config({**read_config(CONFIGS / f"{game}.yaml"), "output_dir": tempfile.gettempdir()})


def own_work(game: str) -> Work:
    """An update's episodes, as `Trainer` plays them."""
    config, stack, rounds = game_config(game), ExitStack(), iter(range(1_000_000))
    played, _ = make_envs(config, stack)
    model = make_model(config.model, played[0], seed=0)
    chat = chat_format(model.tokenizer, config.model.chat)
    workers = LocalWorkers.embedded(
        model, chat, played, max_tokens=config.environment.max_tokens, lockstep=config.environment.lockstep
    )
    rollouts = make_rollouts(workers, config.environment, config.rollout, 0)
    episodes = max(64, int(config.trainer.episodes_per_update))  # type: ignore[attr-defined]

    def play() -> int:
        return sum(len(episode.turns) for episode in rollouts.play(episodes, Sampling(), update=next(rounds)))

    return play


def plain_work(game: str) -> Work:
    """The same model in the same environments by a plain loop, which keeps only what it needs to go on.

    A context of one observation is read anew each turn; a growing one, of which all sequences have the same length, is
    read through transformers' own cache.
    """
    from transformers import DynamicCache

    config, stack = game_config(game), ExitStack()
    envs, _ = make_envs(config, stack)
    model = make_model(config.model, envs[0], seed=0)
    chat = chat_format(model.tokenizer, config.model.chat)
    words = list(envs[0].get_wrapper_attr("actions"))
    action_ids = torch.tensor([chat.action_ids(word)[0] for word in words])
    known: dict[tuple[str, bool], list[int]] = {}
    forgets, most_turns = config.rollout.history == "last", config.environment.max_turns or 10**9

    def ids_of(text: str, first: bool) -> list[int]:
        if (text, first) not in known:
            known[text, first] = chat.start(text) if first else chat.observe(text, closed=False)
        return known[text, first]

    @torch.inference_mode()
    def play() -> int:
        steps, seed = 0, 0
        while steps < PLAIN_STEPS:
            cache = DynamicCache(config=model.causal_lm.config)
            open_envs, texts, legal, turn, last = list(envs), [], [], 0, torch.zeros(0, 1, dtype=torch.int64)
            for env in open_envs:
                seed += 1
                text, info = env.reset(seed=seed)
                texts.append(text)
                legal.append(info["legal_actions"])
            read = 0
            while open_envs and turn < most_turns:
                fresh = forgets or not turn
                ids = torch.tensor([ids_of(text, fresh) for text in texts])
                if not fresh:
                    ids = torch.cat([last, ids], 1)
                start = 0 if fresh else read
                read = start + ids.shape[1]
                positions = torch.arange(start, read).expand(ids.shape)
                used = None if forgets else cache
                mask = None
                if start:
                    column = torch.arange(read)
                    mask = torch.where(column <= positions[:, :, None], 0.0, -torch.inf)[:, None]
                hidden = model.run_trunk(ids, positions, mask, cache=used)[:, -1]
                logits = model.logits(hidden)[:, action_ids]
                mask_rows = [[word in allowed for word in words] for allowed in map(set, legal)]
                probabilities = logits.masked_fill(~torch.tensor(mask_rows), -torch.inf).softmax(-1)
                drawn = torch.multinomial(probabilities, 1)
                last = action_ids[drawn]
                texts, legal, still = [], [], []
                for place, (env, number) in enumerate(zip(open_envs, drawn[:, 0].tolist(), strict=True)):
                    text, _, terminated, truncated, info = env.step(words[number])
                    steps += 1
                    if not (terminated or truncated):
                        still.append(place)
                        texts.append(text)
                        legal.append(info["legal_actions"])
                if len(still) < len(open_envs):
                    open_envs, last = [open_envs[i] for i in still], last[still]
                    if open_envs and not forgets:
                        cache.batch_select_indices(torch.tensor(still))
                turn += 1
        return steps

    return play


def mlp_work(game: str) -> Work:
    """Rollouts of Stable-Baselines3's PPO with its MLP: 8 environments of one process, 256 steps each."""
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import CallbackList
    from stable_baselines3.common.env_util import make_vec_env

    environment = game_config(game).environment
    envs = make_vec_env(environment.id, n_envs=8, seed=0, env_kwargs=dict(environment.kwargs))
    agent = PPO("MlpPolicy", envs, n_steps=256, seed=0, device="cpu")
    agent._setup_learn(total_timesteps=1)  # noqa: SLF001 - `learn` alone would train too
    callback = CallbackList([])
    callback.init_callback(agent)

    def play() -> int:
        agent.collect_rollouts(agent.env, callback, agent.rollout_buffer, n_rollout_steps=256)
        return 8 * 256

    return play


def make_work(part: str) -> Work:
    """What one process repeats."""
    game, _, kind = part.partition("/")
    return {"": own_work, "plain": plain_work, "mlp": mlp_work}[kind](game)


def work(part: str) -> None:
    """The worker process: for each input line it plays once and prints steps and processor time."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    play = make_work(part)
    for _ in sys.stdin:
        began = time.process_time()
        steps = play()
        print(json.dumps({"steps": steps, "seconds": time.process_time() - began}), flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="*", help="a pattern of parts, such as 'taxi*' or '*/plain'")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", type=Path, help="by default benchmarks/results/collecting.json")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.worker:
        work(options.worker)
        return 0
    found: dict[str, list[float]] = {}
    for game in GAMES:
        parts = fnmatch.filter([game + kind for kind in KINDS], options.only)
        workers = {part: Worker("benchmarks.collecting", part) for part in parts}
        try:
            for number in range(WARM_UP + options.rounds):
                for part, worker in workers.items():
                    once = worker.measure()
                    speed = once["steps"] / once["seconds"]
                    print(f"{part:20} {speed:8.0f} steps per second of processor time", flush=True)
                    if number >= WARM_UP:
                        found.setdefault(part, []).append(speed)
        finally:
            for worker in workers.values():
                worker.close()
    rows: list[Row] = [row(part, "speed", "steps per CPU second", speeds) for part, speeds in found.items()]
    ratios = {
        f"{game} / {other[1:]}": float(np.median(np.divide(found[game], found[game + other])))
        for game in GAMES
        for other in KINDS[1:]
        if game in found and game + other in found
    }
    packages = ["torch", "transformers", "gymnasium", "stable-baselines3", "numpy"]
    path = write_results("collecting", rows, ratios=ratios, packages=packages, path=options.output)
    print(json.dumps(ratios, indent=1), path, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
