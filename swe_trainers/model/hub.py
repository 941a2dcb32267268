"""Names of models on the Hugging Face Hub, also where it cannot be reached, and errors of transformers in one line."""

from __future__ import annotations

from pathlib import Path

from swe_trainers.errors import ConfigurationError

__all__ = ["http_error", "loadable", "reason_of"]

_TIMEOUT_S = 3.0


def loadable(source: str | Path) -> str:
    """A folder or a name that transformers loads from without waiting for a hub that it cannot reach.

    One request finds out, where transformers retries each of several for half a minute.

    Returns:
        The source; if it is a name and the hub cannot be reached, the folder of the hub's cache.
    Raises:
        ConfigurationError: it is neither a folder nor a name, or it is not in the cache and the hub cannot be reached.
    """
    name = str(source)
    if Path(source).is_dir():
        return name
    from huggingface_hub import constants, hf_hub_url, snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError
    from huggingface_hub.utils import get_session, validate_repo_id  # type: ignore[attr-defined]

    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise ConfigurationError(f"{name}: neither a folder nor a valid name of a model on the hub") from error
    try:
        if not constants.HF_HUB_OFFLINE:
            get_session().head(hf_hub_url(name, "config.json"), timeout=_TIMEOUT_S)
            return name  # whatever it answers: transformers says what is wrong
        why = "HF_HUB_OFFLINE is set"
    except http_error() as error:
        why = f"no connection to the hub: {error}"
    try:
        return snapshot_download(name, local_files_only=True)
    except LocalEntryNotFoundError as error:
        raise ConfigurationError(f"{name}: no such folder, not in the hub's cache, and {why}") from error


def http_error() -> type[Exception]:
    """What the hub's client raises where it has no connection: of httpx before its version 2, of httpx2 since."""
    from huggingface_hub.errors import HfHubHTTPError

    return next(each for each in HfHubHTTPError.__mro__ if each.__name__ == "HTTPError")


def reason_of(error: Exception) -> str:
    """One line: why transformers cannot read a configuration, or build a model from it."""
    from huggingface_hub.errors import StrictDataclassError

    if isinstance(error, StrictDataclassError):
        return " ".join(str(error).split())  # its first line names the field, the next says what is wrong
    if isinstance(error, KeyError):
        return f"there is no {error}"
    return (str(error).strip() or type(error).__name__).splitlines()[0]
