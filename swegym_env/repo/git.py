"""Runs git on the host, through GitPython, isolated from every configuration but `isolated.gitconfig` beside this file.

System, user and environment configuration, hooks, attribute and exclude files, prompts: none has an effect on the
result. Commands fail with one line that names what they were for.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path

from swegym_env.errors import RepositoryError

__all__ = ["ANY_OWNER", "Git", "git_command"]

ANY_OWNER = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*"}
"""Variables with which git accepts a repository of another user."""

_CONFIG = Path(__file__).with_name("isolated.gitconfig")
_INHERITED = frozenset({"GIT_SSL_CAINFO", "GIT_PROXY_COMMAND", "GIT_SSH_COMMAND"})  # how the network is reached
_ENVIRONMENT = {
    "GIT_CONFIG_GLOBAL": str(_CONFIG),
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_ASKPASS": "",
    "GIT_LFS_SKIP_SMUDGE": "1",
    "LC_ALL": "C",
}


def git_command(
    purpose: str, *arguments: str, env: Mapping[str, str] | None = None
) -> tuple[list[str], dict[str, str]]:
    """The command line that runs git in isolation, and the variables to add to the environment for it.

    Args:
        env: variables besides those of the isolated environment.
    Raises:
        RepositoryError: git is not installed; the message begins with `purpose`.
    """
    executable = shutil.which("git")
    if executable is None:
        raise RepositoryError(f"{purpose}: git is not installed. Try: apt install git")
    added = {**_ENVIRONMENT, **(env or {})}
    # GitPython can add variables and not remove them: `env` does.
    removed = [name for name in os.environ if name.startswith("GIT_") and name not in _INHERITED | added.keys()]
    without = ["env", *(part for name in removed for part in ("-u", name))] if removed else []
    return [*without, executable, *arguments], added


class Git:
    """Runs git commands in one directory.

    Attributes:
        purpose: what the commands are for; error messages begin with it.
    """

    def __init__(self, purpose: str, directory: str | os.PathLike[str] | None = None, *options: str) -> None:
        """Prepare to run git; nothing is started yet.

        Args:
            purpose: for example `octo/x at 0123abc from /clones/octo+x`.
            directory: where git runs; None: the current directory.
            options: options of git itself, which stand before the command: `--git-dir=…`.
        """
        self.purpose = purpose
        self._options = [*(["-C", os.fspath(directory)] if directory is not None else []), *options]

    def run(
        self,
        *arguments: str,
        stdin: str | bytes = b"",
        env: Mapping[str, str] | None = None,
        timeout_s: float = 600.0,
    ) -> bytes:
        """Run a command and return its standard output.

        Args:
            stdin: text is encoded as UTF-8 with `surrogateescape`.
            env: variables besides those of the isolated environment.
        Raises:
            RepositoryError: git is not installed, fails, or does not end in time.
        """
        command, added = git_command(self.purpose, *self._options, *arguments, env=env)
        import git  # takes 0.2 s, and fails where git is not installed

        started = git.Git().execute(
            command,
            as_process=True,  # GitPython's own time limit leaves a thread running after Ctrl-C
            istream=subprocess.PIPE,
            env=added,
            start_new_session=True,
            umask=0o022,  # a layer is the same wherever it is built
        )
        process, started.proc = started.proc, None
        assert process is not None
        with process:
            try:
                stdout, stderr = process.communicate(
                    stdin.encode("utf-8", "surrogateescape") if isinstance(stdin, str) else stdin, timeout=timeout_s
                )
            except BaseException as error:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                if isinstance(error, subprocess.TimeoutExpired):
                    message = f"{self.purpose}: git {arguments[0]} did not end within {timeout_s:g} s"
                    raise RepositoryError(message) from error
                raise
        if process.returncode != 0:
            lines = [line.strip() for line in stderr.decode("utf-8", "replace").splitlines() if line.strip()]
            causes = [line for line in lines if "fatal:" in line or "error:" in line]  # the last is often a consequence
            cause = (causes or lines or ["no message"])[0]
            raise RepositoryError(f"{self.purpose}: git {arguments[0]} exited with {process.returncode}: {cause}")
        return bytes(stdout)

    def text(
        self,
        *arguments: str,
        stdin: str | bytes = b"",
        env: Mapping[str, str] | None = None,
        timeout_s: float = 600.0,
    ) -> str:
        """Run a command and return its standard output as text; bytes that are not UTF-8 become surrogates."""
        return self.run(*arguments, stdin=stdin, env=env, timeout_s=timeout_s).decode("utf-8", "surrogateescape")
