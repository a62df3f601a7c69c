from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from fedstill.core.errors import FedstillError, InputError, RunError, did_you_mean
from fedstill.core.registry import Registry, registrations
from fedstill.methods import methods


@pytest.fixture
def shapes() -> Registry:
    registry: Registry = Registry("shape")

    @registry.register("square")
    def square() -> None:
        """Four equal sides.

        And four equal angles.
        """

    @registry.register("circle")
    def circle() -> None:
        pass

    return registry


def test_names_are_sorted_and_found(shapes: Registry) -> None:
    assert shapes.names() == list(shapes) == ["circle", "square"]
    assert "square" in shapes
    assert "Square" not in shapes
    assert shapes["square"].__name__ == "square"


def test_a_summary_is_the_first_line(shapes: Registry) -> None:
    assert shapes.summary("square") == "Four equal sides."
    assert shapes.summary("circle") == ""


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("squar", "unknown shape 'squar': did you mean 'square'? Known: circle, square"),
        ("zzz", "unknown shape 'zzz': known: circle, square"),
        ("", "unknown shape '': known: circle, square"),
    ],
)
def test_an_unknown_name_is_one_sentence(shapes: Registry, name: str, expected: str) -> None:
    with pytest.raises(InputError) as caught:
        shapes[name]
    assert str(caught.value) == expected
    with pytest.raises(InputError):
        shapes.summary(name)


def test_a_name_that_is_registered_again_is_replaced(shapes: Registry) -> None:
    def another() -> None: ...

    assert shapes.register("square", behaviour=2)(another) is another
    assert shapes["square"] is another
    assert shapes.behaviour("square") == 2


def test_a_part_of_the_package_is_not_replaced() -> None:
    held = methods["fedavg"]

    def another() -> None: ...

    for name in ("fedavg", "fedprox", "qkt"):  # looked up before, or not yet; the last one a slice's
        with pytest.raises(InputError, match=f"there is a method called '{name}' in fedstill: choose another name"):
            methods.register(name)(another)
    assert methods["fedavg"] is held


def test_what_is_registered_can_be_watched_and_put_back(shapes: Registry) -> None:
    with registrations() as made:
        shapes.register("line")(len)
    shapes.register("line")(max)
    assert [one.place for one in made] == [("shape", "line")]
    made[0].apply()
    assert shapes["line"] is len


def test_the_same_definition_may_be_registered_again(shapes: Registry) -> None:
    """A plugin that is loaded twice defines equal parts anew; the latest counts."""

    def definition() -> object:
        class Part: ...

        return Part

    first, second = definition(), definition()
    shapes.register("part")(first)
    assert shapes.register("part")(second) is second
    assert shapes["part"] is second


def test_a_part_has_the_name_it_was_registered_as_or_its_own() -> None:
    shapes: Registry[type] = Registry("shape")

    class Square: ...

    assert shapes.name_of(Square) == "Square"
    shapes.register("square")(Square)
    assert shapes.name_of(Square) == "square"


def test_exit_codes() -> None:
    assert (InputError.exit_code, RunError.exit_code) == (2, 1)
    assert issubclass(InputError, FedstillError)
    assert issubclass(RunError, FedstillError)


def test_the_nearest_of_several_is_suggested() -> None:
    assert did_you_mean("fedporx", ["fedprox", "fedavg", "fedadam"]) == (
        "did you mean 'fedprox'? Known: fedadam, fedavg, fedprox"
    )


def test_a_declared_name_is_taken_before_its_module_is_imported(
    shapes: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "triangles.py").write_text(
        "from known_shapes import shapes\n\n@shapes.register('triangle')\ndef triangle(): ...\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "known_shapes", SimpleNamespace(shapes=shapes))
    shapes.declare("triangles", "triangle")

    def another() -> None: ...

    with pytest.raises(InputError, match="there is a shape called 'triangle' in fedstill"):
        shapes.register("triangle")(another)
    assert shapes["triangle"] is sys.modules.pop("triangles").triangle
