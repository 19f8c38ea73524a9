"""What the page for authors says of models and widgets of one's own holds: its example is put into
place, on a random checkpoint, and opened."""

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from browser import DESK, TELEPHONE, open_page, write_widget_page

import qwenlab
from qwenlab.loading import shipped_folder
from qwenlab.model.config import Config
from qwenlab.model.model import Model
from qwenlab.model.weights import save_weights
from qwenlab.teach import in_page

PAGE = (Path(__file__).parents[2] / "book" / "own-lesson.md").read_text(encoding="utf-8")


def random_checkpoint(folder: Path, like: str) -> Path:
    """With the tokenizer and the shape of a shipped one."""
    shutil.copytree(shipped_folder() / like, folder)
    config = Config.from_dict(json.loads((folder / "config.json").read_text(encoding="utf-8")))
    torch.manual_seed(0)
    (folder / "model.safetensors").unlink()
    save_weights(Model(config), folder)
    return folder


def options_of(script: str) -> tuple[set[str], set[str]]:
    """The options that a widget reads, and those of them that have a default."""
    names = set(re.findall(r"stage\.options\.(\w+)", script))
    optional = set()
    for listed in re.findall(r"const \{([^}]*)\} = (?:this\.)?stage\.options", script):
        for part in listed.split(","):
            name, *default = map(str.strip, part.split("="))
            names.add(name)
            optional.update({name} if default else ())
    return names, optional


def test_the_table_names_every_widget_and_its_options():
    optional = set()
    table = re.findall(r"^\| `(\w+)` \|[^|]*\|[^|]*\|([^|]*)\|$", PAGE, re.M)
    assert sorted(name for name, _ in table) == in_page.widget_names()
    for name, options in table:
        script = (in_page.FOLDER / f"widget_{name}.js").read_text(encoding="utf-8")
        names, defaults = options_of(script)
        assert set(re.findall(r"`(\w+)`", options)) == names, name
        optional |= defaults
    (said,) = re.findall(r"^Only (.*) may be left out\.", PAGE, re.M)
    assert set(re.findall(r"`(\w+)`", said)) == optional


def test_every_function_that_the_page_names_exists():
    text = PAGE[PAGE.index("What a widget can call") :]
    scripts = "".join(in_page.page_scripts().values())
    for name in re.findall(r"`(\w+)`", text[: text.index("A page opened from the disk")]):
        assert re.search(rf"\b{name}\b", scripts), name


@pytest.mark.browser
def test_the_example_runs_on_a_checkpoint_of_one_s_own(chromium, tmp_path, monkeypatch):
    (example,) = re.findall(r"```js\n(.*?)```", PAGE, re.S)
    call = re.search(r'widget\("next", line="(.+?)", height=\((\d+), (\d+)\)\)', PAGE)
    line, heights = call[1], (int(call[2]), int(call[3]))
    folder = shutil.copytree(in_page.FOLDER, tmp_path / "scripts")
    (folder / "widget_next.js").write_text(example, encoding="utf-8")
    monkeypatch.setattr(in_page, "FOLDER", folder)
    checkpoint = random_checkpoint(tmp_path / "my-model", "tiny-hybrid")
    address = write_widget_page(tmp_path, "next", checkpoint, line=line, height=heights)

    page, complaints = open_page(chromium, address)
    page.wait_for_selector("[data-state=ready]")
    model, tokenizer = qwenlab.load(checkpoint, device="cpu", fast=False)
    for text in (line, "48-15"):
        page.get_by_label("line").fill(text)
        ids = [tokenizer.control["<think>"], *tokenizer.encode("\n" + text)]
        best = int(model(torch.tensor([ids]), last_only=True)[0].argmax())
        shown = page.locator(".qwl-bars .qwl-token").first.text_content()
        assert shown.strip("␣") == tokenizer.decode([best]).replace("\n", "⏎").strip(" ")
        assert f"After {len(ids)} tokens" in page.locator(".qwl-sentence").inner_text()
    for width, kept in zip((DESK, TELEPHONE), heights, strict=True):
        page.set_viewport_size({"width": width, "height": 600})
        assert abs(page.locator("[data-widget]").bounding_box()["height"] - kept) <= 1
    assert complaints == []
    page.close()


@pytest.mark.browser
def test_a_widget_says_when_the_model_is_of_the_wrong_kind(chromium, tmp_path):
    address = write_widget_page(tmp_path, "turns", "tiny", talks=[["2+2?", "2"], ["7*8?", "7*8"]])
    page, complaints = open_page(chromium, address)
    page.wait_for_selector("[data-state=failed]")
    assert "tiny has no linear layer" in page.locator(".qwl-sentence").inner_text()
    assert all("no linear layer" in words for words in complaints)
    page.close()
