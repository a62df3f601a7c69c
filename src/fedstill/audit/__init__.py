"""The audit: is a student's accuracy really its teacher's?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedstill.audit.evidence import Evidence, RoundFacts, Score, Student, Teacher
from fedstill.audit.judge import DELTA, judge
from fedstill.audit.table import read_table
from fedstill.audit.verdicts import Audit
from fedstill.core.rooms import make_callable

__all__ = [
    "DELTA",
    "Audit",
    "Evidence",
    "RoundFacts",
    "Score",
    "Student",
    "Teacher",
    "audit",
    "judge",
    "read_table",
]


def audit(source: Evidence | Path | str, delta: float = DELTA, **reading: Any) -> Audit:
    """Judge evidence, a study's results file or folder, a run's folder, or a table made elsewhere (.csv).

    `delta` is the threshold as a share; everything else goes to whoever reads the source.

    >>> table = getfixture("tmp_path") / "results.csv"
    >>> _ = table.write_text("teacher,objective,seed,accuracy,free_accuracy\\nfedavg,vanilla,7,91,35\\n")
    >>> audit(table, class_counts=(250, 250, 250, 250)).pairs[0].word
    'masked'
    """
    if isinstance(source, Evidence):
        return judge(source, delta)
    path = Path(source)
    if path.suffix.lower() == ".csv":
        return judge(read_table(path, **reading), delta)
    from fedstill.audit.reading import evidence_of  # needs torch, and a table does not

    return judge(evidence_of(path, **reading), delta)


make_callable(__name__, audit)
