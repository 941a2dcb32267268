"""Set-up commands reach packages the way this machine does: through its proxy, its index and its certificates."""

from __future__ import annotations

import base64
import hashlib
import io
import os
import ssl
import subprocess
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from swegym_env.errors import LayerError
from swegym_env.languages.package_index import package_index
from swegym_env.prepare import prepare_locally
from swegym_env.sandbox import open_sandbox
from swegym_env.sandbox.layers import LayerStore
from swegym_env.tasks.task import Task
from tests.places import empty_store

WHEEL = "provided_thing-1.0-py3-none-any.whl"


def wheel() -> bytes:
    """The smallest package that pip installs."""
    files = {
        "provided_thing.py": b"VALUE = 'by the index'\n",
        "provided_thing-1.0.dist-info/METADATA": b"Metadata-Version: 2.1\nName: provided-thing\nVersion: 1.0\n",
        "provided_thing-1.0.dist-info/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(
        f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(text).digest()).rstrip(b'=').decode()},{len(text)}\n"
        for name, text in files.items()
    )
    files["provided_thing-1.0.dist-info/RECORD"] = f"{record}provided_thing-1.0.dist-info/RECORD,,\n".encode()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return buffer.getvalue()


class _Index(BaseHTTPRequestHandler):
    asked: list[str]

    def do_GET(self) -> None:
        self.asked.append(self.path)
        if self.path.endswith("/provided-thing/"):
            body, kind = f'<a href="{WHEEL}">{WHEEL}</a>'.encode(), "text/html"
        elif self.path.endswith(WHEEL):
            body, kind = wheel(), "application/zip"
        else:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serving(certificate: tuple[Path, Path] | None = None) -> Iterator[tuple[int, list[str]]]:
    """Serve an index on a free port; yields the port and the requested paths. A proxy gets whole addresses."""
    asked: list[str] = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Index,), {"asked": asked}))
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server.server_address[1], asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture(scope="module")
def store(public_directory: Path) -> LayerStore:
    """One layer store for all tests here, so that the virtual environment is made once."""
    return empty_store(public_directory)


def installed(store: LayerStore, index: str) -> str:
    """What a sandbox sees of the package after a set-up that installs it; `index` makes it a set-up of its own."""
    task = Task(
        instance_id="x-1",
        repo="some/thing",
        base_commit="",
        problem_statement="p",
        patch="",
        files={"README": f"{index}\n"},
        setup=("python -m pip install --no-deps --retries 0 --disable-pip-version-check provided-thing",),
    )
    sandbox = open_sandbox(prepare_locally(task, store=store).spec)
    try:
        sandbox.start()
        seen = sandbox.run("python -c 'import provided_thing; print(provided_thing.VALUE)'; env").output
    finally:
        sandbox.close()
    assert "proxy" not in seen.lower() and "PIP_INDEX" not in seen  # an episode gets none of it
    return seen.splitlines()[0]


@pytest.fixture(autouse=True)
def plain_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Remove the settings of this machine."""
    for name in package_index().env:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("HOME", str(tmp_path))


def test_packages_come_through_the_proxy(store: LayerStore, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving() as (port, asked):
        monkeypatch.setenv("PIP_INDEX_URL", "http://packages.invalid/simple")
        monkeypatch.setenv("PIP_TRUSTED_HOST", "packages.invalid")
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{port}")
        assert installed(store, "proxy") == "by the index"
    assert asked[0] == "http://packages.invalid/simple/provided-thing/"


def test_a_certificate_of_ones_own_is_trusted(
    store: LayerStore, monkeypatch: pytest.MonkeyPatch, public_directory: Path
) -> None:
    key, certificate = public_directory / "key.pem", public_directory / "certificate.pem"
    request = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    names = ["-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*request, *names], check=True, capture_output=True)
    with serving((certificate, key)) as (port, asked):
        monkeypatch.setenv("PIP_INDEX_URL", f"https://localhost:{port}/simple")
        with pytest.raises(LayerError, match="exited with 1"):
            installed(store, "https")
        monkeypatch.setenv("PIP_CERT", str(certificate))
        assert installed(store, "https") == "by the index"
    assert "/simple/provided-thing/" in asked


def test_the_configuration_of_uv_is_shown_inside(tmp_path: Path) -> None:
    (tmp_path / ".config" / "uv").mkdir(parents=True)
    file = tmp_path / ".config" / "uv" / "uv.toml"
    file.write_text('index-url = "https://mirror.example/simple"\n')
    taken = package_index({"HOME": str(tmp_path), "UV_NATIVE_TLS": "1"})
    assert taken.env["UV_CONFIG_FILE"] == str(file) and taken.env["UV_NATIVE_TLS"] == "1"
    assert taken.binds[str(file)] == str(file)
    own = tmp_path / "own.toml"
    own.touch()
    assert package_index({"HOME": str(tmp_path), "UV_CONFIG_FILE": str(own)}).env["UV_CONFIG_FILE"] == str(own)


def test_settings_of_npm_are_passed_without_its_tokens(tmp_path: Path) -> None:
    (tmp_path / ".npmrc").write_text(
        "registry=https://npm.example.org/\n//npm.example.org/:_authToken=secret\ncafile = /etc/own.pem\nfund=true\n"
    )
    env = package_index({"HOME": str(tmp_path), "npm_config_strict_ssl": "false"}).env
    assert env["npm_config_registry"] == "https://npm.example.org/"
    assert env["npm_config_cafile"] == env["NODE_EXTRA_CA_CERTS"] == "/etc/own.pem"
    assert (env["npm_config_strict_ssl"], env["npm_config_fund"]) == ("false", "false")
    assert "secret" not in str(env)
    own = package_index({"HOME": str(tmp_path), "npm_config_registry": "https://other.example.org/"}).env
    assert own["npm_config_registry"] == "https://other.example.org/"


def test_git_takes_a_bundle_of_this_machine_in_place_of_a_repository(tmp_path: Path) -> None:
    repository, bundle, home = tmp_path / "repository", tmp_path / "a.bundle", tmp_path / "home"
    home.mkdir()
    own = {"HOME": str(home), "PATH": os.environ["PATH"]}
    address = "https://git.invalid/acme/a.git"
    for base, prefix in ((bundle, address), (repository, "https://b.invalid/"), ("https://me:token@c.invalid/", "c:")):
        add = ["git", "config", "--global", "--add", f"url.{base}.insteadOf", prefix]
        subprocess.run(add, env=own, check=True)
    subprocess.run(["git", "init", "-q", repository], env=own, check=True)
    author = ["-c", "user.name=a", "-c", "user.email=a@b.invalid"]
    subprocess.run(["git", "-C", repository, *author, "commit", "-qm", "x", "--allow-empty"], env=own, check=True)
    subprocess.run(["git", "-C", repository, "bundle", "create", "-q", bundle, "--all", "HEAD"], env=own, check=True)
    index = package_index(own)
    assert index.binds[str(bundle)] == str(bundle) and str(repository) not in index.binds
    assert "token" not in str(index.env)
    inside = {**index.env, "HOME": str(tmp_path), "PATH": own["PATH"]}
    subprocess.run(["git", "clone", "-q", address, tmp_path / "clone"], env=inside, check=True)
    assert (tmp_path / "clone/.git").is_dir()
