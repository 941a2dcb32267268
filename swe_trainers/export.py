"""A trained model for others: a folder, or a repository of the Hugging Face Hub.

It holds the weights and the tokenizer as `transformers` reads them, `environment.yaml`, which says how the model was
trained to play, and a card, `README.md`. The value head stays behind: only training needs it, and servers refuse it.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swe_trainers import __version__
from swe_trainers.config import read_config
from swe_trainers.errors import ConfigurationError, TrainerError
from swe_trainers.evaluation.table import summary_lines
from swe_trainers.logging import read_metrics
from swe_trainers.model.hub import http_error
from swe_trainers.model.language_model import VALUE_HEAD_FILE
from swe_trainers.model.tokenizers import load_tokenizer
from swe_trainers.provenance import ENVIRONMENT, OF_THE_MACHINE, Provenance, read_provenance, write_provenance

if TYPE_CHECKING:
    from huggingface_hub import HfApi

__all__ = ["Published", "export_model", "push_model"]

CARD = "README.md"


@dataclass(frozen=True)
class Published:
    """A model on the hub.

    Attributes:
        url: of its page.
        private: whether only its owners see it.
        commit: the id of the commit that holds it.
        files: their names.
    """

    url: str
    private: bool
    commit: str
    files: tuple[str, ...]


def export_model(source: Path, output: Path, *, force: bool = False) -> list[str]:
    """Write a trained model into a folder.

    Args:
        source: the output directory of `swe-train`, or the folder of a model.
        output: created if absent; no file in it is changed before all are written.
        force: replace files of the same names in a folder that holds something.
    Returns:
        The names of the files.
    Raises:
        ConfigurationError: there is no model, or the folder holds something already.
        OSError: it cannot be written.
    """
    if output.exists() and (not output.is_dir() or (any(output.iterdir()) and not force)):
        raise ConfigurationError(f"--output: {output} exists already. Try: --force, or another folder")
    if output.resolve() in (_weights(source).resolve(), source.resolve()):
        raise ConfigurationError(f"--output: {output} is the model itself. Try: another folder")
    with _exported(source, output.name) as files:
        output.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".export-", dir=output) as partial:
            for name, path in files.items():
                (Path(partial) / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, Path(partial) / name)
            for name in files:
                (output / name).parent.mkdir(parents=True, exist_ok=True)
                (Path(partial) / name).replace(output / name)
        return sorted(files)


def push_model(source: Path, name: str, *, private: bool = False, message: str | None = None) -> Published:
    """Commit a trained model to a repository of the hub, which is made if it is not there.

    The token is the one of `hf auth login`, or of $HF_TOKEN; $HF_ENDPOINT names another hub. Files that the repository
    has already are not sent again.

    Args:
        source: as in `export_model`.
        name: of the repository, as OWNER/NAME.
        private: make a new repository private. One that is there keeps its visibility, and a public one is refused.
        message: of the commit.
    Raises:
        ConfigurationError: there is no model, no token, or the hub refuses the one that there is.
        TrainerError: the hub cannot be reached, or fails.
    """
    from huggingface_hub import CommitOperationAdd, HfApi, get_token

    if not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        raise ConfigurationError(f"--push: expected OWNER/NAME, got {name!r}")
    if get_token() is None:
        raise ConfigurationError("--push: there is no token for the hub. Try: hf auth login, or HF_TOKEN=…")
    api = HfApi(library_name="swegym-env", library_version=__version__)
    with _exported(source, name) as files, _one_line_errors(api, name):
        _refuse_what_others_cannot_load(files)
        url = str(api.create_repo(name, private=private or None, exist_ok=True))
        is_private = bool(api.model_info(name).private)
        if private and not is_private:
            raise ConfigurationError(
                f"--private: {name} exists already and is public. Try: another name, or its settings at {url}/settings"
            )
        operations = [CommitOperationAdd(inside, path) for inside, path in sorted(files.items())]
        commit = api.create_commit(name, operations, commit_message=message or f"Export of swegym-env {__version__}")
        return Published(url, is_private, commit.oid, tuple(sorted(files)))


@contextmanager
def _one_line_errors(api: HfApi, name: str) -> Iterator[None]:
    """Turn what the hub's client raises into one line that says what to do."""
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, OfflineModeIsEnabled

    try:
        yield
    except TrainerError:
        raise
    except HFValidationError as error:
        raise ConfigurationError(f"--push: {str(error).splitlines()[0]}") from error
    except OfflineModeIsEnabled as error:
        raise ConfigurationError("--push: HF_HUB_OFFLINE forbids connections. Try: HF_HUB_OFFLINE=0") from error
    except (http_error(), RuntimeError, OSError, ValueError) as error:  # hf_xet's own errors are of all these kinds
        if isinstance(error, OSError) and error.filename:
            raise  # a file here
        reasons = list(_causes(error))
        answer = next((each for each in reasons if isinstance(each, HfHubHTTPError)), None)
        if answer is None:
            text = ": ".join((str(each).strip() or type(each).__name__).splitlines()[0].rstrip(".") for each in reasons)
            raise TrainerError(f"--push: sending to {api.endpoint} failed: {text}. {_AGAIN}") from error
        status = answer.response.status_code
        text = f"{status}: {answer.server_message or str(answer).strip().splitlines()[0]}"
        if status == 401:
            raise ConfigurationError(
                f"--push: {api.endpoint} refuses the token ({text}). Try: hf auth login, with a token that may write"
            ) from error
        if status in (403, 404):
            raise ConfigurationError(
                f"--push: the token may not write to {name} ({text}). Try: a name below your own account, or a token "
                "that may write there"
            ) from error
        raise TrainerError(f"--push: {api.endpoint} failed ({text}). {_AGAIN}") from error


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """An error and what it was raised from, as far as the hub's client says so."""
    while error is not None:
        yield error
        error = error.__cause__ if type(error) is RuntimeError else None


_AGAIN = "Nothing was committed; the same command tries again"


@contextmanager
def _exported(source: Path, title: str) -> Iterator[dict[str, Path]]:
    """The files of an export by their names in it; those that are made for it live as long as the block.

    Raises:
        ConfigurationError: there is no model.
    """
    weights = _weights(source)
    files = {path.relative_to(weights).as_posix(): path for path in sorted(weights.rglob("*")) if path.is_file()}
    files = {name: path for name, path in files.items() if name != VALUE_HEAD_FILE and not name.startswith(".")}
    if "config.json" not in files:  # adapters alone
        files = {name.removeprefix("adapter/"): path for name, path in files.items()}
    with tempfile.TemporaryDirectory() as scratch:
        made = Path(scratch)
        load_tokenizer(weights.absolute()).save(made)  # models of version 0.1 lack what transformers reads
        trained = read_provenance(source)
        if trained is not None:
            kwargs = {name: value for name, value in trained.environment.kwargs.items() if name not in OF_THE_MACHINE}
            trained = replace(trained, environment=replace(trained.environment, kwargs=kwargs))
            write_provenance(made, trained.environment, trained.chat, trained.success_above, trained.rollout)
        if CARD not in files:
            (made / CARD).write_text(_card(source, weights, title, trained, made), encoding="utf-8")
        yield files | {path.name: path for path in made.iterdir()}


def _weights(source: Path) -> Path:
    """The folder of the model."""
    for folder in (source / "model", source):
        if any((folder / name).is_file() for name in ("config.json", "adapter/adapter_config.json")):
            return folder
    if (source / "checkpoints").is_dir():
        raise ConfigurationError(
            f"{source}: the run has no model yet. Try: swe-train {source}/config.yaml, which goes on to its end"
        )
    raise ConfigurationError(f"{source}: neither a run of swe-train nor the folder of a model")


def _refuse_what_others_cannot_load(files: Mapping[str, Path]) -> None:
    if "config.json" not in files:
        base = json.loads(files["adapter_config.json"].read_text(encoding="utf-8"))["base_model_name_or_path"]
        if Path(base).is_dir():
            raise ConfigurationError(
                f"--push: these are adapters of {base}, a folder of this machine. Try: --output, or a run whose "
                "model.path is a name of the hub"
            )


def _card(source: Path, weights: Path, title: str, trained: Provenance | None, made: Path) -> str:
    """The card: what the model was trained on and how, what it reaches, and how to use it."""
    from huggingface_hub import ModelCardData

    config = read_config(source / "config.yaml") if (source / "config.yaml").is_file() else {}
    model = config.get("model")
    base = model.get("path") if isinstance(model, dict) else None
    adapters = not (weights / "config.json").is_file()
    tags = ["reinforcement-learning", "swegym-env"]
    data = ModelCardData(
        library_name="peft" if adapters else "transformers",
        pipeline_tag="text-generation",
        base_model=base if base and not Path(base).exists() else None,
        tags=tags,
    )
    name = title.rpartition("/")[2]
    kind = "AutoPeftModelForCausalLM" if adapters else "AutoModelForCausalLM"
    lines = [
        *("---", data.to_yaml(), "---", "", f"# {name}", ""),
        f"A language model trained with swegym-env {__version__}{_history(source, config)}.",
        *_results(source),
        *("", "## Use", "", "```python"),
        *([f"from peft import {kind}"] if adapters else []),
        f"from transformers import {'' if adapters else f'{kind}, '}AutoTokenizer",
        "",
        f'tokenizer = AutoTokenizer.from_pretrained("{title}")',
        f'model = {kind}.from_pretrained("{title}")',
        "```",
    ]
    if trained is not None:
        download = [f"hf download {title} --local-dir {name}"] if "/" in title else []
        lines += [
            *("", "## Environment", ""),
            f"`{ENVIRONMENT}` says how it was trained to play; `swe-eval` plays it so:",
            *("", "```sh", *download, f"swe-eval --model {name}", "```"),
            *("", "```yaml", (made / ENVIRONMENT).read_text(encoding="utf-8").rstrip(), "```"),
        ]
    return "\n".join(lines) + "\n"


def _history(source: Path, config: Mapping[str, Any]) -> str:
    """The stages of a run with their numbers of updates, and its seed."""
    path = source / "metrics.jsonl"
    updates = {row["stage"]: row["update"] for row in read_metrics(path) if "stage" in row} if path.is_file() else {}
    stages = [f"{count} update{'s' * (count != 1)} of {stage}" for stage, count in updates.items()]
    return (f", by {', then '.join(stages)}" if stages else "") + (
        f", seed {config['seed']}" if "seed" in config else ""
    )


def _results(source: Path) -> list[str]:
    """What `swe-eval RUN` measured last; else what training measured."""
    summary, metrics = source / "evaluation" / "summary.json", source / "metrics.jsonl"
    if summary.is_file():
        found = json.loads(summary.read_text(encoding="utf-8"))
        return ["", "## Results", "", *(f"- {line}" for line in summary_lines(found, "")[:-1])]
    measured = [row for row in read_metrics(metrics) if "eval/episodes" in row] if metrics.is_file() else []
    if not measured:
        return []
    values = {key: value for key, value in measured[-1].items() if key.startswith("eval/") and value is not None}
    rows = [f"| `{key}` | {value:.4g} |" for key, value in values.items()]
    return ["", "## Results", "", "Measured at the end of training.", "", "| | |", "|---|---|", *rows]
