"""Run one notebook as a reader would in Jupyter, then move every slider. A program: `python
live_notebook.py FILE`.

It is run by test_live.py under both generations of ipywidgets, so it prints what it found as
one line of JSON.
"""

import os
import sys

import nbformat
from nbclient import NotebookClient

AFTER = """
import gc, json, sys
import ipywidgets, qwenlab
from matplotlib import pyplot

def alive(kind):
    return [thing for thing in gc.get_objects() if isinstance(thing, kind)]

pictures_before = {id(w): w.value for w in alive(ipywidgets.HTML)}
moved = changed = 0
for box in alive(ipywidgets.VBox):
    controls, *pictures = box.children
    if not isinstance(controls, ipywidgets.Box):
        continue
    sliders = [w for w in controls.children if isinstance(w, ipywidgets.SelectionSlider)]
    pictures = [w for w in pictures if isinstance(w, ipywidgets.HTML)]
    if not sliders or not pictures:
        continue
    assert len(pictures) == 1, "more than one picture in a widget"
    seen = {pictures[0].value}
    for step in range(1, 6):
        sliders[0].index = step % len(sliders[0].options)
        seen.add(pictures[0].value)
    moved += 1
    changed += len(seen) > 1
print(json.dumps({
    "qwenlab": qwenlab.__file__,
    "ipywidgets": ipywidgets.__version__,
    "widgets": moved,
    "changed": changed,
    "pictures added": len(alive(ipywidgets.HTML)) - len(pictures_before),
    "open figures": len(pyplot.get_fignums()),
}))
"""


def main(path):
    os.environ.pop("QWENLAB_PAGE", None)  # live, not in a page
    notebook = nbformat.read(path, as_version=4)
    notebook.cells.append(nbformat.v4.new_code_cell(AFTER))
    folder = os.path.dirname(os.path.abspath(path))
    NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": folder}}
    ).execute()
    print(
        "".join(
            output["text"]
            for output in notebook.cells[-1].outputs
            if output.get("name") == "stdout"
        ).strip()
    )


if __name__ == "__main__":
    main(sys.argv[1])
