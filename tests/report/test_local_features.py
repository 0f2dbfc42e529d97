"""The pictures of local features: cells and patches, hulls of classes, single images; and what cannot be drawn."""

from __future__ import annotations

import io
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image
from scipy.spatial.distance import cdist

from nearkin.errors import DataError
from nearkin.report import local_features
from nearkin.report.canvas import HUES
from nearkin.report.local_features import (
    LocalView,
    cell_colours,
    draw_class_hulls,
    draw_pooled,
    draw_prototypes,
    frame,
    thinned,
)

CLASSES = ["auk", "bulbul", "crow"]


def parts(images=6, n=9, m=8, d=2, seed=0):
    """Features (B, n, d), prototypes (m, d), nearest (B, n), labels (B,)."""
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(images, n, d)).astype(np.float32)
    prototypes = features.reshape(-1, d)[:m]
    nearest = cdist(features.reshape(-1, d), prototypes).argmin(axis=1).reshape(images, n)
    return features, prototypes, nearest, np.arange(images) % 3


def view(**options):
    return LocalView.of(*parts(**options))


def active(m=8):
    return np.random.default_rng(1).random((3, m)) < 0.6


def picture(colour="teal", size=(40, 30)):
    return Image.new("RGB", size, colour)


def opened(png):
    image = Image.open(io.BytesIO(png))
    image.load()
    assert image.format == "PNG"
    return image


def figure_of(monkeypatch, module, draw, *arguments):
    kept = []
    monkeypatch.setattr("nearkin.report.canvas.to_png", lambda figure: kept.append(figure) or b"")
    draw(*arguments)
    return kept[0]


@pytest.mark.parametrize("d", [1, 40])
def test_every_picture_is_a_retina_png_that_depends_on_nothing_else(d):
    given = view(d=d)
    patches = {3: [picture()] * 5, 0: [picture("red")]}
    for draw in (
        lambda: draw_prototypes(given),
        lambda: draw_prototypes(given, patches),
        lambda: draw_class_hulls(given, active(), CLASSES),
        lambda: draw_pooled(given, [0, 3, 4], ["a", "b", "c"], [picture(), None, picture(size=(9, 90))]),
    ):
        png = draw()
        assert opened(png).width == 2 * 720
        assert draw() == png


def test_a_single_image_has_half_the_width():
    assert opened(draw_pooled(view(), [2], ["one"], [picture()])).width == 720
    assert draw_pooled(view(), [], [], []) == b""


def test_strips_add_rows_up_to_eight_strips(monkeypatch):
    def height(count):
        patches = {place: [picture()] for place in range(count)}
        return figure_of(monkeypatch, local_features, draw_prototypes, view(m=12), patches).get_figheight()

    assert height(0) < height(1) == height(2) < height(3) < height(8) == height(12)


def test_the_view_measures_in_all_dimensions():
    features, prototypes, nearest, labels = parts(d=5)
    found = LocalView.of(features, prototypes, nearest, labels)
    distances = np.linalg.norm(features - prototypes[nearest], axis=2)
    np.testing.assert_allclose(found.radii, distances.max(axis=1), rtol=1e-5)
    assert found.radius == pytest.approx(distances.max(), rel=1e-5)
    errors = np.linalg.norm(features.mean(axis=1) - prototypes[nearest].mean(axis=1), axis=1)
    np.testing.assert_allclose(found.errors, errors, rtol=1e-4)
    assert (np.linalg.norm(found.gap - found.pcc, axis=1) <= found.errors + 1e-6).all()
    assert (found.errors <= found.radii).all()
    assert found.dimensions == 5


def test_two_dimensions_are_kept_and_more_are_turned_into_the_main_plane():
    from sklearn.decomposition import PCA

    features, prototypes, *rest = parts()
    flat = LocalView.of(features, prototypes, *rest)
    np.testing.assert_allclose(flat.points, features)
    np.testing.assert_allclose(flat.prototypes, prototypes)
    features, prototypes, *rest = parts(d=6)
    found = LocalView.of(features, prototypes, *rest)
    machine = PCA(2, svd_solver="full").fit(features.reshape(-1, 6))
    np.testing.assert_allclose(np.abs(found.prototypes), np.abs(machine.transform(prototypes)), atol=1e-4)
    np.testing.assert_allclose(found.gap, found.points.mean(axis=1), atol=1e-5)


def test_cells_are_tinted_only_where_the_plane_is_all_there_is(monkeypatch):
    flat, deep = (
        figure_of(monkeypatch, local_features, draw_prototypes, view(d=d, m=8)).subfigs[0].axes[0] for d in (2, 3)
    )
    assert (len(flat.images), len(deep.images)) == (1, 0)
    assert flat.get_title(loc="left") == f"8 prototypes, covering radius {view().radius:.3f}"


def test_prototypes_and_strips_carry_the_same_number_and_colour(monkeypatch):
    given = view()
    figure = figure_of(monkeypatch, local_features, draw_prototypes, given, {5: [picture()], 2: [picture()] * 3})
    axes = figure.subfigs[0].axes[0]
    marks = {text.get_text(): text for text in axes.texts}
    for number, place in (("1", 5), ("2", 2)):
        np.testing.assert_allclose(marks[number].xy, given.prototypes[place])
    strips = figure.subfigs[1].subfigs
    assert [strip.axes[0].texts[0].get_text() for strip in strips[:2]] == ["1", "2"]
    assert [sum(len(axes.images) for axes in strip.axes) for strip in strips[:2]] == [1, 3]
    edges = [marks[number].get_bbox_patch().get_edgecolor() for number in "12"]
    assert edges == [strip.axes[0].texts[0].get_bbox_patch().get_edgecolor() for strip in strips[:2]]
    assert edges[0] != edges[1]


def test_neighbouring_cells_differ_in_colour():
    prototypes = np.random.default_rng(0).normal(size=(48, 2))
    colours = cell_colours(prototypes, first=[7, 30, 31])
    nearest = np.argsort(cdist(prototypes, prototypes), axis=1)[:, 1]
    assert all(colours[place] != colours[near] for place, near in enumerate(nearest))
    assert len({colours[place] for place in (7, 30, 31)}) == 3
    assert set(colours) <= set(HUES)
    assert len(set(cell_colours(np.zeros((40, 2))))) == len(HUES)


def test_hulls_go_through_the_outermost_active_prototypes(monkeypatch):
    from scipy.spatial import ConvexHull

    given, chosen = view(m=8), np.ones((3, 8), dtype=bool)
    figure = figure_of(monkeypatch, local_features, draw_class_hulls, given, chosen, CLASSES)
    outline = figure.subfigs[0].axes[0].lines[0].get_xydata()
    assert {tuple(corner) for corner in outline} == {
        tuple(given.prototypes[place]) for place in ConvexHull(given.prototypes).vertices
    }
    assert [axes.get_title(loc="left") for axes in figure.subfigs[1].axes] == CLASSES


def test_of_many_classes_ten_are_drawn(monkeypatch):
    features, prototypes, nearest, _ = parts(images=13)
    given = LocalView.of(features, prototypes, nearest, np.arange(13))
    names = [f"class {i}" for i in range(13)]
    figure = figure_of(monkeypatch, local_features, draw_class_hulls, given, np.ones((13, 8), dtype=bool), names)
    assert len(figure.subfigs[1].axes) == 10


@pytest.mark.parametrize("count", [0, 1, 2])
def test_classes_with_few_active_prototypes_are_drawn(count):
    chosen = np.zeros((3, 8), dtype=bool)
    chosen[:, :count] = True
    assert opened(draw_class_hulls(view(), chosen, CLASSES)).width == 1440


@pytest.mark.parametrize(("count", "rings"), [(1, 1), (2, 2), (8, 0)])
def test_a_hull_without_area_has_a_ring_of_its_class_at_each_end(monkeypatch, count, rings):
    from matplotlib.colors import to_rgba

    chosen = np.zeros((3, 8), dtype=bool)
    chosen[:, :count] = True
    given = view()
    figure = figure_of(monkeypatch, local_features, draw_class_hulls, given, chosen, CLASSES)

    def found(axes, colour):
        edged = [c for c in axes.collections if len(c.get_edgecolors()) and not len(c.get_facecolors())]
        return [c for c in edged if tuple(c.get_edgecolors()[0]) == to_rgba(colour)]

    together, below = figure.subfigs[0].axes[0], figure.subfigs[1].axes
    sizes = set()
    for place in range(3):
        for axes in (together, below[place]):
            marks = found(axes, HUES[place])
            assert sum(len(mark.get_offsets()) for mark in marks) == rings
            for mark in marks:
                assert {tuple(p) for p in mark.get_offsets().data} == {tuple(p) for p in given.prototypes[:count]}
        sizes |= {float(mark.get_sizes()[0]) for mark in found(together, HUES[place])}
    assert len(sizes) == (3 if rings else 0)  # classes that share a place are all seen


def test_marks_of_prototypes_grow_with_their_mass(monkeypatch):
    given = replace(view(), nearest=np.array([[0] * 6 + [1] * 2 + [4]] * 6))
    figure = figure_of(monkeypatch, local_features, draw_pooled, given, [1], ["x"], [picture()])
    axes = figure.subfigs[1].subfigs[0].axes[1]
    sizes = next(c.get_sizes() for c in axes.collections if len(c.get_offsets()) == 3)
    np.testing.assert_allclose(sizes / sizes[2], [6, 2, 1])
    (circle,) = axes.patches
    assert circle.radius == pytest.approx(given.radii[1])
    assert circle.zorder > max(c.get_zorder() for c in axes.collections if len(c.get_offsets()) != 1)
    assert circle.center == pytest.approx(tuple(given.gap[1]))


def test_points_that_all_coincide_are_drawn():
    same = LocalView.of(np.ones((4, 3, 5)), np.ones((2, 5)), np.zeros((4, 3), dtype=int), np.array([0, 0, 1, 2]))
    assert same.radius == 0.0
    opened(draw_prototypes(same))
    opened(draw_class_hulls(same, np.ones((3, 2), dtype=bool), CLASSES))
    opened(draw_pooled(same, [0], ["x"], [None]))


def test_one_feature_and_one_prototype_are_drawn():
    for d in (1, 2):
        lone = LocalView.of(np.ones((1, 1, d)), np.zeros((1, d)), np.zeros((1, 1), dtype=int), np.array([0]))
        opened(draw_prototypes(lone, {0: [picture(size=(1, 1))]}))
        opened(draw_class_hulls(lone, np.ones((1, 1), dtype=bool), ["only"]))
        opened(draw_pooled(lone, [0], ["a very long name of a class " * 9], [picture(size=(1, 1))]))


def test_names_may_hold_anything():
    names = ["$5 \\alpha", "_hidden", "two\nlines\x00"]
    opened(draw_class_hulls(view(), active(), names))
    opened(draw_pooled(view(), [0, 1, 2], names, [None] * 3))


def test_many_points_are_thinned_evenly():
    kept = thinned(np.arange(10_000), 500)
    assert len(set(kept.tolist())) == 500
    assert 4500 < kept.mean() < 5500
    assert sorted(thinned(np.arange(7), 500)) == list(range(7))


@pytest.mark.parametrize("shape", [1.0, 1.75])
def test_a_frame_holds_everything_on_equal_axes(shape):
    from nearkin.report.canvas import drawing

    points = np.random.default_rng(0).normal(size=(50, 2)) * [9, 1]
    with drawing(300, 300) as figure:
        axes = figure.add_subplot()
        frame(axes, points, shape=shape)
        (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    assert (right - left) / (top - bottom) == pytest.approx(shape)
    assert ((points > (left, bottom)) & (points < (right, top))).all()


@pytest.mark.parametrize(
    ("place", "value", "match"),
    [
        (0, np.zeros((6, 2)), r"\(6, 2\)"),
        (0, np.zeros((0, 9, 2)), "features"),
        (0, np.full((6, 9, 2), np.nan), "features"),
        (0, "abc", "numbers"),
        (1, np.zeros((8, 3)), "prototypes"),
        (1, np.full((8, 2), np.inf), "prototypes"),
        (2, np.zeros((6, 8), dtype=int), r"\(6, 8\)"),
        (2, np.full((6, 9), 8), "prototypes"),
        (3, np.zeros(5, dtype=int), "labels"),
        (3, np.full(6, -1), "class"),
        (3, np.array(["a"] * 6), "class"),
    ],
)
def test_what_does_not_fit_together_is_told(place, value, match):
    given = list(parts())
    given[place] = value
    with pytest.raises(DataError, match=match):
        LocalView.of(*given)


def test_places_that_do_not_exist_are_told():
    with pytest.raises(DataError, match="prototypes"):
        draw_prototypes(view(), {8: [picture()]})
    with pytest.raises(DataError, match="images"):
        draw_pooled(view(), [6], ["x"], [None])
    with pytest.raises(DataError, match="name"):
        draw_pooled(view(), [0, 1], ["x"], [None, None])
    with pytest.raises(DataError, match=r"\(3, 7\)"):
        draw_class_hulls(view(), active(7), CLASSES)
    with pytest.raises(DataError, match="label"):
        draw_class_hulls(view(), active()[:2], CLASSES[:2])
