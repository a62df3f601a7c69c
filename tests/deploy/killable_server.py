"""The server of a deployment on loopback, which dies, with SIGKILL, as soon as so many results are on its disk.

    python killable_server.py PATH PORT SETTINGS RESULTS

PATH is that of a test's stage, SETTINGS are JSON, and with 0 RESULTS it lives.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from fedstill.deploy.deployment_folder import open_server
from fedstill.deploy.server import serve
from fedstill.deploy.server_options import ServerOptions
from fedstill.runtime.assemble import make_experiment
from fedstill.runtime.exchange_log import ExchangeLog


def arm(results: int) -> None:
    write, left = ExchangeLog.write, [results]

    def deadly(self: ExchangeLog, *arguments: Any) -> None:
        write(self, *arguments)
        left[0] -= 1
        if not left[0]:
            os.kill(os.getpid(), signal.SIGKILL)

    ExchangeLog.write = deadly  # type: ignore[method-assign]


if __name__ == "__main__":
    from conftest import TINY, Notes  # of this folder, from which the script is started

    path, port, settings, results = sys.argv[1:]
    if int(results):
        arm(int(results))
    experiment = make_experiment({**TINY, "data": "not-here", **json.loads(settings)})
    terms = ServerOptions(host="127.0.0.1", port=int(port))
    serve(open_server(Path(path) / "deployment"), experiment, Path(path) / "runs", Notes(), terms, [])
