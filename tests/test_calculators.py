"""The calculators' Python without a browser: the zip of their modules suffices, and prints what the commands print."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
from torch.utils.data import DistributedSampler

ROOT = Path(__file__).parents[1]
ANSWERS = """
import json, sys
sys.path.insert(0, sys.argv[1])
import in_browser
for line in sys.stdin:
    print(in_browser.answer(*json.loads(line)), flush=True)
"""


@pytest.fixture(scope="module")
def ask(tmp_path_factory):
    """A function: the answer of one interpreter for all pages, without the installed packages, as in a browser."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "site")
        packing = importlib.import_module("packing")
    path = tmp_path_factory.mktemp("modules") / "course.zip"
    packing.pack_modules(path)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}

    def answer(command, arguments):
        print(json.dumps([command, arguments.split()]), file=process.stdin, flush=True)
        return json.loads(process.stdout.readline())

    with subprocess.Popen([sys.executable, "-ISc", ANSWERS, path], text=True, **pipes) as process:
        yield answer


@pytest.mark.parametrize(
    ("command", "arguments", "pictures"),
    [
        ("plan", "--params 7B --gpus 8 --memory 80GB --link 100Gb", 2),
        ("plan", "--params 70B --gpus 2 --memory 16GB --link 100Gb", 1),
        ("plan", "--params 7B", 0),
        ("predict", "--gpus 4 --link 100Gb", 3),
        ("predict", "--gpus 4 --link fast", 0),
    ],
)
def test_the_text_is_that_of_the_command(ask, capsys, command, arguments, pictures):
    answer = ask(command, arguments)
    importlib.import_module(f"ddp_course.{command}.__main__").main(arguments.split())
    assert answer["text"] == "".join(capsys.readouterr())
    assert len(answer["pictures"]) == pictures


def test_a_page_without_a_command_draws_what_the_package_computes(ask):
    answer = ask("pipeline", "--stages 4 --micro-batches 8")
    assert "bubble: 27.3%" in answer["text"] and answer["text"].strip().endswith("4, 3, 2, 1")
    assert [len(lane["events"]) for lane in answer["pictures"][0]["lanes"]] == [16] * 4
    rows = ask("zero", "--params 7e9 --gpus 8")["pictures"][0]["rows"]
    sums = [sum(part["value"] for part in row["parts"]) for row in rows]
    assert [row["name"] for row in rows] == ["DDP", "ZeRO-1", "ZeRO-2", "ZeRO-3"] and sums == sorted(sums, reverse=True)


def test_a_ring_frames_what_each_rank_sends_and_ends_with_the_last_step(ask):
    [picture] = ask("ring", "--ranks 3 --step 1")["pictures"]
    cells = [row["cells"] for row in picture["grid"]]
    assert [[cell["framed"] for cell in chunks].index(True) for chunks in cells] == [2, 0, 1]
    assert cells[1][0]["parts"] == ["rank 0", "rank 1", ""]
    end = ask("ring", "--ranks 3 --step 14")
    assert end["text"].startswith("4 of 4 steps done") and end["last"] == {"--step": 4}


def test_a_full_bucket_waits_until_the_link_is_free(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "site")
    queue = importlib.import_module("bucket_queue")._queue
    sent = [{"ready": ready, "start": start} for ready, start in ((2, 2), (3, 4), (4, 6), (5, 8))]
    waiting = [(event["text"], event["start"], event["end"]) for event in queue(sent)]
    assert waiting == [("1", 3, 4), ("1", 4, 5), ("2", 5, 6), ("1", 6, 8)]


@pytest.mark.parametrize(("gpus", "messages"), [(1, 0), (64, 13)])
def test_the_buckets_are_those_of_the_predicted_step(ask, gpus, messages):
    flags = f"--model gpt2 --gpus {gpus} --bucket-mib 25 --link 50Gb"
    answer = ask("buckets", flags)
    computes, _, link = answer["pictures"][0]["lanes"]
    assert len(link["events"]) == messages and len(computes["events"]) == 2 + max(1, messages)
    predicted = ask("predict", flags)["pictures"][1]
    assert answer["pictures"][0]["end"] == predicted["end"]
    assert [[e["start"], e["end"]] for e in link["events"]] == [
        [e["start"], e["end"]] for e in predicted["lanes"][1]["events"]
    ]


@pytest.mark.parametrize(
    ("samples", "ranks", "epoch", "flags"),
    [
        (10, 4, 0, ""),
        (10, 4, 3, ""),
        (9, 1, 7, ""),
        (16, 6, 2, "--no-shuffle --drop-last"),
        (10, 4, 3, "--no-set-epoch"),
        (15, 8, 1, "--drop-last"),
    ],
)
def test_the_sampler_gives_each_rank_the_samples_that_torchs_gives(ask, samples, ranks, epoch, flags):
    shares = []
    for rank in range(ranks):
        sampler = DistributedSampler(
            range(samples), ranks, rank, shuffle="no-shuffle" not in flags, drop_last="drop" in flags
        )
        if "no-set-epoch" not in flags:
            sampler.set_epoch(epoch)
        shares.append(list(sampler))
    answer = ask("sampler", f"--samples {samples} --ranks {ranks} --epoch {epoch} {flags}")
    by_rank, by_sample = ([row["cells"] for row in picture["grid"]] for picture in answer["pictures"])
    assert [[int(cell["text"]) for cell in cells] for cells in by_rank] == shares
    readers = [[f"rank {rank}" for rank, share in enumerate(shares) if sample in share] for sample in range(samples)]
    assert [[part for part in cell["parts"] if part] for cell in by_sample[0]] == readers
    twice, never = ([str(n) for n, of in enumerate(readers) if len(of) in counts] for counts in ((2,), (0,)))
    expected = f"read twice: {', '.join(twice) or 'none'}\nread by no rank: {', '.join(never) or 'none'}\n"
    assert answer["text"] == expected
    framed = sum(cell["framed"] for cells in by_rank for cell in cells)
    assert framed == len(twice) == max(0, sum(map(len, shares)) - samples)
    again = epoch > 0 and bool({"--no-set-epoch", "--no-shuffle"} & set(flags.split()))
    assert answer["pictures"][0]["title"].endswith("(those of epoch 0 again)") == again


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        ("sampler", "--samples 11 --ranks 4 --epoch 0"),
        ("buckets", "--gpus 8 --link 100Gb --bucket-mib 0"),
        ("pipeline", "--stages 4 --micro-batches 0"),
        ("pipeline", ""),
        ("zero", "--gpus 8"),
        ("ring", "--ranks 1 --step 0"),
        ("ring", "--ranks 4 --step -1"),
    ],
)
def test_wrong_arguments_of_a_page_are_one_sentence(ask, command, arguments):
    answer = ask(command, arguments)
    assert answer["text"].startswith("error: ") and answer["text"].count("\n") == 1 and not answer["pictures"]
