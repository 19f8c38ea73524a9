"""Takes the picture of the README: the first widget of lesson 02 on the built site (run `make
book` first).

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
        page = browser.new_page(viewport={"width": 1200, "height": 560}, color_scheme="light")
        page.goto(LESSON.as_uri(), wait_until="networkidle")
        widget = page.locator(".qwl-explore").first
        widget.locator("input[type=range]").first.focus()
        page.keyboard.press("ArrowRight")
        widget.evaluate(
            "(w) => window.scrollBy(0, w.getBoundingClientRect().bottom - window.innerHeight + 30)"
        )
        page.evaluate("document.activeElement.blur()")
        page.wait_for_timeout(500)
        page.screenshot(path=PICTURE)
        browser.close()
    print(f"wrote {PICTURE.relative_to(ROOT)} ({PICTURE.stat().st_size / 1000:.0f} kB)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
