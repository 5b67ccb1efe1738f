"""Charts: which rows of the tables they show, and that the SVG is whole."""

from pathlib import Path
from xml.etree import ElementTree

import pytest

from bench import charts
from bench.groups import run_groups
from bench.measure import Measure

FIGURES = Path(__file__).parents[2] / "docs/figures"
TABLE = """\
| measure | 8K | 32K | to reach |
|---|--:|--:|--:|
| facts | 27–36% | 100% | 85 % |
| – another | 8–10% |  | |
"""


def test_a_row_with_a_dash_belongs_to_the_row_above_it() -> None:
    cells = charts.cells_of(f"Words.\n\n{TABLE}\n| measure | ours |\n|---|---|\n| speed | 2 ms |\n")
    assert (cells["facts", "32K"], cells["facts – another", "8K"]) == ("100%", "8–10%")
    assert cells["speed", "ours"] == "2 ms"


def test_bars_are_as_long_as_their_figures_and_labels_are_escaped() -> None:
    drawn = ElementTree.fromstring(
        charts.bar_chart("A & B", ("ours", "floor"), [("<one>", ["1,000 ms", "250–750 ms"])])
    )
    space = "{http://www.w3.org/2000/svg}"
    assert [bar.get("width") for bar in drawn.iter(f"{space}rect")][-2:] == ["320", "160"]
    assert {"A & B", "<one>", "1,000 ms", "250–750 ms"} <= {text.text for text in drawn.iter(f"{space}text")}


def test_a_table_without_all_rows_of_a_chart_writes_none(tmp_path: Path) -> None:
    assert (charts.write(TABLE, tmp_path), list(tmp_path.iterdir())) == ([], [])


@pytest.mark.parametrize(("options", "tables"), [([], 1), (["--quick"], 0)])
def test_a_whole_run_of_the_benchmark_draws_its_charts(
    options: list[str], tables: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = list[str]()
    monkeypatch.setattr(charts, "write", drawn.append)
    monkeypatch.setattr("sys.argv", ["bench", *options])
    with pytest.raises(SystemExit):
        run_groups("bench", None, {"one": lambda _: [Measure(name="speed", ours=2, unit="ms", bar=3)]})
    assert len(drawn) == tables
    assert all("| speed | 2 ms |" in table for table in drawn)


@pytest.mark.parametrize("page", ["performance", "quality"])
def test_the_tables_of_the_documentation_have_all_rows_of_its_charts(page: str, tmp_path: Path) -> None:
    shown = [chart.file for chart in charts.CHARTS if chart.file in (FIGURES / f"{page}.md").read_text("utf-8")]
    assert 0 < len(shown) <= 3
    assert charts.write((FIGURES / f"{page}-tables.md").read_text("utf-8"), tmp_path) == shown
    for name in shown:
        ElementTree.parse(FIGURES / name)
