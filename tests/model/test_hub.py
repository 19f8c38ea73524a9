"""`load` of a hub id, against a stand-in for the hub: fetched once, offline afterwards, each
trouble in one line.

huggingface_hub reads its settings when it is imported, so the loads run in processes of their own.
"""

import pytest
from hub_stand_in import hub, said_with_a_hub
from small_checkpoint import VOCAB, write_small_checkpoint

import qwenlab
from qwenlab.errors import QwenlabError
from qwenlab.loading import find_checkpoint

NAME = "someone/Small-0.1"
WANTED = [
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
]
LOADED = f"loaded [{VOCAB - 5}, {VOCAB - 3}] hello"


def say_what_loads(*names):
    for name in names:
        try:
            model, tokenizer = qwenlab.load(name)
        except QwenlabError as error:
            print("refused", error)
        else:
            print("loaded", sorted(model.stop_ids), tokenizer.decode(tokenizer.encode("hello")))


def say_what_is_there_without_weights(name):
    folder = find_checkpoint(name, weights=False)
    print(*sorted(path.name for path in folder.iterdir()))
    say_what_loads(name)


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    folder = write_small_checkpoint(tmp_path_factory.mktemp("repository"))
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x04never fetch a pickle")
    (folder / "README.md").write_text("not needed", encoding="utf-8")
    (folder / "onnx").mkdir()
    (folder / "onnx" / "model.safetensors").write_text("not the model's", encoding="utf-8")
    return folder


def load(*names, cache, address, **variables) -> list[str]:
    """What a fresh process says about loading each name from the hub at `address`, its cache in
    `cache`."""
    where = {"cache": cache, "address": address}
    answers = said_with_a_hub(say_what_loads, *names, **where, **variables).splitlines()
    assert len(answers) == len(names)
    return answers


def test_a_checkpoint_is_fetched_once_and_is_there_offline(repository, tmp_path):
    with hub({NAME: repository}, gated=["someone/Gated"]) as (address, requests):
        answers = load(
            NAME, NAME, "someone/Smal-0.1", "someone/Gated", cache=tmp_path, address=address
        )
        assert answers[:2] == [LOADED, LOADED]
        fetched = [
            url.rpartition("/")[2]
            for url in requests
            if url.startswith("GET") and "/resolve/" in url
        ]
        assert sorted(fetched) == WANTED  # each once: no pickle, nothing from below the top
        assert answers[2] == (
            "refused someone/Smal-0.1: not on the hub, or private "
            "(check the spelling; no folder ./someone/Smal-0.1 exists either)"
        )
        assert answers[3].startswith("refused someone/Gated: gated; accept its terms on the hub")

        before = len(requests)
        answers = load(NAME, "someone/Other", cache=tmp_path, address=address, HF_HUB_OFFLINE="1")
        assert answers == [
            LOADED,
            "refused someone/Other: not complete in the local cache, and HF_HUB_OFFLINE is set",
        ]
        assert len(requests) == before
    # The server is gone, the cache is not.
    answers = load(NAME, "someone/Other", cache=tmp_path, address=address)
    reason = (
        f"refused someone/Other: not complete in the local cache, and {address} can't be reached"
    )
    assert answers == [LOADED, reason]


def test_the_weights_stay_away_until_they_are_needed(repository, tmp_path):
    with hub({NAME: repository}) as (address, _):
        where = {"cache": tmp_path, "address": address}
        said = said_with_a_hub(say_what_is_there_without_weights, NAME, **where).splitlines()
    without = [name for name in WANTED if name != "model.safetensors"]
    assert said == [" ".join(without), LOADED]


def test_a_download_that_breaks_off_is_taken_up_again(repository, tmp_path):
    with hub({NAME: repository}, cut=["model.safetensors"]) as (address, _):
        (answer,) = load(NAME, cache=tmp_path, address=address)
        assert answer.startswith(
            f"refused {NAME}: the download was interrupted; run again to resume it"
        )
    with hub({NAME: repository}) as (address, _):
        assert load(NAME, cache=tmp_path, address=address) == [LOADED]
