"""The options of `swe-eval --model …` and `swe-eval compare`."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from swe_trainers.errors import ConfigurationError

if TYPE_CHECKING:
    from swe_trainers.evaluation.policies import Policy
    from swe_trainers.evaluation.usage import Prices
    from swe_trainers.provenance import Provenance
    from swe_trainers.run_config import WrapperConfig

__all__ = [
    "EXAMPLE",
    "JSON_LOGS",
    "USAGE",
    "add_comparison",
    "add_options",
    "link_to_evaluation",
    "option_names",
    "positive",
    "run",
    "run_comparison",
]

USAGE = """\
swe-eval --model NAME --base-url URL [--dataset SET] [--slice :50] [--n-parallel N] [--output DIR] [--resume] …
       swe-eval --model FOLDER …            a model in a folder, or the output of swe-train
       swe-eval RUN [--episodes N] …        a run of swe-train on its own environment; see swe-eval RUN --help
       swe-eval compare A B [--json]        two evaluations, instance by instance"""
EXAMPLE = """\
examples:
  swe-eval --model gpt-5-mini --base-url https://api.openai.com/v1 --dataset mini --slice :20 --n-parallel 8
  swe-eval --model served --base-url http://127.0.0.1:8000/v1 --dataset rows.jsonl --env.repos clones/ --samples 4
  swe-eval --model Qwen3-0.6B/ --dataset mini --slice :20 --max-tokens 16384
  swe-eval --model runs/demo --dataset mini-edit --slice :100

A trained model plays as it was trained to: environment, arguments, action format, prompt, limits. Options change that,
with a warning. --env.KEY VALUE is an argument of the environment, --request.KEY VALUE a field of every request.
Exit code 0: every episode is valid; 1: some are invalid (--resume repeats them); 2: wrong usage, or the server is down.
"""
JSON_LOGS = "write log lines and progress as JSON objects on standard error: time, level, message, exception"
_ENVIRONMENT = "swegym_env:SWEBench-v0"
_AGENT_ENVIRONMENT = "swegym_env:SWEAgent-v0"
_OF_SERVERS = (
    "api_key_env",
    "requests_per_minute",
    "timeout",
    "retries",
    "no_preflight",
    "price_in",
    "price_out",
    "price_cached",
    "prices",
)
_ARGUMENTS = ("dataset", "split", "action_format", "agent")
_OF_FOLDERS = ("max_tokens", "dtype", "device", "threads")
_SAME_HERE = {"--select": "--slice"}
"""Options of `swegym` that have another name here."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add all options except `--env.KEY` and `--request.KEY`."""
    model = parser.add_argument_group("the model")
    model.add_argument("--model", required=True, help="name of the model on the server; without --base-url its folder")
    model.add_argument("--base-url", metavar="URL", help="URL of a server with OpenAI's chat API, usually …/v1")
    model.add_argument("--api-key-env", metavar="NAME", help="environment variable with the key (OPENAI_API_KEY)")
    model.add_argument("--temperature", type=_not_negative, help="sampling temperature (the server's; folder: 1)")
    model.add_argument(
        "--max-new-tokens", type=positive, metavar="N", help="maximum tokens of an answer (folder: 1024)"
    )
    model.add_argument("--requests-per-minute", type=_above_zero, metavar="N", help="rate limit, evenly spaced")
    model.add_argument("--timeout", type=_above_zero, metavar="SECONDS", help="timeout of one request in seconds (600)")
    model.add_argument("--retries", type=positive, metavar="N", help="maximum number of attempts of a request (8)")
    preflight = "do not ask the server for its models first"
    model.add_argument("--no-preflight", action="store_true", default=None, help=preflight)
    limit = "folder: tokens of one conversation (the model's limit, at most 32768)"
    model.add_argument("--max-tokens", type=positive, metavar="N", help=limit)
    dtype = "folder: dtype of the weights (float32; bfloat16 on a GPU)"
    model.add_argument("--dtype", choices=["float32", "bfloat16"], help=dtype)
    model.add_argument("--device", help="folder: device (a GPU if there is one)")
    model.add_argument("--threads", type=positive, metavar="N", help="folder: CPU threads of PyTorch")

    tasks = parser.add_argument_group("the episodes")
    env = f"Gymnasium id; module:Id imports the module first (a trained model's own, else {_ENVIRONMENT})"
    tasks.add_argument("--env", metavar="ID", help=env)
    adapter = "text: wrap an environment with numbers in TextAdapter"
    tasks.add_argument("--adapter", choices=["none", "text"], help=adapter)
    agent = f"agent program, by name or folder, that plays with the model; without --env on {_AGENT_ENVIRONMENT}"
    tasks.add_argument("--agent", metavar="NAME", help=agent)
    tasks.add_argument("--dataset", help="dataset of the environment (its default: mini)")
    tasks.add_argument("--split", help="split of the dataset")
    tasks.add_argument("--slice", help="slice of the instances: :50, 100:200, ::10")
    tasks.add_argument("--instance", action="append", default=[], metavar="ID", help="only this instance; repeatable")
    episodes = "number of episodes, if the environment does not name its instances (100)"
    tasks.add_argument("--episodes", type=positive, metavar="N", help=episodes)
    samples = "episodes of each instance, for pass@k (%(default)s)"
    tasks.add_argument("--samples", type=positive, default=1, metavar="K", help=samples)
    seed = "seed of environments, and of a folder's sampling (%(default)s)"
    tasks.add_argument("--seed", type=_whole, default=0, help=seed)
    tasks.add_argument("--max-turns", type=positive, metavar="N", help="maximum turns of an episode")
    tasks.add_argument("--time-limit", type=_above_zero, metavar="SECONDS", help="maximum seconds of an episode")
    step = "seconds after which a step of the environment makes the episode invalid (3600)"
    tasks.add_argument("--step-timeout", type=_above_zero, metavar="SECONDS", help=step)
    reset = "the same for a reset (7200)"
    tasks.add_argument("--reset-timeout", type=_above_zero, metavar="SECONDS", help=reset)
    formats = "auto, openai (native function calls), bash, hermes, …"
    tasks.add_argument("--action-format", metavar="NAME", help=formats)
    success = "a return above this is a success, if the environment does not report one"
    tasks.add_argument("--success-above", type=float, metavar="RETURN", help=success)

    output = parser.add_argument_group("execution and output")
    output.add_argument(
        "--n-parallel", type=positive, default=4, metavar="N", help="number of parallel episodes (%(default)s)"
    )
    output.add_argument("--output", type=Path, metavar="DIR", help="folder of the results (runs/eval/MODEL/DATASET)")
    invalid = "stop where more of the planned episodes are invalid; 1: never (%(default)s)"
    output.add_argument("--max-invalid-fraction", type=_fraction, default=0.5, metavar="F", help=invalid)
    resume = "continue the evaluation in the folder; valid episodes are not repeated"
    output.add_argument("--resume", action="store_true", help=resume)
    output.add_argument("--price-in", type=_not_negative, metavar="DOLLARS", help="price per million prompt tokens")
    output.add_argument("--price-out", type=_not_negative, metavar="DOLLARS", help="price per million generated tokens")
    cached = "per million tokens read from the server's cache"
    output.add_argument("--price-cached", type=_not_negative, metavar="DOLLARS", help=cached)
    output.add_argument("--prices", type=Path, metavar="FILE", help="YAML table of prices by model")
    output.add_argument("--json", action="store_true", help="print one JSON object per episode, then the summary")
    output.add_argument("--json-logs", action="store_true", help=JSON_LOGS)


def option_names() -> list[str]:
    """The options that `add_options` adds, such as `--dataset`."""
    parser = argparse.ArgumentParser(add_help=False)
    add_options(parser)
    return list(parser._option_string_actions)  # noqa: SLF001 argparse has no public access


def run(options: argparse.Namespace, unread: Sequence[str]) -> int:
    """Run the evaluation.

    Returns:
        0 if every episode is valid, else 1.
    Raises:
        TrainerError: an option is wrong, or the model's server is down.
    """
    if options.json_logs:
        from swe_trainers.logging import start_json_logs

        start_json_logs()
    sections = _sections(unread)
    if options.agent is not None and options.env is None:
        options.env = _AGENT_ENVIRONMENT
    _refuse_what_has_no_effect(options, sections)
    if options.base_url is not None:
        _preflight(options)
    from swe_trainers.evaluation.evaluate import Plan, evaluate
    from swe_trainers.evaluation.table import summary_lines
    from swe_trainers.provenance import read_provenance

    given = {name: getattr(options, name) for name in _ARGUMENTS}
    arguments = {name: value for name, value in given.items() if value is not None} | sections["env"]
    chat, adapter_kwargs = None, dict[str, Any]()
    wrappers: tuple[WrapperConfig, ...] = ()
    rollout, playing = None, dict[str, Any]()
    if options.base_url is None and (trained := read_provenance(Path(options.model))) is not None:
        chat = trained.chat
        if options.env is None or _id(options.env) == _id(trained.environment.id):
            lines, arguments = _as_trained(trained, options, arguments)
            adapter_kwargs = dict(trained.environment.adapter_kwargs) if options.adapter == "text" else {}
            wrappers = trained.environment.wrappers
            rollout, playing = trained.rollout, trained.playing
        else:
            lines = [f"warning: --env {options.env}: the model was trained on {trained.environment.id}"]
        for line in lines:
            _say(line, options)
    sampling = {name: getattr(options, name) for name in ("temperature", "max_new_tokens", "max_tokens")}
    plan = Plan(
        model=options.model,
        output=options.output or _place(options),
        environment=options.env or _ENVIRONMENT,
        arguments=arguments,
        adapter=options.adapter == "text",
        adapter_kwargs=adapter_kwargs,
        wrappers=wrappers,
        max_turns=options.max_turns,
        time_limit_s=options.time_limit,
        instances=tuple(options.instance),
        select=options.slice,
        episodes=options.episodes,
        samples=options.samples,
        seed=options.seed,
        sampling=sampling | {"request": sections["request"], "served": options.base_url is not None} | playing,
        success_above=options.success_above,
        n_parallel=options.n_parallel,
        step_timeout_s=options.step_timeout or Plan.step_timeout_s,
        reset_timeout_s=options.reset_timeout or Plan.reset_timeout_s,
        max_invalid_fraction=options.max_invalid_fraction,
        resume=options.resume,
    )
    also: Mapping[str, Any] = {}
    if options.base_url is not None:
        policy = _endpoint(options, sections["request"], native=arguments.get("action_format") == "openai")
    else:
        policy = _folder(options, chat)
        if rollout is not None:
            policy = policy.playing_as(rollout)
        if policy.template is not None and "chat_template" not in arguments:
            also = {"chat_template": policy.template}
    summary = evaluate(plan, policy, also=also, json_lines=options.json, json_logs=options.json_logs)
    link_to_evaluation(plan.output)
    if options.json:
        print(json.dumps(summary))
    else:
        print("\n".join(summary_lines(summary, str(plan.output))))
    return 1 if summary["invalid"] else 0


def link_to_evaluation(output: Path) -> None:
    """Write the report of a run again, which then links to its evaluation; nothing for an evaluation elsewhere."""
    run = output.parent
    if output.name == "evaluation" and (run / "report.html").is_file():
        from swe_trainers.report.page import write_report

        write_report([run])


def _preflight(options: argparse.Namespace) -> None:
    """Check what the server says before PyTorch is imported and an environment is made."""
    from swe_trainers.engines.endpoint import check_endpoint

    name = options.api_key_env or "OPENAI_API_KEY"
    key = os.environ.get(name)
    if options.api_key_env is not None and not key:
        raise ConfigurationError(f"--api-key-env: the variable {name} is not set")
    if options.no_preflight:
        return
    check_endpoint(options.base_url, options.model, key=key, key_variable=name)
    host = urlsplit(options.base_url).hostname
    if not key and host not in ("127.0.0.1", "localhost", "::1"):
        _say(f"warning: no key is sent to {host}: {name} is not set", options)


def _say(line: str, options: argparse.Namespace) -> None:
    """A line on standard error for people, or logged; one that begins with `warning:` is one."""
    if not options.json_logs:
        print(f"swe-eval: {line}", file=sys.stderr)
        return
    from loguru import logger

    logger.log("WARNING" if line.startswith("warning: ") else "INFO", "{}", line.removeprefix("warning: "))


def _endpoint(options: argparse.Namespace, request: Mapping[str, Any], *, native: bool) -> Policy:
    """A model behind a URL."""
    from swe_trainers.engines.chat import ChatEngine
    from swe_trainers.engines.http import JsonClient, Pace
    from swe_trainers.evaluation.policies import Policy

    name = options.api_key_env or "OPENAI_API_KEY"
    key = os.environ.get(name)
    named = {"temperature": options.temperature, "max_tokens": options.max_new_tokens}
    fields = {field: value for field, value in named.items() if value is not None} | dict(request)
    tries = options.retries or 8
    client = JsonClient(
        options.base_url,
        api_key=key,
        timeout_s=options.timeout or 600.0,
        tries=tries,
        pause_s=1.0,
        pace=Pace(options.requests_per_minute),
        option="--base-url",
    )
    engine = ChatEngine(
        client, options.model, n_slots=options.n_parallel, request=fields, native_calls=native, tries=tries
    )
    return Policy(engine, prices=_prices(options))


_CHOOSES_TASKS = frozenset({"dataset", "split", "trust", "tasks"})


def _id(name: str) -> str:
    return name.rpartition(":")[2]


def _as_trained(
    trained: Provenance, options: argparse.Namespace, given: Mapping[str, Any]
) -> tuple[list[str], dict[str, Any]]:
    """The arguments of the environment that a model was trained in, with those that are given on top.

    Options that are not given are set as in training. What chooses the tasks is taken from training only where no
    dataset is given.

    Returns:
        Lines that say what is taken over and what differs; the arguments.
    """
    from swe_trainers.provenance import OF_THE_MACHINE

    environment = trained.environment
    left = _CHOOSES_TASKS if "dataset" in given else frozenset()
    kept = {name: value for name, value in environment.kwargs.items() if name not in left and name not in given}
    habits = {name: value for name, value in environment.kwargs.items() if name not in _CHOOSES_TASKS | OF_THE_MACHINE}
    differing = [
        f"warning: {name} {given[name]}: the model was trained with {value}"
        for name, value in habits.items()
        if name in given and given[name] != value
    ]
    if options.max_turns is not None:
        kept.pop("max_turns", None)
    used = [f"{name} {value}" for name, value in habits.items() if name in kept]
    trained_limits = {
        "max_new_tokens": environment.max_new_tokens,
        "max_tokens": environment.max_tokens,
        "max_turns": habits.get("max_turns", environment.max_turns),
        "adapter": environment.adapter,
        "success_above": trained.success_above,
    }
    for name, value in trained_limits.items():
        chosen = getattr(options, name)
        if chosen is not None:
            if chosen != value:
                differing.append(f"warning: --{name.replace('_', '-')} {chosen}: the model was trained with {value}")
        elif name not in kept:
            setattr(options, name, value)
            used += [f"{name} {value}"] * (value not in (None, "none"))
    used += [f"{name} {value}" for name, value in trained.playing.items()]
    options.env = environment.id
    return [f"as {trained.source} says, on {environment.id}: {', '.join(used)}", *differing], {**kept, **given}


def _folder(options: argparse.Namespace, chat: str | None) -> Policy:
    """A model in this process."""
    from swe_trainers.evaluation.policies import open_folder

    return open_folder(
        Path(options.model),
        dtype=options.dtype,
        device=options.device,
        threads=options.threads,
        n_parallel=options.n_parallel,
        temperature=1.0 if options.temperature is None else options.temperature,
        max_new_tokens=options.max_new_tokens or 1024,
        max_tokens=options.max_tokens,
        chat=chat,
    )


def _prices(options: argparse.Namespace) -> Prices | None:
    from swe_trainers.evaluation.usage import Prices, read_prices

    if options.prices is not None:
        if options.price_in is not None or options.price_out is not None or options.price_cached is not None:
            raise ConfigurationError("--prices: has no effect beside --price-in and --price-out")
        return read_prices(options.prices, options.model)
    if options.price_in is None and options.price_out is None and options.price_cached is None:
        return None
    if options.price_in is None or options.price_out is None:
        raise ConfigurationError("--price-in, --price-out: one has no effect without the other")
    return Prices(options.price_in, options.price_out, options.price_cached)


def _sections(unread: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The values of `--env.KEY` and `--request.KEY`, parsed as YAML."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    from swe_trainers.config import nearest, parse_overrides

    found = parse_overrides(unread)
    for key in found:
        section, dot, name = key.partition(".")
        if section not in ("env", "request") or not dot or not name:
            option = f"--{key.replace('_', '-')}"
            if option in _SAME_HERE:
                hint = f". Try: {_SAME_HERE[option]}"
            else:
                known = ["--env.KEY", "--request.KEY"] if dot else option_names()
                hint = nearest(option, known, ". Try: swe-eval --help")
            given = next(word for word in unread if word.startswith("--") and key in parse_overrides([word]))
            raise ConfigurationError(f"{given.partition('=')[0]}: no such option{hint}")
    try:
        values = OmegaConf.to_container(OmegaConf.from_dotlist([f"{key}={value}" for key, value in found.items()]))
    except (OmegaConfBaseException, YAMLError) as error:
        raise ConfigurationError(f"--env, --request: {str(error).splitlines()[0]}") from error
    assert isinstance(values, dict)
    return {"env": {}, "request": {}} | {str(key): dict(value) for key, value in values.items()}


def _refuse_what_has_no_effect(options: argparse.Namespace, sections: Mapping[str, Any]) -> None:
    served = options.base_url is not None
    for name in _OF_FOLDERS if served else _OF_SERVERS:
        if getattr(options, name) is not None:
            why = "has no effect on a server" if served else "has no effect without --base-url"
            raise ConfigurationError(f"--{name.replace('_', '-')}: {why}")
    if not served:
        if sections["request"]:
            raise ConfigurationError(f"--request.{min(sections['request'])}: has no effect without --base-url")
        if not Path(options.model).is_dir():
            raise ConfigurationError(
                f"--model {options.model}: no such folder. Try: --base-url, for a model of a server"
            )
    if "id" in sections["env"]:
        raise ConfigurationError("--env.id: is no argument of an environment. Try: --env ID")
    for name in _ARGUMENTS:
        if getattr(options, name) is not None and name in sections["env"]:
            raise ConfigurationError(f"--env.{name}: given twice, as --{name.replace('_', '-')} too")


def _place(options: argparse.Namespace) -> Path:
    agent = () if options.agent is None else (Path(options.agent).name,)
    names = (options.model, *agent, options.dataset or _id(options.env or _ENVIRONMENT))
    return Path("runs", "eval", *(re.sub(r"[^\w.+-]+", "_", name).strip("._") or "model" for name in names))


def positive(text: str) -> int:
    """A positive whole number of the command line. Raises ArgumentTypeError: it is none."""
    if not text.isdigit() or not int(text):
        raise argparse.ArgumentTypeError(f"expected a positive whole number, got {text!r}")
    return int(text)


def _whole(text: str) -> int:
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"expected a whole number, got {text!r}")
    return int(text)


def _above_zero(text: str) -> float:
    number = _not_negative(text)
    if not number:
        raise argparse.ArgumentTypeError(f"expected a number above 0, got {text!r}")
    return number


def _fraction(text: str) -> float:
    number = _not_negative(text)
    if number > 1:
        raise argparse.ArgumentTypeError(f"expected a number from 0 to 1, got {text!r}")
    return number


def _not_negative(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a number, 0 or more, got {text!r}")
    return number


def add_comparison(parser: argparse.ArgumentParser) -> None:
    """Add the options of `swe-eval compare`."""
    parser.add_argument("first", type=Path, metavar="A", help="folder of an evaluation")
    parser.add_argument("second", type=Path, metavar="B", help="folder of another evaluation with the same instances")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")


def run_comparison(options: argparse.Namespace) -> None:
    """Compare two evaluations. Raises ConfigurationError if they have no instance in common."""
    from swe_trainers.evaluation.summary import compare

    found = compare(options.first, options.second)
    print(json.dumps(found.plain(), indent=2) if options.json else found.report())
