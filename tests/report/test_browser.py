"""The page in a real browser, where one is found."""

from __future__ import annotations

import re
import shutil
import subprocess
from base64 import b64encode
from collections.abc import Callable
from hashlib import sha256
from html import unescape
from pathlib import Path

import pytest

from fedstill.report import Holdings, write_report
from fedstill.runtime.result import Run

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no browser found: install chromium to test the drawn page")

PROBE = """
  const table = document.querySelector("table");
  const button = document.querySelector('[data-key="accuracy_last"] button');
  const order = () => [...table.tBodies[0].rows].map((row) => row.cells[0].textContent).join(",");
  const seen = [];
  button.click(); seen.push(order() + " " + button.parentElement.getAttribute("aria-sort"));
  button.click(); seen.push(order() + " " + button.parentElement.getAttribute("aria-sort"));
  document.querySelector(".key button").click();
  const plot = document.getElementById("figure-accuracy");
  const found = ["LOW", "-low fedavg"].map((words) => fedstillTables.search(table, words)).join("");
  seen.push("visible " + plot.data[0].visible + ", found " + found);
  fedstillTables.search(table, "");
  seen.push("overflow " + (document.documentElement.scrollWidth - document.documentElement.clientWidth));
  Plotly.toImage(plot, { format: "png" }).then((picture) => {
    seen.push(picture.slice(0, 22), fedstillTables.csv(table), fedstillTables.latex(table));
    const cells = table.tBodies[0].rows[0].cells;
    ["=SUM(A1)", "-0.5", "@x", "+1+cmd"].forEach((text, place) => { cells[place].dataset.value = text; });
    seen.push(fedstillTables.csv(table));
    document.getElementById("probe").textContent = seen.join("\\n");
  });
"""


STRANGER = "<script>document.title = 'owned'</script>"


@pytest.fixture
def report(make_run: Callable[..., Run], tmp_path: Path) -> Path:
    lost = [{"client": 1, "reason": "dropped", "detail": ""}]
    runs = {
        "middle": make_run(accuracies=(0.5, 0.7)),
        "top, 100 % & more": make_run(accuracies=(0.5, 0.9), lines={2: {"accepted": [0, 2, 3], "failures": lost}}),
        "low": make_run("centralised", accuracies=(0.4, 0.6)),
    }
    table = Holdings([[3, 0, 0], [0, 3, 0], [1, 1, 1], [2, 0, 5]], ("a", "b", "c"))
    return write_report(runs, tmp_path / "report.html", tables={"middle": table})


def browse(path: Path, *flags: str) -> tuple[str, str]:
    """The page's elements after its scripts have run, and what the browser had to say."""
    done = subprocess.run(
        [
            str(CHROMIUM),
            *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
            *("--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage"),
            *("--enable-logging=stderr", "--v=0", "--virtual-time-budget=5000", "--window-size=500,900"),
            f"--user-data-dir={path.parent / 'profile'}",
            *flags,
            "--dump-dom",
            path.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return done.stdout, done.stderr


def test_figures_are_drawn_without_a_complaint(report: Path) -> None:
    elements, log = browse(report)
    assert "CONSOLE" not in log
    plots = elements.count('role="img"')
    assert plots == 5
    assert elements.count('<svg class="main-svg"') >= plots
    assert "background: rgb(255, 255, 255)" in elements


def test_tables_sort_and_save_keys_switch_nothing_sticks_out_and_strange_scripts_do_not_run(report: Path) -> None:
    page = report.read_text(encoding="utf-8")
    # The policy lets only known scripts run: the probe is made known, and another one is not.
    known = b64encode(sha256(PROBE.encode()).digest()).decode()
    page = page.replace("script-src ", f"script-src 'sha256-{known}' ", 1)
    page = page.replace("</body>", f'<pre id="probe"></pre><script>{PROBE}</script>{STRANGER}</body>')
    report.write_text(page, encoding="utf-8")
    elements, log = browse(report, "--blink-settings=preferredColorScheme=0")
    complaints = [line for line in log.splitlines() if "CONSOLE" in line]
    assert len(complaints) == 1
    assert "Content Security Policy" in complaints[0]
    assert "<title>owned" not in elements
    assert "background: rgb(26, 35, 40)" in elements  # dark, figures too
    found = re.search(r'<pre id="probe">(.*?)</pre>', elements, re.DOTALL)
    assert found is not None
    down, up, visible, overflow, picture, *files = unescape(found[1]).replace("\xa0", " ").splitlines()
    assert down == "top, 100 % & more,middle,low descending"
    assert up == "low,middle,top, 100 % & more ascending"
    assert visible == "visible false, found 12"  # one line with the word, two of the method without it
    assert overflow == "overflow 0"
    assert picture == "data:image/png;base64,"
    text = "\n".join(files)
    assert text.startswith("way,method,partition,clients,rounds,accuracy_last")
    assert '"top, 100 % & more",fedavg,iid,4,2,0.9,0.9,' in text
    assert "'=SUM(A1),-0.5,'@x,'+1+cmd," in text, "spreadsheets take such text for formulas"
    assert "\\begin{tabular}{lllrr" in text
    assert "top, 100 \\% \\& more & fedavg & iid & 4 & 2 & 90.00~\\%" in text
