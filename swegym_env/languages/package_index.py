"""The host's package index settings, for the sandboxes with network access, which run set-up commands.

The configuration of pip, uv and npm (files, `PIP_*`, `UV_*`, `npm_config_*`), proxies and certificates are passed as
environment variables, without what npm's files hold of passwords and tokens; and so is git's `url.BUNDLE.insteadOf`,
where a local bundle takes the place of a repository.
Local directories that they name (`find-links`, `file://` indexes, certificates) are mounted read-only. No other sandbox
has any of this.
"""

from __future__ import annotations

import configparser
import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["PackageIndex", "package_index"]

_USED = re.compile(
    r"^(PIP_.*|UV_.*|npm_config_(registry|cafile|proxy|https_proxy|noproxy|strict_ssl)|NODE_EXTRA_CA_CERTS"
    r"|(https?|all|no|ftp)_proxy|SSL_CERT_(FILE|DIR)|REQUESTS_CA_BUNDLE|CURL_CA_BUNDLE|GIT_SSL_CAINFO)$",
    re.IGNORECASE,
)
_IGNORED = frozenset(
    {
        "PIP_CONFIG_FILE",
        "PIP_TARGET",
        "PIP_PREFIX",
        "PIP_USER",
        "PIP_REQUIRE_VIRTUALENV",
        "PIP_PYTHON",
        "PIP_LOG",
        "PIP_CACHE_DIR",
    }
)
_PATH = re.compile(r"(?:^|(?<=\s)|(?<=file://))/[^\s]+")


@dataclass(frozen=True)
class PackageIndex:
    """Attributes: env: variables for pip, uv and the like; binds: host path → path inside, of the files they name."""

    env: Mapping[str, str]
    binds: Mapping[str, str]


def package_index(environ: Mapping[str, str] | None = None) -> PackageIndex:
    """Read the host's settings; `environ`: the variables to use instead of the process's own."""
    environ = os.environ if environ is None else environ
    env = _configured(environ) | _uv_configured(environ) | _npm_configured(environ)
    env |= {name: value for name, value in environ.items() if _USED.match(name) and name.upper() not in _IGNORED}
    if "npm_config_cafile" in env:  # what Node.js itself trusts, for programs that packages run
        env.setdefault("NODE_EXTRA_CA_CERTS", env["npm_config_cafile"])
    paths = {path.rstrip("/") for value in env.values() for path in _PATH.findall(value)}
    # A local index refers to packages beside it (`../files/…`), so the whole directory is mounted.
    indexes = {
        os.path.dirname(path.rstrip("/")) for value in env.values() for path in re.findall(r"file://(/\S+)", value)
    }
    paths |= {path for path in indexes if path.count("/") > 1 and path != environ.get("HOME")}
    paths = {path for path in paths if not any(path.startswith(f"{other}/") for other in paths)}
    binds = {
        path: path
        for path in sorted(paths)
        if os.path.exists(path) and not path.startswith(("/usr/", "/dev/", "/proc/"))
    }
    instead = _git_configured(environ)
    env |= {"GIT_CONFIG_COUNT": str(len(instead))} if instead else {}
    for number, (base, prefix) in enumerate(instead):
        env |= {f"GIT_CONFIG_KEY_{number}": f"url.{base}.insteadOf", f"GIT_CONFIG_VALUE_{number}": prefix}
        binds[base] = base
    # A cache that is removed with the sandbox: old versions of pip fail with PIP_NO_CACHE_DIR.
    return PackageIndex(
        {**env, "PIP_CONFIG_FILE": os.devnull, "PIP_CACHE_DIR": "/tmp/pip-cache", "PIP_NO_INPUT": "1"}, binds
    )


def _git_configured(environ: Mapping[str, str]) -> list[tuple[str, str]]:
    """The bundles of git's `url.BUNDLE.insteadOf`, each with the address that it replaces.

    Other addresses can hold tokens, and git in a sandbox trusts no repository that belongs to another user.
    """
    command = ["git", "config", "--null", "--get-regexp", r"^url\..*\.insteadof$"]
    try:
        ran = subprocess.run(command, env=dict(environ), cwd="/", capture_output=True, text=True, check=False)
    except OSError:  # no git
        return []
    entries = (entry.partition("\n") for entry in ran.stdout.split("\0") if entry)
    found = [(key[len("url.") : -len(".insteadof")], prefix) for key, _, prefix in entries]
    return [(base, prefix) for base, prefix in found if base.startswith("/") and os.path.isfile(base)]


def _uv_configured(environ: Mapping[str, str]) -> dict[str, str]:
    """The configuration file of uv, which is mounted at the same path."""
    home = Path(environ.get("HOME", "/nonexistent"))
    config_home = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
    for file in (config_home / "uv/uv.toml", Path("/etc/uv/uv.toml")):
        if file.is_file():
            return {"UV_CONFIG_FILE": str(file)}
    return {}


def _npm_configured(environ: Mapping[str, str]) -> dict[str, str]:
    """The configuration files of npm, least specific first, and what keeps it from asking and reporting."""
    home = Path(environ.get("HOME", "/nonexistent"))
    found = {f"npm_config_{name}": "false" for name in ("audit", "fund", "update_notifier")}
    own = environ.get("npm_config_userconfig") or environ.get("NPM_CONFIG_USERCONFIG") or str(home / ".npmrc")
    for file in ("/etc/npmrc", "/usr/etc/npmrc", "/usr/local/etc/npmrc", own):
        try:
            lines = Path(file).read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            continue
        for line in lines:
            name, equals, value = (part.strip() for part in line.partition("="))
            variable = f"npm_config_{name.lower().replace('-', '_')}"
            if equals and value and _USED.match(variable):
                found[variable] = value
    return found


def _configured(environ: Mapping[str, str]) -> dict[str, str]:
    """The configuration files of pip, least specific first, as equivalent variables."""
    home = Path(environ.get("HOME", "/nonexistent"))
    config_home = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
    files = [
        Path("/etc/pip.conf"),
        home / ".pip/pip.conf",
        config_home / "pip/pip.conf",
        Path(environ.get("PIP_CONFIG_FILE") or os.devnull),
    ]
    found: dict[str, str] = {}
    for file in files:
        parser = configparser.RawConfigParser()
        try:
            parser.read(file)
        except (OSError, configparser.Error):
            continue  # pip itself reports what is wrong with it
        for section in ("global", "install"):
            if parser.has_section(section):
                found |= {
                    f"PIP_{name.upper().replace('-', '_')}": " ".join(value.split())
                    for name, value in parser.items(section)
                }
    return {name: value for name, value in found.items() if name not in _IGNORED}
