"""The sites that a sandbox serves to tests which ask the internet."""

from __future__ import annotations

import runpy
from io import BytesIO
from pathlib import Path

from matplotlib.image import imread

from swegym_env.languages.python import setup
from swegym_env.sandbox import SandboxSpec, open_sandbox

_SERVE = """
import http.server, os, ssl, subprocess, sys, threading
import local_web

class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(("asked " + self.headers["Host"]).encode())
    def log_message(self, *args):
        pass

names = ",".join("DNS:" + name for name in local_web.NAMES)
subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=x", "-addext",
                "subjectAltName=" + names, "-keyout", "key.pem", "-out", "authority.pem"],
               check=True, capture_output=True)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain("authority.pem", "key.pem")
for port, encryption in ((local_web.PORTS[80], None), (local_web.PORTS[443], context)):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Answer)
    if encryption:
        server.socket = encryption.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
waiting = local_web.keep_silent()
os.environ["LOCAL_WEB"] = os.path.abspath("authority.pem")
sys.exit(subprocess.call([sys.executable, "ask.py"]))
"""
_PAGES = """
import local_web

def ask(host, path):
    answer = []
    body = local_web.site(lambda environ, start: start("200 OK", []) or [b"another"])(
        {"HTTP_HOST": host, "PATH_INFO": path}, lambda status, headers: answer.append(status)
    )
    print(answer[0], b"".join(body).decode())

ask("www.w3.org", "/TR/2006/REC-xml-names-20060816/")
ask("WWW.W3.org:443", "/other")
ask("www.sphinx-doc.org", "/en/1.7/intro.html")
ask("httpbin.org", "/get")
"""
_ASK = """
import socket, ssl, urllib.error, urllib.request
import local_web

def ask(url):
    try:
        return urllib.request.urlopen(url, timeout=20).read().decode()
    except urllib.error.URLError as error:
        return type(error.reason).__name__

print(ask("http://httpbin.org/get"))
print(ask("HTTPS://HTTPBIN.org/get"))
print(ask("https://www.google.co.uk"))
print(ask("http://httpbin.org:1/"))
print(ask("http://another.example/"))
old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
old.load_verify_locations("/etc/ssl/certs/ca-certificates.crt")  # as requests does with certificates of its own
print(urllib.request.urlopen("https://httpbin.org", context=old, timeout=20).status)
try:
    socket.create_connection((local_web.SILENT, 80), timeout=0.3)
except OSError as error:
    print("silent:", isinstance(error, socket.timeout))
"""


def test_names_lead_to_local_servers_with_certificates_and_one_address_is_silent() -> None:
    module = (Path(setup.__file__).with_name("installed") / "local_web.py").read_text()
    sandbox = open_sandbox(SandboxSpec(workdir="/tmp"))
    try:
        sandbox.start()
        for name, text in (("local_web.py", module), ("serve.py", _SERVE), ("ask.py", _ASK)):
            sandbox.write(f"/tmp/{name}", text.encode())
        result = sandbox.run("python3 serve.py", timeout_s=120)
    finally:
        sandbox.close()
    assert result.output.splitlines() == [
        "asked httpbin.org",
        "asked HTTPBIN.org",
        "asked www.google.co.uk",
        "ConnectionRefusedError",
        "gaierror",
        "200",
        "silent: True",
    ]


def test_an_environment_without_the_servers_is_as_any_other() -> None:
    module = (Path(setup.__file__).with_name("installed") / "local_web.py").read_text()
    sandbox = open_sandbox(SandboxSpec(workdir="/tmp"))
    try:
        sandbox.start()
        sandbox.write("/tmp/local_web.py", module.encode())
        result = sandbox.run(
            "python3 -c 'import socket; own = socket.getaddrinfo; import local_web; print(own is socket.getaddrinfo)'"
        )
    finally:
        sandbox.close()
    assert result.output == "True\n"


def test_pages_of_sites_have_their_anchors_and_the_other_names_are_httpbins() -> None:
    module = (Path(setup.__file__).with_name("installed") / "local_web.py").read_text()
    sandbox = open_sandbox(SandboxSpec(workdir="/tmp"))
    try:
        sandbox.start()
        for name, text in (("local_web.py", module), ("pages.py", _PAGES)):
            sandbox.write(f"/tmp/{name}", text.encode())
        result = sandbox.run("python3 pages.py")
    finally:
        sandbox.close()
    assert result.output.splitlines() == [
        '200 OK <p id="defaulting"></p>',
        "404 Not Found ",
        "200 OK ",
        "200 OK another",
    ]


def test_a_picture_is_served_that_can_be_read() -> None:
    site = runpy.run_path(str(Path(setup.__file__).with_name("installed") / "local_web.py"))["site"]
    answers: list[tuple[str, list[tuple[str, str]]]] = []
    body = site(None)(
        {"HTTP_HOST": "matplotlib.org", "PATH_INFO": "/1.5.0/_static/logo2.png"},
        lambda status, headers: answers.append((status, headers)),
    )
    assert answers == [("200 OK", [("Content-Type", "image/png")])]
    assert imread(BytesIO(b"".join(body)), format="png").tolist() == [[[1.0, 1.0, 1.0]]]
