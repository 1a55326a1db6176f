"""Puzzles on several ranks: one shared order, one configuration, one training run; and it learns."""

import json
import os
import re
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
import warm
from disturbance import copy_up_to, signal_ranks, when
from torch.utils.data import DataLoader
from trainer_runs import run_jobs
from training_runs import ROOT, assert_same_run, checkpoint, in_this_process, largest_gap, merged, metrics

from ddp_course import puzzles_ddp
from ddp_course.base.errors import InputError
from ddp_course.data import sudoku
from ddp_course.data.puzzles import HELD_OUT_ID, IGNORED, PuzzleBatches, Puzzles, make_sets, read_sets
from ddp_course.launcher import RunFailed, torchrun
from ddp_course.models.puzzle import PuzzleModel, PuzzleModelConfig, halting_steps
from ddp_course.puzzles_ddp import PRESETS
from ddp_course.training.command_line import parse

TRAINER = ROOT / "ddp_course" / "puzzles_ddp.py"
STEPS = 6
TINY = f"preset=tiny fewest_clues=4 steps={STEPS} validate_every=3 checkpoint_every=1 keep_checkpoints=0".split()


def flags(run_dir: Path, *settings: str) -> list[str]:
    return merged(*TINY, "device=cpu", f"run_dir={run_dir}", *settings)


def train(run_dir: Path, *settings: str) -> str:
    """On one process, in this one; returns what it printed."""
    return in_this_process(puzzles_ddp.train, parse(PRESETS, flags(run_dir, *settings)))


# ---- the order of the boards -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def numbered():
    """53 boards that say which they are: cell 0 is given and holds the number, cell 1 is to be found."""
    clues = np.zeros((53, 16), dtype=np.uint8)
    clues[:, 0] = np.arange(1, 54)
    return Puzzles(clues, np.ones_like(clues), np.arange(1, 54, dtype=np.int64))


def read(puzzles, world_size, batches, **options):
    """The numbers of the boards in each global batch: the ranks' shares, one after the other, without padding."""
    streams = [iter(PuzzleBatches(puzzles, rank=rank, world_size=world_size, **options)) for rank in range(world_size)]
    global_batches = []
    for _ in range(batches):
        shares = [next(stream) for stream in streams]
        assert len({len(share.ids) for share in shares}) == 1, "ranks have batches of unlike length"
        global_batches.append([int(number) for share in shares for number in share.clues[share.real][:, 0]])
    return global_batches


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 64])
@pytest.mark.parametrize("batch_size", [1, 10, 53, 60])
def test_the_global_batches_are_the_same_at_any_world_size(numbered, world_size, batch_size):
    per_epoch = -(-53 // batch_size)
    batches = read(numbered, world_size, 2 * per_epoch, batch_size=batch_size, seed=7)
    assert batches == read(numbered, 1, 2 * per_epoch, batch_size=batch_size, seed=7)
    first, second = sum(batches[:per_epoch], []), sum(batches[per_epoch:], [])
    assert sorted(first) == sorted(second) == list(range(1, 54)), "an epoch lost a board, or took one twice"
    assert first != second


@pytest.mark.parametrize("world_size", [1, 3, 4])
def test_an_evaluation_is_one_complete_pass(numbered, world_size):
    assert sorted(sum(read(numbered, world_size, 7, batch_size=8), [])) == list(range(1, 54))
    for rank in range(world_size):
        assert len(list(PuzzleBatches(numbered, batch_size=8, rank=rank, world_size=world_size))) == 7


def test_padding_has_nothing_to_find_and_uses_no_row_of_its_own(numbered):
    batches = PuzzleBatches(numbered, batch_size=10, rank=3, world_size=4, seed=1)  # slices of 3: 10 = 3 + 3 + 3 + 1
    batch = next(iter(batches))
    assert batch.real.tolist() == [True, False, False]
    assert (batch.targets[~batch.real] == IGNORED).all()
    assert (batch.targets[0] == IGNORED).tolist() == (batch.clues[0] > 0).tolist()
    assert set(batch.ids.tolist()) <= set(numbered.ids[batches.global_batch(0)].tolist()), (
        "padding would touch a row that one process does not"
    )


def test_going_on_at_a_batch_is_as_if_never_stopped(numbered):
    whole = read(numbered, 2, 9, batch_size=20, seed=3)
    assert read(numbered, 4, 4, batch_size=20, seed=3, start=5) == whole[5:]


def test_loader_workers_share_the_batches(numbered):
    options = {"batch_size": 10, "rank": 1, "world_size": 2}
    without = list(PuzzleBatches(numbered, **options))
    with_workers = list(DataLoader(PuzzleBatches(numbered, **options), batch_size=None, num_workers=2))
    assert [batch.ids.tolist() for batch in with_workers] == [batch.ids.tolist() for batch in without]


def fingerprints(puzzles):
    boards = zip(puzzles.clues.tolist(), puzzles.solutions.tolist(), strict=True)
    return [sudoku.fingerprint(tuple(clues), tuple(answer)) for clues, answer in boards]


def test_no_augmentation_of_a_held_out_puzzle_is_trained_on():
    training, held_out = make_sets(5, 4, puzzles=40, boards_per_puzzle=3, held_out=20, clues=(5, 9))
    assert len(training) == 120 and len(held_out) == 20
    assert not set(fingerprints(training)) & set(fingerprints(held_out))
    by_id = {}
    for number, fingerprint in zip(training.ids.tolist(), fingerprints(training), strict=True):
        by_id.setdefault(number, set()).add(fingerprint)
    assert sorted(by_id) == list(range(1, 41)) and all(len(of_puzzle) == 1 for of_puzzle in by_id.values())
    assert set(held_out.ids.tolist()) == {HELD_OUT_ID}
    assert (make_sets(5, 4, 10, 1, 20, (5, 9))[1].clues == held_out.clues).all()


@pytest.mark.parametrize(
    "options, message",
    [
        ({"batch_size": 0}, "at least 1"),
        ({"batch_size": 4, "rank": 2, "world_size": 2}, "expected 0 to 1"),
        ({"batch_size": 4, "start": -1}, "expected 0 or more"),
    ],
)
def test_batches_that_make_no_sense_are_refused(numbered, options, message):
    with pytest.raises(InputError, match=message):
        PuzzleBatches(numbered, **options)


# ---- the model -------------------------------------------------------------------------------------------------------


def test_one_step_gradients_need_no_more_memory_for_more_steps():
    """Counts the tensors that autograd keeps: with full gradients they grow with the steps."""

    def kept(gradient, fast_steps):
        model = PuzzleModel(
            PuzzleModelConfig(width=8, heads=2, puzzle_width=2, fast_steps=fast_steps, gradient=gradient)
        )
        count = []
        clues, vectors = torch.zeros(2, 16, dtype=torch.int64), torch.zeros(2, 2, requires_grad=True)
        with torch.autograd.graph.saved_tensors_hooks(lambda tensor: count.append(tensor.nbytes), lambda kept: kept):
            model(clues, vectors, clues)
        return sum(count)

    assert kept("one-step", 2) == kept("one-step", 6)
    assert kept("full", 2) < kept("full", 6)


def test_the_vector_of_a_puzzle_gets_a_gradient_and_ignored_targets_give_none():
    torch.manual_seed(0)
    model = PuzzleModel(PuzzleModelConfig(width=8, heads=2, puzzle_width=2)).double()
    clues, vectors = torch.zeros(3, 16, dtype=torch.int64), torch.zeros(3, 2, dtype=torch.float64, requires_grad=True)
    targets = torch.full((3, 16), IGNORED)
    targets[:2, :5] = 1
    model(clues, vectors, targets).backward()
    assert (vectors.grad[:2] != 0).all() and (vectors.grad[2] == 0).all()
    assert model(clues, vectors).shape == (3, 16, 4)


def test_bfloat16_has_nearly_the_gradients_of_float32():
    """The first steps of a segment run without gradients: a weight cast for them must not be taken for the last one."""
    torch.manual_seed(0)
    model = PuzzleModel(PuzzleModelConfig(width=16, heads=2, puzzle_width=4))
    clues, targets, vectors = torch.randint(0, 5, (3, 16)), torch.randint(0, 4, (3, 16)), torch.randn(3, 4)
    gradients = []
    for enabled in (False, True):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            loss = model(clues, vectors, targets)
        gradients.append(torch.autograd.grad(loss, list(model.parameters())))
        assert loss.dtype == torch.float32
    for exact, rounded in zip(*gradients, strict=True):
        assert (exact - rounded).norm() < 0.05 * exact.norm()


def test_a_board_halts_with_the_last_change_of_a_cell_that_is_asked_for():
    answers = torch.tensor(
        [[[0, 1], [0, 1], [2, 2]], [[0, 2], [1, 1], [2, 2]], [[0, 1], [1, 1], [2, 2]]]
    )  # (segments, boards, cells)
    asked = torch.tensor([[True, True], [False, True], [True, True]])
    logits = list(torch.nn.functional.one_hot(answers, 3).float())
    assert halting_steps(logits, asked).tolist() == [3, 1, 1]
    assert halting_steps(logits, torch.ones_like(asked)).tolist() == [3, 2, 1]


# ---- the trainer -----------------------------------------------------------------------------------------------------


EXACT = "precision=float64"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A folder with the same run on 1, 2 and 4 ranks, called by their number, and more runs of 2 ranks."""
    folder = tmp_path_factory.mktemp("runs")
    settings = {
        "2": [EXACT],
        "resumed": [EXACT, "resume=auto"],
        "bfloat16": [f"data={write_puzzles(folder / 'puzzles', 30, 11)}", "precision=bfloat16", "tensorboard=true"],
    }
    settings["bfloat16"] += ["steps=2", "validate_every=0"]
    jobs = {title: {"script": "puzzles", "flags": flags(folder / title, *more)} for title, more in settings.items()}
    jobs["resumed"]["copy"] = [folder / "2", 4, folder / "resumed"]
    train(folder / "1", EXACT)
    assert set(run_jobs(folder, jobs, 2).outcomes.values()) == {"0"}
    assert run_jobs(folder, {"4": jobs["2"] | {"flags": flags(folder / "4", EXACT)}}, 4).outcomes == {"4": "0"}
    return folder


@pytest.mark.parametrize("nproc", ["2", "4"])
def test_n_processes_equal_one(runs, nproc):
    """Two boards of each of 30 puzzles, and batches of 14: the last of an epoch has 4, and 14 does not divide by 4."""
    reference, several = runs / "1", runs / nproc
    keys = "loss grad_norm learning_rate embedding_learning_rate val_loss val_cell_accuracy val_exact val_halting_steps"
    for key in keys.split():
        assert metrics(several, key) == pytest.approx(metrics(reference, key), abs=1e-10), key
    assert sorted(metrics(reference)) == list(range(1, STEPS + 1))
    for step in (1, STEPS):
        ours, theirs = checkpoint(several, step), checkpoint(reference, step)
        assert largest_gap(ours["model"], theirs["model"]) <= 1e-10
        # A sum that is not within rounding of zero has one sign: the tables are equal to the last bit.
        assert torch.equal(ours["embedding"]["table"], theirs["embedding"]["table"])
    assert checkpoint(reference, STEPS)["embedding"]["table"][1:].abs().max() > 0


def test_only_rows_that_were_used_have_moved_and_row_0_never(runs):
    training, _ = make_sets(1, 4, 30, 2, 11, (5, 9))
    first = set(training.ids[PuzzleBatches(training, batch_size=14, seed=1).global_batch(0)].tolist())
    table = checkpoint(runs / "4", 1)["embedding"]["table"]
    assert set(table.any(dim=1).nonzero().flatten().tolist()) == first and 0 not in first


def test_resumed_is_bit_equal(runs):
    assert_same_run(runs / "resumed", runs / "2", STEPS, ("loss", "val_exact"))
    tables = [checkpoint(runs / title, STEPS)["embedding"]["table"] for title in ("resumed", "2")]
    assert torch.equal(*tables)
    names = [json.loads((runs / title / "config.json").read_text())["run_name"] for title in ("resumed", "2")]
    assert names[0] == names[1], "a resumed run has taken another name"


def test_a_run_resumes_at_another_world_size(runs, tmp_path):
    run_dir = copy_up_to(runs / "2", 3, tmp_path / "copy")
    train(run_dir, EXACT, "resume=auto")
    for key in ("loss", "val_loss"):
        assert metrics(run_dir, key) == pytest.approx(metrics(runs / "1", key), abs=1e-10)


@pytest.mark.usefixtures("warm_launches")
def test_sigterm_saves_on_all_ranks_and_torchrun_does_not_start_them_again(tmp_path):
    """A stopped run is not to be restarted by --max-restarts. Started again by hand, it resumes."""
    run_dir, pid, seldom = tmp_path / "run", os.getpid(), ("validate_every=0", "checkpoint_every=0")
    watcher = when(lambda: (run_dir / "metrics.jsonl").exists(), lambda: signal_ranks(pid, signal.SIGTERM))
    words, options = flags(run_dir, *seldom, "steps=100000"), {"torchrun_args": ["--max-restarts=2"], "timeout": 600}
    run = torchrun(TRAINER, *words, nproc=2, quiet=True, check=False, **options)
    watcher.join()
    # torchrun itself, ended by SIGTERM, once aborted (-6) when all ranks had left: in one of some sixty runs.
    assert run.exit_code in (1, -6) and not any("resuming" in line for line in run.lines[0]), run.launcher_lines
    [saved] = (run_dir / "checkpoints").iterdir()
    step = int(saved.name.removeprefix("step_"))
    assert max(metrics(run_dir)) == step and any("received SIGTERM" in line for line in run.lines[0])
    train(run_dir, *seldom, f"steps={step + 2}", "resume=auto")
    assert sorted(metrics(run_dir)) == list(range(1, step + 3))


def test_it_learns_puzzles_that_it_has_never_seen(tmp_path):
    """With a few seconds' training; the notebook shows a longer run."""
    settings = "puzzles=300 boards_per_puzzle=16 held_out=100 width=64 heads=4 boards_per_update=64 fewest_clues=5"
    settings += " most_clues=9 steps=140 warmup_steps=10 learning_rate=4e-3 checkpoint_every=0 validate_every=0"
    printed = train(tmp_path / "run", *settings.split())
    guessed = float(re.search(r"filled in at random, ([\d.]+) of", printed)[1])
    [solved] = metrics(tmp_path / "run", "val_exact").values()
    assert solved > guessed + 0.2, (solved, guessed)


# ---- the configuration -----------------------------------------------------------------------------------------------


BAD = {
    "unknown key": (["lrr=1"], "unrecognized arguments: lrr=1"),
    "no key=value": (["fast"], "unrecognized arguments: fast"),
    "no float": (["learning_rate=fast"], "--learning-rate must be a number, not 'fast'"),
    "empty value": (["steps="], "--steps must be a whole number, not ''"),
    "neither true nor false": (["tensorboard=maybe"], "--tensorboard must be true or false, not 'maybe'"),
    "another size": (["size=16"], "--size must be one of 4, 9, not 16"),
    "clues": (["fewest_clues=9", "most_clues=8"], "--fewest-clues 9 and --most-clues 8 must be a range"),
    "heads": (["heads=3"], "--width 64 does not divide into --heads 3"),
    "negative": (["embedding_learning_rate=-1"], "--embedding-learning-rate must be at least 0, not -1.0"),
    "a path for a name": (["run_name=../x"], "--run-name must be a name, not a path"),
    "the folder above for a name": (["run_name=.."], "--run-name must be a name, not a path"),
    "missing file": (["@{tmp}/missing.txt"], "cannot read the settings in {tmp}/missing.txt: No such file"),
    "a folder": (["@{tmp}"], "cannot read the settings in {tmp}: Is a directory"),
    "a bad line": (["@{tmp}/bad.txt"], "'steps: 3' in {tmp}/bad.txt is no setting; write key=value"),
    "not text": (["@{tmp}/binary.txt"], "cannot read the settings in {tmp}/binary.txt: it is not UTF-8 text"),
}


@pytest.mark.parametrize("what", BAD)
def test_a_bad_setting_is_named(tmp_path, what):
    words, message = BAD[what]
    (tmp_path / "bad.txt").write_text("# a comment\n\nlearning_rate=1e-3\nsteps: 3\n")
    (tmp_path / "binary.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError) as error:
        parse(PRESETS, [word.format(tmp=tmp_path) for word in words])
    assert message.format(tmp=tmp_path) in str(error.value) and "\n" not in str(error.value)


def test_flags_and_key_value_words_win_over_a_file_wherever_it_stands(tmp_path):
    (tmp_path / "settings.txt").write_text("# a comment\npreset=tiny\nlearning_rate=0.5\nsteps=7\nmax_seconds=9\n")
    config = parse(PRESETS, ["steps=8", "--seed", "3", f"@{tmp_path}/settings.txt", "--max-seconds", "None"])
    assert (config.learning_rate, config.steps, config.max_seconds, config.seed) == (0.5, 8, None, 3)
    assert config.puzzles == PRESETS["tiny"].puzzles and isinstance(config.steps, int)
    assert parse(PRESETS, ["run_dir=a=b", "tensorboard=false"]).run_dir == "a=b"


def test_a_device_that_only_a_file_names_is_refused(tmp_path):
    """Each rank needs it before rank 0 could send it."""
    (tmp_path / "settings.txt").write_text("device=cpu\n")
    done = warm.single_process(TRAINER, f"@{tmp_path}/settings.txt")
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
    assert "--device and --timeout-seconds must stand on the command line" in done.stderr


def test_help_explains_every_flag_and_comes_from_one_rank():
    done = warm.ranks(TRAINER, "--help", nproc=2)
    flags = set(re.findall(r"--[a-z-]+", " ".join(done.lines[0])))
    assert done.lines[1] == [] and {f"--{name.replace('_', '-')}" for name in vars(PRESETS["tiny"])} <= flags


# ---- puzzles from a folder -------------------------------------------------------------------------------------------


def write_puzzles(folder, train, test):
    """Files as published ones are: other columns, and dots for empty cells."""
    folder.mkdir(parents=True, exist_ok=True)
    made = sudoku.make_distinct(3, 4, train + test, 5, 9)
    for name, some in (("train.csv", made[:train]), ("test.csv", made[train:])):
        lines = [
            f"us,{''.join(map(str, puzzle)).replace('0', '.')},{''.join(map(str, solution))},1.5"
            for puzzle, solution in some
        ]
        (folder / name).write_text("\n".join(["source,question,answer,rating", *lines]) + "\n")
    return folder


def test_a_folder_of_puzzles_is_read_without_overlap(tmp_path):
    folder = write_puzzles(tmp_path, 20, 10)
    with open(folder / "test.csv", "a") as file:  # what is trained on, again
        file.writelines((folder / "train.csv").read_text().splitlines(keepends=True)[1:])
    training, held_out = read_sets(folder, 1, 4, 20, 3, 10)
    assert len(training) == 60 and sorted(set(training.ids.tolist())) == list(range(1, 21))
    trained_on, kept_back = (set(fingerprints(puzzles)) for puzzles in (training, held_out))
    assert len(trained_on) == 20 and len(kept_back) == 10 and not trained_on & kept_back
    assert set(held_out.ids.tolist()) == {HELD_OUT_ID}
    assert read_sets(folder, 1, 4, 20, 3, 10)[0].clues.tolist() == training.clues.tolist()
    assert read_sets(folder, 2, 4, 20, 3, 10)[0].clues.tolist() != training.clues.tolist()


@pytest.mark.parametrize(
    "text, message",
    [
        ("question,solution\n", "has no column 'answer': its first line must name"),
        ("", "has no column 'question'"),
        ("question,answer\n12..,1234\n", "line 2: '12..' with answer '1234' is no 4x4 sudoku"),
        (f"question,answer\n{'.' * 16},{'1234' * 4}\n", "is no 4x4 sudoku with its solution"),
        (f"question,answer\n4{'.' * 15},1234341221434321\n", "is no 4x4 sudoku with its solution"),
        (f"question,answer\n1{'.' * 15},1234341221434321\n", "holds 1 different puzzles, but 2 were asked for"),
        ("question,answer\n\udcff\n", "is no CSV file in UTF-8"),
    ],
)
def test_a_bad_file_of_puzzles_is_named(tmp_path, text, message):
    (tmp_path / "train.csv").write_text(text, errors="surrogateescape")
    with pytest.raises(InputError) as error:
        read_sets(tmp_path, 1, 4, 2, 1, 1)
    assert message in str(error.value) and str(tmp_path / "train.csv") in str(error.value)


def test_it_trains_in_bfloat16_on_a_folder_and_logs_to_tensorboard(runs, tmp_path):
    assert list((runs / "bfloat16/tensorboard").glob("events.*"))
    assert 1 <= metrics(runs / "bfloat16", "val_halting_steps")[2] <= 2
    saved = checkpoint(runs / "bfloat16", 2)
    assert {tensor.dtype for tensor in (*saved["model"].values(), saved["embedding"]["table"])} == {torch.float32}
    run_dir, other = shutil.copytree(runs / "bfloat16", tmp_path / "run"), write_puzzles(tmp_path / "puzzles", 40, 11)
    with pytest.raises(InputError, match="it has boards"):
        train(run_dir, f"data={other}", "precision=bfloat16", "steps=3", "resume=auto")


def test_more_puzzles_than_there_are_is_refused(tmp_path):
    with pytest.raises(InputError, match="ask for fewer, or for a wider range"):
        train(tmp_path / "run", "fewest_clues=15", "most_clues=15")


@pytest.mark.parametrize("size", ["boards_per_update=1000000000", "puzzles=100000000000", "width=10000000"])
def test_memory_that_is_not_there_is_refused_before_it_is_asked_for(tmp_path, size):
    with pytest.raises(InputError, match="GiB of memory, each of 1 here has"):
        train(tmp_path / "run", size)


@pytest.mark.usefixtures("warm_launches")
def test_a_failure_on_rank_0_stops_every_rank_with_one_message(tmp_path):
    with pytest.raises(RunFailed) as failed:
        torchrun(TRAINER, "--device", "cpu", f"@{tmp_path}/missing.txt", nproc=2, quiet=True, timeout=600)
    run = failed.value.run
    printed = [line for lines in run.lines.values() for line in lines]
    assert printed == [f"error: cannot read the settings in {tmp_path}/missing.txt: No such file or directory"]
    assert all(run.exit_codes.values())


def test_a_run_has_a_name_of_its_own_and_settings_that_can_be_read(runs):
    settings = [json.loads((runs / nproc / "config.json").read_text()) for nproc in ("2", "4")]
    assert settings[0]["run_name"].startswith("puzzles-") and [s["world_size"] for s in settings] == [2, 4]
    assert settings[0]["run_name"] != settings[1]["run_name"]
