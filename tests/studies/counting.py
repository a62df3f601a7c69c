"""Runs a study in a process of its own, and writes down every run that it really starts or goes on with.

python counting.py RECIPE OUT LOG WORKERS
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from fedstill.federation import run
from fedstill.studies import Study

if __name__ == "__main__":
    recipe, out, log, workers = sys.argv[1:]
    play = run._Running.to_the_end

    def counted(self: Any) -> None:
        with Path(log).open("a") as file:
            file.write(f"{self.folder.path.name}\n")
        play(self)

    run._Running.to_the_end = counted  # type: ignore[method-assign]
    print(len(Study(recipe).run(out, workers=int(workers)).runs))
