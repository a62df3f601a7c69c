"""The audit's page in a real browser, where one is found: driven over a pipe, which needs no further package."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedstill.audit.verdicts import Audit

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no browser found: install chromium to test the drawn page")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-dev-shm-usage", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--remote-debugging-pipe"),
)


class Browser:
    """Commands go to the browser's descriptor 3 and answers come from its 4: JSON, each ended by a zero byte."""

    def __init__(self, profile: Path) -> None:
        commands, answers = os.pipe(), os.pipe()
        self.writing, self.reading = commands[1], answers[0]
        wired = f'exec "$@" 3<&{commands[0]} 4>&{answers[1]}'
        self.process = subprocess.Popen(
            ["bash", "-c", wired, "browser", str(CHROMIUM), *FLAGS, f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(commands[0], answers[1]),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(commands[0])
        os.close(answers[1])
        self.held, self.count, self.session = b"", 0, ""
        self.shown: tuple[Path, int, str] | None = None
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> Any:
        self.count += 1
        message = {"id": self.count, "method": method, "params": params}
        os.write(
            self.writing, json.dumps(message | ({"sessionId": self.session} if self.session else {})).encode() + b"\0"
        )
        while (answer := self._next()).get("id") != self.count:
            self.events.append(answer)
        assert "error" not in answer, answer
        return answer["result"]

    def _next(self) -> Any:
        while b"\0" not in self.held:
            more = os.read(self.reading, 1 << 16)
            assert more, "the browser went away"
            self.held += more
        message, _, self.held = self.held.partition(b"\0")
        return json.loads(message)

    def open(self, path: Path, width: int, scheme: str = "light") -> None:
        """Load a page, unless it is shown already: a large one takes seconds."""
        if self.shown == (path, width, scheme):
            return
        self.shown = path, width, scheme
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=width < 600
        )
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.events.clear()
        self.call("Page.navigate", url=path.as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._next())
        # Two frames: what scripts drew at the end of loading is on the page by then.
        self.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def run(self, script: str) -> Any:
        answer = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def press(self, key: str) -> None:
        for kind in ("keyDown", "keyUp"):
            text = {"text": "\r"} if key == "Enter" and kind == "keyDown" else {}
            code = {"Enter": 13, "ArrowRight": 39}[key]
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **text)

    @property
    def complaints(self) -> list[dict[str, Any]]:
        kinds = ("Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled")
        return [event for event in self.events if event.get("method") in kinds]

    def close(self) -> None:
        self.call("Browser.close")
        self.process.wait(20)
        os.close(self.writing)
        os.close(self.reading)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    browser = Browser(tmp_path_factory.mktemp("profile"))
    try:
        yield browser
    finally:
        browser.close()


@pytest.mark.parametrize(
    ("width", "scheme", "ground"),
    [(1280, "dark", "rgb(26, 35, 40)"), (380, "light", "rgb(255, 255, 255)"), (1280, "light", "rgb(255, 255, 255)")],
    ids=["dark", "phone", "desk"],
)
def test_everything_is_drawn_without_a_complaint_and_nothing_sticks_out(
    browser: Browser, large_report: Path, width: int, scheme: str, ground: str
) -> None:
    browser.open(large_report, width, scheme)
    assert browser.complaints == []
    plots = browser.run("document.querySelectorAll('.plot').length")
    assert plots == 20
    assert (
        browser.run("[...document.querySelectorAll('.plot')].filter((plot) => plot.querySelector('.main-svg')).length")
        == plots
    )
    empty = "[...document.querySelectorAll('.plot')].filter((plot) => !plot.querySelector('path, text')).length"
    assert browser.run(empty) == 0
    assert browser.run("getComputedStyle(document.querySelector('.plot .main-svg')).backgroundColor") == ground
    assert browser.run("document.documentElement.scrollWidth - document.documentElement.clientWidth") == 0
    hints = "[...document.querySelectorAll('.sideways')].filter((hint) => hint.offsetParent).length"
    assert (browser.run(hints) > 5) == (width < 600)  # a phone is too narrow for wide figures, and says so
    dots = """(() => { const canvas = document.querySelector("canvas.cloud");
        const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
        return data.filter((value, at) => at % 4 === 3 && value > 0).length; })()"""
    assert browser.run(dots) > 500


ROWS = "[...document.querySelectorAll('#table-{table} tbody tr')].map((row) => row.cells[{column}].dataset.value)"


def test_tables_sort_by_key_press_and_save_themselves(browser: Browser, large_report: Path, large: Audit) -> None:
    browser.open(large_report, 1280)
    keys = browser.run("[...document.querySelectorAll('#table-pairs thead th')].map((head) => head.dataset.key)")
    masking = ROWS.format(table="pairs", column=keys.index("masking"))
    before = browser.run(masking)
    browser.run("document.querySelector('#table-pairs [data-key=masking] button').focus()")
    browser.press("Enter")
    known = [float(value) for value in browser.run(masking) if value != ""]
    assert known == sorted(known, reverse=True)
    assert known != [float(value) for value in before if value != ""]
    assert (
        browser.run("document.querySelector('#table-pairs [data-key=masking]').getAttribute('aria-sort')")
        == "descending"
    )
    browser.press("Enter")
    assert [float(value) for value in browser.run(masking) if value != ""] == sorted(known)
    assert set(browser.run(masking)[len(known) :]) == {""}  # what is missing comes last, whichever way

    lines = browser.run("fedstillTables.csv(document.getElementById('table-teachers'))").split("\r\n")
    assert lines[0].startswith("teacher,verdict,accuracy")
    best = max((verdict for verdict in large.teachers if verdict.accuracy), key=lambda verdict: verdict.accuracy or 0.0)
    assert lines[1].startswith(f"{best.teacher},{best.word},{best.accuracy}")
    latex = browser.run("fedstillTables.latex(document.getElementById('table-objectives'))")
    assert "\\begin{tabular}{ll" in latex
    assert "$-$" in latex  # a minus sign that every engine knows
    assert "$\\blacktriangle$ masked by pattern" in latex


def test_keys_switch_traces_and_arrow_keys_turn_clouds(browser: Browser, large_report: Path) -> None:
    browser.open(large_report, 1280)
    button = "document.querySelector('button[data-figure=against-teacher]')"
    browser.run(f"{button}.focus()")
    browser.press("Enter")
    shown = "document.getElementById('figure-against-teacher').data.map((trace) => trace.visible)"
    assert browser.run(shown)[:3] == [False, False, True]  # both kinds of students of one objective
    assert browser.run(f"{button}.getAttribute('aria-pressed')") == "false"
    view = "document.querySelector('canvas.cloud').dataset.view"
    browser.run("document.querySelector('canvas.cloud').focus()")
    before = browser.run(view)
    browser.press("ArrowRight")
    assert browser.run(view) != before
    picture = "Plotly.toImage(document.getElementById('figure-labelled'), { format: 'svg' })"
    assert browser.run(picture).startswith("data:image/svg+xml")
    assert browser.complaints == []
