"""A stand-in for the HTTP API of the Hugging Face Hub on loopback, for uploads by commits with Git LFS and downloads.

Paths, fields and codes are those that `huggingface_hub` sends and expects; what is stored is checked against its
digest.
"""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

import yaml

__all__ = ["Hub", "Repository", "running_hub"]

TOKEN, OWNER = "hf_owner", "me"


@dataclass
class Repository:
    """Its files at the newest commit, and the messages of all commits."""

    private: bool = False
    files: dict[str, bytes] = field(default_factory=dict)
    commits: list[str] = field(default_factory=list)


@dataclass
class Hub:
    """What the stand-in holds, and what it was asked for.

    Attributes:
        url: its address, for HF_ENDPOINT.
        repositories: by name.
        sent: digest → content, of the files sent by LFS.
        requests: method and path of each request.
        hangs_up_at: a part of a path; such requests end without a response.
    """

    url: str = ""
    repositories: dict[str, Repository] = field(default_factory=dict)
    sent: dict[str, bytes] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    hangs_up_at: str | None = None


@contextmanager
def running_hub() -> Iterator[Hub]:
    """A hub with one account, `me`, whose token is `hf_owner`."""
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        """Nothing on standard error."""

    def do_POST(self) -> None:
        body, path = self._body(), urlsplit(self.path).path
        if self._hangs_up("POST", path) or not self._token_is_known():
            return
        if path == "/api/repos/create":
            self._create(json.loads(body))
            return
        if path == "/api/validate-yaml":
            head = yaml.safe_load(json.loads(body)["content"].split("---")[1])
            wrong = [] if isinstance(head.get("tags"), list) else [{"message": "tags: expected a list"}]
            self._reply(200, {"errors": wrong, "warnings": []})
            return
        name = path.removeprefix("/api/models").lstrip("/").partition("/preupload/")[0].partition("/commit/")[0]
        repository = self._repository(name.partition(".git/")[0])
        if repository is None:
            return
        if "/preupload/" in path:
            files = [
                {
                    "path": file["path"],
                    "uploadMode": "lfs" if file["path"].endswith(".safetensors") else "regular",
                    "shouldIgnore": False,
                    "oid": _git_oid(repository.files.get(file["path"])),
                }
                for file in json.loads(body)["files"]
            ]
            self._reply(200, {"files": files})
        elif path.endswith(".git/info/lfs/objects/batch"):
            objects = []
            for each in json.loads(body)["objects"]:
                upload = {"upload": {"href": f"{self.hub.url}/lfs/{each['oid']}"}}
                objects.append({**each, **({} if each["oid"] in self.hub.sent else {"actions": upload})})
            self._reply(200, {"transfer": "basic", "objects": objects})
        else:
            self._commit(name, repository, body)

    def do_PUT(self) -> None:
        body, path = self._body(), urlsplit(self.path).path
        if self._hangs_up("PUT", path):
            return
        digest = path.removeprefix("/lfs/")
        if hashlib.sha256(body).hexdigest() != digest:
            self._refuse(400, "the content has another digest")
            return
        self.hub.sent[digest] = body
        self._reply(200, {})

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        if self._hangs_up(self.command, path):
            return
        if "/resolve/main/" in path:
            name, _, file = path.lstrip("/").partition("/resolve/main/")
        elif "/resolve/" in path:
            name, _, file = path.lstrip("/").partition("/resolve/")
            file = file.partition("/")[2]
        else:
            name, file = "/".join(path.removeprefix("/api/models/").split("/")[:2]), None
        repository = self._repository(name)
        if repository is None:
            return
        if "/tree/" in path:
            tree = [
                {"type": "file", "path": each, "size": len(content), "oid": _git_oid(content)}
                for each, content in repository.files.items()
            ]
            self._reply(200, tree)
        elif file is None:
            siblings = [{"rfilename": each} for each in repository.files]
            self._reply(200, {"id": name, "private": repository.private, "sha": _sha(repository), "siblings": siblings})
        elif file not in repository.files:
            self._refuse(404, "Entry not found", "EntryNotFound", {"X-Repo-Commit": _sha(repository)})
        else:
            content = repository.files[file]
            headers = {"X-Repo-Commit": _sha(repository), "ETag": f'"{hashlib.sha256(content).hexdigest()}"'}
            self._send(200, content, headers)

    def _create(self, asked: dict[str, Any]) -> None:
        name = f"{asked['organization']}/{asked['name']}"
        if name in self.hub.repositories and asked["organization"] == OWNER:
            self._reply(409, {"error": "You already created this model repo", "url": f"{self.hub.url}/{name}"})
        elif asked["organization"] != OWNER:
            where = asked["organization"]
            self._refuse(403, f'You don\'t have the rights to create a model under the namespace "{where}"')
        else:
            is_private = asked.get("visibility") == "private" or bool(asked.get("private"))  # version 1 of the client
            self.hub.repositories[name] = Repository(private=is_private)
            self._reply(200, {"url": f"{self.hub.url}/{name}", "name": name})

    def _commit(self, name: str, repository: Repository, body: bytes) -> None:
        if name.partition("/")[0] != OWNER:
            self._refuse(403, "You don't have write access to this repository")
            return
        lines = [json.loads(line) for line in body.splitlines()]
        head, files = lines[0], dict[str, bytes]()
        assert head["key"] == "header"
        for line in lines[1:]:
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            else:
                assert line["key"] == "lfsFile"
                if value["oid"] not in self.hub.sent:
                    self._refuse(400, f"{value['path']} was not sent")
                    return
                files[value["path"]] = self.hub.sent[value["oid"]]
        repository.files |= files
        repository.commits.append(head["value"]["summary"])
        oid = _sha(repository)
        self._reply(200, {"success": True, "commitOid": oid, "commitUrl": f"{self.hub.url}/{name}/commit/{oid}"})

    def _repository(self, name: str) -> Repository | None:
        """A repository that the client may read; refuses the request without one."""
        found = self.hub.repositories.get(name)
        if found is None or (found.private and not (name.startswith(f"{OWNER}/") and self._token() == TOKEN)):
            self._refuse(404, "Repository not found", "RepoNotFound")
            return None
        return found

    def _token(self) -> str:
        return self.headers.get("Authorization", "").removeprefix("Bearer ")

    def _token_is_known(self) -> bool:
        if self._token() == TOKEN:
            return True
        self._refuse(401, "Invalid username or password.")
        return False

    def _hangs_up(self, method: str, path: str) -> bool:
        self.hub.requests.append(f"{method} {path}")
        self.close_connection = at = self.hub.hangs_up_at is not None and self.hub.hangs_up_at in path
        return at

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return body
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def _reply(self, status: int, content: Any) -> None:
        self._send(status, json.dumps(content).encode(), {"Content-Type": "application/json"})

    def _refuse(self, status: int, why: str, code: str = "", headers: dict[str, str] | None = None) -> None:
        more = {"X-Error-Message": why, "Content-Type": "application/json", **(headers or {})}
        self._send(status, json.dumps({"error": why}).encode(), more | ({"X-Error-Code": code} if code else {}))

    def _send(self, status: int, content: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


def _git_oid(content: bytes | None) -> str | None:
    return None if content is None else hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def _sha(repository: Repository) -> str:
    return hashlib.sha1(f"{len(repository.commits)}".encode()).hexdigest()
