"""Every finding that can be failed on is explained."""

from __future__ import annotations

from pathlib import Path

from fedstill.audit.conditions import TOPICS

PAGE = Path(__file__).parents[2] / "docs" / "audit.md"


def test_the_page_explains_every_finding() -> None:
    told = PAGE.read_text(encoding="utf-8")
    assert [topic for topic in TOPICS if f"| `{topic}`" not in told and f", `{topic}`" not in told] == []
