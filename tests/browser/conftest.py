"""A real gallery behind a real service in a real browser; everything on this machine.

Screenshots are kept in the directory NEARKIN_SCREENSHOTS, if it is set.
"""

from __future__ import annotations

import os
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest
import uvicorn
from PIL import Image, ImageDraw
from playwright.sync_api import expect, sync_playwright

from nearkin.gallery.gallery import Gallery
from nearkin.models import ModelSection, build_embedder
from nearkin.serve.app import create_app
from nearkin.serve.settings import ServeSettings

MARKUP = '<img src=x onerror="window.hacked=1">'
CLASSES = {
    "red disc": ("ellipse", (200, 40, 40)),
    "blue square": ("rectangle", (40, 70, 200)),
    "green disc": ("ellipse", (30, 150, 70)),
    "yellow square": ("rectangle", (230, 190, 30)),
    MARKUP: ("rectangle", (240, 120, 200)),
}
EACH = 14
WAIT = 10_000  # milliseconds; two busy cores are slow
expect.set_options(timeout=WAIT)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark all tests of this folder, before those with the mark are left out."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.browser)


def draw(shape: str, colour: tuple[int, int, int], seed: int) -> Image.Image:
    """A coloured shape somewhere on a grey ground."""
    rng = np.random.default_rng(seed)
    ground = int(rng.integers(225, 245))
    image = Image.new("RGB", (96, 96), (ground, ground, ground + 8))
    left, top = rng.integers(8, 30, 2)
    side = int(rng.integers(44, 56))
    shade = tuple(int(np.clip(part + rng.integers(-14, 15), 0, 255)) for part in colour)
    getattr(ImageDraw.Draw(image), shape)([left, top, left + side, top + side], fill=shade)
    return image


@pytest.fixture(scope="session")
def picture(tmp_path_factory) -> Callable[..., Path]:
    """Files of pictures that are not enrolled: `picture("red disc")`, or with a colour of its own."""
    folder = tmp_path_factory.mktemp("queries")

    def make(name: str, seed: int = 900, colour: tuple[int, int, int] | None = None) -> Path:
        shape, usual = CLASSES.get(name, ("ellipse", (0, 0, 0)))
        path = folder / f"{len(list(folder.iterdir()))}.png"
        draw(shape, colour or usual, seed).save(path)
        return path

    return make


@pytest.fixture(scope="session")
def template(tmp_path_factory) -> Path:
    """A gallery of shapes with one wrong label (`wrong`) and one item twice (`twin-a`, `twin-b`)."""
    images, labels, ids = [], [], []
    for row, (label, (shape, colour)) in enumerate(CLASSES.items()):
        for item in range(EACH):
            images.append(draw(shape, colour, 100 * row + item))
            labels.append(label)
            ids.append(f"{row}-{item:02d}")
    red, blue = CLASSES["red disc"], CLASSES["blue square"]
    images += [draw(*red, 700), draw(*blue, 800), draw(*blue, 800)]
    labels += ["blue square", "blue square", "blue square"]
    ids += ["wrong", "twin-a", "twin-b"]
    model = build_embedder(ModelSection(backbone="conv4", size=32, dimension=64), seed=0)
    path = tmp_path_factory.mktemp("template") / "shapes.gallery"
    metadata = [{"row": row, "checked": row % 2 == 0} for row in range(len(images))]
    with Gallery.create(path, model, images, labels, metadata, ids=ids, name="shapes", progress=False) as gallery:
        gallery.recalibrate(strangers=0.5)  # five classes cannot promise that fewer pass
    return path


@contextmanager
def serving(gallery: Gallery, settings: ServeSettings) -> Iterator[str]:
    """Serve a gallery in a thread; gives its address."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        app = create_app(gallery, settings.__class__(**{**vars(settings), "port": port}))
        server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="on", ws="none"))
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        until = time.monotonic() + 20
        while not server.started and thread.is_alive() and time.monotonic() < until:
            time.sleep(0.01)
        assert server.started
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            server.should_exit = True
            thread.join(10)


@pytest.fixture
def serve(template, tmp_path) -> Iterator[Callable[..., tuple[str, Gallery]]]:
    """Serve a fresh copy of the gallery, or a gallery given: `address, gallery = serve()`."""
    with ExitStack() as stack:

        def start(gallery: Gallery | None = None, **settings) -> tuple[str, Gallery]:
            if gallery is None:
                gallery = Gallery.open(shutil.copytree(template, tmp_path / "copy.gallery"))
            stack.enter_context(gallery)
            return stack.enter_context(serving(gallery, ServeSettings(**settings))), gallery

        yield start


@pytest.fixture(scope="session")
def browser():
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        pytest.skip("no browser is at hand: install chromium")
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=found, args=["--no-sandbox", "--disable-gpu"])
        yield running
        running.close()


@pytest.fixture
def visit(browser) -> Iterator[Callable]:
    """Open a page: `page = visit(address, color_scheme="dark")`. What its console complains of fails the test.

    A refused request is also told in the console; tests that want one to be refused say `refused=True`.
    """
    with ExitStack() as stack:
        complaints: list[str] = []

        def open_page(address: str, *, refused: bool = False, width: int = 1280, height: int = 860, **options):
            context = stack.enter_context(browser.new_context(viewport={"width": width, "height": height}, **options))
            page = context.new_page()
            page.set_default_timeout(WAIT)

            def told(message) -> None:
                if message.type in ("error", "warning") and not (refused and "Failed to load" in message.text):
                    complaints.append(message.text)

            page.on("console", told)
            page.on("pageerror", lambda error: complaints.append(str(error)))
            page.goto(address)
            return page

        yield open_page
        assert complaints == []


@pytest.fixture
def page(serve, visit):
    """The page over a fresh copy of the gallery; `page.gallery` is that gallery."""
    address, gallery = serve()
    opened = visit(address)
    opened.gallery = gallery
    return opened


@pytest.fixture(scope="session")
def screenshots(tmp_path_factory) -> Path:
    """Where pictures of the page go."""
    given = os.environ.get("NEARKIN_SCREENSHOTS")
    folder = Path(given) if given else tmp_path_factory.mktemp("screenshots")
    folder.mkdir(parents=True, exist_ok=True)
    return folder
