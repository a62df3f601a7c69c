"""A figure to turn with the mouse as one HTML file that needs nothing else, not even a network."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Any

from fedstill.core.errors import FedstillError, InputError
from fedstill.core.files import write_atomically
from fedstill.report.pictures.colours import INK

# By day as the figure says; by night light ink on dark paper. Plotly's menus light up what the mouse is over, whatever
# the colour of their words: that is overruled.
_PAPER, _INK, _HOVER = "#12191d", "#e2eaed", "#2a373e"
_HEAD = f"""<meta name="color-scheme" content="light dark"><style>
@media (prefers-color-scheme: dark) {{
  body {{ background: {_PAPER}; }}
  .updatemenu-header-arrow {{ fill: {_INK} !important; }}
  .updatemenu-item-rect {{ fill: {_PAPER} !important; }}
  .updatemenu-dropdown-button:hover .updatemenu-item-rect {{ fill: {_HOVER} !important; }}
}}
</style>"""
_DRESS = """
(function () {
  const figure = document.getElementById("{plot_id}"), night = matchMedia("(prefers-color-scheme: dark)");
  const scenes = Object.keys(figure.layout).filter((name) => /^scene[0-9]*$/.test(name));
  const inked = figure.data.map((trace, at) => at).filter((at) => (figure.data[at].line || {}).color === "DAY_INK");
  function dress() {
    const paper = night.matches ? "NIGHT_PAPER" : "white", ink = night.matches ? "NIGHT_INK" : "DAY_INK";
    const change = { paper_bgcolor: paper, "font.color": ink, "title.font.color": ink };
    scenes.forEach((name) => { change[name + ".bgcolor"] = paper; });
    (figure.layout.updatemenus || []).forEach((menu, at) => { change["updatemenus[" + at + "].bgcolor"] = paper; });
    Plotly.update(figure, inked.length ? { "line.color": ink } : {}, change, inked.length ? inked : undefined);
  }
  night.addEventListener("change", dress);
  if (night.matches) dress();
})();
"""


def write_turning(figure: Any, path: Path, title: str) -> None:
    """Plotly's figure, as high as the window, with plotly itself in the file; dark where its reader prefers that."""
    config = {"displaylogo": False, "responsive": True}
    dress = _DRESS.replace("NIGHT_PAPER", _PAPER).replace("NIGHT_INK", _INK).replace("DAY_INK", INK)
    page = figure.to_html(
        include_plotlyjs=True, full_html=True, default_height="96vh", config=config, post_script=dress
    )
    page = page.replace("<head>", f"<head><title>{escape(title)}</title>{_HEAD}", 1)
    try:
        write_atomically(path, page.encode())
    except FedstillError as error:
        raise InputError(f"{path} cannot be written: {error.__cause__}") from None
