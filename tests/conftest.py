"""Shared settings of the tests: reduced counts unless QWENLAB_FULL=1, one thread, never the
network."""

import os
import signal

# Both are read on import, of huggingface_hub and torch; a test that needs a hub starts its own.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # for the processes that tests start, too

import pytest
import torch
from browser import address, chromium  # noqa: F401  (fixtures)
from helpers import FAMILIES, FULL, random_model
from hypothesis import HealthCheck, settings

from qwenlab.cli.main import main

# A shell's background jobs ignore Ctrl-C; tests press it.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile(
    "qwenlab", deadline=None, print_blob=True, suppress_health_check=list(HealthCheck)
)
settings.load_profile("qwenlab")
THREADS = torch.get_num_threads()


# Files whose tests share nothing and take long: with `--dist loadgroup` each test goes to whatever
# process is idle.
APART = ("test_lessons.py", "test_live.py")
# Files that import models of transformers, which takes seconds: one process does.
TRANSFORMERS = (
    "test_config.py",
    "test_hybrid_parity.py",
    "test_lesson_boxes.py",
    "test_loading.py",
    "test_parity.py",
    "test_peers.py",
)
# The longest files. They come first, so that no process ends alone.
LONGEST = (
    "test_browser.py",
    *APART,
    "test_lesson_12.py",
    "test_grading.py",
    "test_site.py",
    "test_distillation.py",
    *TRANSFORMERS,
    "test_lesson_13.py",
    "test_lesson_14.py",
    "test_evaluation.py",
    "test_grpo.py",
)


def place_in_line(item) -> int:
    name = item.path.name
    return LONGEST.index(name) if name in LONGEST else len(LONGEST)


def group(item) -> str:
    """Tests of one group run in one process."""
    if item.path.name in APART:
        return item.name
    return "transformers" if item.path.name in TRANSFORMERS else item.path.name


def pytest_collection_modifyitems(items):
    for item in items:
        item.add_marker(pytest.mark.xdist_group(group(item)))
        if not FULL and item.get_closest_marker("full"):
            item.add_marker(pytest.mark.skip(reason="full count only: make test-all"))
    items.sort(key=place_in_line)


@pytest.fixture(autouse=True)
def switches_of_torch():
    """A test that changes the global switches of torch does not change the next test."""
    torch.manual_seed(0)
    yield
    torch.set_grad_enabled(True)
    torch.set_num_threads(THREADS)  # commands choose their own


@pytest.fixture(scope="session")
def dense():
    """A random dense model of some hundred thousand parameters; initializer_range 0.2, so that
    logits differ widely."""
    return random_model(seed=0)


@pytest.fixture(scope="session", params=FAMILIES)
def model(request):
    """The same, once of each family: what must hold for attention and for DeltaNet alike."""
    return FAMILIES[request.param](seed=0)


@pytest.fixture
def run(capsys, tmp_path, monkeypatch):
    """Runs a command in an empty folder; returns its status, stdout and stderr (without progress
    bars)."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        with pytest.raises(SystemExit) as end:
            main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return (
            end.value.code,
            out,
            "".join(line for line in err.splitlines(keepends=True) if "qwenlab:" in line),
        )

    return run
