"""One look for every report: what every page has, and its figures as a picture."""

import io

import pytest
from PIL import Image

from reports import Page
from reports.png import draw_png

LINE = {"type": "scatter", "mode": "lines+markers", "name": "a &amp; b", "x": [1, 2, 4], "y": [0.5, None, 0.1]}
FIGURES = {
    "line": {"data": [LINE, LINE | {"name": "c", "line": {"dash": "dot", "color": "#0072b2", "shape": "hv"}}]},
    "log": {
        "data": [LINE],
        "layout": {
            "yaxis": {"type": "log", "autorange": "reversed", "tickvals": [1, 0.1], "ticktext": ["0%", "90%"]},
            "shapes": [{"y0": 0.2, "y1": 0.2}],
        },
    },
    "bars": {
        "data": [{"type": "bar", "name": name, "x": [0.5, 1.5], "y": [1, 2]} for name in "ab"],
        "layout": {"barmode": "stack", "xaxis": {"title": {"text": "seconds"}}, "yaxis": {"tickformat": ".0%"}},
    },
    "gantt": {
        "data": [
            {"type": "bar", "orientation": "h", "base": [0, 3], "x": [2, 4], "y": [0, 1], "marker": {"color": [1, 4]}}
        ],
        "layout": {"yaxis": {"autorange": "reversed"}},
    },
    "heat": {"data": [{"type": "heatmap", "z": [[0, 1], [2, 3]], "y": ["G0", "G1"], "x": [0.5, 1.5], "zmin": 0}]},
    "nothing": {"data": [], "layout": {}},
}


@pytest.mark.parametrize("names", [[name] for name in FIGURES] + [list(FIGURES), []])
def test_every_kind_of_figure_is_drawn(names):
    drawn = draw_png({name: FIGURES[name] for name in names})
    with Image.open(io.BytesIO(drawn)) as picture:
        assert picture.format == "PNG"
        colours = picture.convert("RGB").getcolors(2**20)
    assert len(colours) > 20 or not names or names == ["nothing"]


def test_a_page_says_how_it_was_made_and_lets_its_data_be_copied():
    page = Page("A page")
    page.heading("Speed")
    page.figure(FIGURES["line"])
    page.table(["a"], [[1.5]])
    page.made_by("penstock compare 'a b'", [("models", 3)])
    text = page.html()
    assert "penstock compare &#x27;a b&#x27;" in text
    assert 'aria-label="Copy the data of: Speed"' in text
    assert text.count("<button") == 3
    assert page.png().startswith(b"\x89PNG")
