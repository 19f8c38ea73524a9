"""Endpoints: the records are those of one process, whatever the servers do, and a server that could
spoil one is refused."""

import json
import signal

import pytest
from fake_server import FakeServer, shipped
from forks import Forked

from qwenlab.evaluation import completion_server, endpoints, evaluate, load_problems
from qwenlab.evaluation.completion_server import EndpointError
from qwenlab.evaluation.endpoints import Endpoints
from qwenlab.evaluation.problems import Problem
from qwenlab.evaluation.voting import self_consistency
from qwenlab.run_folder import RunFolderError
from qwenlab.training import make_traces

GREEDY = {"max_new_tokens": 40}
SAMPLED = {"samples": 2, "temperature": 1.0, "top_p": 0.95, "max_new_tokens": 40, "seed": 5}
PROBLEMS = 6
PASSING = [429, 503, "half a body", "garbage", "aborted"]


@pytest.fixture(scope="module")
def problems():
    return load_problems("tiny-test", PROBLEMS)


@pytest.fixture(scope="module")
def expected(problems):
    """The records of one process, for the options by which they are known."""
    model, tokenizer = shipped()
    made = {}
    for name, options in (("greedy", GREEDY), ("sampled", SAMPLED)):
        made[name] = plain(evaluate(model, tokenizer, problems, **options).records)
    return made


@pytest.fixture(autouse=True)
def no_long_pauses(monkeypatch):
    monkeypatch.setattr(endpoints, "FIRST_PAUSE", 0.001)
    monkeypatch.setattr(endpoints, "LONGEST_PAUSE", 0.01)


@pytest.fixture
def server():
    with FakeServer(streams()) as running:
        yield running


def streams():
    """The random streams of SAMPLED, which the servers find by their seeds."""
    seed = SAMPLED["seed"] * 2**32
    return [(seed + number, 0, k) for number in range(PROBLEMS) for k in range(2)]


def plain(records):
    return [{key: record[key] for key in record if key != "seconds"} for record in records]


def answered(servers, problems, **options):
    """What `evaluate` returns with these servers in the model's place."""
    remote = Endpoints([server.url for server in servers], "tiny")
    return evaluate(remote, remote.tokenizer, problems, **options)


def lines(folder):
    text = (folder / "records.jsonl").read_text(encoding="utf-8")
    return sorted(map(json.loads, text.splitlines()), key=lambda r: (r["number"], r["sample"]))


# --- The records -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "options"), [("greedy", GREEDY), ("sampled", SAMPLED)])
@pytest.mark.parametrize("batch_size", [1, "auto"])
def test_the_records_are_those_of_one_process(
    problems, expected, server, name, options, batch_size
):
    with FakeServer(streams()) as second:
        result = answered([server, second], problems, batch_size=batch_size, **options)
        bodies = server.bodies + second.bodies
    assert plain(result.records) == expected[name]
    assert len({tuple(body["prompt"]) for body in bodies}) == PROBLEMS
    assert len({body["seed"] for body in bodies}) == PROBLEMS * options.get("samples", 1)
    sampled = sum(record["tokens"] for record in result.records)
    assert result.sampled_tokens == sampled and result.generation_seconds > 0


def test_votes_and_traces_are_those_of_one_process(problems, server, tmp_path):
    model, tokenizer = shipped()
    remote = Endpoints([server.url + "/v1/"], "tiny")
    votes = self_consistency(remote, tokenizer, problems, **SAMPLED).votes
    assert votes == self_consistency(model, tokenizer, problems, **SAMPLED).votes
    make_traces(remote, tokenizer, problems, tmp_path / "remote", max_new_tokens=40)
    make_traces(model, tokenizer, problems, tmp_path / "here", max_new_tokens=40)
    for name in ("traces.jsonl", "rejected.jsonl"):
        assert (tmp_path / "remote" / name).read_bytes() == (tmp_path / "here" / name).read_bytes()


def test_no_weights_are_loaded(server, monkeypatch):
    monkeypatch.setattr("qwenlab.loading.load_weights", None)
    remote = Endpoints([server.url], "tiny")
    assert remote.stop_ids == shipped()[0].stop_ids and remote.config == shipped()[0].config


# --- Servers that fail -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", PASSING)
def test_what_passes_is_asked_again(problems, expected, server, fault):
    server.fault = lambda number: fault if number % 3 == 0 else None
    assert plain(answered([server], problems, batch_size=3, **GREEDY).records) == expected["greedy"]
    assert server.completions >= PROBLEMS + 3  # a probe, and at least two asked again


def test_a_server_that_hangs_is_asked_again(problems, expected, server, monkeypatch):
    remote = Endpoints([server.url], "tiny")
    tokenizer = remote.tokenizer
    evaluate(remote, tokenizer, problems, **GREEDY)  # the server knows the answers by now
    monkeypatch.setattr(completion_server, "ANSWER_SECONDS", 0.3)
    monkeypatch.setattr(completion_server, "TOKEN_SECONDS", 0.0)
    before = server.completions
    server.fault = lambda number: "hang" if number - before in (2, 5) else None
    result = evaluate(remote, tokenizer, problems, batch_size=4, **GREEDY)
    assert plain(result.records) == expected["greedy"]
    assert server.completions - before >= PROBLEMS + 3  # the probe, and two asked again


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("other ids", "request 3: the reply is about another prompt"),
        ("too few tokens", "request 3: cut off after 2 tokens, expected 40"),
        ("no stop id", "request 3: finish_reason is 'stop', but no stop id"),
        ("strange ids", r"request 3: token_ids is \[1000000, .*expected ids of the vocabulary"),
        (404, r"/v1/completions: status 404 \(as told\)"),
        (401, r"/v1/completions: status 401 \(as told\)"),
    ],
)
def test_what_can_t_be_an_answer_stops_the_run(
    problems, expected, server, tmp_path, fault, message
):
    server.fault = lambda number: fault if number == 4 else None  # the first one is the probe
    with pytest.raises(EndpointError, match=message):
        answered([server], problems, batch_size=1, folder=tmp_path, **GREEDY)
    assert plain(lines(tmp_path)) == expected["greedy"][:3]
    result = answered([server], problems, batch_size=1, folder=tmp_path, **GREEDY)
    assert plain(result.records) == expected["greedy"] and result.new_answers == PROBLEMS - 3


def test_the_others_go_on_without_a_server_that_is_lost(problems, expected, server, caplog):
    with FakeServer() as second:
        second.fault = lambda number: 503 if number else None
        result = answered([server, second], problems, batch_size=4, **GREEDY)
    assert plain(result.records) == expected["greedy"]
    server.fault = lambda number: 503
    with pytest.raises(EndpointError, match=r"no answer in 12 attempts \(status 503\)") as error:
        answered([server], problems, **GREEDY)
    assert error.value.status == 1


# --- A run goes on ---------------------------------------------------------------------------------------------------


def run_at(url, folder):
    remote = Endpoints([url], "tiny")
    evaluate(
        remote,
        remote.tokenizer,
        load_problems("tiny-test", PROBLEMS),
        folder=folder,
        batch_size=3,
        **SAMPLED,
    )


def test_a_killed_client_loses_nothing_and_repeats_nothing(problems, expected, server, tmp_path):
    path = tmp_path / "records.jsonl"
    for more in (700, 1100):
        torn = (path.stat().st_size if path.exists() else 0) + more
        killed = Forked(run_at, server.url, tmp_path, folder=tmp_path, signal_at=0, torn=torn)
        assert killed.end() == -signal.SIGXFSZ and path.stat().st_size == torn
    there = path.read_bytes().count(b"\n")
    result = answered([server], problems, folder=tmp_path, **SAMPLED)
    assert there > 1 and result.new_answers == 2 * PROBLEMS - there
    assert plain(result.records) == expected["sampled"] == plain(lines(tmp_path))


def test_a_killed_server_loses_nothing(problems, expected, tmp_path):
    """It goes after a few answers, and another one is there later, at the same address."""

    def go(number):
        return "half a body" if number > 5 else None  # cut off, and so is all that follows

    with FakeServer(streams(), fault=go) as first:
        remote = Endpoints([first.url], "tiny")
        with pytest.raises(EndpointError, match="run the same command again to resume"):
            evaluate(remote, remote.tokenizer, problems, folder=tmp_path, batch_size=2, **SAMPLED)
        there = lines(tmp_path)
        port = first.port
    with pytest.raises(EndpointError, match=r"no answer in 12 attempts \(ConnectError"):
        Endpoints([first.url], "tiny")
    with FakeServer(streams(), port=port) as second:
        result = answered([second], problems, folder=tmp_path, **SAMPLED)
    assert len(there) == 3 and result.new_answers == 2 * PROBLEMS - len(there)
    assert plain(result.records) == expected["sampled"] == plain(lines(tmp_path))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": "2.0"}, "version is '1.0' there, '2.0' now"),
        ({"models": [{"id": "other", "owned_by": "fake"}]}, "served_model is 'tiny' there"),
        ({"models": [{"id": "tiny", "owned_by": "vllm"}]}, "engine is 'fake' there, 'vllm' now"),
    ],
)
def test_another_engine_is_another_run(problems, server, tmp_path, change, message):
    answered([server], problems[:1], folder=tmp_path, **GREEDY)
    settings = json.loads((tmp_path / "run.json").read_text(encoding="utf-8"))
    assert (settings["engine"], settings["version"], settings["sent_as"]) == (
        "fake",
        "1.0",
        "token ids",
    )
    with FakeServer() as other:
        vars(other).update(change)
        with pytest.raises(RunFolderError, match=message):
            answered([other], problems[:1], folder=tmp_path, **GREEDY)
        with pytest.raises(EndpointError, match=r"expected '\S+' as at"):
            answered([server, other], problems[:1], **GREEDY)
    with pytest.raises(RunFolderError, match="dtype is None there"):
        evaluate(*shipped(), problems[:1], folder=tmp_path, **GREEDY)


# --- What a server lacks ---------------------------------------------------------------------------------------------


LACKING = ["prompts as token ids", "answers as token ids"]


@pytest.mark.parametrize("lacking", [LACKING[:1], LACKING[1:], [*LACKING, "logprobs"]])
def test_as_text_the_records_are_the_same(problems, expected, server, caplog, lacking):
    server.lacks = set(lacking)
    result = answered([server], problems, **GREEDY)
    assert plain(result.records) == expected["greedy"]
    assert "prompts and answers are sent as text" in caplog.text
    sent = [body for body in server.bodies if isinstance(body["prompt"], str)]
    names = {"model", "prompt", "max_tokens", "temperature", "top_p", "seed"}
    assert len(sent) == PROBLEMS + 1 and all(body.keys() == names for body in sent)


@pytest.mark.parametrize("lacking", LACKING)
def test_text_is_refused_where_an_unfinished_thought_could_score(
    problems, server, tmp_path, lacking
):
    server.lacks = {lacking}
    with pytest.raises(EndpointError, match=f"has no {lacking}; as text .* at temperature 0"):
        answered([server], problems, folder=tmp_path / "run", **SAMPLED)
    server.fault = lambda number: "no thinking"
    with pytest.raises(EndpointError, match=f"has no {lacking}, and its text doesn't show <think>"):
        answered([server], problems, folder=tmp_path / "run", **GREEDY)
    assert not (tmp_path / "run").exists()


def test_a_prompt_that_the_server_reads_otherwise_is_refused(problems, server):
    """As text, a control token that somebody spelt out would become one."""
    server.lacks = set(LACKING)
    spelt = Problem(1, "What is <|im_end|> and 2+2?", "4", "spelt")
    with pytest.raises(EndpointError, match=r"the server read \d+ tokens of the prompt, expected"):
        answered([server], [problems[0], spelt], **GREEDY)


def test_missing_logprobs_are_said_and_cost_nothing(problems, expected, server, caplog):
    server.lacks = {"logprobs"}
    assert plain(answered([server], problems, **GREEDY).records) == expected["greedy"]
    assert "sends no log-probabilities" in caplog.text


def test_missing_seeds_are_refused_for_samples_only(problems, expected, server):
    server.lacks = {"seeds"}
    assert plain(answered([server], problems, **GREEDY).records) == expected["greedy"]
    with pytest.raises(EndpointError, match="has no seeds"):
        answered([server], problems, **SAMPLED)


def test_a_short_context_is_refused_before_anything_is_asked(problems, server, tmp_path):
    server.models[0]["max_model_len"] = 50
    with pytest.raises(EndpointError, match="a context of 50 tokens, expected at least"):
        answered([server], problems, folder=tmp_path / "run", **GREEDY)
    assert server.completions == 0 and not (tmp_path / "run").exists()


def test_of_several_models_the_named_one_is_asked(server):
    server.models = [{"id": "other"}, *server.models]
    assert repr(Endpoints([server.url], "tiny")) == f"tiny on fake 1.0 at {server.url}"
    server.version = ""
    assert repr(Endpoints([server.url], "tiny")) == f"tiny on fake unknown at {server.url}"
    for served, known in (([], "none"), ([{"id": "one"}, {"id": "two"}], "one, two")):
        server.models = served
        with pytest.raises(EndpointError, match=f"serves {known}, expected tiny or a single"):
            Endpoints([server.url], "tiny")


def test_wrong_addresses_and_a_missing_httpx_are_one_line(monkeypatch):
    for url in ("", "localhost:8000", "ftp://host", "http://"):
        with pytest.raises(EndpointError, match="expected an address such as http://host:8000"):
            Endpoints([url], "tiny")
    monkeypatch.setitem(__import__("sys").modules, "httpx", None)
    with pytest.raises(EndpointError, match=r"expected: pip install 'qwenlab\[endpoint\]'"):
        Endpoints(["http://127.0.0.1:1"], "tiny")


# --- The command -----------------------------------------------------------------------------------------------------


def test_the_commands_ask_the_servers(run, problems, expected, server):
    options = ["--data", "tiny-test", "--limit", PROBLEMS, "--max-new-tokens", 40]
    options += ["--endpoint", server.url, "--endpoint", server.url]
    code, out, err = run("evaluate", *options, "--output", "run")
    right = sum(record["verdict"] for record in expected["greedy"])
    assert code == 0 and out.startswith(f"accuracy    {right / PROBLEMS:.3f}, ")
    assert err == f"qwenlab: tiny on fake 1.0 at {server.url}, {server.url}, 6 problems\n"
    code, out, err = run("traces", *options, "--temperature", 0, "--output", "traces")
    assert code == 0 and out.endswith("of 6 problems\n")
    code, out, err = run("vote", *options, "--dtype", "bfloat16")
    reason = "--dtype is 'bfloat16', but --endpoint leaves that to the server"
    assert (code, out, err) == (2, "", f"qwenlab: {reason}\n")
