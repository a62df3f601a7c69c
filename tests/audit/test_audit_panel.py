"""An audit in a notebook."""

from __future__ import annotations

import re

from fedstill.audit import judge

from .grids import evidence

NAME = "<script>alert(1)</script>"


def test_an_audit_shows_its_summary_teachers_and_findings_with_every_text_escaped() -> None:
    pairs = {(NAME, "o"): [90, 91, 92], ("b", "o"): [90, 91, 92]}
    audit = judge(evidence({NAME: [25, 25, 25], "b": [60, 61, 62]}, pairs, weights={"o": 0.5}))
    shown = audit._repr_html_()
    assert "<script" not in shown
    assert shown.count("&lt;script&gt;") >= 1
    assert re.search(r">b</td><td [^>]*>sound</td>", shown)
    assert all(finding.severity in shown for finding in audit.findings)
    assert len(shown) < 20_000
    assert re.fullmatch(r"Audit\(two teachers, one objective, findings: [\w, ]+\)", repr(audit))
