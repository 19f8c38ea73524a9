"""Sphinx extension for the book: kernels learn that a page is being built, and no page shows what an old library did.

- While the book is built, kernels inherit QWENLAB_PAGE, so `explore` writes every state into the page.
- Executed cells are kept by jupyter-cache, which looks at the notebooks only. When the library has changed since,
  the cache is dropped and every page is read again.
"""

import hashlib
import os
import shutil
from pathlib import Path

LIBRARY = Path(__file__).resolve().parents[1]


def setup(app):
    before = os.environ.get("QWENLAB_PAGE")
    os.environ["QWENLAB_PAGE"] = "1"

    def restore(_app, _error):
        if before is None:
            os.environ.pop("QWENLAB_PAGE", None)
        else:
            os.environ["QWENLAB_PAGE"] = before

    app.add_config_value("qwenlab_library", "", "env")  # "env": another value, and every page is read again
    app.connect("config-inited", drop_stale_cache)
    app.connect("build-finished", restore)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def drop_stale_cache(app, config):
    """Remove the executed cells that another version of the library has made."""
    config.qwenlab_library = library_hash(LIBRARY)
    cache = Path(config.nb_execution_cache_path or Path(app.outdir).parent / ".jupyter_cache")
    key = cache / "qwenlab-library"
    if not key.exists() or key.read_text() != config.qwenlab_library:
        shutil.rmtree(cache, ignore_errors=True)
        cache.mkdir(parents=True)
        key.write_text(config.qwenlab_library)


def library_hash(folder):
    """One hash of every file of the library: sources and shipped checkpoints, names and contents."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            digest.update(f"{path.relative_to(folder).as_posix()} {path.stat().st_size}\n".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()
