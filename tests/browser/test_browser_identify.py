"""Asking what something is, and telling the gallery what it is."""

from __future__ import annotations

import base64

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import expect

from nearkin.gallery.gallery import Gallery

TRANSFER = """([selector, kind, name, data]) => {
  const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
  const transfer = new DataTransfer();
  transfer.items.add(new File([bytes], name, { type: "image/png" }));
  const options = { bubbles: true, cancelable: true };
  const event = kind === "paste" ? new ClipboardEvent("paste", { ...options, clipboardData: transfer })
    : new DragEvent(kind, { ...options, dataTransfer: transfer });
  return document.querySelector(selector).dispatchEvent(event);
}"""

PASTE = """(field, text) => {
  const transfer = new DataTransfer();
  transfer.setData("text", text);
  field.dispatchEvent(new ClipboardEvent("paste", { bubbles: true, clipboardData: transfer }));
  // The browser's own doing, which an event made by a script does not set off.
  document.execCommand("insertText", false, text);
}"""


def ask(page, path):
    """Choose a file and wait for the answer to it."""
    page.set_input_files("#file", path)
    expect(page.locator(".filename")).to_have_text(path.name)
    expect(page.locator(".answer")).not_to_have_attribute("aria-busy", "true")
    expect(page.locator(".verdict")).to_be_visible()
    return page.locator(".verdict .label")


def give(page, opener, label):
    """Open one of the two forms and send a label by keyboard."""
    page.get_by_role("button", name=opener).click()
    field = page.locator("form.inline:not([hidden]) input")
    expect(field).to_be_focused()
    field.fill(label)
    field.press("Enter")


def paste(field, text):
    """Paste text into a field, as a reader does."""
    field.focus()
    field.evaluate(PASTE, text)


def test_a_chosen_file_is_identified_with_probability_and_neighbours(page, picture):
    label = ask(page, picture("red disc"))
    expect(label).to_have_text("red disc")
    expect(page.locator(".badge")).to_have_text("Known")
    expected = page.gallery.identify(picture("red disc"))
    meter = page.get_by_role("meter", name="Probability of red disc")
    assert int(meter.get_attribute("aria-valuenow")) == round(100 * expected.probability)
    assert "%" in page.locator(".verdict .percent").inner_text()
    tiles = page.locator(".neighbours .tile")
    expect(tiles).to_have_count(12)
    assert tiles.first.locator(".name").inner_text() == expected.neighbours[0].item.label
    assert f"{expected.neighbours[0].distance:.3f}" in tiles.first.inner_text()
    assert tiles.first.locator("img").evaluate("(image) => image.decode().then(() => image.naturalWidth)") > 0
    expect(page.locator("#status")).to_contain_text("red disc")
    assert page.locator(".easel img").evaluate("(image) => image.naturalWidth") == 96


@pytest.mark.parametrize("way", ["drop", "paste"])
def test_a_dropped_or_pasted_image_is_identified(page, picture, way):
    expect(page.locator("#file")).to_be_attached()
    data = base64.b64encode(picture("green disc").read_bytes()).decode()
    if way == "drop":
        page.evaluate(TRANSFER, ["main", "dragover", "a.png", data])
        expect(page.locator(".question")).to_have_class("question dragged")
    unhandled = page.evaluate(TRANSFER, ["main", way, "a.png", data])
    assert unhandled is False
    expect(page.locator(".verdict .label")).to_have_text("green disc")
    expect(page.locator(".question")).to_have_class("question")


def test_a_new_class_is_enrolled_known_at_once_and_undone(page, picture):
    query = picture("novel", colour=(20, 20, 20))
    ask(page, query)
    before = len(page.gallery)
    give(page, "Enrol as", "black disc")
    expect(page.locator(".notice")).to_contain_text("black disc")
    assert len(page.gallery) == before + 1
    expect(page.locator("#labels option[value='black disc']")).to_be_attached()
    page.get_by_role("button", name="Ask again").click()
    expect(page.locator(".verdict .label")).to_contain_text("black disc")
    give(page, "Enrol as", "black disc")
    page.get_by_role("button", name="Undo").click()
    expect(page.locator(".notice")).to_contain_text("Undone")
    assert len(page.gallery) == before + 1


def test_a_wrong_answer_is_corrected_and_the_item_that_misled_relabelled(page, picture):
    query = picture("red disc", seed=700)
    assert page.gallery.identify(query).neighbours[0].item.id == "wrong"
    ask(page, query)
    give(page, "Wrong? Correct it", "crimson disc")
    expect(page.locator(".notice").first).to_contain_text("crimson disc")
    assert page.gallery.stats().classes["crimson disc"] == 1
    expect(page.locator(".misled")).to_contain_text("blue square")
    page.get_by_role("button", name="Relabel it to “crimson disc”").click()
    expect(page.locator(".notice").first).to_contain_text("labelled")
    assert page.gallery.get("wrong").label == "crimson disc"
    page.get_by_role("button", name="Undo").click()
    expect(page.locator(".notice")).to_contain_text("Undone")
    assert page.gallery.get("wrong").label == "blue square"


def test_a_label_of_a_thousand_characters_is_taken_whole_and_more_is_not_cut_unsaid(page, picture):
    ask(page, picture("red disc"))
    page.get_by_role("button", name="Enrol as").click()
    field = page.get_by_label("Label", exact=True)
    note = page.locator("form.inline:not([hidden]) [role=status]")
    paste(field, "x" * 1001)
    expect(note).to_contain_text("1000")
    expect(field).to_have_value("x" * 1000)
    field.fill("")
    paste(field, "x" * 1000)
    page.wait_for_timeout(50)
    expect(note).to_be_empty()
    field.press_sequentially("y")
    field.press("Enter")
    expect(page.locator(".notice").first).to_contain_text("xxx")
    assert page.gallery.stats().classes["x" * 1000] == 1


def test_blanks_around_a_label_are_left_out_and_that_is_told(page, picture):
    page.gallery.relabel("twin-a", " navy ")
    page.reload()
    expect(page.locator("#labels option[value=' navy ']")).to_be_attached()
    ask(page, picture("red disc"))
    give(page, "Enrol as", "   ")
    expect(page.locator("form.inline:not([hidden]) [role=status]")).not_to_be_empty()
    page.get_by_role("button", name="Enrol as").click()
    give(page, "Enrol as", " ruby disc ")
    expect(page.locator(".notice")).to_contain_text("ruby disc")
    assert page.gallery.stats().classes["ruby disc"] == 1
    # A label that the gallery spells with blanks is meant as it is.
    give(page, "Enrol as", " navy ")
    expect(page.locator(".notice p")).to_contain_text("navy")
    assert page.gallery.stats().classes[" navy "] == 2


def test_an_unknown_thing_is_called_unknown_in_words(page, picture):
    query = picture("novel", colour=(0, 255, 255))
    assert page.gallery.identify(query).known is False
    ask(page, query)
    expect(page.locator(".badge")).to_have_text("Unknown")
    expect(page.locator(".badge svg")).to_be_visible()
    expect(page.locator(".verdict .label")).to_contain_text("nearest")
    expect(page.locator(".verdict .hint")).to_contain_text("class")


def test_what_cannot_be_told_is_said_with_the_forecast_beside_it(page, picture):
    page.gallery.recalibrate(strangers=0.1)
    query = picture("red disc")
    match = page.gallery.identify(query)
    assert match.known is None
    ask(page, query)
    expect(page.locator(".badge")).to_have_text("Cannot tell")
    expect(page.locator(".verdict .label")).to_contain_text("perhaps")
    expect(page.locator(".verdict .hint").last).to_have_text(match.reason)
    expect(page.locator("#status")).to_contain_text("Cannot tell")
    rows = page.locator(".forecast tbody tr")
    expect(rows).to_have_count(2)
    told = match.forecast
    for row, shares in enumerate(
        ((told.enrolled_known, told.enrolled_unknown), (told.strangers_known, told.strangers_unknown))
    ):
        known, rest, unknown = rows.nth(row).locator("td").all_inner_texts()
        for text, share in ((known, shares[0]), (unknown, shares[1]), (rest, 1 - sum(shares))):
            assert abs(int(text.strip("<> %")) - 100 * share) <= 1
    expect(rows.first.locator(".here")).to_have_text(rows.first.locator("td").nth(1).inner_text())


def test_a_gallery_with_little_in_it_says_why_it_is_not_sure(serve, visit, template, tmp_path, picture):
    model = next(template.glob("model-*.safetensors"))
    small = Gallery.create(
        tmp_path / "small.gallery", model, [Image.new("RGB", (40, 40), "red")], ["red"], progress=False
    )
    page = visit(serve(small)[0])
    ask(page, picture("red disc"))
    expect(page.locator(".badge")).to_have_text("Cannot tell")
    expect(page.locator(".verdict [role=meter]")).to_have_count(0)
    expect(page.locator(".verdict .hint")).to_have_text(small.identify(picture("red disc")).reason)


def test_a_file_that_is_no_image_is_refused_in_plain_words(serve, visit, tmp_path):
    page = visit(serve()[0], refused=True)
    broken = tmp_path / "notes.png"
    broken.write_text("no image")
    page.set_input_files("#file", broken)
    problem = page.locator("#problems[role=alert] .problem")
    expect(problem).to_be_visible()
    assert len(problem.inner_text()) > 15
    expect(page.locator(".empty")).to_be_visible()
    page.get_by_role("button", name="Dismiss").click()
    expect(problem).to_have_count(0)


@pytest.mark.parametrize("size", [(1600, 400), (400, 1600)])
def test_a_photo_of_any_shape_moves_nothing_and_is_seen_whole(page, tmp_path, size):
    photo = tmp_path / "photo.jpg"
    Image.new("RGB", size, "red").save(photo)
    before = page.locator(".easel").bounding_box()
    ask(page, photo)
    assert page.locator(".easel").bounding_box() == before
    assert page.locator(".easel img").bounding_box() == before
    assert page.locator(".easel img").evaluate("(image) => getComputedStyle(image).objectFit") == "contain"


def test_a_gallery_of_vectors_takes_a_vector(serve, visit, tmp_path):
    rng = np.random.default_rng(0)
    centres = np.eye(3)
    vectors = np.concatenate([centres[row] + rng.normal(0, 0.05, (15, 3)) for row in range(3)])
    labels = [name for name in ("x", "y", "z") for _ in range(15)]
    gallery = Gallery.create(tmp_path / "v.gallery", None, vectors, labels, dimension=3, name="axes", progress=False)
    page = visit(serve(gallery)[0])
    expect(page.locator(".question")).to_contain_text("image")
    field = page.get_by_label("Vector of 3 numbers")
    for text, error in [("hello", "numbers"), ("[1, 2]", "2 numbers")]:
        field.fill(text)
        page.get_by_role("button", name="Identify").click()
        expect(page.locator("#vector-error")).to_contain_text(error)
        expect(field).to_be_focused()
    field.fill("[0, 1, 0]")
    page.get_by_role("button", name="Identify").click()
    expect(page.locator(".verdict .label")).to_have_text("y")
    give(page, "Enrol as", "y axis")
    expect(page.locator(".notice").last).to_contain_text("y axis")
    assert gallery.stats().classes["y axis"] == 1
    page.get_by_role("link", name="Map", exact=True).click()
    expect(page.locator(".querynote")).to_contain_text("query")
