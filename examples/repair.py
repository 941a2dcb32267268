"""A model trained from nothing on the source text of this machine learns to repair the packages of `mini`.

    python examples/repair.py --output runs/repair --hours 8

    installed source → tokenizer → reading → cloned repairs → cloned episodes → PPO on the tests' verdicts → report.md

Functions of the standard library and of installed packages are its only text, with the bugs that `swegym make-tasks`
would put into them; whole packages are held out. In an episode of `mini` a scripted scaffold shows the issue and the
functions that it mentions. The model names a line and a span in it, and writes what takes its place; the hidden tests
decide. It is measured after each stage, beside edits that are drawn at random from the same operators.

Started again, it goes on where it was, and with more hours PPO does.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import math
import random
import re
import shlex
import sysconfig
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import gymnasium

import swegym_env  # noqa: F401 - registers SWEBench-v0
from swe_trainers.evaluation.evaluate import Plan, evaluate
from swe_trainers.evaluation.policies import open_folder
from swe_trainers.evaluation.statistics import clustered_interval
from swe_trainers.experiment import run_experiment
from swe_trainers.files import write_whole
from swe_trainers.logging import read_metrics
from swe_trainers.model.tokenizers import train_sentencepiece
from swe_trainers.run_config import WrapperConfig, run_config
from swegym_env.agent.spaces import AnyText
from swegym_env.cli.export import export_trajectories
from swegym_env.languages.python.parsing import parse
from swegym_env.making.candidates import mutations
from swegym_env.recording.record import read_record
from swegym_env.tasks.data import mini
from swegym_env.wrappers import RecordTrajectory

SHOWN_CHARS, SHOWN_LINES, ISSUE_CHARS = 1000, 40, 200  # what an observation may have
MAX_TOKENS = 1536  # of an episode: even one token a character fits
LABELS = [f"L{number}:" for number in range(1, SHOWN_LINES + 1)]  # a token each
SIZES = {  # hidden_size, intermediate_size, num_hidden_layers
    "tiny": (32, 64, 1),
    "1M": (128, 384, 4),
    "5M": (256, 768, 6),
    "20M": (448, 1344, 8),
}
# The environment and the trainers are excluded, and packages that bear the name of one in `mini`.
EXCLUDED = {"swegym_env", "swe_trainers", *mini.packages()}
NO_SOURCE = re.compile(r"(^|/)(tests?|testing|_vendor|vendored|site-packages|idlelib|lib2to3)(/|$)|_pb2|test_")
SHARES = {"reading": 0.25, "repairs": 0.45, "ppo": 0.3}  # of the hours
TASKS: dict[str, Any] = {
    "dataset": "mini",
    "action_format": "raw",
    "prompt": "terse",
    "max_turns": 4,
    "observation_limit": 200_000,
}
SOURCES = "for f in $(git ls-files '*.py' | grep -v '^tests/'); do echo \"=== $f\"; cat \"$f\"; done; echo '=== '"


# What the model sees: functions, line by line.


@dataclass(frozen=True)
class Line:
    """A line of a file.

    Attributes:
        function: its file and its function.
        number: from 1.
        indent: of the function.
        code: the line without that indentation.
    """

    function: tuple[str, str]
    number: int
    indent: int
    code: str


def functions_of(path: str, content: str) -> Iterator[tuple[str, list[Line]]]:
    """The functions and methods of a Python file: docstring, and lines without docstring, comments and blank lines."""
    lines = content.split("\n")

    def visit(body: Sequence[ast.stmt], outer: str) -> Iterator[tuple[str, list[Line]]]:
        for node in body:
            if isinstance(node, ast.ClassDef):
                yield from visit(node.body, f"{outer}{node.name}.")
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                numbers = set(range(min([node.lineno, *(each.lineno for each in node.decorator_list)]), _end(node) + 1))
                described = ast.get_docstring(node)
                if described is not None:
                    numbers -= set(range(node.body[0].lineno, _end(node.body[0]) + 1))
                kept = [n for n in sorted(numbers) if re.match(r"\s*[^\s#]", lines[n - 1])]
                indent = node.col_offset
                texts = {n: lines[n - 1] if lines[n - 1][:indent].strip() else lines[n - 1][indent:] for n in kept}
                yield described or "", [Line((path, outer + node.name), n, indent, texts[n]) for n in kept]

    yield from visit(parse(content).body, "")


def _end(node: ast.stmt) -> int:
    return node.end_lineno or node.lineno


def chosen(issue: str, functions: Sequence[list[Line]]) -> list[Line]:
    """The lines of the functions that an issue speaks of, the most likely function first, within the limits."""
    texts = [_text(lines) for lines in functions]
    words = [_words(text) for text in texts]
    spread = Counter(word for each in words for word in each)
    weight = {word: math.log(len(texts) / count) for word, count in spread.items()}
    named, wanted = set(re.findall(r"\w+", issue)), _words(issue)

    def score(at: int) -> float:
        name = functions[at][0].function[1].rpartition(".")[2]
        in_name = sum(weight.get(word, 0.0) for word in _words(name) & wanted)
        in_text = sum(weight[word] for word in words[at] & wanted) / math.sqrt(1 + len(words[at]))
        return 5.0 * (name in named) + 2.0 * in_name + in_text

    shown, room = list[Line](), SHOWN_CHARS
    for at in sorted(range(len(functions)), key=score, reverse=True):
        if len(shown) + len(functions[at]) <= SHOWN_LINES and len(texts[at]) <= room:
            shown += functions[at]
            room -= len(texts[at])
    return shown


def _words(text: str) -> set[str]:
    """The words of a text or of code, in lower case; identifiers are taken apart."""
    return {part.lower() for part in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+", text)}


def observation_of(issue: str, codes: Sequence[str]) -> str:
    """What the model reads first: the beginning of an issue, and lines with their labels."""
    return "\n".join([issue[:ISSUE_CHARS].strip(), *map("".join, zip(LABELS, codes, strict=False))])


def _equal_ends(before: Sequence[str], after: Sequence[str]) -> tuple[int, int]:
    """How many items are the same at the beginning of both, and how many of the others at the end."""
    start = end = 0
    least = min(len(before), len(after))
    while start < least and before[start] == after[start]:
        start += 1
    while end < least - start and before[-1 - end] == after[-1 - end]:
        end += 1
    return start, end


def edits_of(before: Sequence[str], after: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Ways to write a change as another text in the place of one line, counted from 0; none where it is larger."""
    start, end = _equal_ends(before, after)
    old, new = before[start : len(before) - end], list(after[start : len(after) - end])
    if len(old) == 1:
        yield start, "\n".join(new)
    elif not old and start > 0:
        yield start - 1, "\n".join([before[start - 1], *new])
    if not old and start < len(before):
        yield start, "\n".join([*new, before[start]])


def operator_edits(codes: Sequence[str], seed: int) -> list[tuple[str, list[str]]]:
    """All ways in which the operators of `swegym make-tasks` change a function: the operator, and all lines after."""
    source = "\n".join(codes) + "\n"
    found = mutations({"f.py": source.encode()}, {"f.py": range(1, len(codes) + 1)}, seed=seed)
    return [(each.kind, (each.files["f.py"] or b"").decode().split("\n")[:-1]) for each in found]


def pieces_of(code: str) -> list[str]:
    """The words and signs of a line, with the blanks before them: as many as there are labels for, less one."""
    found = [piece for piece in re.findall(r"\s*(?:\w+|[^\w\s]+|$)", code) if piece]
    return found if len(found) < SHOWN_LINES else [*found[: SHOWN_LINES - 2], "".join(found[SHOWN_LINES - 2 :])]


class Dialogue:
    """An edit in three answers: the label of a line, the labels where a span of it begins and ends, the new text.

    Nothing has to be copied: a model learns to point long before it learns to repeat a line.

    Args:
        codes: the lines.

    Attributes:
        at: the line of the edit, counted from 0.
        text: in its place, once the edit is complete.
        observation, info: what the model sees next.
    """

    def __init__(self, codes: Sequence[str]) -> None:
        self._codes = codes
        self.at: int | None = None
        self._span: tuple[int, int] | None = None
        self.text: str | None = None
        self.observation, self.info = "", {"legal_actions": LABELS[: len(codes)]}

    def answer(self, action: str) -> None:
        """Take an answer."""
        if self.at is None:
            self.at = LABELS.index(action)
            self._pieces = pieces_of(self._codes[self.at])
            size = len(self._pieces) + 1
            spans = [first + last for at, first in enumerate(LABELS[:size]) for last in LABELS[at:size]]
            self.observation = "".join(map("".join, zip(LABELS, [*self._pieces, ""], strict=False)))
            self.info = {"legal_actions": spans}
        elif self._span is None:
            first, last = re.findall(r"L\d+:", action)
            self._span = LABELS.index(first), LABELS.index(last)
            self.observation, self.info = "".join(self._pieces[slice(*self._span)]), {}
        else:
            start, stop = self._span
            self.text = "".join([*self._pieces[:start], action.replace("\0", ""), *self._pieces[stop:]])


def answers_of(codes: Sequence[str], edit: tuple[int, str]) -> list[str]:
    """The answers that make an edit; the span is as short as can be."""
    at, text = edit
    old, new = pieces_of(codes[at]), pieces_of(text)
    start, end = _equal_ends(old, new)
    return [LABELS[at], LABELS[start] + LABELS[len(old) - end], "".join(new[start : len(new) - end])]


# The two environments: functions of installed packages, and the packages of `mini`.


class LibraryRepair(gymnasium.Env[str, str]):
    """The bugs of a file that `prepare` wrote. One point for the line, and one for exactly the original text.

    Args:
        file: of rows with an issue, lines, and the repair: a line, counted from 0, and its text.
    """

    def __init__(self, file: str) -> None:
        self.observation_space = self.action_space = AnyText()
        self._rows = [json.loads(line) for line in Path(file).read_text(encoding="utf-8").splitlines()]
        self.instance_ids = tuple(str(number) for number in range(len(self._rows)))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Show a function with a bug."""
        super().reset(seed=seed)
        number = int((options or {}).get("instance_id", self.np_random.integers(len(self._rows))))
        self._row = self._rows[number]
        codes = self._row["lines"]
        self.shown = [Line(("", ""), number, 0, code) for number, code in enumerate(codes, start=1)]
        self._dialogue = Dialogue(codes)
        return observation_of(self._row["issue"], codes), {"instance_id": str(number), **self._dialogue.info}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Take an answer."""
        first = self._dialogue.at is None
        self._dialogue.answer(action)
        at, text = self._row["repair"]
        if self._dialogue.text is None:
            found = first and self._dialogue.at == at
            return self._dialogue.observation, float(found), False, False, self._dialogue.info
        right = (self._dialogue.at, self._dialogue.text) == (at, text)
        return "", float(right), True, False, {"resolved": right}


class OneEdit(gymnasium.Wrapper[str, str, str, str]):
    """The scaffold around `SWEBenchEnv`: it reads the sources, shows functions, carries one edit out, and submits."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Show the issue and the functions that it speaks of."""
        issue, info = self.env.reset(seed=seed, options=options)
        printed, *_ = self.env.step(SOURCES)
        files = [part.partition("\n") for part in re.split(r"^=== ", printed, flags=re.MULTILINE)[1:-1]]
        self.shown = chosen(issue, [lines for path, _, text in files for _, lines in functions_of(path, text)])
        codes = [line.code for line in self.shown]
        self._dialogue = Dialogue(codes)
        return observation_of(issue, codes), {**info, **self._dialogue.info}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Take an answer; after the last one edit the file and submit."""
        self._dialogue.answer(action)
        at, text = self._dialogue.at, self._dialogue.text
        if at is None or text is None:
            return self._dialogue.observation, 0.0, False, False, self._dialogue.info
        line = self.shown[at]
        lines = [f"{' ' * line.indent}{each}" if each.strip() else "" for each in text.split("\n")]
        new = "\n".join(lines).replace("\\", "\\\\").replace("\n", "\\\n")
        script = f"{line.number}c\\\n{new}" if text.strip() else f"{line.number}d"
        self.env.step(f"sed -i {shlex.quote(script)} {shlex.quote(line.function[0])}")
        return self.env.step("submit")  # type: ignore[return-value]


if "LibraryRepair-v0" not in gymnasium.registry:  # this file is a program and, for the names of wrappers, a module
    gymnasium.register("LibraryRepair-v0", "repair:LibraryRepair")


def gold_edit(task: Any, shown: Sequence[Line]) -> tuple[int, str] | None:
    """The repair of a task of `mini` as one edit of the lines shown; None if there is none."""
    repaired = mini.read_repository(task.repo.partition("/")[2])
    place = {(line.function[0], line.number): at for at, line in enumerate(shown)}
    for path in (path for path in task.files if not path.startswith("tests/") and task.files[path] != repaired[path]):
        for row, text in edits_of(task.files[path].split("\n"), repaired[path].split("\n")):
            if (path, row + 1) in place:
                at = place[path, row + 1]
                indent = " " * shown[at].indent
                if all(not each.strip() or each.startswith(indent) for each in text.split("\n")):
                    return at, "\n".join(each[len(indent) :] for each in text.split("\n"))
    return None


def all_edits(shown: Sequence[Line]) -> list[tuple[int, str]]:
    """All edits by the operators of the functions shown; one that changes nothing where there are none."""
    found, first = list[tuple[int, str]](), 0
    for _, group in groupby(shown, key=lambda line: line.function):
        codes = [line.code for line in group]
        for _, after in operator_edits(codes, 0):
            found += [(first + at, text) for at, text in list(edits_of(codes, after))[:1]]
        first += len(codes)
    return found or [(0, shown[0].code)]


def play(env: gymnasium.Env[str, str], edit: tuple[int, str]) -> tuple[float, dict[str, Any]]:
    """Carry an edit out in an environment that was reset; the return, and the last info."""
    codes = [line.code for line in env.get_wrapper_attr("shown")]
    scores, info = list[float](), dict[str, Any]()
    for answer in answers_of(codes, edit):
        _, score, _, _, info = env.step(answer)
        scores.append(float(score))
    return sum(scores), info


# Source text, and what is made of it.


def source_files(roots: Sequence[Path], seed: int) -> list[tuple[str, Path]]:
    """Package and path of every source file below some folders that may be read, in an order drawn by the seed."""
    found = list[tuple[str, Path]]()
    for root in roots:
        for file in sorted(root.rglob("*.py")):
            inner = file.relative_to(root)
            package = inner.parts[0].removesuffix(".py")
            if package not in EXCLUDED and not NO_SOURCE.search(inner.as_posix()) and file.stat().st_size < 100_000:
                found.append((package, file))
    random.Random(f"files/{seed}").shuffle(found)
    return found


def is_held_out(package: str) -> bool:
    """One package in twelve."""
    return hashlib.sha256(package.encode()).digest()[0] % 12 == 0


def prepare(options: argparse.Namespace, output: Path) -> None:
    """Write `files.txt`, conversations for both kinds of cloning, and the bugs that are held out."""
    n_test = max(4, min(200, options.functions // 20))
    rows: dict[bool, list[dict[str, Any]]] = {False: [], True: []}
    texts, read, seen = list[str](), list[str](), set[str]()
    files = source_files(options.source, options.seed)
    for held_out in (True, False):
        tested = frozenset(seen)  # copies of held-out functions in other packages are not trained on
        wanted = n_test if held_out else options.functions
        for package, file in (each for each in files if is_held_out(each[0]) == held_out):
            if len(rows[held_out]) >= wanted:
                break
            rng = random.Random(f"{options.seed}/{file.name}/{file.stat().st_size}")
            try:
                found = functions_of(file.name, file.read_text(encoding="utf-8"))
                functions = [each for each in found if _text(each[1]) not in tested]
            except (SyntaxError, UnicodeDecodeError, ValueError, RecursionError):
                continue
            rng.shuffle(functions)
            n_before = len(rows[held_out])
            for described, lines in functions[:16]:
                code = _text(lines)
                if not 3 <= len(lines) <= 24 or len(code) > 0.7 * SHOWN_CHARS or code in seen:
                    continue
                seen.add(code)
                if not held_out:
                    texts.append(_conversation([f"{package}/{file.name}", code]))
                issue = described or lines[0].function[1].replace("_", " ")
                rows[held_out] += _broken(issue, lines, [each for _, each in functions], rng, 1 if held_out else 2)
            if len(rows[held_out]) > n_before:
                read.append(f"{'test' if held_out else 'train'} {package} {file}")
        del rows[held_out][wanted:]
    (output / "files.txt").write_text("\n".join(sorted(read)) + "\n")
    (output / "reading.jsonl").write_text("".join(texts))
    (output / "held_out.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[True]))
    conversations = [_conversation(_demonstrated(row)) for row in rows[False]]
    write_whole(output / "repairs.jsonl", "".join(conversations))  # the last one: it is there when all are


def _broken(
    issue: str, lines: list[Line], others: list[list[Line]], rng: random.Random, count: int
) -> Iterator[dict[str, Any]]:
    """A function with a bug, `count` times of different kinds, among up to two others of its file."""
    codes = [line.code for line in lines]
    try:
        found = operator_edits(codes, rng.randrange(1 << 30))
    except ValueError:  # without its docstring it is empty
        return
    kinds = {kind: [broken for each, broken in found if each == kind] for kind, _ in found}
    for kind in rng.sample(list(kinds), min(count, len(kinds))):
        broken = rng.choice(kinds[kind])
        edit = next(edits_of(broken, codes), None)
        if edit is None or edit[1].count("\n") > 3:
            continue
        mine = [replace(lines[0], number=number, code=code) for number, code in enumerate(broken, start=1)]
        near = [each for each in others if each is not lines and 0 < len(each) < 10]
        shown = chosen(issue, [mine, *rng.sample(near, min(len(near), rng.randrange(3)))])
        first = next((at for at, line in enumerate(shown) if line.function == mine[0].function), None)
        if first is not None:
            repair = [first + edit[0], edit[1]]
            yield {"issue": issue, "lines": [line.code for line in shown], "repair": repair, "operator": kind}


def _demonstrated(row: dict[str, Any]) -> list[str]:
    """Observations and answers in turn."""
    dialogue, (at, text) = Dialogue(row["lines"]), row["repair"]
    texts = [observation_of(row["issue"], row["lines"])]
    for answer in answers_of(row["lines"], (at, text)):
        dialogue.answer(answer)
        texts += [answer, dialogue.observation]
    return texts[:-1]


def _text(lines: Sequence[Line]) -> str:
    return "\n".join(line.code for line in lines)


def _conversation(texts: Sequence[str]) -> str:
    roles = ("user", "assistant")
    messages = [{"role": roles[number % 2], "content": text} for number, text in enumerate(texts)]
    return json.dumps({"messages": messages}) + "\n"


def train_tokenizer(output: Path, vocab_size: int) -> None:
    """Train the tokenizer on what is read and shown."""
    texts = list[str]()
    for name, at in (("reading.jsonl", 1), ("repairs.jsonl", 0)):  # the code, and the first observation
        lines = (output / name).read_text().splitlines()[:4000]
        texts += [json.loads(line)["messages"][at]["content"] for line in lines]
    folder = output / "tokenizer"
    folder.mkdir(exist_ok=True)
    blanks = [" " * width for width in (4, 8, 12, 16)]
    train_sentencepiece(texts, vocab_size, separators=[*LABELS, *blanks, *"_0123456789"]).save(folder)


# Stages and measurements.


def record(output: Path, count: int) -> None:
    """Play the repairs of training tasks in sandboxes, and keep those episodes that the tests confirm."""
    folder = output / "episodes"
    env = RecordTrajectory(OneEdit(gymnasium.make("SWEBench-v0", **TASKS, split="train", pool=0)), folder)
    done = {read_record(each.parent).instance_id for each in folder.glob("*/traj.json")}
    names = list(env.get_wrapper_attr("instance_ids"))
    random.Random(0).shuffle(names)
    for name in names[:count]:
        if name not in done:
            env.reset(seed=0, options={"instance_id": name})
            edit = gold_edit(env.get_wrapper_attr("task"), env.get_wrapper_attr("shown"))
            if edit is not None:
                play(env, edit)
    env.close()
    export_trajectories(folder, output / "recorded", "messages", resolved_only=True, force=True)


def stage(options: argparse.Namespace, name: str, start: str | None, **settings: Any) -> None:
    """One run of `swe-train`, or what is left of it."""
    output = options.output
    hidden, inner, layers = SIZES[options.size]
    architecture = {
        "model_type": "llama", "hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": layers,
        "num_attention_heads": max(2, hidden // 64), "max_position_embeddings": MAX_TOKENS, "tie_word_embeddings": True,
        "initializer_range": hidden**-0.5,
    }  # fmt: skip
    model = {"path": str((output / start / "model").absolute())} if start else None
    config = run_config(
        {
            "environment": {
                "id": "swegym_env:SWEBench-v0",
                "kwargs": {**TASKS, "split": "train", "pool": 0},
                "wrappers": [{"name": "repair:OneEdit"}],
                "parallel": options.parallel,
                "max_tokens": MAX_TOKENS,
                "max_new_tokens": 64,
            },
            "model": model or {"architecture": architecture, "tokenizer": str((output / "tokenizer").absolute())},
            "rollout": {"constrained": True},
            "threads": options.threads,
            "seed": options.seed,
            "output_dir": output / name,
            **settings,
        }
    )
    run_experiment(config, console=options.console, resume="changed")


def clone(options: argparse.Namespace, name: str, start: str | None, file: str, **settings: Any) -> None:
    """Cloning of a file of conversations, unless it is done."""
    if not (options.output / name / "model").is_dir():
        share = SHARES.get(name)
        stage(
            options,
            name,
            start,
            demonstrations=options.output / file,
            trainer={"algorithm": "cloning", "warmup_updates": 20, "weight_decay": 0.01, "pack": True, **settings},
            checkpoint_every=50,
            max_seconds=None if share is None else 3600 * options.hours * share,
        )


def reinforce(options: argparse.Namespace) -> Iterator[int]:
    """Rounds of PPO on the training tasks of `mini` while there are hours left; after each, how many updates."""
    limit, metrics = 3600 * options.hours * SHARES["ppo"], options.output / "ppo" / "metrics.jsonl"

    def progress() -> tuple[int, float]:
        rows = [row for row in read_metrics(metrics) if "seconds" in row] if metrics.exists() else []
        return (rows[-1]["update"], rows[-1]["seconds"]) if rows else (0, 0.0)

    for wanted in range(options.updates, options.rounds * options.updates + 1, options.updates):
        done, seconds = progress()
        if done < wanted and seconds < limit:
            stage(
                options,
                "ppo",
                "recorded_episodes",
                trainer={
                    "algorithm": "ppo", "learning_rate": 5e-5, "max_updates": wanted,
                    "episodes_per_update": options.episodes, "epochs": 2, "minibatches": min(4, options.episodes),
                    "value_coefficient": 0.1, "value_clip": None, "kl_coefficient": 0.02, "kl_placement": "reward",
                    "kl_estimator": "k1",
                },
                checkpoint_every=1,
                max_seconds=limit,
            )  # fmt: skip
            done, _ = progress()
        yield min(done, wanted)
        if done < wanted:
            return


def measure(options: argparse.Namespace, model: Path, name: str) -> dict[str, Any]:
    """A model on held-out functions and on held-out tasks of `mini`; what is done is not repeated."""
    policy = open_folder(
        model, dtype=None, device=None, threads=options.threads, n_parallel=options.parallel, temperature=1.0,
        max_new_tokens=64, max_tokens=MAX_TOKENS,
    )  # fmt: skip
    policy = replace(policy, settings=replace(policy.settings, constrained=True, evaluation=True))
    found = {}
    for what, kwargs in _measured(options):
        plan = Plan(
            model=name,
            output=options.output / "measured" / name / what,
            n_parallel=options.parallel,
            seed=options.seed,
            resume=True,
            **kwargs,
        )
        summary = evaluate(plan, policy)
        found[what] = {key: summary[key] for key in ("resolve_rate", "resolve_rate_95", "mean_return", "pass_at")}
    return found


def _measured(options: argparse.Namespace) -> Iterator[tuple[str, dict[str, Any]]]:
    file = str((options.output / "held_out.jsonl").absolute())
    yield "library", {"environment": "repair:LibraryRepair-v0", "arguments": {"file": file}}
    yield (
        "mini",
        {
            "environment": "swegym_env:SWEBench-v0",
            "arguments": {**TASKS, "split": "test"},
            "wrappers": (WrapperConfig("repair:OneEdit"),),
            "select": options.held_out,
            "samples": options.samples,
        },
    )


def measure_random(options: argparse.Namespace) -> dict[str, Any]:
    """The same of random edits, and how many held-out tasks one edit of what is shown can repair."""
    found, reachable = dict[str, Any](), list[bool]()
    for what, kwargs in _measured(options):
        made = gymnasium.make(kwargs["environment"], **kwargs["arguments"])
        env = OneEdit(made) if what == "mini" else made
        ids = env.get_wrapper_attr("instance_ids")
        if what == "mini":
            ids = ids[slice(*(int(each) if each else None for each in options.held_out.split(":")))]
        outcomes, returns = list[list[bool]](), list[float]()
        for name in ids:
            outcomes.append([])
            edits, rng = list[tuple[int, str]](), random.Random(f"{options.seed}/{name}")
            for _ in range(kwargs.get("samples", 4)):
                env.reset(seed=0, options={"instance_id": name})
                shown = env.get_wrapper_attr("shown")
                edits = edits or all_edits(shown)
                score, info = play(env, rng.choice(edits))
                outcomes[-1].append(bool(info["resolved"]))
                returns.append(score)
            if what == "mini":
                reachable.append(gold_edit(env.get_wrapper_attr("task"), shown) is not None)
        env.close()
        trials = [won for each in outcomes for won in each]
        found[what] = {
            "resolve_rate": sum(trials) / len(trials),
            "resolve_rate_95": list(clustered_interval(outcomes)),
            "mean_return": sum(returns) / len(returns),
            "pass_at": {str(len(outcomes[0])): sum(map(any, outcomes)) / len(outcomes)},
        }
    return {**found, "reachable": sum(reachable) / len(reachable)}


def write_report(options: argparse.Namespace, results: dict[str, Any]) -> None:
    """What was measured so far, what each stage took, and the curve of PPO."""
    output = options.output

    def percent(value: float) -> str:
        return f"{value:.1%}"

    measured, spent, curve = list[str](), list[str](), list[str]()
    for name, found in results.items():
        library, tasks = found["library"], found["mini"]
        cells = [percent(library["mean_return"] - library["resolve_rate"]), percent(library["resolve_rate"])]
        interval = " to ".join(map(percent, tasks["resolve_rate_95"]))
        cells += [f"{percent(tasks['resolve_rate'])} ({interval})", percent(list(tasks["pass_at"].values())[-1])]
        measured.append(f"| {name} | {' | '.join(cells)} |")
    for name in ("reading", "repairs", "recorded_episodes", "ppo"):
        file = output / name / "metrics.jsonl"
        rows = [row for row in read_metrics(file) if "seconds" in row] if file.exists() else []
        if rows:
            loss = "" if name == "ppo" else f"{rows[-1]['loss']:.2f}"
            spent.append(f"| {name} | {rows[-1]['update']} | {rows[-1]['seconds'] / 60:.0f} | {loss} |")
        played = [row for row in rows if "reward_mean" in row]
        curve += [f"| {row['update']} | {percent(row['reward_mean'])} |" for row in played[:: len(played) // 20 + 1]]
    files = Counter(line.split()[0] for line in (output / "files.txt").read_text().splitlines())
    newline = "\n"  # Python 3.10 takes no backslash inside
    text = f"""# A model from nothing repairs the packages of `mini`

Seed {options.seed}, size {options.size}, {options.threads} threads. Source text: {files["train"]} files, and
{files["test"]} of packages that are held out; `files.txt` lists them. One edit of the lines shown can repair
{percent(results["random edits"]["reachable"])} of the held-out tasks of `mini`.

| | library: the line | library: exact | `mini`: resolved (95 %) | `mini`: by one of the samples |
|---|---|---|---|---|
{newline.join(measured)}

| stage | updates | minutes | loss of the last update, nats a token |
|---|---|---|---|
{newline.join(spent)}

Training tasks of `mini` that were resolved during PPO (`ppo/curves.png`):

| update | resolved |
|---|---|
{newline.join(curve)}
"""
    (output / "report.md").write_text(text)


def main() -> None:
    parser = argparse.ArgumentParser(description="a model from nothing repairs packages", allow_abbrev=False)
    parser.add_argument("--hours", type=float, default=8.0, help="of training; measuring comes on top")
    parser.add_argument("--size", choices=SIZES, default="5M", help="of the model")
    installed = [Path(sysconfig.get_paths()[kind]) for kind in ("stdlib", "purelib")]
    parser.add_argument("--source", type=Path, nargs="+", default=installed, help="folders of packages to read")
    parser.add_argument("--functions", type=int, default=40_000, help="with bugs, to clone")
    parser.add_argument("--epochs", type=int, default=4, help="of reading and of repairs, if the hours allow")
    parser.add_argument("--minibatch", type=int, default=16, help="conversations of a step of both")
    parser.add_argument("--recorded", type=int, default=1000, help="training tasks to record, of those that there are")
    parser.add_argument("--rounds", type=int, default=10, help="of PPO, with a measurement after each")
    parser.add_argument("--updates", type=int, default=20, help="of a round")
    parser.add_argument("--episodes", type=int, default=64, help="of an update")
    parser.add_argument("--held-out", default=":", help="which held-out tasks of mini, as a slice")
    parser.add_argument("--samples", type=int, default=4, help="of each held-out task")
    parser.add_argument("--parallel", type=int, default=8, help="sandboxes at once")
    parser.add_argument("--threads", type=int, default=2, help="of PyTorch")
    parser.add_argument("--vocabulary", type=int, default=2048)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--console", action="store_true", help="show the training")
    parser.add_argument("--output", type=Path, default=Path("runs/repair"))
    options = parser.parse_args()
    output = options.output
    output.mkdir(parents=True, exist_ok=True)
    if not (output / "repairs.jsonl").exists():
        prepare(options, output)
    if not (output / "tokenizer" / "tokenizer.json").exists():
        train_tokenizer(output, options.vocabulary)
    kept = output / "results.json"
    results: dict[str, Any] = json.loads(kept.read_text()) if kept.exists() else {}

    def keep(name: str, found: dict[str, Any]) -> None:
        results[name] = found
        write_whole(kept, json.dumps(results, indent=1) + "\n")
        write_report(options, results)

    if "random edits" not in results:
        keep("random edits", measure_random(options))
    learned = {
        "learning_rate": 0.25 / SIZES[options.size][0],
        "epochs": options.epochs,
        "minibatch_episodes": options.minibatch,
    }
    clone(options, "reading", None, "reading.jsonl", **learned)
    clone(options, "repairs", "reading", "repairs.jsonl", **learned)
    if "repairs cloned" not in results:
        keep("repairs cloned", measure(options, output / "repairs", "repairs"))
    if not (output / "recorded" / "messages.jsonl").exists():
        record(output, options.recorded)
    clone(
        options,
        "recorded_episodes",
        "repairs",
        "recorded/messages.jsonl",
        learning_rate=1e-4,
        epochs=3,
        minibatch_episodes=16,
    )
    if "episodes cloned" not in results:
        keep("episodes cloned", measure(options, output / "recorded_episodes", "recorded_episodes"))
    for updates in reinforce(options):
        name = f"PPO, {updates} updates"
        if name not in results:
            keep(name, measure(options, output / "ppo", f"ppo-{updates}"))
    print(json.dumps({name: found["mini"]["resolve_rate"] for name, found in results.items()}))


if __name__ == "__main__":
    main()
