"""The page: structure by the standard parser, nothing fetched, everything escaped, empty parts left out."""

import errno
import math
import os
from html.parser import HTMLParser

import pytest

from nearkin.errors import DataError, StorageError
from nearkin.report import (
    Column,
    ComparisonRow,
    Figure,
    MetricRow,
    Report,
    draw_curves,
    render_comparison,
    render_report,
    write_comparison,
    write_report,
)
from nearkin.report.comparison import Contrast, PairedDifference

EVIL = "<script>alert('x')</script>\"'&"
PNG = draw_curves([{"step": 1, "loss": 2.0}, {"step": 2, "loss": 1.0}])
VOID = {"meta", "link", "img", "br", "rect", "line"}
FETCHING = {"src", "href", "srcset", "data", "action", "poster", "background"}


class Page(HTMLParser):
    """Collect elements and text; fail on tags that do not match."""

    def __init__(self, html):
        super().__init__(convert_charrefs=True)
        self.elements, self.open, self.text, self.headings = [], [], "", []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)
        if tag in ("h1", "h2", "h3"):
            self.headings.append([tag, ""])

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            self.text += data
        if self.open and self.open[-1] in ("h1", "h2", "h3"):
            self.headings[-1][1] += data

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]


def full_report(text="plain"):
    return Report(
        title=f"Title {text}",
        verdict=f"Verdict {text}",
        metrics=[
            MetricRow(f"MAP@R {text}", 0.138, 0.131, 0.145, f"note {text}", baseline=0.13),
            MetricRow("P@1", math.nan),
            MetricRow("radius", 0.873, percent=False),
        ],
        sections=[Figure(f"Curves {text}", f"Caption {text}", PNG, f"Alt {text}"), Figure("Left out", "", b"", "")],
        recipe_yaml=f"name: {text}\n",
        notes=[f"Dropped {text}"],
        facts={f"data {text}": f"folder {text}"},
        next_steps=[f"Run `nearkin audit {text}` now"],
        baseline_name=f"raw {text}",
    )


def comparison(text="plain"):
    rows = [
        ComparisonRow(f"a {text}", f"recipe {text}", {f"M {text}": (0.2, 0.1, 0.3), "r": (2.0, math.nan, math.nan)}),
        ComparisonRow("b", "other", {f"M {text}": (0.1, 0.05, 0.15), "r": (1.0, math.nan, math.nan)}),
    ]
    columns = [Column(f"M {text}"), Column("r", percent=False, lower_is_better=True)]
    figures = [Figure(f"F {text}", f"C {text}", PNG, f"A {text}")]
    contrast = Contrast(f"M {text}", 0, f"H {text}", {1: PairedDifference(-0.1, -0.2, 0.0, 0.3)})
    return render_comparison(
        rows,
        columns,
        title=f"T {text}",
        verdict=f"V {text}",
        figures=figures,
        notes=[f"N {text}"],
        contrast=contrast,
    )


PAGES = {"report": lambda text="plain": render_report(full_report(text)), "comparison": comparison}


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize("text", ["plain", EVIL])
def test_nothing_is_fetched_and_nothing_runs(name, text):
    html = PAGES[name](text)
    page = Page(html)
    for _, attributes in page.elements:
        for key in FETCHING & attributes.keys():
            assert attributes[key].startswith(("data:", "#"))
        assert not any(key.startswith("on") for key in attributes)
    assert not {"script", "iframe", "object", "embed", "form", "base"} & {tag for tag, _ in page.elements}
    assert "default-src 'none'" in page.all("meta")[-1]["content"]
    assert "url(" not in html
    assert "@import" not in html


@pytest.mark.parametrize("name", PAGES)
def test_every_word_of_the_user_is_escaped_and_none_is_lost(name):
    evil, plain = Page(PAGES[name](EVIL)), Page(PAGES[name]("plain"))
    assert plain.text.count("plain") > 5
    assert evil.text.count(EVIL) == plain.text.count("plain")
    assert [tag for tag, _ in evil.elements] == [tag for tag, _ in plain.elements]
    assert evil.all("img")[0]["alt"].endswith(EVIL)


@pytest.mark.parametrize("name", PAGES)
def test_page_is_semantic_and_adapts(name):
    html = PAGES[name]()
    page = Page(html)
    assert html.startswith("<!DOCTYPE html>")
    assert page.all("html")[0]["lang"] == "en"
    assert [tag for tag, _ in page.headings].count("h1") == 1
    assert page.headings[0][0] == "h1"
    assert all(heading.strip() for _, heading in page.headings)
    assert any(meta.get("name") == "viewport" for meta in page.all("meta"))
    for image in page.all("img"):
        assert image["alt"]
        assert image["src"].startswith("data:image/png;base64,")
        assert int(image["width"]) == 720
    for query in ("prefers-color-scheme: dark", "@media print", "max-width: 700px"):
        assert query in html


def test_report_shows_all_its_parts():
    page = Page(render_report(full_report()))
    titles = [heading for _, heading in page.headings]
    assert titles == ["Title plain", "Metrics", "Facts", "Curves plain", "Notes", "What to try next", "Recipe"]
    words = " ".join(page.text.split())
    for part in (
        "13.8 %",
        "13.1 to 14.5 %",
        "13.0 %",
        "+0.8",
        "95 % interval",
        "raw plain",
        "0.873",
        "name: plain",
        "–",
    ):
        assert part in words
    assert "Left out" not in page.text
    assert len(page.all("details")) == 1
    assert len(page.all("code")) == 2


def test_empty_parts_are_left_out():
    html = render_report(Report("Bare"))
    page = Page(html)
    assert page.headings == [["h1", "Bare"]]
    assert not {"table", "img", "details", "ul", "dl", "figure"} & {tag for tag, _ in page.elements}
    assert "nan" not in page.text.lower()
    few = Page(render_report(Report("Few", metrics=[MetricRow("NMI", math.nan)])))
    assert [cell for cell in ("interval", "change", "note", "0 to 100 %") if cell in few.text] == []
    assert "–" in few.text


def test_comparison_marks_the_best_and_has_no_best_of_one():
    page = Page(comparison())
    assert sum("best" in cell.get("class", "").split() for cell in page.all("td")) == 2
    assert [span["aria-label"] for span in page.all("span") if "aria-label" in span] == ["best", "best"]
    alone = Page(render_comparison([ComparisonRow("a", "r", {"M": (0.5, 0.4, 0.6)})]))
    assert not any("best" in cell.get("class", "").split() for cell in alone.all("td"))
    assert Page(render_comparison([])).headings == [["h1", "Comparison"]]


@pytest.mark.parametrize("metric", ["MAP@R", Column("radius", percent=False, lower_is_better=True)])
def test_written_comparison_names_the_best_run(tmp_path, metric):
    rows = [
        ComparisonRow("one", "r", {"MAP@R": (0.3, 0.2, 0.4), "radius": (0.9, math.nan, math.nan)}),
        ComparisonRow("two", "r", {"MAP@R": (0.2, 0.1, 0.3), "radius": (0.5, math.nan, math.nan)}),
    ]
    write_comparison(rows, metric, tmp_path / "c.html", notes=["One seed."])
    page = Page((tmp_path / "c.html").read_text(encoding="utf-8"))
    best = "Best MAP@R: 30.0 %, one." if metric == "MAP@R" else "Best radius: 0.500, two."
    assert best in page.text
    assert len(page.all("img")) == 1
    assert "One seed." in page.text


@pytest.mark.parametrize(
    ("difference", "verdict"),
    [
        (
            PairedDifference(-0.1, -0.15, -0.05, 0.004),
            "Best MAP@R: 30.0 %, one; ahead of two by 10.0 points (p = 0.004).",
        ),
        (
            PairedDifference(-0.1, -0.25, 0.05, 0.2),
            "Best MAP@R: 30.0 %, one; not shown to be better than two (p = 0.20).",
        ),
        (
            PairedDifference(0.1, 0.05, 0.15, 0.004),
            "Best MAP@R: 30.0 %, one; not shown to be better than two (p = 0.004).",
        ),
    ],
    ids=["shown", "not shown", "classes say otherwise"],
)
def test_written_comparison_says_whether_the_lead_is_shown(tmp_path, difference, verdict):
    rows = [
        ComparisonRow("one", "r", {"P@1": (0.5, 0.4, 0.6), "MAP@R": (0.3, 0.2, 0.4)}),
        ComparisonRow("two", "r", {"P@1": (0.4, 0.3, 0.5), "MAP@R": (0.2, 0.1, 0.3)}),
        ComparisonRow("three", "r", {"P@1": (0.4, 0.3, 0.5), "MAP@R": (0.1, 0.0, 0.2)}),
    ]
    far = PairedDifference(-0.2, -0.3, -0.1, 0.002)
    contrast = Contrast("MAP@R", 0, "best", {1: difference, 2: far})
    extra = Figure("By class", "", PNG, "classes")
    write_comparison(rows, "MAP@R", tmp_path / "c.html", contrast=contrast, figures=[extra])
    page = Page((tmp_path / "c.html").read_text(encoding="utf-8"))
    assert verdict in page.text
    assert len(page.all("img")) == 2
    for part in ("difference to best", "reference", "−20.0 points", "−30.0 to −10.0", "p = 0.002"):
        assert part in page.text
    assert page.text.index("MAP@R", page.text.index("recipe")) < page.text.index("P@1")
    heads = [cell for cell in page.all("th") if cell.get("scope") == "col"]
    assert len(heads) == 5


def test_a_contrast_with_a_named_run_leaves_the_verdict_alone(tmp_path):
    rows = [ComparisonRow(name, "r", {"M": (value, 0, 1)}) for name, value in (("one", 0.3), ("two", 0.2))]
    contrast = Contrast("M", 1, "two", {0: PairedDifference(0.1, 0.05, 0.15, 0.004)})
    write_comparison(rows, "M", tmp_path / "c.html", contrast=contrast)
    text = (tmp_path / "c.html").read_text(encoding="utf-8")
    assert "Best M: 30.0 %, one.<" in text
    assert "difference to two" in text


def test_wide_pictures_have_a_row_of_their_own():
    import io

    from PIL import Image

    buffer = io.BytesIO()
    Image.new("RGB", (1801, 10)).save(buffer, "PNG")
    page = Page(
        render_report(Report("x", sections=[Figure("w", "", buffer.getvalue(), "a"), Figure("n", "", PNG, "b")]))
    )
    assert [section.get("class") for section in page.all("section")] == ["wide", None]
    assert page.all("img")[0]["width"] == "901"


def test_same_report_same_page():
    assert render_report(full_report()) == render_report(full_report())


def test_a_figure_that_is_no_png_is_named():
    with pytest.raises(DataError, match="Curves"):
        render_report(Report("x", sections=[Figure("Curves", "", b"<svg>", "")]))


def test_names_that_are_not_unicode_can_be_written(tmp_path):
    path = tmp_path / "deep" / "report.html"
    write_report(Report("x", notes=["skipped bad\udcff.png"]), path)
    assert "skipped bad?.png" in path.read_text(encoding="utf-8")


def test_a_full_disk_leaves_the_old_page(tmp_path, monkeypatch):
    path = tmp_path / "report.html"
    write_report(Report("first"), path)

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(StorageError, match=r"report\.html"):
        write_report(Report("second"), path)
    assert "first" in path.read_text(encoding="utf-8")
    assert os.listdir(tmp_path) == ["report.html"]
