"""Sphinx extension for the book: `{{ open_in_colab }}` in a page becomes a link that opens the
first lesson in Colab, or nothing where no address is set (`make repository`)."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx
    from sphinx.config import Config

FIRST_LESSON = "notebooks/01-why-batch.ipynb"


def setup(app: "Sphinx") -> dict[str, bool]:
    app.connect("config-inited", define_link)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def define_link(_app: "Sphinx", config: "Config") -> None:
    """Sets the substitution before MyST reads its settings."""
    substitutions = dict(config.myst_substitutions)
    substitutions["open_in_colab"] = colab_link(config.html_theme_options)
    config.myst_substitutions = substitutions


def colab_link(theme_options: dict) -> str:
    """Markdown. Colab opens notebooks of github.com only, as `<owner>/<repository>/blob/...`."""
    colab = theme_options.get("launch_buttons", {}).get("colab_url")
    repository = theme_options.get("repository_url", "")
    if not colab or not repository.startswith("https://github.com/"):
        return ""
    name = repository.removeprefix("https://github.com/").strip("/")
    branch = theme_options.get("repository_branch") or "main"
    return f"[Open in Colab]({colab}/github/{name}/blob/{branch}/{FIRST_LESSON})"
