"""A real browser that sees the built site and nothing else."""

import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest
from helpers import FULL
from site_files import CHROMIUM, SITE, built_pages, missing

from qwenlab.teach.in_page import page_model, page_scripts

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",  # nothing else is reached
]
DESK = 1280  # widths of windows
TELEPHONE = 390


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *arguments):
        pass


@pytest.fixture(scope="module")
def address():
    """The site on 127.0.0.1, as `http://127.0.0.1:port/`."""
    built_pages()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(SITE)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def chromium():
    if CHROMIUM is None:
        missing("no Chromium found: install it, or name it in QWENLAB_CHROMIUM")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, headless=True, args=FLAGS)
        yield browser
        CONTEXTS.clear()
        browser.close()


CONTEXTS = {}  # of the browser that runs, by their options


def open_page(chromium, address: str, **options):
    """A tab without a network, and what it complains of.

    Tabs of the same options share a context, so that their scripts are compiled once: close the
    tab alone.
    """
    key = repr(sorted(options.items()))
    if key not in CONTEXTS:
        CONTEXTS[key] = chromium.new_context(offline=True, **options)
    page = CONTEXTS[key].new_page()
    complaints = []
    page.on("console", lambda m: complaints.append(m.text) if m.type == "error" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on(
        "request",
        lambda r: complaints.append(r.url) if not r.url.startswith(("file:", "data:")) else None,
    )
    page.goto(address)
    return page, complaints


def write_widget_page(folder, name: str, on: str = "tiny", **options) -> str:
    """A page that holds one widget on the model `on`, as the site has it, scripts and weights
    beside it. Its address, as a file."""
    for file, script in page_scripts().items():
        (folder / file).write_text(script, encoding="utf-8")
    model = page_model(on)
    (folder / f"model-{model.name}.js").write_text(model.script(), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QWENLAB_PAGE", "1")
        shown = model.widget(name, **options)._repr_html_()
    head = '<!doctype html><meta charset="utf-8"><script src="loader.js"></script>'
    (folder / "page.html").write_text(head + shown, encoding="utf-8")
    return (folder / "page.html").as_uri()


class Watch:
    """A tab that keeps what went wrong, and what it asked of others than the site."""

    def __init__(self, browser, address, width=DESK, theme="light", scripts=True):
        self.context = browser.new_context(
            viewport={"width": width, "height": 900},
            color_scheme=theme,
            java_script_enabled=scripts,
        )
        self.context.set_default_timeout(120_000)
        self.outside, self.errors = [], []
        self.address = address
        self.page = self.context.new_page()
        self.page.on("request", self._note)
        self.page.on(
            "console",
            lambda m: self.errors.append(m.text) if m.type in ("error", "warning") else None,
        )
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on(
            "response",
            lambda r: self.errors.append(f"{r.status} {r.url}") if r.status >= 400 else None,
        )

    def _note(self, request):
        if not request.url.startswith((self.address, "data:", "blob:")):
            self.outside.append(request.url)

    def open(self, name):
        """Waits for all that the page asks for as it loads; at full count for half a second more
        without a request."""
        self.page.goto(self.address + name, wait_until="networkidle" if FULL else "load")
        return self.page

    def look(self, width, theme):
        """Changes the window, as when a reader turns the telephone or the evening comes."""
        self.page.set_viewport_size({"width": width, "height": 900})
        self.page.emulate_media(color_scheme=theme)
        self.page.wait_for_function(
            "(theme) => [theme, undefined].includes(document.documentElement.dataset.theme)",
            arg=theme,
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.context.close()
