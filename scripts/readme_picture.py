"""Takes the picture of the README and of link previews: the first screen of lesson 02 on the built
site, after its widget has run (run `make book` first).

    .venv/bin/python scripts/readme_picture.py

It needs Chromium (named in QWENLAB_CHROMIUM, else looked up) and Playwright from
requirements-test.txt.
"""

import os
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LESSON = ROOT / "_build" / "html" / "notebooks" / "02-left-padding.html"
PICTURE = ROOT / "book" / "images" / "lesson.png"
WINDOW = {"width": 1320, "height": 692}  # the shape in which links are previewed


def main() -> int:
    chromium = (
        os.environ.get("QWENLAB_CHROMIUM")
        or shutil.which("chromium")
        or shutil.which("google-chrome")
    )
    if not LESSON.is_file() or chromium is None:
        print(
            "this needs the built site (make book) and Chromium (QWENLAB_CHROMIUM=path)",
            file=sys.stderr,
        )
        return 2
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--disable-gpu"]
        )
        page = browser.new_page(viewport=WINDOW, color_scheme="light")
        page.goto(LESSON.as_uri(), wait_until="networkidle")
        page.locator(".qwl-page input").first.wait_for()
        page.wait_for_timeout(2000)  # the model in the page is loaded and has answered
        page.screenshot(path=PICTURE)
        browser.close()
    print(f"wrote {PICTURE.relative_to(ROOT)} ({PICTURE.stat().st_size / 1000:.0f} kB)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
