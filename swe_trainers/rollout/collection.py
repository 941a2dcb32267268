"""Episodes being played: while some environments are busy, the engine generates for the others."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np

from swe_trainers.engines.protocol import Engine, Sample
from swe_trainers.engines.sampling import Sampling
from swe_trainers.errors import ConfigurationError, RolloutError
from swe_trainers.policy.chat import ChatFormat
from swe_trainers.rollout.episode import Episode
from swe_trainers.rollout.feed import Feed
from swe_trainers.rollout.history import HeadTail, Prompt
from swe_trainers.rollout.plan import Branching, EpisodeStart, Limits
from swe_trainers.rollout.trajectory import Trajectory
from swe_trainers.rollout.tree import Tree
from swe_trainers.rollout.workers import Answer, EnvThreads, is_infrastructure_failure

__all__ = ["Collection"]


@dataclass(frozen=True)
class _Asked:
    """A question that an environment has not answered yet."""

    env: int
    ticket: int
    deadline: float


@dataclass
class Collection:
    """Episodes being played; everything but the environments runs on the thread that calls `play`.

    Attributes:
        feed: where episodes come from, where they go, and when to pause.
        engine, chat, envs, limits, sampling, history, branching, seed, lockstep, is_failure, on_episode: see `collect`.

    Raises:
        ConfigurationError: there are no environments, or more than the engine has slots; or a shortened history would
            leave no room for an action.
    """

    engine: Engine
    chat: ChatFormat
    envs: Sequence[gymnasium.Env[str, str]]
    feed: Feed
    limits: Limits
    sampling: Sampling = field(default_factory=Sampling)
    history: HeadTail | None = None
    branching: Branching | None = None
    seed: int = 0
    lockstep: bool = False
    is_failure: Callable[[Exception], bool] = is_infrastructure_failure
    on_episode: Callable[[Trajectory], None] | None = None
    finished: dict[int, list[Trajectory]] = field(default_factory=dict)  # ends of what is still being played, by start
    episodes: dict[int, Episode] = field(default_factory=dict)  # by start
    trees: dict[int, Tree] = field(default_factory=dict)
    slots: dict[int, int] = field(default_factory=dict)  # slot → start
    asked: dict[int, _Asked] = field(default_factory=dict)  # by start
    held: dict[int, list[int]] = field(default_factory=dict)  # what each slot holds
    free: list[int] = field(default_factory=list)  # environments
    gone: set[int] = field(default_factory=set)  # environments that have not answered in time
    n_started: int = 0

    def __post_init__(self) -> None:
        self.threads = EnvThreads(self.envs)
        if not self.envs:
            raise ConfigurationError("collect: no environments")
        if self.engine.n_slots < len(self.envs):
            raise ConfigurationError(
                f"collect: {len(self.envs)} environments, but the engine has {self.engine.n_slots} slots; "
                "give it as many"
            )
        self.room = min(self.limits.max_tokens or self.engine.max_tokens, self.engine.max_tokens)
        if self.history is not None and self.limits.max_new_tokens >= self.room:
            raise ConfigurationError(
                f"a shortened history leaves room for an action of {self.limits.max_new_tokens} tokens "
                f"(max_new_tokens), but a context has {self.room} in all (max_tokens)"
            )

    def play(self) -> None:
        """Play what the feed gives until it has no more. Raises as `collect` does."""
        self.free = list(range(len(self.envs)))
        try:
            while True:
                if self.feed.rest is not None and self._at_rest():
                    self.feed.pause()
                    continue
                self._begin()
                if self.episodes:
                    self._advance()
                elif not self.feed.more:
                    return
                elif self.free:
                    self.feed.wait()
                else:
                    self._wait_for_the_gone()
        finally:
            self.threads.close(self.limits.step_timeout_s, abandon=self.gone)
            for tree in self.trees.values():
                tree.close()
            for slot in self.slots:
                self.engine.close(slot)

    def wake(self) -> None:
        """Have it look at its feed again, though no environment has answered; from another thread."""
        self.threads.wake()

    def _at_rest(self) -> bool:
        """Whether the pause that is asked for may begin now."""
        if self.feed.rest == "at once":
            return True
        return not self.engine.busy if self.feed.rest == "actions" else not self.episodes

    def _begin(self) -> None:
        """Begin episodes in free environments, unless a pause is asked for."""
        while self.free and self.feed.more and self.feed.rest is None:
            start = self.feed.next()
            if start is None:
                return
            self._start(self.free.pop(0), start)

    def _advance(self) -> None:
        """Take in what environments have answered, and generate a little."""
        if self.feed.rest != "actions":  # with every answer another action would begin
            for answer in self._wait():
                self._read(answer)
        samples = self.engine.step()
        while self.lockstep and self.engine.busy:
            samples += self.engine.step()
        for sample in samples:
            self._act(sample)

    def _start(self, env: int, start: EpisodeStart) -> None:
        index = self.n_started
        self.n_started += 1
        stream = (self.seed, index) if start.stream is None else start.stream
        self.finished[index] = []
        self.episodes[index] = Episode(start.seed, start.group, env, stream, _random(stream), self.room)
        if self.branching is not None:
            self.trees[index] = Tree(self.branching, start)
        options = None if start.options is None else dict(start.options)

        def reset() -> tuple[str, float, bool, bool, dict[str, Any]]:
            observation, info = self.envs[env].reset(seed=start.seed, options=options)
            return observation, 0.0, False, False, info

        self._ask(index, reset)

    def _act(self, sample: Sample) -> None:
        """Give a finished action to its environment."""
        index = self.slots[sample.slot]
        episode, tree = self.episodes[index], self.trees.get(index)
        text = self.chat.action_text(sample.token_ids)
        episode.act(sample, text)
        self.held[sample.slot] = episode.context
        env = self.envs[episode.env]

        def step() -> Any:
            if tree is not None:
                tree.save(env)
            return env.step(text)

        self._ask(index, step)

    def _ask(self, index: int, call: Callable[[], Any]) -> None:
        env = self.episodes[index].env
        deadline = time.monotonic() + (self.limits.step_timeout_s or float("inf"))
        self.asked[index] = _Asked(env, self.threads.ask(env, call), deadline)

    def _wait(self) -> list[tuple[int, Answer]]:
        """What environments have answered; waits for one where the engine has nothing to do, in lockstep for all."""
        ready: list[tuple[int, Answer]] = []
        while self.asked:
            must_wait = self.lockstep or not (ready or self.engine.busy)
            patience = min(asked.deadline for asked in self.asked.values()) - time.monotonic()
            try:
                timeout = None if patience == float("inf") else max(0.0, patience)
                answer = self.threads.answers.get(block=must_wait, timeout=timeout)
            except queue.Empty:
                if patience > 0 and not must_wait:
                    break
                self._give_up()
                if not self.asked or not must_wait:
                    break
                continue
            if not answer.ticket:
                break
            index = next((i for i, asked in self.asked.items() if asked.ticket == answer.ticket), None)
            if index is None:
                self._back(answer.env)
            else:
                del self.asked[index]
                ready.append((index, answer))
        return sorted(ready, key=lambda pair: pair[0])

    def _wait_for_the_gone(self) -> None:
        """Every environment was given up, and there is more to play: one of them must come back."""
        try:
            answer = self.threads.answers.get(timeout=self.limits.step_timeout_s)
            if answer.ticket:
                self._back(answer.env)
        except queue.Empty:
            raise RolloutError(
                f"none of {len(self.envs)} environments answers; each was given {self.limits.step_timeout_s} s, twice"
            ) from None

    def _back(self, env: int) -> None:
        self.gone.discard(env)
        self.free.append(env)

    def _give_up(self) -> None:
        """Leave out the episodes of environments that have not answered in time."""
        now = time.monotonic()
        for index in [i for i, asked in self.asked.items() if asked.deadline <= now]:
            self.gone.add(self.asked.pop(index).env)
            self._finish(index, f"the environment did not answer for {self.limits.step_timeout_s} s", gone=True)

    def _read(self, pair: tuple[int, Answer]) -> None:
        """Take an environment's answer in."""
        index, answer = pair
        episode = self.episodes[index]
        if answer.error is not None:
            if not self.is_failure(answer.error):
                raise answer.error
            self._finish(index, f"{type(answer.error).__name__}: {answer.error}")
            return
        if answer.result is None:  # it is back at a fork
            self._request(index)
            return
        observation, reward, terminated, truncated, info = answer.result
        if not isinstance(observation, str):
            raise RolloutError(
                f"episode {index}: the observation is {type(observation).__name__}, expected str; "
                "an environment of numbers can be put into TextAdapter"
            )
        if not np.isfinite(reward):
            raise RolloutError(f"episode {index}: the reward is {reward}")
        episode.learn_of(info)
        if not episode.turns:
            system, tools = info.get("system_prompt"), info.get("tools")
            ids = self.chat.start(observation, system=system, tools=tools)
            episode.prompt = Prompt(observation, system, tools, ids)
        else:
            episode.reward(float(reward))
            ids = [] if terminated else self.chat.observe(observation, closed=episode.closed)
            episode.answered(observation, ids)
        self._continue(index, observation, ids, terminated, truncated)

    def _continue(self, index: int, observation: str, ids: list[int], terminated: bool, truncated: bool) -> None:
        """Ask for the next action, or end the episode."""
        episode = self.episodes[index]
        if not episode.turns and len(ids) >= self.room:
            self._finish(
                index,
                f"the prompt has {len(ids)} tokens, which leaves no room for an action: max_tokens is {self.room}",
            )
            return
        if terminated:
            episode.terminated = True
            self._finish(index)
            return
        out_of_turns = self.limits.max_turns is not None and len(episode.turns) >= self.limits.max_turns
        anew = None if truncated or out_of_turns else self._shortened(episode, len(ids))
        full = anew is None and episode.context_size + len(ids) >= self.room
        if truncated or out_of_turns or full:
            episode.truncated = True
            episode.observe(observation, ids[: self.room - episode.context_size])
            self._finish(index)
            return
        if episode.slot is None:
            episode.slot = self.engine.open()
            self.slots[episode.slot] = index
        if anew is None:
            episode.observe(observation, ids)
        else:
            episode.begin_anew(observation, anew)
        if index in self.trees:
            self.trees[index].reach(episode)
        self._request(index)

    def _shortened(self, episode: Episode, n_new: int) -> list[int] | None:
        """Another context, where the history is to be shortened and the next action might not fit."""
        room = self.room - self.limits.max_new_tokens
        if self.history is None or not episode.past or episode.context_size + n_new <= room:
            return None
        assert episode.prompt is not None
        return self.history.shorten(self.chat, episode.prompt, episode.past, room)

    def _request(self, index: int) -> None:
        """Ask the engine for an action; it is given only what its slot does not hold."""
        episode = self.episodes[index]
        assert episode.slot is not None
        context, held = episode.context, self.held.get(episode.slot, [])
        kept = len(held)
        if episode.moved:
            kept = _common(held, context[:-1])  # the engine needs a token to go on from
            self.engine.rewind(episode.slot, kept)
            episode.moved = False
        self.engine.submit(
            episode.slot,
            context[kept:],
            max_new_tokens=min(self.limits.max_new_tokens, self.room - len(context)),
            stop_ids=self.chat.stop_ids,
            sampling=self.sampling,
            random=episode.random,
            stop_strings=self.limits.stop_strings,
        )

    def _finish(self, index: int, failure_reason: str = "", *, gone: bool = False) -> None:
        """Record an episode's end; go on with its tree, or free its environment unless that is gone."""
        episode, tree = self.episodes[index], self.trees.get(index)
        trajectory = episode.trajectory(failure_reason)
        self.finished[index].append(trajectory)
        if self.on_episode is not None:
            self.on_episode(trajectory)
        node = None if tree is None or gone else tree.back()
        if tree is not None and node is not None:
            way = node.episode.copy()
            way.slot, way.moved, way.random = episode.slot, True, _random((*episode.stream, tree.leaf))
            self.episodes[index] = way
            env = self.envs[way.env]
            self._ask(index, lambda: tree.restore(env, node))
            return
        del self.episodes[index]
        if tree is not None:
            self.trees.pop(index).close()
        if episode.slot is not None:
            self.engine.close(episode.slot)
            del self.slots[episode.slot]
            self.held.pop(episode.slot, None)
        if not gone:
            self.free.append(episode.env)
        self.feed.done(index, self.finished.pop(index))


def _random(stream: tuple[int, ...]) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(stream)))


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """How many ids two sequences begin with alike."""
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
