"""Runs a study in a process of its own, and writes down every run that it really starts or goes on with.

python counting.py RECIPE OUT LOG WORKERS
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from fedstill.runtime import run
from fedstill.studies import Study

if __name__ == "__main__":
    recipe, out, log, workers = sys.argv[1:]
    begin = run.Attempt.__init__

    def counted(self: Any, *args: Any) -> None:
        begin(self, *args)
        with Path(log).open("a") as file:
            file.write(f"{self.folder.path.name}\n")

    run.Attempt.__init__ = counted  # type: ignore[method-assign]
    print(len(Study(recipe).run(out, workers=int(workers)).runs))
