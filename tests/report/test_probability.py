"""Pictures of p(class | x): the geometry of a globe, marks where they belong, one scale of colours, bad input."""

import io
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from nearkin.errors import DataError
from nearkin.report.probability import Globe, ProbabilityPanel, draw_globes, draw_planes, globe_points

SIGNATURE = b"\x89PNG\r\n\x1a\n"
CLASSES = ("red", "green", "blue")
VIEWS = ((1.0, 1.0, 2.0), (-1.0, -1.0, -2.0))
NAMES = ("front", "back")


def plane(**changes):
    line = np.linspace(-2, 2, 40)
    x, y = np.meshgrid(line, line)
    values = np.exp(-(x**2) - (y - 1) ** 2)
    points = np.array([[0.0, 1.0], [-1.0, 0.0], [1.0, 0.0]])
    return replace(ProbabilityPanel("DR", values, points, points[:1], points[1:], half=2.0, note="at red 1"), **changes)


def sphere(**changes):
    values = np.stack([np.clip(globe_points(view, 30)[..., 2], 0, 1) for view in VIEWS])
    points = np.eye(3)[::-1].copy()
    return replace(ProbabilityPanel("DR", values, points, points[:1], points[1:]), **changes)


def figure_of(monkeypatch, draw, *arguments):
    kept = []
    monkeypatch.setattr("nearkin.report.canvas.to_png", lambda figure: kept.append(figure) or b"")
    draw(*arguments)
    return kept[0]


def offsets(axes, zorder):
    found = [np.asarray(c.get_offsets()) for c in axes.collections if c.get_zorder() == zorder and len(c.get_offsets())]
    return np.concatenate(found) if found else np.zeros((0, 2))


def test_pictures_are_retina_pngs_that_depend_on_nothing_else():
    pictures = [
        lambda: draw_planes([plane()] * 3, CLASSES),
        lambda: draw_globes([sphere()] * 3, CLASSES, VIEWS, NAMES),
    ]
    for picture in pictures:
        png = picture()
        assert png.startswith(SIGNATURE)
        assert Image.open(io.BytesIO(png)).width == 2 * 720
        assert picture() == png


@pytest.mark.parametrize(("count", "columns"), [(1, 3), (2, 1), (4, 3), (5, 4)])
def test_panels_stand_in_rows(monkeypatch, count, columns):
    figure = figure_of(monkeypatch, draw_planes, [plane(title=str(i)) for i in range(count)], CLASSES, columns)
    panels = figure.axes[:-1]  # the last one is the colour bar
    assert [axes.get_title(loc="left") for axes in panels] == [str(i) for i in range(count)]
    assert len({axes.get_subplotspec().colspan.start for axes in panels}) == min(count, columns)


def test_nothing_to_draw_gives_no_bytes():
    assert draw_planes([], CLASSES) == b""
    assert draw_globes([], CLASSES, VIEWS, NAMES) == b""


def test_the_plane_is_drawn_upright_with_marks_at_their_points(monkeypatch):
    panel = plane()
    axes = figure_of(monkeypatch, draw_planes, [panel], CLASSES).axes[0]
    (image,) = axes.images
    np.testing.assert_allclose(np.asarray(image.get_array()), panel.values)
    assert image.origin == "lower"
    assert tuple(image.get_extent()) == (-2, 2, -2, 2)
    assert image.get_clim() == (0, 1)
    np.testing.assert_allclose(offsets(axes, 8), panel.representatives)
    rings = offsets(axes, 6)
    assert {tuple(point) for point in rings} == {(0.0, 1.0), (-1.0, 0.0), (1.0, 0.0)}
    assert [text.get_text() for text in axes.texts if text.get_text()] == ["r", "g", "b", "at red 1"]


def test_a_peak_at_the_edge_has_an_arrow_whose_tip_it_is(monkeypatch):
    inside = figure_of(monkeypatch, draw_planes, [plane()], CLASSES).axes[0]
    assert not [text for text in inside.texts if getattr(text, "arrow_patch", None)]
    edge = plane(highest=np.array([[0.5, 2.0]]), lowest=np.array([[-2.0, -2.0]]))
    axes = figure_of(monkeypatch, draw_planes, [edge], CLASSES).axes[0]
    arrows = {tuple(text.xy): text.xyann for text in axes.texts if getattr(text, "arrow_patch", None)}
    assert set(arrows) == {(0.5, 2.0), (-2.0, -2.0)}
    assert arrows[0.5, 2.0][0] == 0.5
    assert arrows[0.5, 2.0][1] < 2
    assert (np.array(arrows[-2.0, -2.0]) > -2).all()


def test_marks_behind_a_globe_are_on_the_other_view_only(monkeypatch):
    panel = sphere(lowest=-np.eye(3)[2:])
    figure = figure_of(monkeypatch, draw_globes, [panel], CLASSES, VIEWS, NAMES)
    front, back = figure.axes[:2]
    assert (len(offsets(front, 8)), len(offsets(back, 8))) == (3, 0)
    np.testing.assert_allclose(offsets(front, 8), Globe(VIEWS[0]).project(panel.representatives))
    np.testing.assert_allclose(offsets(front, 6), Globe(VIEWS[0]).project(panel.highest).repeat(2, axis=0))
    np.testing.assert_allclose(offsets(back, 6), Globe(VIEWS[1]).project(panel.lowest).repeat(2, axis=0))
    assert [axes.get_ylabel() for axes in (front, back)] == list(NAMES)


views = st.tuples(*[st.floats(-1, 1)] * 3).filter(lambda view: np.linalg.norm(view) > 0.1)


@given(views, st.integers(2, 12))
def test_points_of_a_globe_are_seen_where_their_pixels_are(view, size):
    points = globe_points(view, size)
    assert points.shape == (size, size, 3)
    np.testing.assert_allclose(np.linalg.norm(points, axis=-1), 1)
    globe = Globe(view)
    assert globe.visible(points.reshape(-1, 3)).all()
    line = (np.arange(size) + 0.5) / size * 2 - 1
    x, y = np.meshgrid(line, line)
    within = np.hypot(x, y) <= 1
    np.testing.assert_allclose(globe.project(points[within]), np.stack([x[within], y[within]], axis=1), atol=1e-12)


@given(views)
def test_a_globe_is_not_mirrored_and_its_north_is_up(view):
    globe = Globe(view)
    np.testing.assert_allclose(np.cross(globe.right, globe.up), globe.towards, atol=1e-12)
    np.testing.assert_allclose(globe.towards, np.array(view) / np.linalg.norm(view))
    assert globe.project(np.array([[0.0, 0.0, 1.0]]))[0, 1] >= -1e-4  # seen from above, north is in the middle
    for line in globe.graticule():
        seen = line[np.isfinite(line).all(axis=1)]
        assert (np.linalg.norm(seen, axis=1) <= 1 + 1e-9).all()


@pytest.mark.parametrize("view", [(0, 0, 1), (0, 0, -3.0)])
def test_a_globe_can_be_seen_from_above_a_pole(view):
    assert np.isfinite(globe_points(view, 5)).all()


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"values": np.zeros(5)}, "probabilities"),
        ({"values": np.full((4, 4), 1.5)}, "probabilities"),
        ({"values": np.full((4, 4), np.nan)}, "probabilities"),
        ({"values": "abc"}, "numbers"),
        ({"values": np.zeros((1, 4))}, "probabilities"),
        ({"representatives": np.zeros((2, 2))}, "representatives"),
        ({"highest": np.zeros((1, 3))}, "highest"),
        ({"lowest": np.array([[np.inf, 0.0]])}, "lowest"),
        ({"half": 0.0}, r"0\.0"),
    ],
)
def test_what_cannot_be_drawn_is_told(change, match):
    with pytest.raises(DataError, match=match):
        draw_planes([plane(**change)], CLASSES)


def test_globes_that_cannot_be_drawn_are_told():
    with pytest.raises(DataError, match="probabilities"):
        draw_globes([sphere(values=np.zeros((1, 9, 9)))], CLASSES, VIEWS, NAMES)
    with pytest.raises(DataError, match="names"):
        draw_globes([sphere()], CLASSES, VIEWS, NAMES[:1])
    with pytest.raises(DataError, match="0"):
        draw_globes([sphere()], CLASSES, [(0, 0, 0)], ["nowhere"])
    with pytest.raises(DataError, match="5"):
        draw_globes([sphere()] * 5, CLASSES, VIEWS, NAMES)
    with pytest.raises(DataError, match="0"):
        draw_planes([plane()], CLASSES, columns=0)
