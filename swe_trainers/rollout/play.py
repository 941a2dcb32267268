"""Environments × engine → trajectories: while some environments are busy, the engine generates for the others."""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any, Literal, NamedTuple, cast

import gymnasium
import numpy as np

from swe_trainers.engines.action_trie import ActionTrie, Legal
from swe_trainers.engines.grammar import Grammar, Grammars
from swe_trainers.engines.protocol import Engine, MessageEngine, Sample
from swe_trainers.engines.sampling import Sampling
from swe_trainers.errors import ConfigurationError, RolloutError, TrainerError
from swe_trainers.model.chat import ChatFormat
from swe_trainers.rollout.adapters import TextAdapter
from swe_trainers.rollout.conversations import Conversations, checked_messages
from swe_trainers.rollout.environments import (
    EnvPool,
    EnvThreads,
    Failure,
    Returned,
    checked_reset,
    checked_step,
    ends_the_run,
)
from swe_trainers.rollout.episode import Episode, Read
from swe_trainers.rollout.history import History, Prompt
from swe_trainers.rollout.rate import Rate
from swe_trainers.rollout.settings import Branching, EpisodeSettings, EpisodeStart, Limits
from swe_trainers.rollout.trajectory import Trajectory
from swe_trainers.rollout.tree import Tree

__all__ = ["Ended", "Player", "iter_episodes", "play"]


class Ended(NamedTuple):
    """The result of one start.

    Attributes:
        number: of the start.
        env: that played it, and whose next episode starts later; None if it could not be made.
        trajectories: one, or one for each end of a tree.
    """

    number: int
    env: gymnasium.Env[str, str] | None
    trajectories: list[Trajectory]


_CLOSE_TIMEOUT_S = 30.0
"""Time to wait for running calls of environments, before they are abandoned."""
_INTERRUPT_TIMEOUT_S = 2.0
"""The same if the environments are closed during episodes, because playing was interrupted."""
_MEMORY = "/proc/meminfo"
_MEMORY_EVERY_S = 0.02
_MOST_TRIES = 4096
_MOST_TEXTS = 8192
_SHORT_TEXT = 256
"""The tokens of observations up to this number of characters are cached, because they may occur again."""
_SHORT_ACTION = 16
"""The texts of actions up to this number of tokens are cached likewise."""
_SPARE_MEMORY = 0.05
"""If a smaller fraction of the machine's memory is available, no episode begins while another one is running."""


def play(
    engine: Engine,
    chat: ChatFormat,
    envs: Sequence[gymnasium.Env[str, str]],
    starts: Iterable[EpisodeStart],
    *,
    limits: Limits,
    sampling: Sampling | None = None,
    history: History | None = None,
    branching: Branching | None = None,
    seed: int = 0,
    lockstep: bool = False,
) -> list[Trajectory]:
    """Play episodes.

    Args:
        engine: with at least as many free slots as there are environments.
        chat: turns conversations into tokens.
        envs: text environments, each used by one thread at a time and left open.
        starts: one per episode, or per tree; read as environments become free.
        limits: of actions and episodes.
        sampling: how tokens are sampled; temperature 1 without truncation by default.
        history: how a history longer than `limits.max_tokens` is shortened; None ends the episode there, and "last"
            shows the policy only the last observation, in every turn.
        branching: where episodes fork; None for one episode per start. An environment with `snapshot` and `restore`
            returns to a fork by them, any other by repeating the same actions from its seed.
        seed: with an episode's place in `starts` it determines the episode's random generator. The samples depend
            neither on timing nor on the other episodes, except for rounding in the last digits of the logits.
        lockstep: environments and engine take turns, all at once: slower, but batches have the same composition in
            every run, so that two runs are bitwise equal.

    Returns:
        One trajectory per start (for a tree one per end), in the order of `starts`; with `valid=False` if the
            infrastructure failed or timed out, the environment raised something or broke its contract, the prompt
            leaves no room for an action, or `info["valid"]` is false.

    Raises:
        RolloutError: none of the environments responds any more.
        TrainerError: an error that ends a run, see `ends_the_run`.
    """
    settings = EpisodeSettings(limits, sampling or Sampling(), history, branching)
    ended = sorted(iter_episodes(engine, chat, envs, starts, settings, seed=seed, lockstep=lockstep), key=itemgetter(0))
    return [trajectory for each in ended for trajectory in each.trajectories]


def iter_episodes(
    engine: Engine | MessageEngine,
    chat: ChatFormat | None,
    envs: Sequence[gymnasium.Env[str, str]],
    starts: Iterable[EpisodeStart],
    settings: EpisodeSettings,
    *,
    seed: int = 0,
    lockstep: bool = False,
    close_envs: bool = False,
    rate: Rate | None = None,
) -> Generator[Ended]:
    """Play episodes; yields the trajectories of a start as soon as they have ended, before its environment is reset.

    Args:
        engine, chat, envs, starts, seed, lockstep: as in `play`; an engine that takes messages needs no `chat`.
        settings: how episodes are played.
        close_envs: close the environments at the end.
        rate: adds up how fast episodes are played.
    Raises:
        TrainerError: as `play`.
    """
    player = Player(engine, chat, envs, settings, seed=seed, lockstep=lockstep, rate=rate)
    waiting = iter(starts)
    more = True
    try:
        while True:
            while more and player.n_free:
                start = next(waiting, None)
                if start is None:
                    more = False
                else:
                    player.start(start)
            if player.n_playing:
                yield from player.advance()
            elif more and next(waiting, None) is not None:
                raise player.none_left()
            else:
                return
    finally:
        player.close(close_envs=close_envs)


class _Call(NamedTuple):
    """A call to an environment that has not returned, for the episode of a start with this number."""

    number: int
    what: Literal["reset", "step"]
    at: float
    limit_s: float

    @property
    def deadline(self) -> float:
        return self.at + self.limit_s


class Player:
    """Running episodes. Environments run on threads of their own, everything else on the caller's.

    Args:
        engine, chat, envs, seed, lockstep: as in `play`; an engine that takes messages needs no `chat`.
        settings: how episodes are played.
        rate: adds up how fast episodes are played; by default the player's own.

    Raises:
        ConfigurationError: there are no environments, or more than the engine has slots; a shortened history would
            leave no room for an action; or a setting has no effect on an engine that takes messages.
    """

    def __init__(
        self,
        engine: Engine | MessageEngine,
        chat: ChatFormat | None,
        envs: Sequence[gymnasium.Env[str, str]],
        settings: EpisodeSettings,
        *,
        seed: int = 0,
        lockstep: bool = False,
        rate: Rate | None = None,
    ) -> None:
        self.rate = rate or Rate()
        self.engine, self._chat, self._envs, self._settings = engine, chat, EnvPool.of(envs), settings
        self._tokens, self._messages = cast(Engine, engine), cast(MessageEngine, engine)  # one of the two
        self._seed, self._lockstep = seed, lockstep
        limits = settings.limits
        if not envs:
            raise ConfigurationError("play: no environments")
        if engine.n_slots < len(envs):
            raise ConfigurationError(
                f"play: {len(envs)} environments, but the engine has {engine.n_slots} slots; it needs one for each"
            )
        if chat is None:
            self._max_context = 0
            if settings.history is not None or settings.branching is not None or settings.grammar is not None:
                raise ConfigurationError("history, branching, grammar: need an engine that takes token ids")
        else:
            self._max_context = min(limits.max_tokens or self._tokens.max_tokens, self._tokens.max_tokens)
            if settings.history is not None and limits.max_new_tokens >= self._max_context:
                raise ConfigurationError(
                    f"a shortened history leaves room for an action of {limits.max_new_tokens} tokens "
                    f"(max_new_tokens), but a context has {self._max_context} in all (max_tokens)"
                )
        self._threads = EnvThreads(self._envs)
        self._free = self._envs.usable
        self._episodes: dict[int, Episode] = {}  # by number of the start
        self._trees: dict[int, Tree] = {}
        self._finished: dict[int, list[Trajectory]] = {}  # ends of trees that are still being played
        self._calls: dict[int, _Call] = {}  # by ticket
        self._idle_since: dict[int, float] = {}  # by number of the start: when its environment returned
        self._slots: dict[int, int] = {}  # slot → number of the start
        self._held: dict[int, tuple[list[int], int, int]] = {}  # tokens in each slot: a list, start and end in it
        self._texts: dict[tuple[str, bool], Sequence[int]] = {}  # tokens of short observations, which do not change
        self._prompts: dict[tuple[str, str | None], Sequence[int]] = {}  # tokens of short first observations
        self._actions: dict[tuple[int, ...], str] = {}  # texts of short actions
        self._tries: dict[tuple[str, ...], ActionTrie] = {}  # by legal actions
        self._grammars: Grammars | None = None  # made at the first use
        self._ended: list[Ended] = []
        self._memory = (float("-inf"), False)  # time of the last check, and whether memory was short
        self._n_started = 0
        self._last_failure = "none"

    @property
    def n_free(self) -> int:
        """Number of environments that can start an episode; with little free memory, 0 while an episode is running."""
        self._free = [env for env in self._free if not self._envs.place(env).abandoned]  # perhaps by another player
        if self._free and self._episodes and not self._lockstep and self._memory_is_short():
            return 0
        return len(self._free)

    def _memory_is_short(self) -> bool:
        """Whether memory is short, from a check at most 20 ms ago: a check takes as long as a step of a game."""
        now = time.monotonic()
        if now - self._memory[0] >= _MEMORY_EVERY_S:
            self._memory = now, _available_memory() < _SPARE_MEMORY
        return self._memory[1]

    @property
    def n_playing(self) -> int:
        """Number of running episodes."""
        return len(self._episodes)

    def start(self, start: EpisodeStart) -> int:
        """Start an episode in a free environment; returns its number, counted from 0."""
        number, env = self._n_started, self._free.pop(0)
        self._n_started += 1
        if not self._episodes:
            self.rate.begin()
        stream = (self._seed, number) if start.stream is None else start.stream
        self._episodes[number] = Episode(start, env, stream, _generator(stream), time.monotonic())
        self._finished[number] = []
        if self._settings.branching is not None:
            self._trees[number] = Tree(self._settings.branching)

        def reset(env: gymnasium.Env[str, str]) -> tuple[str, float, bool, bool, Mapping[str, Any]]:
            options = None if start.options is None else dict(start.options)
            observation, info = checked_reset(env.reset(seed=start.seed, options=options))
            return observation, 0.0, False, False, info

        self._call(number, reset, "reset", begins=True)
        return number

    def advance(self, *, new_actions: bool = True) -> list[Ended]:
        """Process the results of environments, and generate a little.

        Args:
            new_actions: False leaves the environments' results for later: each would request another action.
        Returns:
            The episodes that have ended. It may be empty.
        Raises:
            Exception: as `play`.
        """
        if new_actions:
            for number, returned in self._returned():
                self._receive(number, returned)
        samples = self.engine.step()
        while self._lockstep and self.engine.busy:
            samples += self.engine.step()
        for sample in samples:
            self._act(sample)
        self._threads.send()
        ended, self._ended = self._ended, []
        return ended

    def none_left(self) -> RolloutError:
        """The error if episodes wait, and no environment is left to play them."""
        return RolloutError(
            f"none of {len(self._envs)} environments responds; the last failure is: {self._last_failure}. Try: a "
            "function that makes environments, so that they can be replaced, or a longer rollout.step_timeout_s"
        )

    def wake(self) -> None:
        """Make a waiting `advance` return; from another thread."""
        self._threads.wake()

    def close(self, *, close_envs: bool = False) -> None:
        """Drop the running episodes, and end the threads; waits a while for running calls, see `_CLOSE_TIMEOUT_S`.

        Args:
            close_envs: close the environments; if episodes are running the waits are short.
        """
        hurries = close_envs and bool(self._episodes)
        for number, tree in self._trees.items():
            tree.close()
            self._discard(self._episodes[number].env, tree)
        self._threads.close(_INTERRUPT_TIMEOUT_S if hurries else _CLOSE_TIMEOUT_S)
        if close_envs:
            self._envs.close(_INTERRUPT_TIMEOUT_S if hurries else _CLOSE_TIMEOUT_S)
        for slot in self._slots:
            self.engine.close(slot)
        if self._episodes:
            self.rate.end()
        self._episodes, self._trees, self._slots = {}, {}, {}

    def _call(
        self,
        number: int,
        function: Callable[[gymnasium.Env[str, str]], Any],
        what: Literal["reset", "step"],
        *,
        begins: bool = False,
    ) -> None:
        limits = self._settings.limits
        limit_s = (limits.reset_timeout_s if what == "reset" else limits.step_timeout_s) or float("inf")
        now = time.monotonic()
        self.rate.model_s += now - self._idle_since.pop(number, now)
        ticket = self._threads.call(self._episodes[number].env, function, begins=begins)
        self._calls[ticket] = _Call(number, what, now, limit_s)

    def _discard(self, env: int, tree: Tree) -> None:
        """Free the snapshots that a tree does not need any more, on the environment's thread: this may take long."""
        for snapshot in tree.unneeded:
            self._threads.call(env, functools.partial(self._envs.discard, snapshot))
        tree.unneeded.clear()

    def _returned(self) -> list[tuple[int, Returned]]:
        """Calls that have returned, by episode; waits for one if the engine is idle, in lockstep for all."""
        ready: list[tuple[int, Returned]] = []
        woken = False
        while self._calls and not woken:
            must_wait = self._lockstep or not (ready or self.engine.busy)
            left_s = min(call.deadline for call in self._calls.values()) - time.monotonic() if must_wait else 0.0
            found = self._threads.returned(None if left_s == float("inf") else max(0.0, left_s))
            for returned in found:
                woken = woken or not returned.ticket
                call = self._calls.pop(returned.ticket, None)
                if call is not None:  # else a snapshot was discarded, or the environment was abandoned
                    info = returned.result[4] if returned.result is not None else None
                    self.rate.called(returned.at - call.at, info)
                    self._idle_since[call.number] = returned.at
                    ready.append((call.number, returned))
            if not found:
                self._time_out()
                if not must_wait:
                    break
        return sorted(ready, key=itemgetter(0))

    def _time_out(self) -> None:
        """End the episodes whose environments have not returned in time."""
        now = time.monotonic()
        for ticket in [each for each, call in self._calls.items() if call.deadline <= now]:
            call = self._calls.pop(ticket)
            self.rate.called(now - call.at, None)
            reason = f"the environment did not respond to {call.what} for {call.limit_s:g} s"
            self._finish(call.number, "environment", Failure(reason), timed_out=True)

    def _receive(self, number: int, returned: Returned) -> None:
        """Process the result of a reset, a step or a restore."""
        episode = self._episodes[number]
        if returned.error is not None:
            error = returned.error
            if not ends_the_run(error):
                self._finish(number, "environment", Failure.of(error))
                return
            raise error if isinstance(error, TrainerError) else ConfigurationError(f"environment: {error}") from error
        if returned.result is None:  # restored to a fork
            self._request(number)
            return
        observation, reward, terminated, truncated, info = returned.result
        episode.update_info(info)
        read = Read(observation, ()) if terminated and episode.turns else self._read(episode, observation, info)
        if not episode.turns:
            episode.prompt = Prompt(observation, info.get("system_prompt"), info.get("tools"), read.ids)
            episode.lists_actions = self._settings.constrained or _is_adapter(self._envs[episode.env])
        else:
            episode.respond(reward, observation, read.ids)
        if terminated:
            episode.terminated = True
            self._finish(number)
        elif truncated:
            self._truncate(number, "", read)
        else:
            self._continue(number, read)

    def _read(self, episode: Episode, observation: str, info: Mapping[str, Any]) -> Read:
        """The tokens of an observation, or of the messages if an agent program requests an answer."""
        if self._chat is None:
            return Read(observation, ())
        if info.get("messages") is not None:
            if self._settings.history is not None:
                raise ConfigurationError(
                    "history: has no effect on an agent program (info['messages']), which shortens its conversations "
                    "itself. Try: null"
                )
            if episode.conversations is None:
                episode.conversations = Conversations(self._chat)
            placed = episode.conversations.place(info, episode.token_ids)
            return Read(observation, placed.ids, bool(placed.cause), placed.conversation, placed.cause)
        if not episode.turns:
            return Read(observation, self._begun(observation, info.get("system_prompt"), info.get("tools")))
        if self._settings.history == "last":  # the policy reads it like a prompt
            return Read(observation, ())
        return Read(observation, self._continued(observation, closed=episode.closed))

    def _continued(self, observation: str, *, closed: bool) -> Sequence[int]:
        """`ChatFormat.observe`, cached because games show the same texts repeatedly."""
        assert self._chat is not None
        if len(observation) > _SHORT_TEXT:
            return self._chat.observe(observation, closed=closed)
        key = observation, closed
        ids = self._texts.get(key)
        if ids is None:
            self._forget()
            ids = self._texts[key] = self._chat.observe(observation, closed=closed)
        return ids

    def _begun(self, observation: str, system: str | None, tools: Any) -> Sequence[int]:
        """`ChatFormat.start`, cached likewise."""
        assert self._chat is not None
        if len(observation) > _SHORT_TEXT or tools:
            return self._chat.start(observation, system=system, tools=tools)
        key = observation, system
        ids = self._prompts.get(key)
        if ids is None:
            self._forget()
            ids = self._prompts[key] = self._chat.start(observation, system=system, tools=tools)
        return ids

    def _action_text(self, token_ids: tuple[int, ...]) -> str:
        """`ChatFormat.action_text`, cached likewise."""
        assert self._chat is not None
        if len(token_ids) > _SHORT_ACTION:
            return self._chat.action_text(token_ids)
        text = self._actions.get(token_ids)
        if text is None:
            self._forget()
            text = self._actions[token_ids] = self._chat.action_text(token_ids)
        return text

    def _forget(self) -> None:
        """Make room in the caches for another text."""
        if len(self._texts) + len(self._prompts) + len(self._actions) >= _MOST_TEXTS:
            self._texts.clear()
            self._prompts.clear()
            self._actions.clear()

    def _continue(self, number: int, read: Read) -> None:
        """Request the next action, unless a limit ends the episode."""
        episode, limits = self._episodes[number], self._settings.limits
        if episode.last_turn:
            return self._truncate(number, "tokens", read)
        if episode.turns and limits.max_turns is not None and len(episode.turns) >= limits.max_turns:
            return self._truncate(number, "max_turns", read)
        limit_s = limits.episode_timeout_s
        if episode.turns and limit_s is not None and time.monotonic() - episode.started_at >= limit_s:
            return self._truncate(number, "time", read)
        if self._chat is not None:
            shortened = self._shortened(episode, read)
            if shortened is not None:
                read = Read(read.observation, shortened, begins=True)
            size = len(read.ids) + (0 if read.begins else episode.context_size)
            room = self._max_context - size
            if room < self._room_for_action(episode, room):
                return self._full(number, read, f"the context has {size} tokens, max_tokens is {self._max_context}")
        episode.read(read)
        if episode.slot is None:
            episode.slot = self.engine.open()
            self._slots[episode.slot] = number
        if number in self._trees:
            self._trees[number].reach(episode)
        return self._request(number)

    def _room_for_action(self, episode: Episode, room: int) -> int:
        """The tokens that must be free for the next action: one, or all of the longest legal action."""
        most = self._settings.limits.max_new_tokens
        if not 0 < room < most:
            return 1
        legal = self._legal(episode)
        # With an action of more than max_new_tokens the settings do not fit the environment, which is an error.
        return 1 if legal is None or legal.depth > most else max(1, legal.depth)

    def _shortened(self, episode: Episode, read: Read) -> Sequence[int] | None:
        """A shortened context, if the next action might not fit otherwise; None to keep the context."""
        assert self._chat is not None
        budget, history = self._max_context - self._settings.limits.max_new_tokens, self._settings.history
        if history is None or not episode.turns:
            return None
        if history == "last":
            return self._last_alone(episode, read.observation)
        if episode.context_size + len(read.ids) <= budget:
            return None
        assert episode.prompt is not None
        return history.shorten(self._chat, episode.prompt, episode.past, budget)

    def _last_alone(self, episode: Episode, observation: str) -> Sequence[int]:
        """A context that contains only this observation."""
        assert episode.prompt is not None
        return self._begun(observation, episode.prompt.system, episode.prompt.tools)

    def _full(self, number: int, read: Read, reason: str) -> None:
        """End an episode whose context has no room for another action."""
        episode = self._episodes[number]
        if self._settings.grade_when_full:
            if not episode.last_turn and self._envs[episode.env].has_wrapper_attr("last_turn"):
                episode.last_turn = True
                episode.read(read, self._max_context)
                episode.act(Sample(-1, (), (), "context", notes={"no_room": reason}), "")
                self._call(number, _last_step, "step")
                return
        elif not episode.turns:
            self._finish(number, "tokens", Failure(f"no room for an action: {reason}"))
            return
        self._truncate(number, "tokens", read)

    def _truncate(self, number: int, end_reason: str, read: Read) -> None:
        episode = self._episodes[number]
        episode.truncated = True
        if self._settings.history == "last" and episode.turns and self._chat is not None:
            # The value after the last action needs a context as the policy would read it.
            read = Read(read.observation, self._last_alone(episode, read.observation), begins=True)
        episode.read(read, self._max_context)
        self._finish(number, end_reason)

    def _request(self, number: int) -> None:
        """Request an action; the engine receives only the tokens that its slot does not contain."""
        episode, limits = self._episodes[number], self._settings.limits
        assert episode.slot is not None
        if self._chat is None:
            assert episode.prompt is not None
            system, tools = episode.prompt.system or "", episode.prompt.tools or ()
            asked = episode.info.get("messages")
            if asked is not None:
                asked, tools = checked_messages(episode.info)
            self._messages.ask(episode.slot, episode.observation, system=system, tools=tools, messages=asked)
            return
        tokens, start = episode.token_ids, episode.sample_starts[-1]
        held, first, end = self._held.get(episode.slot, (tokens, start, start))
        kept = end - first
        if episode.rewritten:
            most = min(kept, len(tokens) - start - 1)  # the engine needs a token to continue from
            kept = 0
            while kept < most and held[first + kept] == tokens[start + kept]:
                kept += 1
            self._tokens.rewind(episode.slot, kept)
            episode.rewritten = False
        self._tokens.submit(
            episode.slot,
            tokens[start + kept :],
            max_new_tokens=min(limits.max_new_tokens, self._max_context - len(tokens) + start),
            stop_ids=self._chat.stop_ids,
            sampling=self._settings.sampling,
            random=episode.random,
            stop_strings=limits.stop_strings,
            legal=self._legal(episode),
        )

    def _legal(self, episode: Episode) -> Legal | None:
        """The legal actions or the grammar to sample from; None for free text."""
        assert self._chat is not None
        listed = episode.info.get("legal_actions")
        if listed is None or not episode.lists_actions:
            own = episode.info.get("grammar") if self._settings.constrained else None
            grammar = self._settings.grammar if own is None else Grammar.of(own)
            if grammar is None:
                return None
            if self._grammars is None:
                self._grammars = Grammars(self._chat)
            assert episode.prompt is not None
            return self._grammars.start(grammar, episode.info.get("tools") or episode.prompt.tools or ())
        if self._settings.grammar is not None:
            raise ConfigurationError(
                "grammar: has no effect where the environment lists its legal actions. Try: leave it out, or "
                "environment.adapter_kwargs {unconstrained: true}"
            )
        key = tuple(listed)
        legal = self._tries.get(key)
        if legal is None:
            if not all(isinstance(text, str) for text in key):
                raise ConfigurationError(f"info['legal_actions'] is {listed!r:.80}, expected texts. Try: TextAdapter")
            if len(self._tries) > _MOST_TRIES:
                self._tries.clear()
            legal = ActionTrie.of({text: self._chat.action_ids(text) for text in key}, self._chat.stop_ids)
            self._tries[key] = legal
        return legal

    def _act(self, sample: Sample) -> None:
        """Pass a finished action to its environment."""
        number = self._slots[sample.slot]
        episode, tree = self._episodes[number], self._trees.get(number)
        if sample.failure is not None:
            self._finish(number, "engine", Failure(f"{type(sample.failure).__name__}: {sample.failure}"))
            return
        if self._chat is None:
            if sample.end == "context":
                self._full(number, Read(episode.observation, ()), str(sample.notes.get("no_room", "")))
                return
            text = sample.text
        else:
            text = self._action_text(sample.token_ids)
        asking = episode.conversations
        if asking is not None and self._chat is not None:
            answer = self._chat.answer(sample.token_ids, asking.tools, number=len(episode.turns))
            if answer.get("tool_calls"):
                text = json.dumps(answer, ensure_ascii=False)
        episode.act(sample, text)
        if asking is not None and self._chat is not None:
            asking.answered(
                answer,
                sample.token_ids,
                closed=episode.closed,
                start=episode.sample_starts[-1],
                end=len(episode.token_ids),
            )
        self._held[sample.slot] = (episode.token_ids, episode.sample_starts[-1], len(episode.token_ids))

        def step(env: gymnasium.Env[str, str]) -> Any:
            if tree is not None:
                tree.save(env)
            return checked_step(env.step(text))

        self._call(number, step, "step")

    def _finish(
        self, number: int, end_reason: str = "", failure: Failure | None = None, *, timed_out: bool = False
    ) -> None:
        """Record the end of an episode; continue its tree, or release its environment unless that has timed out."""
        episode, tree = self._episodes[number], self._trees.get(number)
        episode.end_reason = end_reason
        self._finished[number].append(episode.trajectory(failure))
        self.rate.episodes += 1
        if failure is not None:
            self._last_failure = failure.reason
        node = None if tree is None or timed_out else tree.backtrack()
        if tree is not None:
            if node is None:
                self._trees.pop(number).close()
            self._discard(episode.env, tree)
        if tree is not None and node is not None:
            branch = node.episode.copy()
            branch.slot, branch.rewritten = episode.slot, True
            branch.random = _generator((*episode.stream, tree.leaf))
            branch.started_at += time.monotonic() - node.reached_at  # other branches' time does not count
            self._episodes[number] = branch
            self._call(number, lambda env: tree.restore(env, node), "reset")
            return
        del self._episodes[number]
        self._idle_since.pop(number, None)
        if not self._episodes:
            self.rate.end()
        if episode.slot is not None:
            self.engine.close(episode.slot)
            del self._slots[episode.slot]
            self._held.pop(episode.slot, None)
        env = self._envs.place(episode.env).env
        if timed_out:
            self._threads.abandon(episode.env)
        if not timed_out or self._envs.replaces:
            self._free.append(episode.env)
        self._ended.append(Ended(number, env, self._finished.pop(number)))


def _available_memory() -> float:
    """The available fraction of the machine's memory, from 0 to 1; 1 if the kernel does not report it."""
    try:
        with open(_MEMORY, encoding="ascii") as file:
            kilobytes = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in file)}
        return kilobytes["MemAvailable"] / kilobytes["MemTotal"]
    except (OSError, KeyError):
        return 1.0


def _is_adapter(env: gymnasium.Env[str, str]) -> bool:
    """Whether a `TextAdapter` that lists legal actions wraps the environment."""
    while isinstance(env, gymnasium.Wrapper):
        if isinstance(env, TextAdapter):
            return not env.unconstrained
        env = env.env
    return False


def _last_step(env: gymnasium.Env[str, str]) -> Any:
    env.get_wrapper_attr("last_turn")("tokens")
    return checked_step(env.step(""))


def _generator(stream: tuple[int, ...]) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(stream)))
