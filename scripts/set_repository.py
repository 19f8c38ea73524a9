"""Writes the course's address wherever it is needed (`make repository URL=... BRANCH=...`).

These are the site's buttons and its own address (_config.yml), the badges of README.md, the
commands that get the course (book/setup.md), and the install cell of each notebook. Only this
script writes them, and tests/test_repository.py checks that they agree. An empty address removes
everything again. Only the standard library is used, so it runs before any installation.
"""

import argparse
import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlsplit

ROOT = Path(__file__).resolve().parent.parent

# The parts of files that this script owns. That of _config.yml ends inside `html:`, where the edit
# buttons are set.
BEGIN = "# >>> repository: written by `make repository URL=... BRANCH=...`, not by hand"
END = "# <<< repository"
BEGIN_IN_MARKDOWN = "<!-- >>> repository: written by `make repository`, not by hand -->"
END_IN_MARKDOWN = "<!-- <<< repository -->"

INSTALL_CELL_ID = "install"
# Folded on the page, in JupyterLab and in Colab.
INSTALL_CELL_METADATA = {
    "cellView": "form",
    "jupyter": {"source_hidden": True},
    "tags": ["hide-cell"],
}
FIRST_LESSON = "notebooks/01-why-batch.ipynb"
BINDER = "https://mybinder.org"
COLAB = "https://colab.research.google.com"
# Where a host publishes the pages of a repository, unless PAGES says something else.
PAGES_HOSTS = {"github.com": "github.io", "gitlab.com": "gitlab.io"}
# The site's theme knows the addresses of files on these, and refuses to make buttons for others.
HOSTS_WITH_BUTTONS = ("github.com", "gitlab.com", "bitbucket.org")


class RepositoryError(ValueError):
    """The address, or a file that should contain it, is wrong; the message is one line."""


@dataclass(frozen=True)
class Address:
    """Where the course is. `url` has neither a trailing slash nor `.git`; empty, there is none."""

    url: str
    branch: str
    pages: str  # the site's own address, with a trailing slash; empty if unknown

    @property
    def on_github(self) -> bool:
        """Colab opens notebooks from GitHub only, and our workflows run there."""
        return self.url.startswith("https://github.com/")

    @property
    def has_buttons(self) -> bool:
        return urlsplit(self.url).netloc in HOSTS_WITH_BUTTONS

    def in_binder(self, path: str) -> str:
        """Opens a file of the repository in Binder."""
        parts = urlsplit(self.url)
        if self.on_github:
            place = f"gh{parts.path}"
        elif parts.netloc == "gitlab.com":
            place = f"gl/{quote(parts.path.strip('/'), safe='')}"
        else:
            place = f"git/{quote(self.url, safe='')}"
        return f"{BINDER}/v2/{place}/{quote(self.branch, safe='')}?urlpath=lab/tree/{path}"

    def in_colab(self, path: str) -> str:
        """Opens a notebook of a repository on GitHub in Colab."""
        return f"{COLAB}/github{urlsplit(self.url).path}/blob/{self.branch}/{path}"


def check_address(url: str, branch: str, pages: str = "") -> Address:
    """The address that these mean. Without `pages` the site is where the host publishes it."""
    url = url.strip().removesuffix("/").removesuffix(".git")
    if url and not re.fullmatch(
        r"https://[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)+(/[A-Za-z0-9][A-Za-z0-9._-]*){2}", url
    ):
        raise RepositoryError(
            f"URL={url!r}: expected https://host/owner/repository, for example on github.com"
        )
    if (
        not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._/-]*", branch)
        or ".." in branch
        or branch.endswith("/")
    ):
        raise RepositoryError(
            f"BRANCH={branch!r}: expected the name of a branch or tag, such as main"
        )
    pages = pages.strip().removesuffix("/")
    if pages and not re.fullmatch(
        r"https://[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)+(/[A-Za-z0-9][A-Za-z0-9._-]*)*", pages
    ):
        raise RepositoryError(f"PAGES={pages!r}: expected the site's address, https://host/path")
    if not url:
        return Address("", branch, "")
    return Address(url, branch, f"{pages}/" if pages else usual_pages(url))


def usual_pages(url: str) -> str:
    """Where the host of a repository publishes its pages: https://owner.github.io/repository/."""
    host, owner, repository = url.removeprefix("https://").split("/")
    if host not in PAGES_HOSTS:
        return ""
    site = f"{owner.lower()}.{PAGES_HOSTS[host]}"
    return f"https://{site}/" if repository.lower() == site else f"https://{site}/{repository}/"


def install_cell(address: Address) -> str:
    """Returns the source of a notebook's install cell: what a fresh Colab needs, and nothing
    anywhere else. It prints what pip said only if pip failed."""
    # At most 78 columns, so that no formatter has a reason to wrap it.
    lines = ["# @title Install qwenlab on a fresh machine, such as Colab"]
    if address.url:
        lines += ["import subprocess", "import sys"]
    lines += ["from importlib.util import find_spec", "", 'if find_spec("qwenlab") is None:']
    if not address.url:
        lines += ['    print("qwenlab is missing; this copy has no address to install it from")']
        return "\n".join(lines)
    return "\n".join(
        [
            *lines,
            "    # Colab has both. Asking pip for them there would also bring jedi and a",
            "    # newer parso, which its IPython does without.",
            '    both = find_spec("ipywidgets") and find_spec("matplotlib")',
            '    extra = "" if both else "[notebook]"',
            f'    wanted = f"qwenlab{{extra}} @ git+{address.url}@{address.branch}"',
            '    pip = [sys.executable, "-m", "pip", "install", "--quiet", wanted]',
            "    done = subprocess.run(pip, capture_output=True, text=True)",
            "    if done.returncode:",
            "        print(done.stdout + done.stderr)",
        ]
    )


def config_block(address: Address) -> str:
    """Returns the marked part of _config.yml."""
    lines = [BEGIN]
    if address.has_buttons:
        lines += ["repository:", f"  url: {address.url}", f"  branch: {address.branch}"]
        lines += ['  path_to_book: ""', "launch_buttons:", "  notebook_interface: jupyterlab"]
        lines += [f"  binderhub_url: {BINDER}"]
    if address.on_github:
        lines += [f"  colab_url: {COLAB}"]
    lines += ["html:"]
    if address.has_buttons:
        lines += ["  use_edit_page_button: true", "  use_repository_button: true"]
    if address.pages:
        lines += [f"  baseurl: {address.pages}"]
    return "\n".join([*lines, END])


def readme_block(address: Address) -> str:
    """Returns the marked part of README.md: badges, and where to read the course."""
    lines = []
    if address.on_github:
        tests = f"{address.url}/actions/workflows/test.yml"
        lines += [f"[![Tests]({tests}/badge.svg?branch={address.branch})]({tests})"]
        badge = f"{COLAB}/assets/colab-badge.svg"
        lines += [f"[![Open in Colab]({badge})]({address.in_colab(FIRST_LESSON)})"]
    if address.url:
        badge = f"{BINDER}/badge_logo.svg"
        lines += [f"[![Open in Binder]({badge})]({address.in_binder(FIRST_LESSON)})"]
    if address.pages:
        lines += ["", f"**Read the course at <{address.pages}>.**"]
    return "\n".join([BEGIN_IN_MARKDOWN, *lines, END_IN_MARKDOWN])


def setup_block(address: Address) -> str:
    """Returns the marked part of book/setup.md: how to get the course."""
    if not address.url:
        return "\n".join([BEGIN_IN_MARKDOWN, END_IN_MARKDOWN])
    folder = address.url.rpartition("/")[2]
    clone = f"git clone --branch {address.branch} {address.url}"
    lines = ["First get the course:", "", "```bash", clone, f"cd {folder}", "```"]
    return "\n".join([BEGIN_IN_MARKDOWN, "", *lines, "", END_IN_MARKDOWN])


# The marked part of each file, and what stands in it.
BLOCKS = {
    "_config.yml": (BEGIN, END, config_block),
    "README.md": (BEGIN_IN_MARKDOWN, END_IN_MARKDOWN, readme_block),
    "book/setup.md": (BEGIN_IN_MARKDOWN, END_IN_MARKDOWN, setup_block),
}


def with_address_in_block(text: str, name: str, address: Address) -> str:
    """Returns a file's text with the marked part replaced."""
    begin, end, block = BLOCKS[name]
    marked = re.compile(re.escape(begin) + r"\n.*?" + re.escape(end), re.DOTALL)
    if len(marked.findall(text)) != 1:
        raise RepositoryError(f"{name}: expected exactly one part between {begin!r} and {end!r}")
    return marked.sub(lambda _: block(address), text)


def with_address_in_notebook(text: str, name: str, address: Address) -> str:
    """Returns a notebook's text with its install cell replaced, or inserted before the first code
    cell."""
    try:
        notebook = json.loads(text)
        cells = notebook["cells"]
        kinds = [cell["cell_type"] for cell in cells]
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise RepositoryError(f"{name}: not a notebook in JSON ({error})") from None
    first_code = kinds.index("code") if "code" in kinds else len(cells)
    if first_code == len(cells) or cells[first_code].get("id") != INSTALL_CELL_ID:
        cells.insert(
            first_code,
            {
                "cell_type": "code",
                "execution_count": None,
                "id": INSTALL_CELL_ID,
                "metadata": {},
                "outputs": [],
                "source": [],
            },
        )
    cells[first_code]["metadata"] = INSTALL_CELL_METADATA
    cells[first_code]["source"] = install_cell(address).splitlines(keepends=True)
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


def set_repository(root: Path, url: str, branch: str, pages: str = "") -> list[Path]:
    """Writes the address below `root` and returns the files that changed. All texts are made before
    any is written.

    Raises RepositoryError for an address that is not https://host/owner/repository, and for a file
    that cannot contain it; then nothing has been written.
    """
    address = check_address(url, branch, pages)
    changed = {}
    for name in BLOCKS:
        old = (root / name).read_text(encoding="utf-8")
        changed[root / name] = (old, with_address_in_block(old, name, address))
    for path in sorted((root / "notebooks").glob("*.ipynb")):
        old = path.read_text(encoding="utf-8")
        name = path.relative_to(root).as_posix()
        changed[path] = (old, with_address_in_notebook(old, name, address))
    changed = {path: new for path, (old, new) in changed.items() if new != old}
    for path, text in changed.items():
        path.write_text(text, encoding="utf-8", newline="\n")
    return list(changed)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--url", required=True, help="https://host/owner/repository; empty removes the address"
    )
    parser.add_argument("--branch", default="main")
    parser.add_argument(
        "--pages", default="", help="the site's address, where the host's usual one is not right"
    )
    arguments = parser.parse_args()
    try:
        changed = set_repository(ROOT, arguments.url, arguments.branch, arguments.pages)
    except RepositoryError as error:
        print(error, file=sys.stderr)
        return 2
    for path in changed:
        print(f"wrote {path.relative_to(ROOT)}")
    print(
        f"{len(changed)} files changed"
        if changed
        else "nothing to change: the address is everywhere already"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
