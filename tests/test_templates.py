"""The files that start the trainer on Kubernetes, SkyPilot and Ray: their fields, and what they run."""

import copy
import json
import os
import signal
import sys
import threading
import types

import pytest
import torch.distributed as dist
import yaml
from torch.distributed.run import config_from_args, parse_args
from training_runs import CODE, ROOT, metrics, train

from ddp_course.base.errors import InputError
from ddp_course.cluster import Cluster, unavailable
from ddp_course.cluster import pods as pods_module
from ddp_course.cluster.__main__ import main
from ddp_course.cluster.manifest import documents, models_missing, problems
from ddp_course.cluster.namespaces import path
from ddp_course.cluster.pods import Pod, pods, run
from ddp_course.distributed.torch_versions import has_shutdown_timeout

needs_namespaces = pytest.mark.skipif(bool(unavailable()), reason=unavailable() or "")
needs_models = pytest.mark.skipif(bool(models_missing()), reason=models_missing() or "")
TEMPLATES = ROOT / "ddp_course" / "cluster" / "templates"
KUBERNETES = ["trainjob.yaml", "jobset.yaml"]
COURSE = "ddp_course/minigpt_ddp.py"


def document(file: str, kind: str | None) -> dict:
    [document] = [document for document in documents(TEMPLATES / file) if document.get("kind") == kind]
    return copy.deepcopy(document)


def every_field(value, location=()):
    """The locations of all names in a document, except those that its author chooses."""
    if isinstance(value, dict):
        for name, below in value.items():
            if location[-1:] not in (("labels",), ("limits",), ("envs",), ("file_mounts",)):
                yield *location, name
            yield from every_field(below, (*location, name))
    if isinstance(value, list):
        for n, below in enumerate(value):
            yield from every_field(below, (*location, n))


def changed(document: dict, location: tuple, new: object) -> dict:
    """A copy with another value at `location`, or, if `new` is a function, with another name for it."""
    document = copy.deepcopy(document)
    above = document
    for step in location[:-1]:
        above = above[step]
    if callable(new):
        above[new(location[-1])] = above.pop(location[-1])
    else:
        above[location[-1]] = new
    return document


@needs_models
@pytest.mark.parametrize("file", KUBERNETES)
def test_every_field_of_a_manifest_exists_and_each_one_misspelt_is_found(file):
    for document in documents(TEMPLATES / file):
        assert problems(document) == []
        fields = [location for location in every_field(document) if location != ("kind",)]
        assert len(fields) > 10
        for location in fields:
            problems_found = problems(changed(document, location, lambda name: f"{name}x"))
            where = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in location).lstrip(".")
            assert f"{where}x: no such field; did you mean {location[-1]}?" in problems_found, where


def test_every_field_of_the_skypilot_task_exists_and_each_one_misspelt_is_found():
    task = document("skypilot.yaml", None)
    assert problems(task) == []
    for location in every_field(task):
        assert problems(changed(task, location, lambda name: f"{name}x")), location
    assert problems(changed(task, ("num_nodes",), "two")) == ["num_nodes: 'two' is not of type 'integer'"]


@needs_models
def test_a_wrong_type_and_a_missing_field_are_named_with_their_location():
    job, job_set = document("trainjob.yaml", "TrainJob"), document("jobset.yaml", "JobSet")
    container = ("spec", "replicatedJobs", 0, "template", "spec", "template", "spec", "containers", 0)
    where = "spec.replicatedJobs[0].template.spec.template.spec.containers[0]"
    assert problems(changed(job, ("spec", "trainer", "numNodes"), "2")) == [
        "spec.trainer.numNodes: Input should be a valid integer, not '2'"
    ]
    assert problems(changed(job, ("spec", "runtimeRef"), {})) == ["spec.runtimeRef.name: missing"]
    assert problems(changed(job_set, (*container, "env", 0), {"name": "A", "value": 1})) == [
        f"{where}.env[0].value: Input should be a valid string, not 1"
    ]
    limits = (*container, "resources", "limits")
    assert problems(changed(job_set, (*limits, "cpu"), [1])) == [
        f"{where}.resources.limits.cpu: a number or a text is needed, not [1]"
    ]
    assert not problems(changed(job_set, (*limits, "nvidia.com/gpu"), 8))
    with pytest.raises(InputError, match="there is no model of kind 'Pod'; there are TrainJob, "):
        problems({"kind": "Pod"})


def test_the_shell_names_file_and_field(tmp_path, capsys):
    task = tmp_path / "task.yaml"
    task.write_text("run: echo\nnum_node: 2\n")
    assert main(["check", str(TEMPLATES / "skypilot.yaml")]) == 0
    assert main(["check", str(TEMPLATES / "skypilot.yaml"), str(task)]) == 1
    assert f"{task}: the task: Additional properties are not allowed ('num_node'" in capsys.readouterr().out
    for junk, message in (
        ("a: [", "cannot be read as YAML"),
        ("kind: [Job]", "its kind is no text: ['Job']"),
        ("kind:", "its kind is no text: None"),
        ("- kind", "holds no manifest"),
    ):
        task.write_text(junk)
        assert main(["check", str(task)]) == 2
        assert message in capsys.readouterr().err


def test_a_pod_has_the_names_and_the_variables_that_operators_give_it():
    first, second = pods(TEMPLATES / "trainjob.yaml")
    assert (first.name, second.names) == ("minigpt-node-0-0", ("minigpt-node-0-1.minigpt", "minigpt-node-0-1"))
    assert {name: second.env[name] for name in second.injected} == {
        "JOB_COMPLETION_INDEX": "1",
        "PET_NNODES": "2",
        "PET_NPROC_PER_NODE": "1",
        "PET_NODE_RANK": "1",
        "PET_MASTER_ADDR": "minigpt-node-0-0.minigpt",
        "PET_MASTER_PORT": "29500",
    }
    assert first.command[:2] == ("torchrun", COURSE) and first.env["PET_NODE_RANK"] == "0"
    first, second = pods(TEMPLATES / "jobset.yaml")
    assert "--node-rank=0" in first.command and "--node-rank=1" in second.command
    assert f"--master-addr={first.names[0]}" in second.command and second.injected == ("JOB_COMPLETION_INDEX",)
    first, second = pods(TEMPLATES / "skypilot.yaml", ("10.0.0.5", "10.0.0.7"), ARGS="--steps 3")
    assert first.env["SKYPILOT_NODE_IPS"] == "10.0.0.5\n10.0.0.7" and second.env["SKYPILOT_NODE_RANK"] == "1"
    assert first.env["ARGS"] == "--steps 3" and first.env["SKYPILOT_NUM_GPUS_PER_NODE"] == "0"
    assert pods_module._expanded("$(A) $$(A) $(B) $A", {"A": "1"}) == "1 $(A) $(B) $A"


def test_a_file_that_starts_nothing_is_refused_with_one_sentence(tmp_path):
    job, runtime = document("trainjob.yaml", "TrainJob"), document("trainjob.yaml", "TrainingRuntime")
    taken = changed(job, ("spec", "trainer", "env"), [{"name": "PET_NNODES", "value": "3"}])
    for manifests, message in (
        ([job], "the runtime 'ddp-course' of its TrainJob is not in the file"),
        ([changed(job, ("spec", "runtimeRef", "kind"), "ClusterTrainingRuntime"), runtime], "is not in the file"),
        ([taken, runtime], "PET_NNODES: Kubeflow Trainer sets these itself"),
        ([{"kind": "Pod"}], "neither a JobSet nor a TrainJob"),
    ):
        (tmp_path / "job.yaml").write_text(yaml.safe_dump_all(manifests))
        with pytest.raises(InputError, match=message):
            pods(tmp_path / "job.yaml")
    with pytest.raises(InputError, match="declares no variable ARG; its envs are RUN, PRESET, ARGS"):
        pods(TEMPLATES / "skypilot.yaml", ARG="--steps 3")
    with pytest.raises(InputError, match="num_nodes: 2, so it needs that many addresses; got 1"):
        pods(TEMPLATES / "skypilot.yaml", ("10.0.0.5",))


RECORDER = f"""#!{sys.executable} -IS
import json, os, sys
print(json.dumps([sys.argv[1:], dict(os.environ)]))
"""


@needs_namespaces
@pytest.mark.parametrize("file", [*KUBERNETES, "skypilot.yaml"])
def test_the_command_of_every_file_asks_torchrun_for_the_same_launch_on_machines(file, tmp_path, monkeypatch):
    """A stand-in for torchrun prints arguments and variables; torchrun's own parser reads them here."""
    (tmp_path / "torchrun").write_text(RECORDER)
    (tmp_path / "torchrun").chmod(0o755)
    if file in KUBERNETES:
        run_dir, started, flags = "runs/minigpt", pods(TEMPLATES / file), ("--steps", 4)
    else:
        run_dir, flags = "/runs/job", ()
        started = pods(TEMPLATES / file, RUN=run_dir, ARGS="--steps 4")
    with Cluster(nodes=2, rate=None) as cluster:
        ended = run(cluster, started, *flags, folder=tmp_path, env={"PATH": f"{tmp_path}:{path()}"})
        for rank, (node, result) in enumerate(zip(cluster.nodes, ended, strict=True)):
            words, environment = json.loads(result.output)
            with monkeypatch.context() as there:
                there.setattr(os, "environ", environment)
                launch, _, command = config_from_args(parse_args(words))
            assert result.exit_code == 0 and cluster.run(node, "hostname").stdout.strip() == result.pod.name
            assert (launch.min_nodes, launch.max_nodes, launch.nproc_per_node) == (2, 2, 1)
            if has_shutdown_timeout():
                assert launch.shutdown_timeout == (100 if file in KUBERNETES else 30)
            assert (launch.rdzv_backend, launch.rdzv_configs["rank"]) == ("static", rank)
            assert environment["OMP_NUM_THREADS"] == "1"
            address, port = launch.rdzv_endpoint.split(":")
            assert cluster.run(node, f"getent ahostsv4 {address}").stdout.startswith("10.77.0.1 ") and port == "29500"
            asked = ["--preset", "tiny", "--run-dir", run_dir, "--resume", "auto", "--steps", "4"]
            assert command == ["-u", COURSE, *asked] and (tmp_path / COURSE).exists()


@needs_namespaces
def test_the_trainer_on_two_machines_equals_the_trainer_here(tmp_path):
    """By the file whose launch is the least direct: torchrun reads the operator's variables."""
    (tmp_path / "data.py").write_text(CODE)
    flags = f"--steps 4 --checkpoint-every 0 --validate-every 0 --sample-tokens 0 --data {tmp_path / 'data.py'}".split()
    train(tmp_path / "here", *flags)
    with Cluster(nodes=2, rate="1gbit") as cluster:
        started, env = pods(TEMPLATES / "trainjob.yaml"), {"CUDA_VISIBLE_DEVICES": ""}
        ended = run(cluster, started, *flags, folder=tmp_path, env=env, timeout=900)
    assert [result.exit_code for result in ended] == [0, 0] and "first loss" in ended[0].output, ended
    losses = metrics(tmp_path / "runs" / "minigpt")
    assert losses == metrics(tmp_path / "here") and len(losses) == 4


@needs_namespaces
def test_a_pod_that_fails_ends_the_others(tmp_path):
    first, second = (Pod(name, (f"{name}.set", name), {}, (), ()) for name in ("set-0", "set-1"))
    fails = Pod(first.name, first.names, {"A": "1"}, (), ("bash", "-c", "getent hosts set-1.set; exit 3"))
    waits = Pod(second.name, second.names, {}, (), ("sleep", "600"))
    with Cluster(nodes=2, rate=None) as cluster:
        first, second = run(cluster, [fails, waits], folder=tmp_path)
        with pytest.raises(InputError, match="there are 1 pods, so that many machines are needed; got 2"):
            run(cluster, [fails], folder=tmp_path)
        with pytest.raises(InputError, match="still running after 1 s"):
            run(cluster, [waits, waits], folder=tmp_path, timeout=1)
    assert first.exit_code == 3 and "10.77.0.2" in first.output and second.exit_code == -signal.SIGTERM


def test_ray_trains_in_a_thread_that_has_a_group_already(tmp_path, monkeypatch):
    """With stand-ins for Ray, which is too large for the tests. Notebook 16b has a run of a real one."""
    made, reported = {}, []

    class TorchTrainer:
        def __init__(self, work, **how):
            made.update(how, work=work)

        def fit(self):
            def rank():
                dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
                made["work"](made["train_loop_config"])

            thread = threading.Thread(target=rank)
            thread.start()
            thread.join()

    def anything(**settings):
        return settings

    ray = types.ModuleType("ray.train")
    ray.FailureConfig = ray.RunConfig = ray.ScalingConfig = anything
    ray.report = reported.append
    ray_torch = types.ModuleType("ray.train.torch")
    ray_torch.TorchTrainer = TorchTrainer
    for name, module in {"ray": types.ModuleType("ray"), "ray.train": ray, "ray.train.torch": ray_torch}.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(signal, "signal", signal.signal)  # put back at the end
    monkeypatch.setenv("WORKERS", "1")
    monkeypatch.setenv("MASTER_PORT", "1")  # where Ray's store is, and stays
    template = {"__name__": "template"}
    exec(compile((TEMPLATES / "ray_train.py").read_text(), "ray_train.py", "exec"), template)
    (tmp_path / "data.py").write_text(CODE)
    flags = f"--preset tiny --steps 2 --sample-tokens 0 --data {tmp_path / 'data.py'} --device cpu".split()
    template["main"]([*flags, "--run-dir", str(tmp_path / "run"), "--resume", "auto"])
    assert reported == [{"exit code": 0}] and len(metrics(tmp_path / "run")) == 2 and not dist.is_initialized()
    assert os.environ["MASTER_PORT"] != "1"
    assert made["scaling_config"] == {"num_workers": 1, "use_gpu": False}
    with pytest.raises(SystemExit, match="--run-dir with an absolute path"):
        template["main"]([*flags, "--run-dir", "run", "--resume", "auto"])
    with pytest.raises(SystemExit, match="error: "):
        template["main"](["--stepz", "2"])


def test_the_image_installs_what_is_installed_without_make():
    dockerfile, page = (TEMPLATES / "Dockerfile").read_text(), (ROOT / "docs" / "hosted.md").read_text()
    for words in ("-r requirements/course.txt", "--no-deps --no-build-isolation -e ./doctor -e ."):
        assert words in dockerfile and words in page and words in (TEMPLATES / "skypilot.yaml").read_text()
    lines = [line for file in KUBERNETES for line in (TEMPLATES / file).read_text().splitlines()]
    images = {line.split()[-1] for line in lines if " image: " in line}
    assert images == {"ddp-course:latest"} and f"--tag {images.pop()} ." in dockerfile
    left_out = (ROOT / ".dockerignore").read_text().splitlines()
    assert {".git", "**/.venv*", "**/runs"} <= {*left_out}, "gigabytes, and other people's runs"
