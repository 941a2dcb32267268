"""Web sites on loopback, for tests that use the internet: `python -m local_web COMMAND` runs a command beside them.

A sandbox has no network, so the sites are served inside it, over HTTP, and over HTTPS with certificates of an authority
created for the run. The sites of `PAGES` have only these pages; the others are httpbin. In every Python process of the
command (`local_web.pth` imports this module), the names resolve to these servers, the authority is trusted in addition
to the usual ones, and the address that never responds does not respond. No other name or address changes.

Needs Werkzeug and trustme, and httpbin; without httpbin the other sites have only an empty page at /.
"""

import os
import socket
import ssl
import struct
import subprocess
import sys
import tempfile
import threading
import zlib


def chunk(kind, content):
    """A part of a PNG file."""
    body = kind + content
    return struct.pack(">I", len(content)) + body + struct.pack(">I", zlib.crc32(body))


# One white pixel, for tests that fetch a picture without using its content.
PICTURE = b"".join(
    (
        b"\x89PNG\r\n\x1a\n",
        chunk(b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0)),
        chunk(b"IDAT", zlib.compress(b"\0\xff\xff\xff")),
        chunk(b"IEND", b""),
    )
)
# Targets of links in tests: a site's pages → the anchors of each, or a picture.
PAGES = {
    "matplotlib.org": {"/1.5.0/_static/logo2.png": PICTURE},
    "www.python.org": {"/static/img/python-logo.png": PICTURE},
    "www.sphinx-doc.org": {"/en/1.4.8/tutorial.html": ("install-sphinx",), "/en/1.7/intro.html": ()},
    "www.w3.org": {"/TR/2006/REC-xml-names-20060816/": ("defaulting",)},
}
NAMES = frozenset({"httpbin.org", "www.httpbin.org", "google.com", "www.google.com", "www.google.co.uk", *PAGES})
SILENT = "10.255.255.1"
PORTS = {80: 8053, 443: 8054}
SILENT_PORT = 8055
VARIABLE = "LOCAL_WEB"  # names the file with the authority's certificate


def use(authority):
    """Resolve the names to the local servers, and trust `authority`, in this process."""
    resolve = socket.getaddrinfo

    def getaddrinfo(host, port, *args, **kwargs):
        name = host.decode("ascii", "replace") if isinstance(host, bytes) else host
        if name == SILENT:
            host, port = "127.0.0.1", SILENT_PORT
        elif isinstance(name, str) and name.lower() in NAMES:
            host, port = "127.0.0.1", PORTS.get(int(port or 0), port)
        return resolve(host, port, *args, **kwargs)

    socket.getaddrinfo = getaddrinfo
    load = ssl.SSLContext.load_verify_locations
    load_defaults = ssl.SSLContext.load_default_certs

    def load_verify_locations(self, *args, **kwargs):
        load(self, *args, **kwargs)
        load(self, authority)

    def load_default_certs(self, *args, **kwargs):
        load_defaults(self, *args, **kwargs)
        load(self, authority)

    ssl.SSLContext.load_verify_locations = load_verify_locations
    ssl.SSLContext.load_default_certs = load_default_certs


def site(others):
    """A WSGI application with the sites of `PAGES`; `others` answers for all other names."""

    def answer(environ, start_response):
        pages = PAGES.get(environ.get("HTTP_HOST", "").lower().split(":")[0])
        return others(environ, start_response) if pages is None else show(pages, environ, start_response)

    return answer


def show(pages, environ, start_response):
    """Answer with a picture, or with a page that has its anchors and nothing else."""
    found = pages.get(environ.get("PATH_INFO") or "/")
    kind = "image/png" if isinstance(found, bytes) else "text/html"
    start_response("404 Not Found" if found is None else "200 OK", [("Content-Type", kind)])
    return [found if isinstance(found, bytes) else "".join(f'<p id="{each}"></p>' for each in found or ()).encode()]


def serve(directory):
    """Start the servers; returns the path of the authority's certificate."""
    import logging

    import trustme
    from werkzeug.serving import make_server

    try:
        from httpbin import app
    except ImportError:

        def app(environ, start_response):
            return show({"/": ()}, environ, start_response)

    logging.getLogger("werkzeug").disabled = True
    authority = trustme.CA()
    place = os.path.join(directory, "authority.pem")
    authority.cert_pem.write_to_path(place)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(*sorted(NAMES)).configure_cert(context)
    for port, encryption in ((PORTS[80], None), (PORTS[443], context)):
        server = make_server("127.0.0.1", port, site(app), threaded=True, ssl_context=encryption)
        threading.Thread(target=server.serve_forever, daemon=True).start()
    return place


def keep_silent():
    """Sockets that make a port neither accept nor refuse connections: its queue is full."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", SILENT_PORT))
    listener.listen(0)
    waiting = [listener]
    for _ in range(4):
        client = socket.socket()
        client.setblocking(False)
        client.connect_ex(("127.0.0.1", SILENT_PORT))
        waiting.append(client)
    return waiting


def main():
    """Run the command of the arguments beside the servers; exits with its code."""
    with tempfile.TemporaryDirectory() as directory:
        os.environ[VARIABLE] = serve(directory)
        waiting = keep_silent()
        code = subprocess.call(sys.argv[1:])
        for each in waiting:
            each.close()
    # The servers' threads end with the process.
    os._exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    main()
elif os.environ.get(VARIABLE):
    use(os.environ[VARIABLE])
