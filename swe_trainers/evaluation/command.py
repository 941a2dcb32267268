"""The options of `swe-eval --model …` and `swe-eval compare`."""

from __future__ import annotations

import argparse
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swe_trainers.config import nearest, parse_overrides
from swe_trainers.errors import ConfigurationError

if TYPE_CHECKING:
    from swe_trainers.evaluation.conversation import Model
    from swe_trainers.evaluation.prices import Prices

__all__ = ["EXAMPLE", "USAGE", "add_comparison", "add_options", "run", "run_comparison"]

USAGE = """\
swe-eval --model NAME --base-url URL [--dataset SET] [--slice :50] [--n-parallel N] [--output DIR] [--resume] …
       swe-eval --model FOLDER …            a model in a folder, or what swe-train left
       swe-eval RUN [--episodes N] …        a run of swe-train on its own environment; see swe-eval RUN --help
       swe-eval compare A B [--json]        two evaluations, instance by instance"""
EXAMPLE = """\
examples:
  swe-eval --model gpt-5-mini --base-url https://api.openai.com/v1 --dataset mini --slice :20 --n-parallel 8
  swe-eval --model served --base-url http://127.0.0.1:8000/v1 --dataset rows.jsonl --env.repos clones/ --samples 4
  swe-eval --model Qwen3-0.6B/ --dataset mini --slice :20 --max-tokens 16384
  swe-eval --model runs/demo --dataset mini-edit --split test --slice :100 --env.prompt terse --action-format raw

--env.KEY VALUE is an argument of the environment, --request.KEY VALUE a field of every request to the server.
Exit code 0: every episode is valid; 1: some are not (--resume plays those again); 2: it cannot be done.
"""
_OF_SERVERS = (
    "api_key_env",
    "requests_per_minute",
    "timeout",
    "retries",
    "price_in",
    "price_out",
    "price_cached",
    "prices",
)
_OF_FOLDERS = ("max_tokens", "dtype", "device", "threads")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add everything but what is written as `--env.KEY` and `--request.KEY`."""
    _add_model(parser)
    _add_played(parser)
    _add_manner(parser)


def _add_model(parser: argparse.ArgumentParser) -> None:
    model = parser.add_argument_group("the model")
    model.add_argument("--model", required=True, help="as the server knows it; without --base-url a folder")
    model.add_argument("--base-url", metavar="URL", help="of a server of OpenAI's chat API, most often …/v1")
    model.add_argument("--api-key-env", metavar="NAME", help="the variable that holds the key (OPENAI_API_KEY)")
    model.add_argument(
        "--temperature", type=_not_negative, help="of sampling; by default the server's own, 1 for a folder"
    )
    model.add_argument("--max-new-tokens", type=_positive, metavar="N", help="of one answer (a folder: 1024)")
    model.add_argument("--requests-per-minute", type=_above_zero, metavar="N", help="most requests, evenly spaced")
    model.add_argument("--timeout", type=_above_zero, metavar="SECONDS", help="of one request (600)")
    model.add_argument("--retries", type=_positive, metavar="N", help="most tries of one request (8)")
    model.add_argument(
        "--max-tokens",
        type=_positive,
        metavar="N",
        help="a folder: of a conversation; by default the model's limit, 32768 at most",
    )
    model.add_argument(
        "--dtype", choices=["float32", "bfloat16"], help="a folder: of the weights (float32; bfloat16 on a GPU)"
    )
    model.add_argument("--device", help="a folder: where it computes; by default a GPU where there is one")
    model.add_argument("--threads", type=_positive, metavar="N", help="a folder: of PyTorch on the CPU")


def _add_played(parser: argparse.ArgumentParser) -> None:
    played = parser.add_argument_group("what is played")
    played.add_argument(
        "--env",
        default="swegym_env:SWEBench-v0",
        metavar="ID",
        help="of Gymnasium; module:Id imports the module (%(default)s)",
    )
    played.add_argument("--adapter", choices=["none", "text"], default="none", help="text: put number spaces in words")
    played.add_argument("--dataset", help="given to the environment (its own default: mini)")
    played.add_argument("--split", help="likewise")
    played.add_argument("--slice", help="of the instances: :50, 100:200, ::10")
    played.add_argument(
        "--instance", action="append", default=[], metavar="ID", help="only this one; may be given again"
    )
    played.add_argument(
        "--episodes", type=_positive, metavar="N", help="of an environment that names no instances (100)"
    )
    played.add_argument("--samples", type=_positive, default=1, metavar="K", help="of each, for pass@k (%(default)s)")
    played.add_argument(
        "--seed", type=_whole, default=0, help="of environments, and of a folder's sampling (%(default)s)"
    )
    played.add_argument("--max-turns", type=_positive, metavar="N", help="of an episode")
    played.add_argument("--time-limit", type=_above_zero, metavar="SECONDS", help="of an episode")
    played.add_argument("--action-format", metavar="NAME", help="auto, openai (native function calls), bash, hermes, …")
    played.add_argument(
        "--success-above", type=float, metavar="RETURN", help="what a success is, where the environment does not say"
    )


def _add_manner(parser: argparse.ArgumentParser) -> None:
    how = parser.add_argument_group("how")
    how.add_argument("--n-parallel", type=_positive, default=4, metavar="N", help="episodes at once (%(default)s)")
    how.add_argument("--output", type=Path, metavar="DIR", help="by default runs/eval/MODEL/DATASET")
    how.add_argument(
        "--resume", action="store_true", help="go on with what is there; what is valid is not played again"
    )
    how.add_argument("--price-in", type=_not_negative, metavar="DOLLARS", help="of a million tokens read")
    how.add_argument("--price-out", type=_not_negative, metavar="DOLLARS", help="of a million tokens written")
    how.add_argument(
        "--price-cached", type=_not_negative, metavar="DOLLARS", help="of a million read from the server's cache"
    )
    how.add_argument("--prices", type=Path, metavar="FILE", help="a table of these by model, in YAML")
    how.add_argument("--json", action="store_true", help="an object an episode, then the summary")


def run(options: argparse.Namespace, unread: Sequence[str]) -> int:
    """Evaluate as asked for.

    Returns:
        0 where every episode is valid, else 1.
    Raises:
        TrainerError: it cannot be done.
    """
    from swe_trainers.evaluation.evaluate import Plan, evaluate
    from swe_trainers.evaluation.table import summary_lines

    sections = _sections(unread)
    _refuse_what_has_no_effect(options, sections)
    given = {"dataset": options.dataset, "split": options.split, "action_format": options.action_format}
    arguments = {name: value for name, value in given.items() if value is not None} | sections["env"]
    sampling = {name: getattr(options, name) for name in ("temperature", "max_new_tokens", "max_tokens")}
    plan = Plan(
        model=options.model,
        output=options.output or _place(options),
        environment=options.env,
        arguments=arguments,
        adapter=options.adapter == "text",
        max_turns=options.max_turns,
        time_limit_s=options.time_limit,
        instances=tuple(options.instance),
        select=options.slice,
        episodes=options.episodes,
        samples=options.samples,
        seed=options.seed,
        sampling=sampling | {"request": sections["request"], "served": options.base_url is not None},
        success_above=options.success_above,
        n_parallel=options.n_parallel,
        resume=options.resume,
    )
    also: Mapping[str, Any] = {}
    if options.base_url is not None:
        make_model = _server(options, sections["request"], native=arguments.get("action_format") == "openai")
    else:
        make_model, also = _folder(options, asks="chat_template" not in arguments)
    summary = evaluate(plan, make_model, also=also, json_lines=options.json)
    if options.json:
        print(json.dumps(summary))
    else:
        print("\n".join(summary_lines(summary, str(plan.output))))
    return 1 if summary["invalid"] else 0


def _server(options: argparse.Namespace, request: Mapping[str, Any], *, native: bool) -> Callable[[int], Model]:
    """A model behind a URL."""
    from swe_trainers.engines.http import Pace
    from swe_trainers.evaluation.chat_server import ChatServer

    name = options.api_key_env or "OPENAI_API_KEY"
    key = os.environ.get(name)
    if options.api_key_env is not None and not key:
        raise ConfigurationError(f"--api-key-env: the variable {name} is not set")
    named = {"temperature": options.temperature, "max_tokens": options.max_new_tokens}
    fields = {field: value for field, value in named.items() if value is not None} | dict(request)
    server = ChatServer(
        options.base_url,
        options.model,
        api_key=key,
        request=fields,
        native_calls=native,
        prices=_prices(options),
        pace=Pace(options.requests_per_minute),
        timeout_s=options.timeout or 600.0,
        tries=options.retries or 8,
    )
    return lambda _n_parallel: server


def _folder(options: argparse.Namespace, *, asks: bool) -> tuple[Callable[[int], Model], Mapping[str, Any]]:
    """A model in this process, and the chat template by which an environment chooses the form of actions."""
    from swe_trainers.evaluation.folders import open_folder

    local, template = open_folder(
        Path(options.model),
        dtype=options.dtype,
        device=options.device,
        threads=options.threads,
        temperature=1.0 if options.temperature is None else options.temperature,
        max_new_tokens=options.max_new_tokens or 1024,
        max_tokens=options.max_tokens,
    )
    return local, {"chat_template": template} if template is not None and asks else {}


def _prices(options: argparse.Namespace) -> Prices | None:
    from swe_trainers.evaluation.prices import Prices, read_prices

    if options.prices is not None:
        if options.price_in is not None or options.price_out is not None or options.price_cached is not None:
            raise ConfigurationError("--prices: has no effect beside --price-in and --price-out")
        return read_prices(options.prices, options.model)
    if options.price_in is None and options.price_out is None and options.price_cached is None:
        return None
    if options.price_in is None or options.price_out is None:
        raise ConfigurationError("--price-in, --price-out: one without the other tells no cost")
    return Prices(options.price_in, options.price_out, options.price_cached)


def _sections(unread: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The values of `--env.KEY` and `--request.KEY`, as YAML reads them."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    found = parse_overrides(unread)
    for key in found:
        section, dot, name = key.partition(".")
        if section not in ("env", "request") or not dot or not name:
            known = ["--env.KEY", "--request.KEY"]
            raise ConfigurationError(f"--{key.replace('_', '-')}: no such option{nearest('--' + key, known)}")
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
    for name in ("dataset", "split", "action_format"):
        if getattr(options, name) is not None and name in sections["env"]:
            raise ConfigurationError(f"--env.{name}: given twice, as --{name.replace('_', '-')} too")


def _place(options: argparse.Namespace) -> Path:
    names = (options.model, options.dataset or options.env.rpartition(":")[2])
    return Path("runs", "eval", *(re.sub(r"[^\w.+-]+", "_", name).strip("._") or "model" for name in names))


def _positive(text: str) -> int:
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
    parser.add_argument("first", type=Path, metavar="A", help="the folder of an evaluation")
    parser.add_argument("second", type=Path, metavar="B", help="of another, of the same instances")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")


def run_comparison(options: argparse.Namespace) -> None:
    """Compare two evaluations. Raises ConfigurationError where they have no instance in common."""
    from swe_trainers.evaluation.compare import compare

    found = compare(options.first, options.second)
    print(json.dumps(found.plain(), indent=2) if options.json else found.report())
