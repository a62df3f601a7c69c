from __future__ import annotations

from pathlib import Path

import pytest

from fedstill.core.errors import InputError
from fedstill.data.readers.raw import FileFindings, content


def test_faults_are_collected_and_refused_together(tmp_path: Path) -> None:
    found = FileFindings()
    found.refuse("toy")  # nothing to say yet
    with found.collecting():
        content(tmp_path / "gone")
    with found.collecting():
        list((tmp_path / "gone").iterdir())  # the system's own errors too
    assert found.faults == [f"{tmp_path / 'gone'} cannot be read: No such file or directory"] * 2
    with pytest.raises(InputError, match=r"data set 'toy': .*gone cannot be read.*and 1 more") as error:
        found.refuse("toy")
    assert error.value.exit_code == 2


def test_other_errors_are_bugs_and_pass() -> None:
    with pytest.raises(ZeroDivisionError), FileFindings().collecting():
        1 / 0  # noqa: B018
