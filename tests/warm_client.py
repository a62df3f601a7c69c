"""Asks a warm process for a copy of itself, and stands for that copy: its standard files, its signals, its exit code.

Started as `python -IS warm_client.py ADDRESS WORDS`, it takes the place of `python WORDS`, without the seconds of the
imports. Whoever started it can wait for it, stop it and kill it; the copy does not outlive it.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
from collections.abc import Mapping, Sequence

LENGTH = 8  # bytes that say how long a request is
_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def request(
    line: socket.socket, words: Sequence[str], folder: str, environment: Mapping[str, str], files: Sequence[int]
) -> None:
    """Ask for `python WORDS` in a folder, with these descriptors as its input, output and errors."""
    asked = json.dumps({"words": list(words), "folder": folder, "environment": dict(environment)}).encode()
    socket.send_fds(line, [len(asked).to_bytes(LENGTH, "little")], list(files))
    line.sendall(asked)


def exit_code(line: socket.socket) -> int:
    """That of the copy, once it has ended; negative, as everywhere, if a signal ended it."""
    answer = line.recv(16)
    if not answer:
        raise ConnectionError("the warm process has ended")
    return int(answer)


def main(address: str, words: Sequence[str]) -> int:
    parent = os.getppid()
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(address)
        for number in _FORWARDED:
            signal.signal(number, lambda number, frame: line.sendall(bytes([number])))
        request(line, words, os.getcwd(), os.environ, (0, 1, 2))
        while not select.select([line], [], [], 0.5)[0]:
            if os.getppid() != parent:
                return 1
        return exit_code(line)


if __name__ == "__main__":
    code = main(sys.argv[1], sys.argv[2:])
    if code < 0:
        if -code != signal.SIGKILL:  # which has no other handler
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)
