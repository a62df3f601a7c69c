from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from fedstill.core import plugins
from fedstill.core.errors import InputError
from fedstill.core.plugins import load_entry_points, load_plugin, loaded_plugins, use_plugins
from fedstill.models import models


@pytest.fixture(autouse=True)
def _tidy(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(plugins, "_loaded", {})
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.startswith("fedstill_plugin_"):
            del sys.modules[name]
    load_entry_points.cache_clear()


def written(folder: Path, text: str, name: str = "mine.py") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def module_of(path: Path) -> object:
    (found,) = [m for m in sys.modules.values() if getattr(m, "__file__", None) == str(path.resolve())]
    return found


def test_a_plugin_runs_once(tmp_path: Path) -> None:
    log = tmp_path / "log"
    path = written(tmp_path, f"open({str(log)!r}, 'a').write('ran ')")
    load_plugin(path)
    load_plugin(str(path))
    load_plugin(tmp_path / "." / "mine.py")
    assert log.read_text() == "ran "
    assert list(loaded_plugins()) == [str(path.resolve())]


def test_its_classes_can_be_found_by_name_in_another_process(tmp_path: Path) -> None:
    """The module's name follows from the path alone, which is what pickling by name needs."""
    path = written(tmp_path, "class Part: ...")
    load_plugin(path)
    module = module_of(path)
    assert module.Part.__module__ == module.__name__
    assert sys.modules[module.__name__] is module
    name = module.__name__
    plugins._loaded.clear()
    load_plugin(path)
    assert module_of(path).__name__ == name


def test_equally_named_files_do_not_get_in_each_others_way(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    one, two = written(tmp_path / "a", "value = 1"), written(tmp_path / "b", "value = 2")
    load_plugin(one)
    load_plugin(two)
    assert (module_of(one).value, module_of(two).value) == (1, 2)


def test_the_digest_follows_the_text(tmp_path: Path) -> None:
    one = written(tmp_path, "x = 1", "one.py")
    same = written(tmp_path, "x = 1", "same.py")
    other = written(tmp_path, "x = 2", "other.py")
    for path in (one, same, other):
        load_plugin(path)
    digests = [loaded_plugins()[str(path.resolve())] for path in (one, same, other)]
    assert digests[0] == digests[1] != digests[2]


@pytest.mark.parametrize("name", ["missing.py", "text.txt", "."])
def test_what_is_no_python_file_is_refused(tmp_path: Path, name: str) -> None:
    written(tmp_path, "x = 1", "text.txt")
    with pytest.raises(InputError, match="--plugin takes an existing Python file"):
        load_plugin(tmp_path / name)


@pytest.mark.parametrize(
    ("text", "says"), [("1 / 0", "ZeroDivisionError"), ("def (", "SyntaxError"), ("import nowhere_x", "nowhere_x")]
)
def test_a_broken_plugin_is_one_sentence_and_leaves_nothing(tmp_path: Path, text: str, says: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(InputError, match=says) as caught:
        load_plugin(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert loaded_plugins() == {}
    assert not [name for name in sys.modules if name.startswith("fedstill_plugin_mine_")]
    written(tmp_path, "value = 3")
    load_plugin(path)
    assert module_of(path).value == 3


def test_a_sentence_of_ours_passes_through(tmp_path: Path) -> None:
    path = written(tmp_path, "from fedstill.core.errors import InputError\nraise InputError('already one sentence')")
    with pytest.raises(InputError, match=r"^already one sentence$"):
        load_plugin(path)


def test_installed_plugins_are_loaded_once_by_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def found(group: str) -> list[EntryPoint]:
        asked.append(group)
        return [EntryPoint("fine", "json", group)]

    monkeypatch.setattr(plugins, "entry_points", found)
    load_entry_points.cache_clear()
    load_entry_points()
    load_entry_points()
    assert asked == ["fedstill.plugins"]


def test_a_broken_installed_plugin_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "entry_points", lambda group: [EntryPoint("bad", "nowhere_x:part", group)])
    load_entry_points.cache_clear()
    with pytest.raises(InputError, match=r"the plugin bad \(nowhere_x:part\) cannot be loaded"):
        load_entry_points()


def test_an_edited_plugin_is_loaded_again_and_what_it_no_longer_registers_is_gone(tmp_path: Path) -> None:
    part = "from fedstill.models import models\n@models.register({!r})\ndef build(shape, classes): return {}\n"
    path = written(tmp_path, part.format("test-one", 1) + part.format("test-two", 1))
    load_plugin(path)
    assert models["test-one"]((), 2) == models["test-two"]((), 2) == 1
    written(tmp_path, part.format("test-two", 2))
    load_plugin(path)
    assert "test-one" not in models
    assert models["test-two"]((), 2) == 2
    written(tmp_path, "")
    load_plugin(path)
    assert "test-two" not in models


def test_a_module_that_it_imports_is_imported_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within a second and with a text of the same length: compiled files would not tell the difference."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "deeper.py").write_text("value = 1\n")
    (tmp_path / "helper_of_plugin.py").write_text("from deeper import value\n")
    path = written(tmp_path, "import helper_of_plugin\nvalue = helper_of_plugin.value\n")
    load_plugin(path)
    first = loaded_plugins()[str(path.resolve())]
    (tmp_path / "deeper.py").write_text("value = 2\n")
    load_plugin(path)
    assert module_of(path).value == 2
    assert loaded_plugins()[str(path.resolve())] != first


def test_two_plugins_may_not_register_one_name_together_but_one_after_the_other(tmp_path: Path) -> None:
    part = "from fedstill.models import models\n@models.register('test-both')\ndef build(shape, classes): return {}\n"
    one, two = (written(tmp_path, part.format(number), f"{number}.py") for number in (1, 2))
    with pytest.raises(InputError, match="two models are called 'test-both'"):
        use_plugins([one, two])
    use_plugins([one])
    assert models["test-both"]((), 2) == 1
    use_plugins([two])
    assert models["test-both"]((), 2) == 2
    use_plugins([one])  # loaded before, and put back in its place
    assert models["test-both"]((), 2) == 1
    for path in (one, two):
        written(tmp_path, "", path.name)
        load_plugin(path)
    assert "test-both" not in models
