"""`swe-train CONFIG [--section.key value …]` trains as configured; `swe-eval` measures what came of it, or any model.

`swe-train check-env ID`, `swe-train doctor RUN` and `swe-train replay-batch FILE` say what is wrong.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from swe_trainers import __version__
from swe_trainers.completion import add_print_completion, settings_of
from swe_trainers.config import as_yaml, read_config
from swe_trainers.errors import TrainerError

__all__ = ["main", "main_eval"]

_EXAMPLE = """\
example:
  swe-train examples/configs/frozen_lake.yaml --trainer.learning_rate 5e-4 --seed 1

A run goes on from its newest checkpoint when it is started again with the same output_dir. Values may refer to the
environment: output_dir: ${oc.env:SWE_RUNS,runs}/frozen_lake

settings, each with its type and its default:
  swe-train --help environment          a section: run, environment, model, evaluation, engine, scale, rollout, reward
  swe-train --help grpo                 an algorithm, or trainer for the list of them
  swe-train --help model.lora           one setting; all for everything there is
  swe-train CONFIG --print-config       a configuration as it is resolved, with what each setting means

diagnosis, each with a --help of its own:
  swe-train check-env FrozenLake-v1 --adapter text
  swe-train doctor runs/frozen_lake
  swe-train report runs/seed0 runs/seed1 runs/seed2
  swe-train replay-batch runs/frozen_lake/batches/00000000.jsonl --run runs/frozen_lake --loss ppo,grpo
"""

_DIAGNOSES_EXAMPLES = {
    "check-env": "swe-train check-env my_package:MyEnv-v0 --kwargs '{\"size\": 4}' --actions left,right",
    "report": "swe-train report runs/seed0 runs/seed1 runs/seed2 --output runs/report.html",
    "doctor": "swe-train doctor runs/frozen_lake --episodes 32",
    "replay-batch": "swe-train replay-batch runs/a/batches/00000000.jsonl --run runs/a --loss ppo,grpo,gspo",
}

_EVAL_EXAMPLE = """\
example:
  swe-eval runs/frozen_lake --episodes 200 --evaluation.temperature 0
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `swe-train`.

    Returns:
        0 on success; 2 where the configuration is wrong or cannot be had here, or the run cannot go on (one line on
        standard error says why); 130 after Ctrl-C.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given and given[0] in _DIAGNOSES:
        return _DIAGNOSES[given[0]](given[1:])
    if len(given) == 2 and given[0] in ("-h", "--help"):
        return _run(lambda: _explain(given[1]), "swe-train", debug=False, interrupted="interrupted")
    parser = _Parser(
        prog="swe-train",
        description="Train a language model on a text environment.",
        usage="swe-train CONFIG [--section.key value ...] [--print-config | --dry-run [--json]] [--quiet] [--debug]\n"
        "       swe-train --help [SECTION | ALGORITHM | section.key | all]",
        epilog=_EXAMPLE,
    )
    parser.add_argument("config", help="a YAML file with the sections environment, model, trainer, evaluation")
    parser.add_argument(
        "--print-config", action="store_true", help="print the resolved configuration with its explanations, and stop"
    )
    parser.add_argument("--dry-run", action="store_true", help="print what the run would need, and what would stop it")
    parser.add_argument("--json", action="store_true", help="print the dry run's plan as JSON")
    parser.add_argument("--quiet", action="store_true", help="write to the output directory only, not to the terminal")
    add_print_completion(parser, _settings, words=[*_DIAGNOSES])
    options, overrides = parser.parse_known_args(given)

    def train() -> None:
        from swe_trainers.run_config import run_config

        config = run_config(read_config(options.config, overrides))
        if options.print_config:
            print(as_yaml(config), end="")
            return
        from swe_trainers.experiment import dry_run, run_experiment
        from swe_trainers.planning.plan import plan_text

        if options.dry_run:
            plan = dry_run(config)
            print(json.dumps(plan, indent=2) + "\n" if options.json else plan_text(plan), end="")
        else:
            run_experiment(config, console=not options.quiet)

    return _run(train, parser.prog, options.debug, "interrupted; started again, it goes on from its last checkpoint")


def _explain(topic: str) -> None:
    from swe_trainers.config_help import help_text

    print(help_text(topic), end="")


def main_eval(arguments: Sequence[str] | None = None) -> int:
    """Run `swe-eval`; returns as `main` does, and 1 where some episodes are invalid."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] == ["compare"]:
        return _compare(given[1:])
    names_model = any(word.partition("=")[0] == "--model" for word in given)
    if not (names_model or not given or given[0] in ("-h", "--help", "--print-completion")):
        return _measure_run(given)
    from swe_trainers.evaluation import command

    description = "Measure a model on an environment: behind a URL, or in a folder."
    parser = _Parser(prog="swe-eval", description=description, usage=command.USAGE, epilog=command.EXAMPLE)
    command.add_options(parser)
    add_print_completion(parser, _settings, words=["compare"])
    options, unread = parser.parse_known_args(given)
    code = 0

    def evaluate() -> None:
        nonlocal code
        code = command.run(options, unread)

    return _run(evaluate, parser.prog, options.debug, "interrupted; with --resume it goes on") or code


def _compare(arguments: Sequence[str]) -> int:
    """`swe-eval compare`."""
    from swe_trainers.evaluation import command

    epilog = "example:\n  swe-eval compare runs/eval/before/mini runs/eval/after/mini\n"
    parser = _Parser(prog="swe-eval compare", description="Pair two evaluations instance by instance.", epilog=epilog)
    command.add_comparison(parser)
    options = parser.parse_args(arguments)
    return _run(lambda: command.run_comparison(options), parser.prog, options.debug, "interrupted")


def _measure_run(arguments: Sequence[str]) -> int:
    """`swe-eval RUN`: the episodes that a run of the same seed is measured on."""
    parser = _Parser(
        prog="swe-eval",
        description="Measure a trained model on the environment of its configuration.",
        usage="swe-eval RUN [--episodes N] [--output DIR] [--section.key value ...] [--debug]",
        epilog=_EVAL_EXAMPLE,
    )
    parser.add_argument("run", help="the output directory of swe-train, or a YAML file whose model.path names a model")
    parser.add_argument("--episodes", type=_positive, help="how many; by default evaluation.episodes, or 100")
    parser.add_argument("--output", type=Path, help="where the results go; by default RUN/evaluation, or evaluation")
    options, overrides = parser.parse_known_args(arguments)

    def evaluate() -> None:
        from swe_trainers.experiment import evaluate_run
        from swe_trainers.run_config import run_config

        run = Path(options.run)
        values = read_config(run / "config.yaml" if run.is_dir() else run, overrides)
        if run.is_dir():
            kept = {key: value for key, value in values["model"].items() if key in ("chat", "dtype", "device")}
            values["model"] = {**kept, "path": str((run / "model").absolute())}
        config = run_config(values)
        output = options.output or (run / "evaluation" if run.is_dir() else Path("evaluation"))
        measured = evaluate_run(config, output, episodes=options.episodes or config.evaluation.episodes or 100)
        print("  ".join(f"{name} {value:.4g}" for name, value in measured.items()))

    return _run(evaluate, parser.prog, options.debug, "interrupted; nothing was written")


def _check_env(arguments: Sequence[str]) -> int:
    """`swe-train check-env`; 1 where the environment does not keep what it promises."""
    parser = _diagnosis("check-env", "Try out what the trainer relies on in a text environment.")
    parser.add_argument("id", help="of Gymnasium; module:Id where importing a module registers it")
    parser.add_argument("--kwargs", type=_object, default={}, help="given to gymnasium.make, as JSON")
    parser.add_argument("--adapter", choices=["none", "text"], default="none", help="text: put number spaces in words")
    parser.add_argument("--actions", default="", help="played in turn, with commas between; by default any word at all")
    parser.add_argument("--max-steps", type=_positive, default=20, help="of an episode")
    options = parser.parse_args(arguments)
    failed = False

    def check() -> None:
        nonlocal failed
        from swe_trainers.experiment import make_env
        from swe_trainers.rollout.conformance import check_env
        from swe_trainers.run_config import EnvironmentConfig

        config = EnvironmentConfig(id=options.id, kwargs=options.kwargs, adapter=options.adapter)
        make_env(config).close()  # what cannot be made at all is said in one line
        actions = tuple(options.actions.split(",")) if options.actions else ("help",)
        found = check_env(lambda: make_env(config), actions=actions, max_steps=options.max_steps)
        failed = any(finding.kept is False for finding in found)
        if options.json:
            print(json.dumps([vars(finding) for finding in found], indent=2))
        else:
            marks = {True: "ok", False: "FAILED", None: "-"}
            print("\n".join(f"{marks[f.kept]:<7} {f.promise}: {f.detail}" for f in found))

    return _run(check, parser.prog, options.debug, "interrupted") or int(failed)


def _doctor(arguments: Sequence[str]) -> int:
    """`swe-train doctor`; 1 where engine and trainer differ by more than rounding."""
    parser = _diagnosis("doctor", "Compare the engine's log-probabilities with the trainer's, token by token.")
    parser.add_argument("run", type=Path, help="the output directory of swe-train")
    parser.add_argument("--episodes", type=_positive, default=16, help="to play, where no batch is given")
    parser.add_argument("--batch", type=Path, help="a saved batch of the same weights instead of new episodes")
    options = parser.parse_args(arguments)
    sick = False

    def examine() -> None:
        nonlocal sick
        from swe_trainers.diagnosis.command import examine_run

        found = examine_run(options.run, episodes=options.episodes, batch=options.batch)
        sick = found.cause not in ("none", "rounding")
        print(json.dumps(found.plain(), indent=2) if options.json else found.report())

    return _run(examine, parser.prog, options.debug, "interrupted") or int(sick)


def _replay_batch(arguments: Sequence[str]) -> int:
    """`swe-train replay-batch`."""
    parser = _diagnosis("replay-batch", "Learn from a saved batch by several losses, and compare them.")
    parser.add_argument("file", type=Path, help="episodes, one a line")
    parser.add_argument("--run", type=Path, required=True, help="whose model, and whose settings where they fit")
    parser.add_argument("--loss", required=True, help="algorithms, with commas between")
    options = parser.parse_args(arguments)

    def replay() -> None:
        from swe_trainers.diagnosis.command import replay_file, side_by_side

        measured = replay_file(options.file, options.run, options.loss.split(","))
        print(json.dumps(measured, indent=2) if options.json else side_by_side(measured))

    return _run(replay, parser.prog, options.debug, "interrupted")


def _report(arguments: Sequence[str]) -> int:
    """`swe-train report`."""
    parser = _diagnosis("report", "Write one page of HTML of a run, or of several that differ in their seed.")
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="the output directory of swe-train")
    parser.add_argument("--output", type=Path, help="by default RUN/report.html, or report.html for several runs")
    options = parser.parse_args(arguments)

    def report() -> None:
        from swe_trainers.report.html_page import write_report

        written = write_report(options.runs, options.output)
        print(json.dumps({"report": str(written)}) if options.json else written)

    return _run(report, parser.prog, options.debug, "interrupted")


_DIAGNOSES = {"check-env": _check_env, "doctor": _doctor, "replay-batch": _replay_batch, "report": _report}


def _settings() -> dict[str, list[str]]:
    """What can be given as `--section.key value`, with the values to choose from; of the trainer, any algorithm's."""
    from swe_trainers.run_config import ALGORITHMS, RunConfig

    known: dict[str, list[str]] = {}
    sections = [settings_of(RunConfig), *(settings_of(kind, "trainer") for kind in ALGORITHMS.values())]
    for name, values in itertools.chain(*sections):
        known.setdefault(name, []).extend(value for value in values if value not in known.get(name, ()))
    return known


def _diagnosis(name: str, description: str) -> _Parser:
    epilog = f"example:\n  {_DIAGNOSES_EXAMPLES[name]}\n"
    parser = _Parser(prog=f"swe-train {name}", description=description, epilog=epilog)
    parser.add_argument("--json", action="store_true", help="print what was found as JSON")
    return parser


def _object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"no JSON: {error}") from error
    if not isinstance(found, dict):
        raise argparse.ArgumentTypeError(f"expected a JSON object, got {text!r}")
    return found


def _run(command: Callable[[], None], program: str, debug: bool, interrupted: str) -> int:
    """The exit code of a command, whose errors are one line each."""
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")  # else each of its retries is a line on standard error
    try:
        command()
    except (TrainerError, OSError) as error:
        if debug:
            traceback.print_exc()
        print(f"{program}: {_one_line(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"{program}: {interrupted}", file=sys.stderr)
        return 130
    return 0


def _positive(text: str) -> int:
    if not text.isdigit() or not int(text):
        raise argparse.ArgumentTypeError(f"expected a positive whole number, got {text!r}")
    return int(text)


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, as every other error is said; every command has `--debug`."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False, **settings)
        self.add_argument("--debug", action="store_true", help="show the traceback of an error")
        self.add_argument("--version", action="version", version=f"%(prog)s {__version__}")

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}. Try: {self.prog} --help\n")


def _one_line(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return " ".join(str(error).split()) or type(error).__name__


if __name__ == "__main__":
    sys.exit(main())
