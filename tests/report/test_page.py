from __future__ import annotations

import json
from collections.abc import Callable
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import pytest

import fedstill
from fedstill.core.errors import InputError
from fedstill.data.catalogue import load
from fedstill.report import Holdings, partition_tables, write_report
from fedstill.report.facts import Facts
from fedstill.report.grids import partitions
from fedstill.runtime.result import Run

PLACES = ("central", "on-site")
MakeRun = Callable[..., Run]
FAILED = [{"client": 1, "reason": "dropped", "detail": "its reply did not arrive"}]


class Page(HTMLParser):
    """The elements of a page, in order, each with its attributes and the text at its beginning."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str], list[str]]] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}, []))

    def handle_endtag(self, tag: str) -> None:
        self.elements.append((f"/{tag}", {}, []))

    def handle_data(self, data: str) -> None:
        if self.elements:
            self.elements[-1][2].append(data)

    def all(self, *tags: str) -> list[dict[str, str]]:
        return [attributes for tag, attributes, _ in self.elements if tag in tags]

    def text(self, tag: str, **wanted: str) -> str:
        for found, attributes, text in self.elements:
            if found == tag and wanted.items() <= attributes.items():
                return "".join(text)
        raise AssertionError(f"no {tag} {wanted}")

    @property
    def specs(self) -> dict[str, Any]:
        specs: dict[str, Any] = json.loads(self.text("script", id="specs"))
        return specs


@pytest.fixture
def page(make_run: MakeRun, tmp_path: Path) -> Page:
    runs = {
        "pooled": make_run("centralised"),
        "whole": make_run(),
        "holes": make_run(lines={2: {"accepted": [0, 2, 3], "failures": FAILED}, 3: {"finite": False}}, selected=2),
    }
    tables = {"whole": Holdings([[5, 0, 1], [2, 2, 2], [0, 0, 9], [1, 1, 1]], ("a", "b", "c"))}
    return Page(write_report(runs, tmp_path / "new" / "report.html", tables=tables))


def test_class_names_are_no_markup(make_run: MakeRun) -> None:
    table = Holdings([[5, 0], [2, 2]], ("<b>bold</b>", "a & b"))
    (figure,) = partitions([Facts.of("whole", make_run())], {"whole": table})
    assert figure.data[0]["y"] == ["&lt;b&gt;bold&lt;/b&gt; ", "a &amp; b "]


def test_headings_are_in_order(page: Page) -> None:
    levels = [int(tag[1]) for tag, _, _ in page.elements if tag in ("h1", "h2", "h3", "h4")]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))


def test_it_can_be_used_without_eyes_or_mouse(page: Page) -> None:
    assert page.all("html")[0]["lang"] == "en"
    ids = {attributes["id"] for _, attributes, _ in page.elements if "id" in attributes}
    links = [attributes["href"] for attributes in page.all("a")]
    assert links[0] == "#content"
    inside = [link for link in links if link.startswith("#")]
    assert all(link[1:] in ids for link in inside)
    assert all(link.endswith("/") and ":" not in link for link in links if link not in inside)  # folders of runs
    assert all(head["scope"] in ("col", "row") for head in page.all("th"))
    plots = [attributes for attributes in page.all("div") if attributes.get("class") == "plot"]
    assert plots
    assert all(plot["role"] == "img" and len(plot["aria-label"]) > 40 for plot in plots)
    boxes = [a for a in page.all("div", "pre") if "scroll" in a.get("class", "")]
    assert all(box["tabindex"] == "0" and box["aria-label"] for box in boxes)


def test_nothing_is_fetched(page: Page) -> None:
    for tag, attributes, _ in page.elements:
        for name in ("src", "href", "srcset", "data", "action", "poster"):
            assert not attributes.get(name, "").lower().startswith(("http", "//")), (tag, attributes)
    style = page.text("style")
    assert "url(" not in style
    assert "@import" not in style
    policy = page.all("meta")[1]["content"]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "http" not in policy


def test_every_figure_is_there_and_plotly_knows_every_property(page: Page) -> None:
    assert list(page.specs) == ["accuracy", "loss", "traffic", "attendance-2", "partition-0"]
    drawn = [attributes["data-figure"] for attributes in page.all("div") if attributes.get("class") == "plot"]
    assert drawn == list(page.specs)
    for spec in page.specs.values():
        go.Figure(**spec)


def test_figures_show_what_the_journals_say(page: Page) -> None:
    accuracy = page.specs["accuracy"]["data"]
    assert accuracy[1]["x"] == [1, 2, 3]
    assert accuracy[1]["y"] == [0.5, 0.7, 0.9]
    assert accuracy[3]["name"] == "model not finite"
    assert (accuracy[3]["x"], accuracy[3]["y"]) == ([3], [0.9])
    traffic = page.specs["traffic"]["data"]
    assert [trace["name"] for trace in traffic] == ["whole", "holes"]
    assert traffic[0]["x"] == [12.0, 24.0, 36.0]  # KiB: four clients send one and receive two a round
    accepted, dropped = page.specs["attendance-2"]["data"]
    assert accepted["z"][1] == [1, None, 1]
    assert dropped["z"][1] == [None, 1, None]
    counts = page.specs["partition-0"]["data"][0]
    assert counts["text"][2] == ["1", "2", "9", "1"]  # the third class, by client


def test_many_clients_are_counted_instead_of_drawn(make_run: MakeRun, tmp_path: Path) -> None:
    few = {"sampled": [5, 6, 7], "accepted": [5, 7], "failures": [{"client": 6, "reason": "failed", "detail": ""}]}
    run = make_run({"method": "fedavg", "clients": 1000}, lines={1: few, 2: few, 3: few})
    spec = Page(write_report({"many": run}, tmp_path / "r.html", tables={})).specs["attendance-0"]
    assert [(trace["type"], trace["y"]) for trace in spec["data"]] == [("bar", [2, 2, 2]), ("bar", [1, 1, 1])]


def test_the_table_has_texts_and_values(page: Page) -> None:
    keys = [head["data-key"] for head in page.all("th") if "data-key" in head]
    assert keys[:3] == ["way", "method", "partition"]
    assert {"accuracy_last", "accuracy_best", "accuracy_selected", "bytes_up", "failures", "sha256"} <= set(keys)
    assert "personal_mean" not in keys  # no run has any
    rows = [a["data-value"] for a in page.all("th", "td") if "data-value" in a]
    first = dict(zip(keys, rows[: len(keys)], strict=True))
    assert first["way"] == "pooled"
    assert first["accuracy_last"] == "0.9"
    assert first["bytes_up"] == ""  # what stays in one place is not traffic


def test_the_first_paragraph_changes_with_the_results(make_run: MakeRun, tmp_path: Path) -> None:
    texts = [
        Page(write_report({"a": make_run(accuracies=(accuracy,))}, tmp_path / "r.html", tables={})).text(
            "p", id="summary"
        )
        for accuracy in (0.8, 0.9)
    ]
    assert "80.0" in texts[0]
    assert "90.0" in texts[1]


def test_titles_are_only_text(make_run: MakeRun, tmp_path: Path) -> None:
    title = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'</script>"
    path = write_report({title: make_run(lines={1: {"accepted": [0]}})}, tmp_path / "r.html", tables={})
    page = Page(path)
    assert len(page.all("script")) == 4
    assert not page.all("img")
    assert page.specs["accuracy"]["data"][0]["name"] == title
    assert "<script>alert" not in path.read_text()


def test_commands_and_settings_are_at_the_end(page: Page) -> None:
    codes = ["".join(text) for tag, _, text in page.elements if tag == "code"]
    assert "fedstill run fedavg --model cnn --clients 4 --rounds 3" in codes
    assert any(code.startswith("experiment:\n  method:\n    name: fedavg") for code in codes)
    values = ["".join(text) for tag, _, text in page.elements if tag == "dd"]
    assert "f" * 64 in values


def test_nothing_to_report_and_unfinished_runs_are_said(make_run: MakeRun, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="at least one run"):
        write_report({}, tmp_path / "r.html")
    run = make_run()
    (run.path / "result.json").unlink()
    with pytest.raises(InputError, match="is not finished"):
        write_report({"a": run}, tmp_path / "r.html", tables={})
    assert not (tmp_path / "r.html").exists()


def test_a_real_run(tmp_path: Path) -> None:
    run = fedstill.run("fedavg", rounds=2, clients=2, partition={"name": "dirichlet", "alpha": 0.3}, out=tmp_path)
    page = Page(write_report({"tiny": run}, tmp_path / "report.html"))
    assert list(page.specs) == ["accuracy", "loss", "traffic", "reliability", "confusion-0", "partition-0"]
    (folder,) = [one["href"] for one in page.all("a") if one["href"].endswith("/")]
    assert (tmp_path / folder / "result.json").is_file()
    assert page.specs["accuracy"]["data"][0]["y"] == [record.metrics["accuracy"] for record in run.journal]
    table = partition_tables({"tiny": run})["tiny"]
    assert sum(map(sum, table.counts)) == 1438  # digits to train on
    assert (table.names, table.by) == (tuple("0123456789"), "class")


def test_what_was_measured_once_has_no_course(make_run: MakeRun, tmp_path: Path) -> None:
    once = {"a": make_run(accuracies=(0.5,))}
    assert "accuracy" not in Page(write_report(once, tmp_path / "once.html", tables={})).specs
    flat = Page(write_report({"a": make_run(accuracies=(0.5, 0.5))}, tmp_path / "flat.html", tables={})).specs
    assert flat["accuracy"]["layout"]["yaxis"]["range"] == [0.45, 0.55], "not from below none to more than all"


def test_clouds_whose_points_have_labels_are_counted_by_kind(make_run: MakeRun, tmp_path: Path) -> None:
    """128 heads to train on, 32 of each kind; two kinds to a client, dealt so that every kind has one holder."""
    cut = {"name": "pathological", "classes_per_client": 2}
    data = {"data": "head-parts", "model": "pointnet2-segmentation-lite", "points": 64}
    run = make_run({"method": "fedavg", **data, "clients": 2, "partition": cut})
    run.config["fingerprint"] = load("head-parts").with_points(64).fingerprint()
    table = partition_tables({"heads": run})["heads"]
    assert (table.names, table.by) == (("control", "coronal", "metopic", "sagittal"), "kind")
    assert [sorted(row) for row in table.counts] == [[0, 0, 32, 32]] * 2
    page = write_report({"heads": run}, tmp_path / "r.html", tables={"heads": table}).read_text(encoding="utf-8")
    assert "64 samples of 2 kinds of things each. Every point has a label of its own: counted are whole" in page


def test_changed_or_missing_data_gives_no_picture(make_run: MakeRun) -> None:
    changed, missing = make_run(), make_run({"method": "fedavg", "data": "npz:/nowhere.npz"})
    assert partition_tables({"changed": changed, "missing": missing}) == {}


def test_runs_that_differ_in_their_evaluation_have_shards_of_their_own(make_run: MakeRun) -> None:
    """Centrally 288 of the 1,438 digits are held back before clients get theirs; on site each holds back its own."""
    runs = {where: make_run({"method": "fedavg", "validation": 0.2, "evaluation": where}) for where in PLACES}
    for run in runs.values():
        run.config["fingerprint"] = load("digits").fingerprint()
    tables = partition_tables(runs)
    assert {where: sum(table.sizes) for where, table in tables.items()} == {"central": 1150, "on-site": 1438}


def test_a_run_whose_data_changed_does_not_borrow_the_picture_of_another(make_run: MakeRun) -> None:
    same, changed = make_run(), make_run()
    same.config["fingerprint"] = load("digits").fingerprint()
    assert list(partition_tables({"same": same, "changed": changed})) == ["same"]
