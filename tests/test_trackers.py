"""Trackers get the numbers of metrics.jsonl, from rank 0 only."""

import importlib.util
import json
import sys

import pytest
import torch
import warm
from training_runs import TRAINER, arguments, metrics

from ddp_course.base.errors import InputError
from ddp_course.checkpoint.run_directory import RunDirectory
from ddp_course.distributed.process_group import World
from ddp_course.training.progress import Progress
from ddp_course.training.settings import RunSettings

# Stands for wandb, which is large and optional: the part that our tracker uses. It records its calls in `calls`.
STAND_IN = """
calls = []
class Error(Exception): pass
class Run:
    def log(self, numbers, step): calls.append(("log", step, numbers))
    def finish(self): calls.append(("finish",))
def init(**options):
    if options["project"] == "forbidden":
        raise Error("no API key configured")
    calls.append(("init", options))
    return Run()
"""


@pytest.fixture
def wandb(tmp_path, monkeypatch):
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "wandb.py").write_text(STAND_IN)
    monkeypatch.syspath_prepend(tmp_path / "modules")
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    yield importlib.import_module("wandb")
    monkeypatch.delitem(sys.modules, "wandb", raising=False)


def report(run_dir, rank=0):
    """Two steps and a validation, as a launchable reports them."""
    run_dir.mkdir(exist_ok=True)
    run = RunDirectory(run_dir, World(rank, rank, 2, torch.device("cpu")))
    progress = Progress(run, RunSettings(steps=2, log_every=1, wandb=True), first_step=0, per_step=8, unit="tokens")
    for step in (1, 2):
        progress.step(step, 3.0 - step, loss=3.0 - step)
    progress.validation(2, loss=1.5)
    progress.close()


def test_wandb_gets_what_metrics_get(tmp_path, wandb):
    report(tmp_path / "run")
    (_, options), *logged, last = wandb.calls
    assert (options["name"], options["dir"], options["config"]["steps"]) == ("run", tmp_path / "run", 2)
    assert last == ("finish",)
    records = list(map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()))
    assert [{"step": step} | numbers for _, step, numbers in logged] == records


def test_only_rank_0_tracks(tmp_path, wandb):
    report(tmp_path / "run", rank=1)
    assert wandb.calls == [] and list((tmp_path / "run").iterdir()) == []


def test_a_resumed_run_keeps_its_id_and_a_new_run_gets_another(tmp_path, wandb):
    for name in ("one", "one", "two"):
        report(tmp_path / name)
    ids = [call[1]["id"] for call in wandb.calls if call[0] == "init"]
    assert ids[0] == ids[1] != ids[2]


def test_what_wandb_refuses_is_one_sentence(tmp_path, wandb, monkeypatch):
    monkeypatch.setenv("WANDB_PROJECT", "forbidden")
    with pytest.raises(InputError, match="--wandb: no API key configured; to send the metrics later, set WANDB_MODE"):
        report(tmp_path / "run")


@pytest.mark.skipif(importlib.util.find_spec("wandb") is None, reason="the extra wandb is not installed")
def test_wandb_itself_writes_an_offline_run(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    warm.ranks(TRAINER, *arguments(tmp_path / "run", "--steps", 2, "--wandb"), nproc=2)
    [folder] = (tmp_path / "run" / "wandb").glob("offline-run-*")
    [written] = folder.glob("run-*.wandb")
    assert b"val_loss" in written.read_bytes() and len(metrics(tmp_path / "run")) == 2
