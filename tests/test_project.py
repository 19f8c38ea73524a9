"""What the project promises about itself: downward imports, quick to import, exact pins, one
spelling."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from urllib.parse import quote, urlsplit
from urllib.request import ProxyHandler, build_opener

import pytest
import reading_order

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "qwenlab"
SOURCES = sorted(PACKAGE.rglob("*.py"))
README = (ROOT / "README.md").read_text(encoding="utf-8")


def tracked_files():
    run = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, encoding="utf-8"
    )
    if run.returncode:
        pytest.skip("not a git checkout")
    return [ROOT / name for name in run.stdout.split("\0") if name and (ROOT / name).is_file()]


def text_of(path):
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:  # weights, fonts, pictures
        return ""


# --- Imports --------------------------------------------------------------------------------------

# Each may import those before it.
LAYERS = (
    "errors files interrupts orders fingerprints run_folder console text model fast loading engine chat "
    "evaluation scale training bench exercises teach cli"
).split()


def test_imports_run_downwards():
    for path in SOURCES:
        layer = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if layer not in LAYERS:
            continue  # __init__ and the like stand above all
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for name in names:
                if name.startswith("qwenlab."):
                    below = name.split(".")[1]
                    if below in LAYERS:
                        assert LAYERS.index(below) <= LAYERS.index(layer), (
                            f"{path.name} imports {name}"
                        )


# Commands print, and so do programs that are started as processes of their own.
PRINTING = (
    "cli console.py terminal.py __main__.py symbolic_worker.py workloads.py llama_child.py".split()
)


def test_the_library_prints_nothing():
    """It returns values, logs and warns; commands say it to people."""
    for path in SOURCES:
        if {path.name, path.relative_to(PACKAGE).parts[0]} & set(PRINTING):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                assert called not in ("print", "say", "tqdm.write", "sys.stderr.write"), path


def test_no_module_bears_the_name_of_a_public_function():
    """A package that lends a function from below would hide the module, or the module the function.
    Nothing is lent by cli, whose modules and functions have the names of the commands."""
    sources = [path for path in SOURCES if path.parent.name != "cli"]
    public = set()
    for path in sources:
        body = ast.parse(path.read_text(encoding="utf-8")).body
        public |= {
            node.name
            for node in body
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")
        }
    assert not public & {path.stem for path in sources}


def test_only_commands_set_the_number_of_threads():
    """Whoever calls the library keeps the number that they chose."""
    for path in SOURCES:
        if path.parent.name != "cli":
            assert "set_num_threads" not in path.read_text(encoding="utf-8"), path.name


def test_the_readme_knows_how_long_model_and_engine_are():
    """To the hundred; `make read` counts, and names files that are there."""
    told = re.search(r"`model/` has about ([\d,]+) lines and `engine/` about ([\d,]+)", README)
    for room, said in zip(("model", "engine"), told.groups(), strict=True):
        lines = [len(text_of(path).splitlines()) for path in (PACKAGE / room).glob("*.py")]
        assert abs(sum(lines) - int(said.replace(",", ""))) <= 100, room
    assert all((PACKAGE / name).is_file() for name in reading_order.ORDER)


# --- Exact pins ------------------------------------------------------------------------------------------------------


def pins(name):
    found = {}
    for line in (ROOT / name).read_text(encoding="utf-8").splitlines():
        if line and not line.startswith(("#", "-r ")):
            match = re.fullmatch(r"([A-Za-z0-9][A-Za-z0-9._-]*)==([A-Za-z0-9.]+)", line)
            assert match, f"{name}: {line!r} is not an exact pin"
            found[re.sub(r"[-_.]+", "-", match[1]).lower()] = match[2]
    return found


def test_requirements_pin_everything_that_the_project_asks_for():
    from packaging.requirements import Requirement

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    runtime, test = pins("requirements.txt"), pins("requirements-test.txt")
    assert not runtime.keys() & test.keys()
    for asked, pinned in [
        (project["dependencies"] + extras["notebook"] + extras["book"], runtime),
        (extras["test"] + extras["peers"] + extras["endpoint"], runtime | test),
    ]:
        for requirement in map(Requirement, asked):
            name = re.sub(r"[-_.]+", "-", requirement.name).lower()
            if name != "qwenlab":
                assert name in pinned, name
                assert requirement.specifier.contains(pinned[name]), (
                    f"{requirement} but {pinned[name]} is pinned"
                )


# What Colab has, as published in pip-freeze.txt and os-info.txt of
# github.com/googlecolab/backend-info on 24 November 2025 and on 19 August 2026.
COLAB = {
    "November 2025": """python==3.12.12 torch==2.9.0 numpy==2.0.2 tokenizers==0.22.1
        safetensors==0.7.0 huggingface-hub==0.36.0 jinja2==3.1.6 tqdm==4.67.1 filelock==3.20.0
        psutil==5.9.5 typer==0.20.0 ipywidgets==7.7.1 matplotlib==3.10.0""",
    "August 2026": """python==3.13.15 torch==2.11.0 numpy==2.1.3 tokenizers==0.22.2
        safetensors==0.8.0 huggingface-hub==1.27.0 jinja2==3.1.6 tqdm==4.67.3 filelock==3.32.3
        psutil==5.9.5 typer==0.27.1 ipywidgets==7.7.1 matplotlib==3.10.0""",
}


@pytest.mark.parametrize("month", COLAB)
def test_colab_replaces_nothing_of_its_own_for_the_library(month):
    """Of all that the library asks for, Colab lacks only what reads mathematical answers."""
    from packaging.requirements import Requirement
    from packaging.specifiers import SpecifierSet

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    theirs = dict(pin.split("==") for pin in COLAB[month].split())
    assert SpecifierSet(project["requires-python"]).contains(theirs["python"])
    asked = project["dependencies"] + project["optional-dependencies"]["notebook"]
    missing = set()
    for requirement in map(Requirement, asked):
        name = requirement.name.replace("_", "-")
        if name not in theirs:
            missing.add(name)
            continue
        assert requirement.specifier.contains(theirs[name]), f"{requirement} but {theirs[name]}"
    assert missing == {"math-verify"}


def test_the_ways_without_make_install_what_they_use():
    from packaging.requirements import Requirement

    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
        "optional-dependencies"
    ]
    book = {requirement.name: requirement for requirement in map(Requirement, extras["book"])}
    assert "jupyterlab" in book and not book["jupyter-book"].specifier.contains("2.0")
    page = (ROOT / "book" / "setup.md").read_text(encoding="utf-8")
    blocks = "".join(re.findall(r"```bash\n(.*?)```", page, re.DOTALL)).splitlines()
    for command in ('pip install -e ".[book]"', "jupyter lab", "jupyter-book build ."):
        assert command in blocks
    installed = re.findall(r"pip install ([^`\n]*)", README + page)
    asked = re.findall(r"\[([a-z]+)\]", " ".join(installed))
    assert {"book", "notebook"} <= set(asked) <= set(extras)
    for name in re.findall(r"-r (\S+)", " ".join(installed)):
        assert (ROOT / name).is_file(), name


def test_binder_installs_what_the_library_needs():
    """Everything in pyproject.toml comes from conda-forge there, save one pure Python package that
    pip fetches. Binder keeps this environment from one commit to the next, because it names no file
    of the repository; the library itself follows."""
    import yaml
    from packaging.requirements import Requirement

    environment = yaml.safe_load((ROOT / ".binder" / "environment.yml").read_text(encoding="utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = {"torch": "pytorch-cpu", "matplotlib": "matplotlib-base"}
    for asked in project["dependencies"] + project["optional-dependencies"]["notebook"]:
        requirement = Requirement(asked)
        if requirement.name == "math-verify":
            # brings the parser latex2sympy2_extended along, and needs SymPy, which is there
            assert environment["dependencies"][-1] == {"pip": [asked]}
            continue
        wanted = f"{names.get(requirement.name, requirement.name)}{requirement.specifier}"
        assert wanted in environment["dependencies"], wanted
    assert "sympy" in environment["dependencies"]
    library = ROOT / ".binder" / "postBuild"
    assert "pip install --no-deps" in library.read_text(encoding="utf-8")
    assert os.access(library, os.X_OK) or os.name == "nt"


# --- The files as a reader finds them --------------------------------------------------------------------------------


def test_every_make_command_in_the_prose_exists():
    targets = set(
        re.findall(
            r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE
        )
    )
    assert {"help", "book", "test", "test-all", "lab", "repository", "clean"} <= targets
    workflows = list((ROOT / ".github" / "workflows").glob("*.yml"))
    assert workflows
    for path in [ROOT / "README.md", *(ROOT / "book").glob("*.md"), *workflows]:
        commands = re.findall(
            r"(?:^|`|run: )make ([a-z-]+)", path.read_text(encoding="utf-8"), re.MULTILINE
        )
        assert set(commands) <= targets, path.name


def lab_recipe():
    """What `make lab` gives to JupyterLab, the lesson that it opens, and the files to which links
    lead from there."""
    recipes = (ROOT / "Makefile").read_text(encoding="utf-8")
    first = re.search(r"^FIRST := (.*)$", recipes, re.MULTILINE)[1]
    command = re.search(r"-m jupyterlab (.*)$", recipes, re.MULTILINE)[1]
    lesson = ROOT / first
    links = re.findall(r"\]\(([\w./-]+\.(?:md|ipynb))", lesson.read_text(encoding="utf-8"))
    return command, first, [(lesson.parent / link).resolve() for link in links]


def test_make_lab_serves_the_whole_course_and_opens_a_lesson():
    command, _, pages = lab_recipe()
    # no folder: that of the Makefile
    assert command == "--LabApp.default_url=/lab/tree/$(FIRST) $(ARGS)"
    assert any(page.parent == ROOT / "book" for page in pages)
    assert all(page.is_file() and page.is_relative_to(ROOT) for page in pages)


@pytest.mark.full
def test_what_make_lab_starts_has_the_lesson_and_the_pages_that_it_links_to(tmp_path):
    command, first, pages = lab_recipe()
    quiet = "--no-browser --allow-root --ServerApp.port=0 --IdentityProvider.token=t"
    arguments = command.replace("$(FIRST)", first).replace("$(ARGS)", quiet).split()
    folders = ("CONFIG_DIR", "DATA_DIR", "RUNTIME_DIR")
    own = {f"JUPYTER_{name}": str(tmp_path / name) for name in folders}
    told = tmp_path / "told.txt"
    with told.open("w", encoding="utf-8") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "jupyterlab", *arguments],
            cwd=ROOT,
            env=os.environ | own,
            stderr=log,
        )
    get = build_opener(ProxyHandler({})).open
    try:
        while not (found := re.search(r"http://127\.0\.0\.1:\d+/", told.read_text("utf-8"))):
            assert server.poll() is None, told.read_text("utf-8")
            time.sleep(0.1)
        with get(f"{found[0]}?token=t") as answer:
            assert urlsplit(answer.url).path == f"/lab/tree/{first}"
        for page in pages:
            path = quote(page.relative_to(ROOT).as_posix())
            with get(f"{found[0]}api/contents/{path}?content=0&token=t") as answer:
                assert json.load(answer)["path"] == path
    finally:
        server.terminate()
        server.wait()


def steps_of(name):
    """The commands of each job of a workflow."""
    import yaml

    text = (ROOT / ".github" / "workflows" / name).read_text(encoding="utf-8")
    jobs = yaml.safe_load(text)["jobs"]
    return {
        job: [step["run"] for step in about["steps"] if "run" in step]
        for job, about in jobs.items()
    }


def test_the_workflows_do_what_the_project_s_own_commands_do():
    """Where there is no make, what make would do."""
    test, weekly = steps_of("test.yml"), steps_of("weekly.yml")
    assert test["linux"] == test["macos"] == ["make book", "make test"]
    for target in ("test-all", "test-other"):
        assert weekly[target] == ["make book", f"make {target}"]
    assert weekly["newest-torch"][-2:] == ["make book", "make test"]
    rules = (ROOT / "Makefile").read_text(encoding="utf-8")
    for command in test["windows"]:
        for word in command.removeprefix("python -m").removeprefix("jupyter-book").split():
            assert word.replace("--editable", "-e") in rules, command


def test_make_test_needs_no_second_environment():
    """ipywidgets 7 is for the full count."""
    rules = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert "$(WIDGETS7)" not in re.search(r"^test:(.*)##", rules, re.MULTILINE)[1]
    assert "$(WIDGETS7)" in re.search(r"^test-all:(.*)##", rules, re.MULTILINE)[1]


def test_the_readme_s_files_exist():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (ROOT / target).exists(), target


def test_no_file_names_a_machine_or_a_package_registry():
    hosts = ["py" + "pi.org", "python" + "hosted.org", "npm" + "js.", "conda" + ".anaconda"]
    for path in tracked_files():
        if "assets" in path.relative_to(ROOT).parts:
            continue  # vendored
        text = text_of(path)
        assert not re.search(
            r"(?<![\w.-])/(wo" + r"rk|fa" + r"rm|tm" + r"p|ro" + r"ot)/\w", text
        ), path.name
        assert not any(host in text for host in hosts), path.name


def test_python_is_formatted_and_free_of_lint():
    for command in (["check"], ["format", "--check"]):
        run = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "."],
            cwd=ROOT,
            capture_output=True,
            text=True,
            encoding="utf-8",
        )
        told = f"ruff {' '.join(command)} (ruff format mends the layout):\n"
        assert run.returncode == 0, told + run.stdout + run.stderr


AMERICAN = re.compile(
    r"\b(colors?(?!-)|colored|gray|behaviors?|neighbors?|favorite|honors?|centers?|centered|labeled|modeling|canceled|"
    r"(optim|normal|initial|memor|recogn|summar|general|visual|real|organ|minim|maxim|vector|parallel|util|synchron)"
    r"iz(e|es|ed|ing|ations?)|analyz(e|es|ed|ing))\b",
    re.IGNORECASE,
)
NOT_OURS = re.compile(
    r"""```.*?```|`[^`\n]*`|"[^"\n]*"|https?://\S+|\]\([^)]*\)""", re.DOTALL
)  # code, titles, links


def prose():
    """What people read as text: Markdown files, Markdown cells, docstrings."""
    for path in tracked_files():
        if path.suffix == ".md" and "assets" not in path.relative_to(ROOT).parts:
            yield path, text_of(path)
        elif path.suffix == ".ipynb":
            cells = json.loads(text_of(path))["cells"]
            yield (
                path,
                "\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown"),
            )
        elif path.suffix == ".py":
            tree = ast.parse(text_of(path))
            kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
            yield (
                path,
                "\n".join(
                    ast.get_docstring(n) or "" for n in ast.walk(tree) if isinstance(n, kinds)
                ),
            )


def test_prose_is_in_british_spelling():
    for path, text in prose():
        found = AMERICAN.search(NOT_OURS.sub("", text))
        assert not found, f"{path.relative_to(ROOT)}: {found and found[0]!r}"


def make(folder, path, *arguments):
    if os.name == "nt":
        pytest.skip("needs make and a shell: Windows has neither")
    environment = {"PATH": str(path), "HOME": str(folder)}
    return subprocess.run(
        ["make", "-C", str(folder), *arguments],
        capture_output=True,
        text=True,
        env=environment,
        encoding="utf-8",
    )


def test_set_up_without_python_says_so_in_one_line(tmp_path):
    shutil.copy(ROOT / "Makefile", tmp_path)
    for name in ("python3.11", "python3"):
        (tmp_path / name).write_text(
            "#!/bin/sh\nexit 1\n", encoding="utf-8"
        )  # too old, or a stand-in for what is not installed
        (tmp_path / name).chmod(0o755)
    run = make(tmp_path, f"{tmp_path}:/usr/bin:/bin", "book")
    assert run.returncode == 2
    said = [line for line in run.stderr.splitlines() if not line.startswith("make")]
    assert said == [
        "qwenlab needs Python 3.11: neither python3.11 nor a new enough python3 was found."
    ]
    assert not (tmp_path / ".venv").exists()


def test_make_alone_lists_the_targets(tmp_path):
    shutil.copy(ROOT / "Makefile", tmp_path)
    run = make(tmp_path, "/usr/bin:/bin")
    assert run.returncode == 0 and "make book" in run.stdout and "make test-all" in run.stdout
    assert not (tmp_path / ".venv").exists()


@pytest.mark.full
def test_tests_of_one_file_run_in_one_process():
    """So that what they share is made once."""
    files = ["tests/test_files.py", "tests/test_imports.py", "tests/test_interrupts.py"]
    spread = ["-n", "2", "--dist", "loadscope", "--no-loadscope-reorder", "-vv"]
    command = [sys.executable, "-m", "pytest", *spread, *files]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, encoding="utf-8")
    ran = re.findall(r"\[(gw\d)\] .* (tests/\w+\.py)::", run.stdout)
    assert {file for _, file in ran} == set(files)
    assert len(set(ran)) == len(files) and len({process for process, _ in ran}) == 2
