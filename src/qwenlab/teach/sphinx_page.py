"""Sphinx extension for the book: it tells kernels that a page is being built, drops outputs of an
older library, and redirects old addresses.

- While the book is built, kernels inherit QWENLAB_PAGE, so that `explore` writes every state into
  the page, and compute with one thread, because several make the tiny models slower.
- jupyter-cache keeps executed cells and looks at the notebooks only. When the library has changed
  since, or a module beside the notebooks, the cache is dropped and every page is read again.
- `qwenlab_moved` in _config.yml maps the old places of pages to the new ones. A small page at each
  old address redirects to the new one. So does the site's own address, index.html: the page that
  Jupyter Book writes there names no icon, and some browsers then ask for one that isn't there.
- Models that run in the page (`page_model`) are written once into _static/qwenlab/, with their
  scripts. A page loads no more than loader.js until a widget asks for one. `qwenlab_page_models`
  in _config.yml names the models: shipped ones, or folders of checkpoints.
- A page of prose may have cells that are executed. It gets no launch buttons for that: Colab and
  Binder open notebooks only.
"""

import hashlib
import os
import posixpath
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx
    from sphinx.config import Config

LIBRARY = Path(__file__).resolve().parents[1]
MOVED = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<link rel="icon" href="data:,">
<link rel="canonical" href="{address}">
<script>location.replace("{address}" + location.search + location.hash)</script>
<noscript><meta http-equiv="refresh" content="0; url={address}"></noscript>
</head>
<body><p>{title}: <a href="{address}">it is here</a>.</p></body>
</html>
"""


def setup(app: "Sphinx") -> dict[str, bool]:
    before = {}
    for name in ("QWENLAB_PAGE", "OMP_NUM_THREADS"):
        before[name] = os.environ.get(name)
    os.environ["QWENLAB_PAGE"] = "1"
    os.environ.setdefault("OMP_NUM_THREADS", "1")

    def restore(_app: "Sphinx", _error: Exception | None) -> None:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value

    # "env": when the value changes, every page is read again.
    app.add_config_value("qwenlab_library", "", "env")
    app.connect("config-inited", drop_stale_cache)
    app.add_config_value("qwenlab_moved", {}, "html")
    app.add_config_value("qwenlab_page_models", ["tiny", "tiny-hybrid"], "html")
    app.add_js_file("qwenlab/loader.js")
    app.connect("html-page-context", drop_launch_buttons, priority=100)  # before the theme
    app.connect("build-finished", restore)
    app.connect("build-finished", write_moved)
    app.connect("build-finished", write_page_models)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def drop_stale_cache(app: "Sphinx", config: "Config") -> None:
    """Removes executed cells that another version of the library produced."""
    config.qwenlab_library = library_hash(LIBRARY, Path(app.srcdir) / "notebooks")
    cache = Path(config.nb_execution_cache_path or Path(app.outdir).parent / ".jupyter_cache")
    key = cache / "qwenlab-library"
    if not key.exists() or key.read_text(encoding="utf-8") != config.qwenlab_library:
        shutil.rmtree(cache, ignore_errors=True)
        cache.mkdir(parents=True)
        key.write_text(config.qwenlab_library, encoding="utf-8", newline="\n")


def drop_launch_buttons(app: "Sphinx", page: str, *_: object) -> None:
    """Makes the theme take executed prose for prose, not for a notebook."""
    if page in app.env.all_docs and Path(app.env.doc2path(page)).suffix != ".ipynb":
        app.env.metadata[page].pop("kernelspec", None)


def write_moved(app: "Sphinx", error: Exception | None) -> None:
    """Writes a page at each old address that redirects to the new one, anchor included."""
    if error is not None or app.builder.format != "html":
        return
    for old, new in app.config.qwenlab_moved.items():
        write_redirect(Path(app.outdir), old, new, "This page has moved")
    root = app.config.root_doc
    if root != "index":
        write_redirect(Path(app.outdir), "index", root, app.config.html_title)


def write_redirect(site: Path, old: str, new: str, title: str) -> None:
    """Writes page `old` of the site, which leads on to page `new`. Both are named without .html."""
    path = site / f"{old}.html"
    address = posixpath.relpath(new, posixpath.dirname(old) or ".") + ".html"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(MOVED.format(address=address, title=title), encoding="utf-8", newline="\n")


def write_page_models(app: "Sphinx", error: Exception | None) -> None:
    """The scripts that a model in the page needs, and each model's weights, as scripts."""
    if error is not None or app.builder.format != "html":
        return
    # Imported here: it loads PyTorch, which the rest of this extension does without.
    from qwenlab.teach.in_page import page_model, page_scripts

    folder = Path(app.outdir) / "_static" / "qwenlab"
    folder.mkdir(parents=True, exist_ok=True)
    for name, script in page_scripts().items():
        (folder / name).write_text(script, encoding="utf-8", newline="\n")
    for name in app.config.qwenlab_page_models:
        model = page_model(name)
        (folder / f"model-{model.name}.js").write_text(
            model.script(), encoding="utf-8", newline="\n"
        )


def library_hash(folder: Path, notebooks: Path) -> str:
    """A hash of the names and contents of all files of the library, sources and checkpoints, and of
    the modules beside the notebooks."""
    digest = hashlib.sha256()
    for root, pattern in ((folder, "**/*"), (notebooks, "*.py")):
        for path in sorted(root.glob(pattern)):
            if path.is_file() and "__pycache__" not in path.parts:
                name = path.relative_to(root).as_posix()
                digest.update(f"{name} {path.stat().st_size}\n".encode())
                digest.update(path.read_bytes())
    return digest.hexdigest()
