"""The server of `pdb`: a debugger in a pseudo-terminal, controlled over a socket.

    session.py SOCKET TARGET [ARGUMENT…]

A request is its length, then `SECONDS wait`, `SECONDS line TEXT` or `SECONDS stop`; the response is one byte, the exit
code for the shell, then the output. The server ends with the debugger, with `stop`, or after an hour without requests.
"""

import errno
import fcntl
import os
import pty
import re
import select
import signal
import socket
import struct
import sys
import termios
import time

PROMPT = re.compile(rb"(?:^|\n)(?:\(Pdb(?:\+\+)?\)|\(\(Pdb\)\)|ipdb>) $")
WAITING_S = 1.0
QUIET_S = 0.03  # a prompt counts when no output follows it for this long
INTERRUPTED_S = 3.0
IDLE_S = 3600.0
MOST_BYTES = 1 << 20


class Debugger:
    """The process in the pseudo-terminal."""

    def __init__(self, command):
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            os.environ.update(TERM="dumb", PYTHON_COLORS="0", NO_COLOR="1", COLUMNS="160", LINES="1000")
            try:
                os.execvp(command[0], command)
            except OSError as error:
                print(f"pdb: {command[0]}: {error.strerror}")
                os._exit(127)
        fcntl.ioctl(self.terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 1000, 160, 0, 0))
        settings = termios.tcgetattr(self.terminal)
        settings[3] &= ~termios.ECHO  # no echo of the input; readline follows this setting too
        settings[1] &= ~termios.ONLCR
        termios.tcsetattr(self.terminal, termios.TCSANOW, settings)
        self.ended = None  # description of how it ended
        self.waits = False  # whether the program, not the debugger, waits for a line

    def read(self, timeout):
        """The output until the next prompt or the timeout: (output, whether there is a prompt)."""
        output = b""
        dropped = 0
        deadline = time.time() + timeout
        self.waits = False
        while True:
            prompted = PROMPT.search(output[-64:]) is not None
            left = QUIET_S if prompted else min(WAITING_S, deadline - time.time())
            if left <= 0:
                return self.trimmed(output, dropped), False
            before = self.cpu_ticks()
            ready, _, _ = select.select([self.terminal], [], [], left)
            if not ready:
                # An unfinished line and no processor time used: the program itself waits in input().
                self.waits = output[-1:] not in (b"", b"\n") and left == WAITING_S and self.cpu_ticks() == before
                if prompted or self.waits:
                    return self.trimmed(output, dropped), prompted
                continue
            try:
                piece = os.read(self.terminal, 65536)
            except OSError as error:
                if error.errno != errno.EIO:
                    raise
                piece = b""
            if not piece:
                self.reap()
                return self.trimmed(output, dropped), False
            output += piece
            if len(output) > 2 * MOST_BYTES:
                dropped += len(output) - MOST_BYTES
                output = output[: MOST_BYTES // 2] + output[-MOST_BYTES // 2 :]

    def cpu_ticks(self):
        """The processor time that the process has used; "" if it has ended."""
        try:
            with open(f"/proc/{self.pid}/stat", "rb") as file:
                return file.read().rpartition(b")")[2].split()[11:13]
        except OSError:
            return ""

    def trimmed(self, output, dropped):
        note = f"\n[... {dropped} bytes left out ...]\n".encode() if dropped else b""
        half = MOST_BYTES // 2
        return PROMPT.sub(b"", output[:half] + note + output[half:] if dropped else output).strip(b"\r\n")

    def write(self, line):
        os.write(self.terminal, line + b"\n")

    def interrupt(self):
        os.write(self.terminal, b"\x03")

    def reap(self):
        _, status = os.waitpid(self.pid, 0)
        if os.WIFSIGNALED(status):
            self.ended = f"was killed by signal {os.WTERMSIG(status)}"
        else:
            self.ended = f"ended with exit code {os.WEXITSTATUS(status)}"

    def kill(self):
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.reap()


def command_for(target):
    """The command that runs the target (a script, or a test of pytest or unittest) under the debugger."""
    python = next((name for name in ("python3", "python") if on_path(name)), sys.executable)
    driver = os.path.join(os.path.dirname(os.path.realpath(__file__)), "driver.py")
    return [python, driver] + target


def on_path(name):
    return any(os.access(os.path.join(place, name), os.X_OK) for place in os.environ.get("PATH", "").split(":"))


def answer(debugger, request):
    """(exit code, output) for one request."""
    seconds, _, rest = request.partition(b" ")
    timeout = float(seconds)
    kind, _, line = rest.partition(b" ")
    if kind == b"stop":
        debugger.kill()
        debugger.ended = "was stopped"
        return 0, b"The session is closed.\n"
    if kind == b"line":
        debugger.write(line)
    output, prompted = debugger.read(timeout)
    note = b""
    if debugger.waits and not prompted:
        return 0, output + b"\n[the program waits for input: the next text goes to it]\n"
    if not prompted and debugger.ended is None:
        debugger.interrupt()
        more, prompted = debugger.read(INTERRUPTED_S)
        output = output + b"\n" + more if more else output
        state = "interrupted" if prompted else "sent an interrupt, but goes on: pdb stop ends it"
        note = f"[no prompt within {timeout:g} s: the program was {state}]\n".encode()
    if debugger.ended is not None:
        note += f"[the program {debugger.ended}; the session is over]\n".encode()
    return (0 if prompted else 1 if debugger.ended is None else 3), (output + b"\n" if output else b"") + note


def receive(client):
    (length,) = struct.unpack("!I", exactly(client, 4))
    return exactly(client, length)


def exactly(client, count):
    data = b""
    while len(data) < count:
        piece = client.recv(count - len(data))
        if not piece:
            raise EOFError
        data += piece
    return data


def main():
    place, target = sys.argv[1], sys.argv[2:]
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    server.bind(place)
    server.listen(8)
    server.settimeout(IDLE_S)
    debugger = Debugger(command_for(target))
    try:
        while debugger.ended is None:
            client, _ = server.accept()
            with client:
                client.settimeout(10)
                try:
                    code, text = answer(debugger, receive(client))
                    client.sendall(bytes([code]) + text)
                except (EOFError, OSError):
                    continue  # the client has left, or only checked for a listener
    except socket.timeout:
        debugger.kill()
    finally:
        try:
            os.unlink(place)
        except OSError:
            pass


if __name__ == "__main__":
    main()
