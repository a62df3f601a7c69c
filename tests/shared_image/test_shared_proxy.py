from __future__ import annotations

from pathlib import Path

import pytest

from fedstill.core.dataset import SharedSamples
from fedstill.core.errors import InputError
from fedstill.shared_image.shared_proxy import shared_proxy


def test_rows_of_a_table_are_a_proxy_as_they_are(tmp_path: Path) -> None:
    rows = [f"{number},{number * number % 7},{number % 2}" for number in range(20)]
    (tmp_path / "t.csv").write_text("\n".join(["a,b,label", *rows]))
    wanted = SharedSamples(f"table:{tmp_path / 't.csv'}")
    proxy = shared_proxy(wanted, "array", (2,), None)
    assert proxy.data.labels() is None
    assert len(proxy.data) == 16
    with pytest.raises(InputError, match=r"holds arrays of shape \(2,\), and the clients arrays of shape \(3,\)"):
        shared_proxy(wanted, "array", (3,), None)
