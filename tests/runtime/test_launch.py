"""Starting runs from Python."""

from __future__ import annotations

from typing import Any

import pytest

import fedstill
from fedstill.core.errors import InputError


@pytest.mark.parametrize("layer", [{"preset": "lite"}, {"variant": "as-published"}])
def test_what_only_recipes_have_is_refused_for_a_mapping(layer: dict[str, Any]) -> None:
    for function in (fedstill.run, fedstill.egress):
        with pytest.raises(InputError, match="given as a mapping has no presets and variants"):
            function({"method": "fedavg"}, **layer)
