"""One call from whatever holds accuracies to verdicts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedstill.audit.evidence import Evidence
from fedstill.audit.evidence_table import is_table, read_rows, read_table
from fedstill.audit.verdict_rules import DELTA, judge
from fedstill.audit.verdicts import Audit


def audit(source: Any, delta: float = DELTA, **reading: Any) -> Audit:
    """Judge evidence, a study's results (`Results`, file or folder), a run, or a table made elsewhere.

    Such a table is a .csv file, a .json file with a list of rows, a pandas frame, or a list with a mapping from column
    to value for each row.

    `delta` is the threshold as a share; everything else is passed to the reader of the source.

    >>> table = getfixture("tmp_path") / "results.csv"
    >>> _ = table.write_text("teacher,objective,seed,accuracy,free_accuracy\\nfedavg,vanilla,7,91,35\\n")
    >>> audit(table, class_counts=(250, 250, 250, 250)).pairs[0].word
    'masked'
    """
    if isinstance(source, Evidence):
        return judge(source, delta)
    if isinstance(source, list) or type(source).__name__ == "DataFrame":
        return judge(read_rows(source, **reading), delta)
    if not isinstance(source, str | Path):
        from fedstill.audit.audit_inputs import evidence_of_object  # needs torch, and a table does not

        return judge(evidence_of_object(source, **reading), delta)
    path = Path(source)
    if is_table(path):
        return judge(read_table(path, **reading), delta)
    from fedstill.audit.audit_inputs import evidence_of  # needs torch, and a table does not

    return judge(evidence_of(path, **reading), delta)
