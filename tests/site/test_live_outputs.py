"""A model in a notebook's output: what the kernel sends, what a page does with it, and what is left
to be saved."""

import re

import pytest
from browser import open_page
from jupyter_client.manager import start_new_kernel

from qwenlab.teach import heatmap, page_model, side_by_side

PROMPTS = [["2+2?", "2+2="], ["7*8?", "7*8="]]
CELL = f"""
import os
os.environ.pop("QWENLAB_PAGE", None)
from qwenlab.teach import page_model
page_model("tiny").widget("sides", still="a still", prompts={PROMPTS})
"""


@pytest.fixture(scope="module")
def model():
    return page_model("tiny")


@pytest.fixture
def widget(model):
    still = side_by_side(heatmap([[1.0]], title="a still"), "and words")
    return model.widget("sides", still=still, prompts=PROMPTS)


# --- The kernel ----------------------------------------------------------------------------------


class Notebook:
    """What a front end keeps: outputs by display id, and the commands that open widgets."""

    def __init__(self, client):
        self.client = client
        self.outputs = {}
        self.models = {}

    def run(self, source: str) -> None:
        """As a cell of the id "one"."""
        self.outputs.clear()
        about = {"code": source, "silent": False, "store_history": True, "allow_stdin": False}
        session = self.client.session
        message = session.msg("execute_request", about, metadata={"cellId": "one"})
        self.client.shell_channel.send(message)
        self.listen(message["header"]["msg_id"])

    def press(self, model: str) -> None:
        data = {"method": "custom", "content": {"event": "click"}}
        message = self.client.session.msg("comm_msg", {"comm_id": model, "data": data})
        self.client.shell_channel.send(message)
        self.listen(message["header"]["msg_id"])

    def listen(self, parent: str) -> None:
        """Takes messages until the kernel is idle again."""
        while True:
            message = self.client.get_iopub_msg(timeout=120)
            kind, content = message["msg_type"], message["content"]
            if kind == "error":
                raise AssertionError(content["evalue"])
            if kind in ("display_data", "update_display_data", "execute_result"):
                key = content.get("transient", {}).get("display_id", len(self.outputs))
                assert kind != "update_display_data" or key in self.outputs
                self.outputs[key] = content["data"]
            if kind == "comm_open":
                self.models[content["comm_id"]] = content["data"]["state"]
            if kind == "comm_msg":
                self.models[content["comm_id"]].update(content["data"].get("state", {}))
            if kind == "status" and content["execution_state"] == "idle":
                if message["parent_header"].get("msg_id") == parent:
                    return

    @property
    def html(self) -> list[str]:
        return [data.get("text/html", "") for data in self.outputs.values()]


@pytest.fixture(scope="module")
def notebook():
    manager, client = start_new_kernel()
    yield Notebook(client)
    client.stop_channels()
    manager.shutdown_kernel(now=True)


def test_when_the_page_has_answered_the_still_is_what_is_saved(notebook):
    notebook.run(CELL)
    kept, asked, brought = notebook.html
    assert "a still" in kept and "run this cell" in kept and len(kept) < 20_000
    assert re.search(r'data-place="\w+ one sides"', kept)
    assert asked == "" and len(brought) > 1_000_000
    (button,) = [key for key, state in notebook.models.items() if "icon" in state]
    (mark,) = notebook.models[button]["_dom_classes"]
    assert brought.endswith(f'qwenlab.answer("{mark}");</script>')
    notebook.press(button)
    assert notebook.html == [kept, "", ""]
    assert all(list(data) == ["text/html", "text/plain"] for data in notebook.outputs.values())


def test_where_nobody_can_answer_everything_stays(notebook):
    notebook.run(f"import sys\nsys.modules['ipywidgets'] = None\n{CELL}")
    kept, brought = notebook.html
    assert "a still" in kept and len(brought) > 1_000_000 and "qwenlab.answer" not in brought[-200:]


def test_without_a_kernel_and_on_the_site_it_is_one_output(model, widget, monkeypatch):
    """IPython takes `_repr_html_` after this error."""
    for page in (None, "1"):
        if page:
            monkeypatch.setenv("QWENLAB_PAGE", page)
        for shown in (model, widget):
            with pytest.raises(NotImplementedError):
                shown._ipython_display_()
    assert "<script" not in widget._repr_html_()
    monkeypatch.delenv("QWENLAB_PAGE")
    assert widget._repr_html_().count("<script>") > 5


# --- The page ------------------------------------------------------------------------------------

# Puts HTML into the place of an output.
SHOW = """(html) => {
  const place = document.getElementById("output-0");
  place.innerHTML = "";
  place.append(document.createRange().createContextualFragment(html));
}"""


@pytest.mark.browser
def test_a_page_mounts_the_widget_answers_and_can_lose_the_scripts(
    chromium, widget, tmp_path, monkeypatch
):
    sent = []
    monkeypatch.setattr("qwenlab.teach.in_page.show_live", lambda *parts: sent.extend(parts))
    widget._ipython_display_()
    kept, brings, _ = sent
    button = '<button class="mark" style="display:none" onclick="this.remove()">came</button>'
    parts = [kept, brings('qwenlab.answer("mark");'), button]
    outputs = "".join(f'<div id="output-{i}">{part}</div>' for i, part in enumerate(parts))
    (tmp_path / "live.html").write_text(f'<meta charset="utf-8">{outputs}', encoding="utf-8")
    page, complaints = open_page(chromium, (tmp_path / "live.html").as_uri())
    page.wait_for_selector(".qwl-page[data-state=ready]")
    page.locator(".mark").wait_for(state="detached")
    page.evaluate("document.getElementById('output-1').remove()")
    page.locator("input[value=left]").check()
    assert "Both rows go on as alone" in page.locator(".qwl-sentence").inner_text()
    assert not page.get_by_text("run this cell").is_visible()

    # The output is made again, as when a reader scrolls back to it.
    page.evaluate(SHOW, kept)
    page.wait_for_selector(".qwl-page[data-state=ready]")
    assert complaints == []

    # Saved and opened again: nothing but the still, and what to do.
    (tmp_path / "saved.html").write_text(f'<meta charset="utf-8">{kept}', encoding="utf-8")
    page.goto((tmp_path / "saved.html").as_uri())
    assert page.get_by_text("a still").is_visible()
    assert page.get_by_text("run this cell").is_visible()  # once
    assert complaints == []
    page.close()


@pytest.mark.browser
def test_a_cell_that_runs_again_finds_its_controls_where_they_were_left(
    chromium, model, tmp_path, monkeypatch
):
    """In its own kernel, where the cell still begins them as it did."""
    sent = []
    monkeypatch.setattr("qwenlab.teach.in_page.show_live", lambda *parts: sent.append(parts))
    cell = "one"
    monkeypatch.setattr("qwenlab.teach.in_page.running_cell", lambda: cell)
    (tmp_path / "live.html").write_text(
        '<meta charset="utf-8"><div id="output-0"></div>', encoding="utf-8"
    )
    page, complaints = open_page(chromium, (tmp_path / "live.html").as_uri())

    def run(name, bring=False, **options):
        model.widget(name, still="a still", **options)._ipython_display_()
        kept, brings, _ = sent.pop()
        page.evaluate(SHOW, kept + brings("") if bring else kept)
        page.wait_for_selector("[data-state=ready]")

    def values():
        inputs = page.locator(".qwl-stage :is(input:not([type=radio]), input:checked, select)")
        return inputs.evaluate_all("inputs => inputs.map(({ value }) => value)")

    run("sides", bring=True, prompts=PROMPTS)
    sides = values()
    page.get_by_label("Question 1").fill("5+5?")
    page.get_by_label("Start of answer 2").fill("7*8=5")
    page.locator("input[value=left]").check()
    page.get_by_label("extra pads").fill("3")
    left = values()
    drawn = page.locator(".qwl-stage").inner_text()
    assert all(map(str.__ne__, (sides[0], *sides[3:]), (left[0], *left[3:])))
    run("sides", bring=True, prompts=PROMPTS)
    assert values() == left and page.locator(".qwl-stage").inner_text() == drawn
    run("sides", prompts=[["2+2?", "2+2="], ["3*8?", "3*8="]])
    assert values() == ["5+5?", "2+2=", "3*8?", "3*8=", *left[4:]]  # edited in the cell

    cell = "two"
    run("sides", prompts=PROMPTS)
    assert values() == sides

    # Each row of this one has a rule of its own.
    mask = {"lines": ["7*8?", "12+35-7?"], "hints": [4, 4], "pad": "="}
    run("mask", bring=True, **mask)
    began = values()
    page.locator(".qwl-stage input[value='1']").check()
    page.locator(".qwl-stage input[value=later]").check()
    page.get_by_label("Weights").select_option("layer 1, head 2")
    left = values()
    assert all(map(str.__ne__, began, left))
    run("mask", **mask)
    assert values() == left

    cell = "one"
    monkeypatch.setattr("qwenlab.teach.in_page._kernel", "restarted")
    run("sides", prompts=PROMPTS)
    assert values() == sides
    assert complaints == []
    page.close()
