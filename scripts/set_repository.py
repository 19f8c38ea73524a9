"""Writes the course's address into _config.yml and every notebook (`make repository URL=...
BRANCH=...`).

The address appears in many places: the site's launch and edit buttons, and the install cell of each
notebook. Only this script writes them, and tests/test_repository.py checks that they agree. An
empty address removes everything again. Only the standard library is used, so it runs before any
installation.
"""

import argparse
import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# The part of _config.yml that this script owns. It ends inside `html:`, where the edit buttons are
# set.
BEGIN = "# >>> repository: written by `make repository URL=... BRANCH=...`, not by hand"
END = "# <<< repository"
BLOCK = re.compile(re.escape(BEGIN) + r"\n.*?" + re.escape(END), re.DOTALL)

INSTALL_CELL_ID = "install"


class RepositoryError(ValueError):
    """The address, or a file that should contain it, is wrong; the message is one line."""


def check_address(url: str, branch: str) -> tuple[str, str]:
    """Returns the address without a trailing slash or `.git`, and the branch; ("", branch) means no
    address."""
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
    return url, branch


def install_cell(url: str, branch: str) -> str:
    """Returns the source of a notebook's install cell: what a fresh Colab needs, and nothing
    anywhere else."""
    # At most 78 columns, so that no formatter has a reason to wrap it.
    head = [
        "# @title Install qwenlab on a fresh machine, such as Colab",
        "from importlib.util import find_spec",
        "",
        'if find_spec("qwenlab") is None:',
    ]
    if url:
        return "\n".join(
            [*head, f'    %pip install --quiet "qwenlab[notebook] @ git+{url}@{branch}"']
        )
    return "\n".join(
        [*head, '    print("qwenlab is missing; this copy has no address to install it from")']
    )


def config_block(url: str, branch: str) -> str:
    """Returns the marked part of _config.yml."""
    if not url:
        return "\n".join([BEGIN, "html:", END])
    lines = [BEGIN, "repository:", f"  url: {url}", f"  branch: {branch}", '  path_to_book: ""']
    lines += [
        "launch_buttons:",
        "  notebook_interface: jupyterlab",
        "  binderhub_url: https://mybinder.org",
    ]
    if url.startswith("https://github.com/"):  # Colab opens notebooks from GitHub only
        lines += ["  colab_url: https://colab.research.google.com"]
    return "\n".join(
        [*lines, "html:", "  use_edit_page_button: true", "  use_repository_button: true", END]
    )


def with_address_in_config(text: str, url: str, branch: str) -> str:
    """Returns _config.yml's text with the marked part replaced."""
    if len(BLOCK.findall(text)) != 1:
        raise RepositoryError(
            f"_config.yml: expected exactly one part between {BEGIN!r} and {END!r}"
        )
    return BLOCK.sub(lambda _: config_block(url, branch), text)


def with_address_in_notebook(text: str, name: str, url: str, branch: str) -> str:
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
                "metadata": {"tags": ["hide-cell"]},
                "outputs": [],
                "source": [],
            },
        )
    cells[first_code]["source"] = install_cell(url, branch).splitlines(keepends=True)
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


def set_repository(root: Path, url: str, branch: str) -> list[Path]:
    """Writes the address below `root` and returns the files that changed. All texts are made before
    any is written.

    Raises RepositoryError for an address that is not https://host/owner/repository, and for a file
    that cannot contain it; then nothing has been written.
    """
    url, branch = check_address(url, branch)
    config = root / "_config.yml"
    changed = {}
    for path in [config, *sorted((root / "notebooks").glob("*.ipynb"))]:
        old = path.read_text(encoding="utf-8")
        if path == config:
            new = with_address_in_config(old, url, branch)
        else:
            name = path.relative_to(root).as_posix()
            new = with_address_in_notebook(old, name, url, branch)
        if new != old:
            changed[path] = new
    for path, text in changed.items():
        path.write_text(text, encoding="utf-8", newline="\n")
    return list(changed)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--url", required=True, help="https://host/owner/repository; empty removes the address"
    )
    parser.add_argument("--branch", default="main")
    arguments = parser.parse_args()
    try:
        changed = set_repository(ROOT, arguments.url, arguments.branch)
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
