"""Processes that end with the demo, and waiting for what they do."""

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import time
import urllib.request
from pathlib import Path

from .programs import Failed

# A process that lived shorter than this and ended by itself is not started again.
SETTLED = 10
LIBC = ctypes.CDLL(None, use_errno=True)


def die_with_parent():
    """The demo may be killed without a chance to end what it started."""
    pr_set_pdeathsig = 1
    LIBC.prctl(pr_set_pdeathsig, signal.SIGTERM)


def free_port(preferred=0):
    """A port of loopback that nothing listens on: this one, if it is free."""
    for port in (preferred, 0):
        with socket.socket() as one, contextlib.suppress(OSError):
            # Connections of the last start may linger; a listener is refused all the same.
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            one.bind(("127.0.0.1", port))
            return one.getsockname()[1]
    raise Failed("no port of 127.0.0.1 is free")


def answers(url, status=200):
    """Whether an HTTP request is answered with this status."""
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return answer.status == status
    except OSError:
        return False


def tail(path, lines=15):
    """The last lines of a file, indented."""
    text = Path(path).read_text(errors="replace").splitlines()[-lines:] if Path(path).exists() else []
    return "".join(f"    {line[:400]}\n" for line in text)


class Process:
    """A process with its log, in a session of its own: Ctrl-C reaches the demo alone."""

    def __init__(self, name, words, log, environment, *, stdin=None, is_ready=None, grace=10, **options):
        self.name, self.words, self.log, self.environment = name, [str(word) for word in words], Path(log), environment
        self.stdin, self.is_ready, self.grace, self.options = stdin, is_ready, grace, options
        self.process = None
        self.starts = 0

    def start(self):
        self.starts += 1
        self.began = time.monotonic()
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                self.words,
                stdin=subprocess.DEVNULL if self.stdin is None else subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=self.environment,
                start_new_session=True,
                preexec_fn=die_with_parent,
                **self.options,
            )
        if self.stdin is not None:
            with self.process.stdin as pipe:
                pipe.write(self.stdin.encode())

    @property
    def pid(self):
        return self.process.pid

    def is_running(self):
        return self.process is not None and not self.has_ended()

    def lived(self):
        return time.monotonic() - self.began

    def failed(self, what):
        return Failed(f"{self.name} {what}; the end of {self.log}:\n{tail(self.log)}")

    def wait_ready(self, seconds=60):
        """Until it is ready; its end and the deadline are failures."""
        until = time.monotonic() + seconds
        while not self.is_ready():
            if not self.is_running():
                raise self.failed(f"ended with {self.process.wait()}")
            if time.monotonic() > until:
                raise self.failed(f"is not ready after {seconds} s")
            time.sleep(0.05)
        # Whatever answers there: it must be ours.
        if not self.is_running():
            raise self.failed(f"ended with {self.process.wait()}")
        return self.lived()

    def ask_to_end(self, number=signal.SIGTERM):
        if self.is_running():
            self.process.send_signal(number)

    def wait_end(self):
        """Until it and all of its group have ended, by force after the grace period."""
        if self.process is None:
            return
        until = time.monotonic() + self.grace
        while not self.has_ended() and time.monotonic() < until:
            time.sleep(0.02)
        # Before it is reaped, so that its group is still its own.
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def has_ended(self):
        if self.process.returncode is not None:
            return True
        return os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
