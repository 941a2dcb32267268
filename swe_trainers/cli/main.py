"""`swe-train CONFIG [--section.key value …]` trains as configured; `swe-eval` evaluates the result, or any other model.

`swe-train check-env ID`, `swe-train doctor RUN` and `swe-train replay-batch FILE` find errors. `swe-train export RUN`
exports a trained model for other programs.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import io
import itertools
import json
import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swe_trainers.cli.completion import add_print_completion, settings_of
from swe_trainers.cli.evaluate import JSON_LOGS, link_to_evaluation, positive
from swe_trainers.cli.parser import Parser
from swe_trainers.errors import ConfigurationError, TrainerError, install_hint

if TYPE_CHECKING:
    from swe_trainers.run_config import RunConfig

__all__ = ["main", "main_eval"]

_EXAMPLE = """\
example:
  swe-train examples/configs/frozen_lake.yaml --trainer.learning_rate 5e-4 --seed 1 --output_dir runs/seed1

A run goes on from its newest checkpoint when it is started again with the same output_dir and the same settings. Values
may refer to the environment: output_dir: ${oc.env:SWE_RUNS,runs}/frozen_lake

settings, each with its type and its default:
  swe-train --help environment          a section: run, environment, model, evaluation, engine, scale, rollout, reward
  swe-train --help grpo                 an algorithm, or trainer for the list of them
  swe-train --help model.lora           one setting; all for everything there is
  swe-train CONFIG --print-config       a configuration as it is resolved, with what each setting means

other commands, each with a --help of its own:
  swe-train check-env FrozenLake-v1 --adapter text
  swe-train doctor runs/frozen_lake
  swe-train export runs/frozen_lake --push OWNER/NAME
  swe-train report runs/seed0 runs/seed1 runs/seed2
  swe-train replay-batch runs/frozen_lake/batches/00000000.jsonl --run runs/frozen_lake --loss ppo,grpo
"""

_EXAMPLES = {
    "check-env": "swe-train check-env my_package:MyEnv-v0 --kwargs '{\"size\": 4}' --actions left,right",
    "report": "swe-train report runs/seed0 runs/seed1 runs/seed2 --output runs/report.html",
    "export": "swe-train export runs/frozen_lake --push OWNER/NAME --private",
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
        0 on success; 1 where a dry run found problems that would stop the run; 2 where the configuration is wrong or is
        not available here, or the run cannot go on (one line on standard error says why); 130 after Ctrl-C.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given and given[0] in _COMMANDS:
        return _COMMANDS[given[0]](given[1:])
    if len(given) == 2 and given[0] in ("-h", "--help"):
        return _run(lambda: _explain(given[1]), "swe-train", debug=False, interrupted="interrupted")
    parser = Parser(
        prog="swe-train",
        description="Train a language model on a text environment.",
        usage="swe-train CONFIG [--section.key value ...] [--print-config | --dry-run [--json]]\n"
        "                        [--quiet] [--json-logs] [--debug]\n"
        "       swe-train CONFIG … --resume-with-changes | --restart\n"
        "       swe-train --help [SECTION | ALGORITHM | section.key | all]",
        epilog=_EXAMPLE,
    )
    parser.add_argument("config", help="a YAML file with the sections environment, model, trainer, evaluation")
    parser.add_argument(
        "--print-config",
        action="store_true",
        help="print the resolved configuration with a description of each setting, and exit",
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="print what the run would need, and problems that would stop it (exit code 1), and exit",
    )
    parser.add_argument("--json", action="store_true", help="print the dry run's plan as JSON")
    parser.add_argument("--quiet", action="store_true", help="write to the output directory only, not to the terminal")
    json_logs = "write log lines as JSON objects: time, level, message, exception"
    parser.add_argument("--json-logs", action="store_true", help=json_logs)
    former = parser.add_mutually_exclusive_group()
    former.add_argument(
        "--resume-with-changes",
        action="store_true",
        help="resume the run in output_dir with changed settings, which are recorded in changes.jsonl",
    )
    former.add_argument(
        "--restart",
        action="store_true",
        help="move the run in output_dir to output_dir/replaced-N, and start a new run",
    )
    add_print_completion(parser, _settings, words=[*_COMMANDS])
    options, overrides = parser.parse_known_args(given)

    stopped, pause = False, threading.Event()
    directory: Path | None = None

    def train() -> None:
        nonlocal stopped, directory
        if options.json_logs:
            from swe_trainers.logging import start_json_logs

            start_json_logs()
        values = _checked(options.config, overrides, parser.names)
        trains = not (options.print_config or options.dry_run or options.quiet or options.json_logs)
        if trains and sys.stderr.isatty() and _is_first_process():  # imports take seconds; the log begins after them
            print("swe-train: loading PyTorch, the environment and the model …", file=sys.stderr)
        from swe_trainers.resume import Resume, Settings
        from swe_trainers.run_config import run_config

        config = run_config(values)
        directory = config.output_dir
        if options.print_config:
            print(config.yaml(), end="")
            return
        resume: Resume = "changed" if options.resume_with_changes else "never" if options.restart else "same"
        if resume == "same" and not options.dry_run:
            Settings.of(config).refuse_changes()
        from swe_trainers.experiment import dry_run, run_experiment
        from swe_trainers.planning.plan import plan_text

        if options.dry_run:
            plan = dry_run(config)
            stopped = bool(plan["problems"])
            print(json.dumps(plan, indent=2) + "\n" if options.json else plan_text(plan), end="")
        else:
            with _set_by_sigterm(pause):
                run_experiment(
                    config, console=not options.quiet, resume=resume, json_logs=options.json_logs, pause=pause
                )
            if not (options.quiet or options.json_logs):
                _show_what_is_next(config)

    def interrupted() -> str:
        if directory is None:
            return "interrupted before the run began"
        from swe_trainers.resume import last_saved

        saved = last_saved(directory)
        if saved is None:
            return "interrupted; nothing was saved yet: started again, it begins anew"
        return f"interrupted; started again, it goes on from update {saved}"

    code = _run(train, parser.prog, options.debug, interrupted, json_logs=options.json_logs) or int(stopped)
    return 128 + signal.SIGTERM if pause.is_set() and code == 128 + signal.SIGINT else code


@contextlib.contextmanager
def _set_by_sigterm(pause: threading.Event) -> Iterator[None]:
    """SIGTERM, by which SLURM announces the end of a job, sets an event; a second one ends the process."""

    def set_it(number: int, _frame: object) -> None:
        pause.set()
        signal.signal(number, former)

    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may handle signals
        return
    former = signal.signal(signal.SIGTERM, set_it)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, former)


def _show_what_is_next(config: RunConfig) -> None:
    """The commands that show the result of a run, on standard error like its log."""
    if not _is_first_process():
        return
    folder = config.output_dir
    print(f"look at the curves: python -m webbrowser {folder / 'report.html'}", file=sys.stderr)
    if (folder / "model").is_dir() and config.algorithm != "reward_model":
        print(f"evaluate the model: swe-eval {folder} --episodes 20", file=sys.stderr)


def _is_first_process() -> bool:
    return os.environ.get("RANK", "0") == "0"  # as torchrun numbers its processes


def _checked(path: str | Path, overrides: Sequence[str], own: Sequence[str] = ()) -> dict[str, Any]:
    """A configuration whose keys exist: found out before PyTorch is imported, which takes seconds.

    Args:
        own: options of the command, which an override may have been meant as.
    """
    from swe_trainers.cli.keys import check_keys, settings_by_name
    from swe_trainers.config import parse_overrides, read_config, similar

    if not Path(path).exists():
        known = [*_COMMANDS, *map(str, Path(path).parent.glob("*.yaml"))]
        raise ConfigurationError(f"{path}: no such file{similar(str(path), known)}")
    values = read_config(path, overrides)
    if "resume" in values:
        raise ConfigurationError(
            "resume: no such setting. A run resumes by itself when it is started again with the same output_dir"
        )
    for key in parse_overrides(overrides):
        option = f"--{key.replace('_', '-')}"
        if "." not in key and not similar(key, settings_by_name()) and (hint := similar(option, own)):
            raise ConfigurationError(f"{option}: no such option{hint}")
    check_keys(values)
    return values


def _explain(topic: str) -> None:
    from swe_trainers.cli.config_help import help_text

    print(help_text(topic), end="")


def main_eval(arguments: Sequence[str] | None = None) -> int:
    """Run `swe-eval`; returns as `main` does, and 1 where some episodes are invalid."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] == ["compare"]:
        return _compare(given[1:])
    named = {word.partition("=")[0] for word in given if word.startswith("--")}
    names_model = any("." not in option and difflib.get_close_matches(option, ["--model"]) for option in named)
    if not (names_model or not given or given[0] in ("-h", "--help", "--print-completion")):
        return _measure_run(given)
    from swe_trainers.cli import evaluate as command

    description = "Measure a model on an environment: behind a URL, or in a folder."
    parser = Parser(prog="swe-eval", description=description, usage=command.USAGE, epilog=command.EXAMPLE)
    command.add_options(parser)
    add_print_completion(parser, _settings, words=["compare"])
    if not given:
        parser.error("the following arguments are required: RUN, or --model")
    options, unread = parser.parse_known_args(given)
    code = 0

    def evaluate() -> None:
        nonlocal code
        code = command.run(options, unread)

    interrupted = "interrupted; with --resume it goes on"
    return _run(evaluate, parser.prog, options.debug, interrupted, json_logs=options.json_logs) or code


def _compare(arguments: Sequence[str]) -> int:
    """`swe-eval compare`."""
    from swe_trainers.cli import evaluate as command

    epilog = "example:\n  swe-eval compare runs/eval/before/mini runs/eval/after/mini\n"
    parser = Parser(prog="swe-eval compare", description="Pair two evaluations instance by instance.", epilog=epilog)
    command.add_comparison(parser)
    options = parser.parse_args(arguments)
    return _run(lambda: command.run_comparison(options), parser.prog, options.debug, "interrupted")


def _measure_run(arguments: Sequence[str]) -> int:
    """`swe-eval RUN`: the episodes that a run of the same seed is measured on."""
    parser = Parser(
        prog="swe-eval",
        description="Measure a trained model on the environment of its configuration.",
        usage="swe-eval RUN [--episodes N] [--output DIR] [--resume] [--json] [--json-logs]\n"
        "                    [--section.key value ...] [--debug]",
        epilog=_EVAL_EXAMPLE,
    )
    parser.add_argument("run", help="the output directory of swe-train, or a YAML file whose model.path names a model")
    parser.add_argument("--episodes", type=positive, help="number of episodes (default evaluation.episodes, or 100)")
    parser.add_argument("--output", type=Path, help="folder of the results (default RUN/evaluation, or evaluation)")
    parser.add_argument("--resume", action="store_true", help="continue the evaluation in the output directory")
    parser.add_argument("--json", action="store_true", help="one JSON object per episode, then the summary")
    parser.add_argument("--json-logs", action="store_true", help=JSON_LOGS)
    options, overrides = parser.parse_known_args(arguments)
    invalid = False

    def evaluate() -> None:
        nonlocal invalid
        if options.json_logs:
            from swe_trainers.logging import start_json_logs

            start_json_logs()
        from swe_trainers.cli.keys import check_keys

        run = Path(options.run)
        _refuse_options_of_models(run, overrides, parser.names)
        values = _run_values(run, overrides)
        check_keys(values, likely="evaluation")
        from swe_trainers.evaluation.evaluate import evaluate_run
        from swe_trainers.evaluation.table import summary_lines
        from swe_trainers.run_config import of_trained_weights, run_config

        if run.is_dir():
            values["model"] = of_trained_weights(values["model"], run / "model" if (run / "model").is_dir() else run)
        config = run_config(values)
        output = options.output or (run / "evaluation" if run.is_dir() else Path("evaluation"))
        episodes = options.episodes or config.evaluation.episodes or 100
        shown = {"json_lines": options.json, "json_logs": options.json_logs}
        summary = evaluate_run(config, output, episodes=episodes, resume=options.resume, **shown)
        invalid = bool(summary["invalid"])
        link_to_evaluation(output)
        print(json.dumps(summary) if options.json else "\n".join(summary_lines(summary, str(output))))

    interrupted = "interrupted; with --resume it goes on"
    return _run(evaluate, parser.prog, options.debug, interrupted, json_logs=options.json_logs) or int(invalid)


def _refuse_options_of_models(run: Path, overrides: Sequence[str], own: Iterable[str]) -> None:
    """Raise ConfigurationError for what is no setting of a run, but an option of `swe-eval --model`, or nearly one."""
    from swe_trainers.cli.evaluate import option_names
    from swe_trainers.cli.keys import settings_by_name
    from swe_trainers.config import parse_overrides, similar

    settings, options = settings_by_name(), option_names()
    for key, value in parse_overrides(overrides).items():
        option = f"--{key.replace('_', '-')}"
        if "." in key or key in settings:
            continue
        hint = similar(option, own) or ("" if similar(key, settings) else similar(option, options))
        if option not in options and hint:
            raise ConfigurationError(f"{option}: no such option{hint}")
        if option in options:
            folder = run if run.is_dir() else "FOLDER"
            raise ConfigurationError(
                f"{option}: no option of swe-eval RUN, which plays the tasks of the run's configuration. "
                f"Try: swe-eval --model {folder} {option} {value}"
            )


def _run_values(run: Path, overrides: Sequence[str]) -> dict[str, Any]:
    """The configuration of a run; of a model that something else has trained, what `environment.yaml` says."""
    from swe_trainers.config import read_config

    if not run.is_dir():
        return read_config(run, overrides)
    written = run / "config.yaml"
    if written.is_file() and "environment" in (values := read_config(written, overrides)):
        return values
    for folder in (run / "model", run):
        if (folder / "environment.yaml").is_file():
            values = read_config(folder / "environment.yaml", overrides)
            values.pop("format", None)
            return {"trainer": {"algorithm": "ppo"}, **values}  # which is not used
    if not written.is_file():
        raise ConfigurationError(
            f"{run}: neither a run of swe-train nor the folder of a model. Try: the output_dir of a run"
        )
    return read_config(written, overrides)


def _check_env(arguments: Sequence[str]) -> int:
    """`swe-train check-env`; 1 where the environment does not keep what it promises."""
    parser = _command("check-env", "Try out what the trainer relies on in a text environment.")
    parser.add_argument("id", help="Gymnasium id; module:Id if a module must be imported to register it")
    parser.add_argument("--kwargs", type=_object, default={}, help="keyword arguments of gymnasium.make, as JSON")
    parser.add_argument(
        "--adapter", choices=["none", "text"], default="none", help="text: describe spaces of numbers in words"
    )
    parser.add_argument("--adapter-kwargs", type=_object, default={}, help="keyword arguments of the adapter, as JSON")
    parser.add_argument(
        "--actions", default="", help="actions that are played in turn, separated by commas (default: legal actions)"
    )
    parser.add_argument("--max-steps", type=positive, help="of an episode; by default its own limit, 100 at most")
    parser.add_argument(
        "--timeout", type=positive, default=60, help="maximum seconds of one call of the environment (default 60)"
    )
    options = parser.parse_args(arguments)
    failed = False

    def check() -> None:
        nonlocal failed
        from swe_trainers.experiment import make_env
        from swe_trainers.rollout.conformance import Finding, check_env, made_within
        from swe_trainers.run_config import EnvironmentConfig

        adapter = {"adapter": options.adapter, "adapter_kwargs": options.adapter_kwargs}
        config = EnvironmentConfig(id=options.id, kwargs=options.kwargs, **adapter)
        # What cannot be made is a one-line error.
        made_within(lambda: make_env(config, hint="--adapter text"), options.timeout).close()
        marks = {True: "ok", False: "FAILED", None: "-"}

        def show(finding: Finding) -> None:
            if not options.json:
                print(f"{marks[finding.kept]:<7} {finding.promise}: {finding.detail}", flush=True)

        found = check_env(
            lambda: make_env(config),
            actions=tuple(options.actions.split(",")) if options.actions else None,
            max_steps=options.max_steps,
            timeout_s=options.timeout,
            on_finding=show,
        )
        failed = any(finding.kept is False for finding in found)
        if options.json:
            print(json.dumps([vars(finding) for finding in found], indent=2))

    return _run(check, parser.prog, options.debug, "interrupted") or int(failed)


def _doctor(arguments: Sequence[str]) -> int:
    """`swe-train doctor`; 1 where engine and trainer differ by more than rounding."""
    parser = _command("doctor", "Compare the engine's log-probabilities with the trainer's, token by token.")
    parser.add_argument("run", type=Path, help="the output directory of swe-train")
    parser.add_argument(
        "--episodes", type=positive, default=16, help="number of episodes to play, if no batch is given"
    )
    parser.add_argument("--batch", type=Path, help="a saved batch of the same weights instead of new episodes")
    options = parser.parse_args(arguments)
    sick = False

    def examine() -> None:
        nonlocal sick
        from swe_trainers.cli.diagnose import examine_run

        found = examine_run(options.run, episodes=options.episodes, batch=options.batch)
        sick = found.cause not in ("none", "rounding")
        print(json.dumps(found.plain(), indent=2) if options.json else found.report())

    return _run(examine, parser.prog, options.debug, "interrupted") or int(sick)


def _replay_batch(arguments: Sequence[str]) -> int:
    """`swe-train replay-batch`."""
    parser = _command("replay-batch", "Learn from a saved batch by several losses, and compare them.")
    parser.add_argument("file", type=Path, help="file of episodes, one per line")
    parser.add_argument(
        "--run", type=Path, required=True, help="run whose model is used, and whose settings if they apply"
    )
    parser.add_argument("--loss", required=True, help="names of algorithms, separated by commas")
    options = parser.parse_args(arguments)

    def replay() -> None:
        from swe_trainers.cli.diagnose import replay_file, side_by_side

        measured = replay_file(options.file, options.run, options.loss.split(","))
        print(json.dumps(measured, indent=2) if options.json else side_by_side(measured))

    return _run(replay, parser.prog, options.debug, "interrupted")


def _report(arguments: Sequence[str]) -> int:
    """`swe-train report`."""
    parser = _command("report", "Write one page of HTML of a run, or of several that differ in their seed.")
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="the output directory of swe-train")
    parser.add_argument(
        "--output", type=Path, help="file of the report (default RUN/report.html; report.html for several runs)"
    )
    options = parser.parse_args(arguments)

    def report() -> None:
        from swe_trainers.report.page import write_report

        written = write_report(options.runs, options.output)
        print(json.dumps({"report": str(written)}) if options.json else written)

    return _run(report, parser.prog, options.debug, "interrupted")


def _export(arguments: Sequence[str]) -> int:
    """`swe-train export`."""
    parser = _command("export", "Write a trained model for others: into a folder, to the Hugging Face Hub, or both.")
    parser.add_argument("run", type=Path, metavar="RUN", help="the output directory of swe-train, or a model's folder")
    parser.add_argument("--output", type=Path, metavar="DIR", help="the folder to write into")
    parser.add_argument("--force", action="store_true", help="replace files of the same names there")
    hub = (
        "commit to this repository of the hub, made if it is not there; the token is that of hf auth login or HF_TOKEN"
    )
    parser.add_argument("--push", metavar="OWNER/NAME", help=hub)
    parser.add_argument("--private", action="store_true", help="make the repository private, or refuse a public one")
    parser.add_argument("--message", metavar="TEXT", help="message of the commit")
    options = parser.parse_args(arguments)
    if options.output is None and options.push is None:
        parser.error("expected --output DIR, --push OWNER/NAME, or both")
    if options.force and options.output is None:
        parser.error("--force has no effect without --output")
    if options.push is None and (options.private or options.message is not None):
        parser.error("--private and --message have no effect without --push")

    def export() -> None:
        from huggingface_hub.utils import disable_progress_bars  # type: ignore[attr-defined]

        from swe_trainers.export import export_model, push_model

        if not sys.stderr.isatty():
            disable_progress_bars()
        found: dict[str, Any] = {}
        if options.output is not None:
            found |= {
                "output": str(options.output),
                "files": export_model(options.run, options.output, force=options.force),
            }
            if not options.json:
                print(f"{options.output}: {', '.join(found['files'])}")
        if options.push is not None:
            pushed = push_model(options.run, options.push, private=options.private, message=options.message)
            found |= vars(pushed)
            if not options.json:
                kind = "private" if pushed.private else "public"
                print(f"{pushed.url} ({kind}), commit {pushed.commit[:8]}: {', '.join(pushed.files)}")
        if options.json:
            print(json.dumps(found))

    return _run(export, parser.prog, options.debug, "interrupted")


_COMMANDS = {
    "check-env": _check_env,
    "doctor": _doctor,
    "export": _export,
    "replay-batch": _replay_batch,
    "report": _report,
}


def _settings() -> dict[str, list[str]]:
    """What can be given as `--section.key value`, with the values to choose from; of the trainer, any algorithm's."""
    from swe_trainers.algorithms import ALGORITHMS, algorithm_classes

    try:
        from swe_trainers.run_config import RunConfig
    except ModuleNotFoundError as error:
        sys.exit(f"swe-train: {_missing_package(error)}")
    known = {"trainer.algorithm": list(ALGORITHMS)}
    sections = [settings_of(RunConfig), *(settings_of(kind, "trainer") for kind in algorithm_classes().values())]
    for name, values in itertools.chain(*sections):
        known.setdefault(name, []).extend(value for value in values if value not in known.get(name, ()))
    return known


def _command(name: str, description: str) -> Parser:
    epilog = f"example:\n  {_EXAMPLES[name]}\n"
    parser = Parser(prog=f"swe-train {name}", description=description, epilog=epilog)
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


def _run(
    command: Callable[[], None],
    program: str,
    debug: bool,
    interrupted: str | Callable[[], str],
    *,
    json_logs: bool = False,
) -> int:
    """The exit code of a command, whose errors and warnings to users are one line each."""
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")  # else each of its retries is a line on standard error
    if isinstance(sys.stdout, io.TextIOWrapper):  # as standard error: texts of environments may not be of its encoding
        sys.stdout.reconfigure(errors="backslashreplace")
    pythons_format = warnings.formatwarning

    def one_line(message: Warning | str, category: type[Warning], *place: Any, **source: Any) -> str:
        if debug or not issubclass(category, UserWarning):
            return pythons_format(message, category, *place, **source)
        return f"{program}: warning: {' '.join(str(message).split())}\n"

    warnings.formatwarning = one_line
    try:
        command()
    except ModuleNotFoundError as error:
        if debug or (error.name or "swe_trainers").startswith(("swe_trainers", "swegym_env")):
            raise
        print(f"{program}: {_missing_package(error)}", file=sys.stderr)
        return 2
    except (TrainerError, OSError) as error:
        if debug:
            traceback.print_exc()
        _fail(program, _one_line(error), json_logs)
        return 2
    except KeyboardInterrupt:
        _fail(program, interrupted if isinstance(interrupted, str) else interrupted(), json_logs)
        return 128 + signal.SIGINT
    finally:
        warnings.formatwarning = pythons_format
    return 0


def _fail(program: str, reason: str, json_logs: bool) -> None:
    if json_logs:
        from loguru import logger

        logger.error("{}", reason)
    else:
        print(f"{program}: {reason}", file=sys.stderr)


def _missing_package(error: ModuleNotFoundError) -> str:
    return f"{error.name} is not installed. {install_hint('train')}"


def _one_line(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return " ".join(str(error).split()) or type(error).__name__


if __name__ == "__main__":
    sys.exit(main())
