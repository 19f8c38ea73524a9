"""Sphinx extension: kernels of a build inherit QWENLAB_PAGE, and `explore` puts every state in the page."""

import os


def setup(app):
    before = os.environ.get("QWENLAB_PAGE")
    os.environ["QWENLAB_PAGE"] = "1"

    def restore(_app, _error):
        if before is None:
            os.environ.pop("QWENLAB_PAGE", None)
        else:
            os.environ["QWENLAB_PAGE"] = before

    app.connect("build-finished", restore)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
