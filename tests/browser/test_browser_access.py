"""For everybody: keys, keyboard, screen readers, themes, small screens."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest
from playwright.sync_api import expect

from nearkin.serve.settings import Key

VIEWS = ["identify", "map", "review", "items", "model"]
SIZES = {"light": (1280, 860, "light"), "dark": (1280, 860, "dark"), "narrow": (390, 844, "light")}

HERE = Path(__file__).parent
RULES = (HERE / "rules.js").read_text()
# Pictures further down are asked for when they come into sight.
LOADED = "() => [...document.images].every((each) => each.complete || each.getBoundingClientRect().top > innerHeight)"
CONTRAST = (HERE / "contrast.js").read_text()
WRITES = re.compile("Enrol|wrong|Relabel|Remove|Delete|Edit|Undo")


def settle(page):
    """Wait until the view has what it asked for."""
    page.wait_for_load_state("networkidle")
    expect(page.locator("main [aria-busy=true]")).to_have_count(0)


def test_the_page_loads_quietly_and_from_nowhere_else(serve, visit, browser):
    address, _ = serve()
    page = visit("about:blank")
    asked, answers = [], []
    page.on("request", lambda request: asked.append(request.url))
    page.on("response", lambda response: answers.append(response))
    page.add_init_script(
        "addEventListener('securitypolicyviolation', (event) => console.error(event.violatedDirective))"
    )
    page.goto(address)
    for view in VIEWS:
        page.goto(f"{address}/#/{view}")
        settle(page)
    assert [url for url in asked if not url.startswith((address, "blob:", "data:"))] == []
    assert [answer.url for answer in answers if answer.status >= 400] == []
    policy = answers[0].headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy


@pytest.mark.parametrize("view", VIEWS)
def test_rules_of_accessibility_hold(serve, visit, picture, view):
    page = visit(f"{serve()[0]}/#/{view}")
    settle(page)
    if view == "identify":
        page.set_input_files("#file", picture("red disc"))
        expect(page.locator(".verdict")).to_be_visible()
        page.get_by_role("button", name="Enrol as").click()
        settle(page)
    found = page.evaluate(RULES)
    assert {rule: offenders for rule, offenders in found.items() if offenders} == {}
    for theme in ("light", "dark"):
        page.emulate_media(color_scheme=theme, reduced_motion="reduce")
        contrast = page.evaluate(CONTRAST)
        assert contrast["seen"] > 10
        assert contrast["pale"] == []


def test_a_key_is_asked_for_kept_for_the_visit_and_sent(serve, visit, picture):
    key = "open sesame"
    address, _ = serve(keys=(Key("read", hashlib.sha256(key.encode()).hexdigest()),))
    page = visit(address, refused=True)
    dialog = page.get_by_role("dialog", name="API key")
    expect(dialog).to_contain_text("API key")
    expect(page.get_by_label("Key", exact=True)).to_be_focused()
    page.keyboard.type("wrong")
    page.keyboard.press("Enter")
    expect(dialog).to_contain_text("accepted")
    page.keyboard.type(key)
    page.keyboard.press("Enter")
    expect(dialog).to_be_hidden()
    page.set_input_files("#file", picture("red disc"))
    expect(page.locator(".verdict .label")).to_have_text("red disc")
    # An img cannot send a key: these come by another way.
    expect(page.locator(".neighbours img").first).to_have_attribute("src", re.compile("^blob:"))
    assert (
        page.locator(".neighbours img").first.evaluate("(image) => image.decode().then(() => image.naturalWidth)") > 0
    )
    assert page.evaluate("sessionStorage.length + ':' + JSON.stringify(localStorage)") == "1:{}"
    page.reload()
    page.get_by_role("link", name="Items", exact=True).click()
    expect(page.locator("table.items tbody tr")).to_have_count(30)
    expect(dialog).to_be_hidden()


def test_a_refused_write_is_told_where_the_service_does_not_say_what_one_may(serve, visit):
    address, gallery = serve(read_only=True)
    page = visit("about:blank", refused=True)

    def silent(route) -> None:
        told = route.fetch().json()
        route.fulfill(json={name: value for name, value in told.items() if name != "may"})

    page.route("**/v1/model", silent)
    page.goto(f"{address}/#/items")
    before = gallery.get("0-00").label
    page.get_by_role("button", name="Edit label of 0-00").click()
    page.get_by_label("Label of 0-00", exact=True).fill("other")
    page.keyboard.press("Enter")
    expect(page.locator("#problems .problem")).to_be_visible()
    assert gallery.get("0-00").label == before


def test_who_may_only_read_is_offered_no_writes_and_told_why(serve, visit, picture):
    page = visit(serve(read_only=True)[0])
    reader = page.locator(".reader")
    page.set_input_files("#file", picture("red disc"))
    expect(page.locator(".verdict")).to_be_visible()
    expect(page.get_by_role("link", name="Show in map")).to_be_visible()
    for view in VIEWS:
        page.evaluate(f"location.hash = '#/{view}'")
        settle(page)
        expect(reader).to_contain_text("service")
        assert page.locator("main button:visible", has_text=WRITES).count() == 0
    page.evaluate("location.hash = '#/review'")
    expect(page.locator(".case", has_text="twin-a")).to_be_visible()
    page.evaluate("location.hash = '#/items'")
    expect(page.locator("tbody tr").first).to_be_visible()
    expect(page.get_by_role("columnheader")).to_have_count(4)


def test_another_key_brings_what_it_may_do(serve, visit):
    keys = {"looker": "read", "keeper": "write"}
    address, _ = serve(keys=tuple(Key(role, hashlib.sha256(key.encode()).hexdigest()) for key, role in keys.items()))
    page = visit(f"{address}/#/items", refused=True)
    edit = page.get_by_role("button", name="Edit label of 0-00")
    for key in keys:
        if key == "keeper":
            page.get_by_role("button", name="API key").click()
        page.get_by_label("Key", exact=True).fill(key)
        page.keyboard.press("Enter")
        expect(page.locator("tbody tr").first).to_be_visible()
        expect(edit).to_have_count(1 if key == "keeper" else 0)
        expect(page.locator(".reader")).to_be_visible(visible=key == "looker")
        if key == "looker":
            expect(page.locator(".reader")).to_contain_text("key")


def test_without_a_key_the_page_says_so(serve, visit):
    address, _ = serve(keys=(Key("read", "0" * 64),))
    page = visit(address, refused=True)
    page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
    expect(page.locator("#problems")).to_contain_text("API key")


def test_everything_is_reached_by_keyboard(page, picture):
    # Nothing waits until the browser hands choosers over, so it is told before the first of many round trips.
    page.on("filechooser", lambda chooser: None)
    expect(page.locator("#file")).to_be_attached()
    settle(page)
    page.keyboard.press("Tab")
    expect(page.locator("#skip")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()
    page.keyboard.press("Tab")
    expect(page.locator("#file")).to_be_focused()
    with page.expect_file_chooser() as chooser:
        page.keyboard.press("Space")
    chooser.value.set_files(picture("blue square"))
    expect(page.locator(".verdict .label")).to_have_text("blue square")
    page.keyboard.press("Tab")
    expect(page.get_by_role("button", name="Enrol as")).to_be_focused()
    page.keyboard.press("Enter")
    page.keyboard.type("navy square")
    page.keyboard.press("Enter")
    expect(page.locator(".notice")).to_be_focused()
    page.keyboard.press("Tab")
    expect(page.get_by_role("button", name="Undo")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator(".notice")).to_contain_text("Undone")
    page.get_by_role("link", name="Review", exact=True).focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_be_focused()
    expect(page.get_by_role("link", name="Review", exact=True)).to_have_attribute("aria-current", "page")
    assert page.title() == "Review · nearkin"


def test_the_theme_follows_the_system_until_chosen_and_is_remembered(serve, visit):
    page = visit(serve()[0], color_scheme="dark")
    paper = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(paper)
    page.get_by_role("button", name="Light theme").click()
    light = page.evaluate(paper)
    assert dark != light
    page.reload()
    assert page.evaluate(paper) == light
    page.get_by_role("button", name="Dark theme").click()
    page.emulate_media(color_scheme="light")
    page.reload()
    assert page.evaluate(paper) == dark


def test_a_busy_service_is_told_in_its_own_words(serve, visit):
    page = visit(serve()[0], refused=True)
    expect(page.locator("#file")).to_be_attached()
    page.route(
        "**/v1/**",
        lambda route: route.fulfill(
            status=503,
            headers={"Retry-After": "2"},
            json={"title": "Busy", "detail": "Too many requests are under way."},
        ),
    )
    page.evaluate("location.hash = '#/items'")
    expect(page.locator("#problems")).to_contain_text("2 s")


@pytest.mark.parametrize("look", SIZES)
def test_views_fit_their_screen(serve, visit, picture, screenshots, look):
    width, height, scheme = SIZES[look]
    address, gallery = serve()
    page = visit(address, width=width, height=height, color_scheme=scheme)
    page.set_input_files("#file", picture("red disc"))
    expect(page.locator(".verdict")).to_be_visible()
    for view in VIEWS:
        page.evaluate(f"location.hash = '#/{view}'")
        settle(page)
        if view == "map":
            expect(page.locator(".stage canvas")).to_have_attribute("data-drawn", str(len(gallery)))
        page.wait_for_function(LOADED)
        page.screenshot(path=screenshots / f"{look}-{view}.png")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
