"""A user's own parts in another process: as they are in memory, and with what it cannot know refused."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from fedstill.core.own_parts import OwnParts, fresh_token

from ..warm import Warm

SENDER = """
import pickle, sys
from fedstill.core.own_parts import OwnParts
from fedstill.core.plugins import use_plugins
from fedstill.models import models
SIZE = 3
@models.register("mine")
def build(shape, classes): return SIZE
sys.modules["__main__"].__dict__.update(SIZE=SIZE, build=build)
build.__module__ = "__main__"
use_plugins(["plugin.py"])
open("parts", "wb").write(pickle.dumps(OwnParts.here()))
"""
RECEIVER = """
import pickle
from fedstill.core.own_parts import OwnParts, fresh_token
pickle.load(open("parts", "rb")).install()
from fedstill.models import models
print(models["mine"](1, 2), models["plugged"](1, 2), fresh_token.value)
"""
PLUGIN = "from fedstill.models import models\n@models.register('plugged')\ndef build(shape, classes): return 7\n"


def test_they_arrive(warm: Warm, tmp_path: Path) -> None:
    (tmp_path / "plugin.py").write_text(PLUGIN)
    sent = warm.python(SENDER, tmp_path)
    assert sent.returncode == 0, sent.stderr
    arrived = warm.python(RECEIVER, tmp_path)
    assert arrived.returncode == 0, arrived.stderr
    mine, plugged, token = arrived.stdout.split()
    assert (mine, plugged) == ("3", "7")
    assert token == pickle.loads((tmp_path / "parts").read_bytes()).token
    (tmp_path / "plugin.py").write_text(PLUGIN.replace("7", "8"))
    refused = warm.python(RECEIVER, tmp_path)
    assert refused.returncode != 0
    assert "was edited while it is in use: start again" in refused.stderr


def test_without_parts_nothing_is_sent() -> None:
    assert OwnParts().parts == ()
    assert pickle.loads(pickle.dumps(OwnParts())) == OwnParts()


def test_a_token_is_renewed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fresh_token, "value", fresh_token.value)
    before = fresh_token.value
    fresh_token.renew()
    assert fresh_token.value != before
