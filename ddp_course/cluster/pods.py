"""Emulate what operators make of a job's file: build its pods, and run them on machines made of namespaces.

    started = pods("ddp_course/cluster/templates/trainjob.yaml")      # a JobSet's, a TrainJob's or a SkyPilot task's
    started[1].name, started[1].env["PET_NODE_RANK"], started[1].command
    with Cluster(nodes=len(started)) as cluster:
        ended = run(cluster, started, "--steps", 100, folder=folder)

The rules are those of Kubeflow Trainer 2's torch plugin, of JobSet, of Kubernetes' indexed Jobs and of SkyPilot that
matter to a training job. Images, volumes, limits, restarts and SkyPilot's `setup` are not emulated.
"""

import copy
import math
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import ddp_course
from ddp_course.base.errors import InputError
from ddp_course.cluster.keeper import address_of
from ddp_course.cluster.machines import Cluster
from ddp_course.cluster.manifest import documents
from ddp_course.cluster.namespaces import entering

PORT = "29500"  # of the rendezvous, as Kubeflow Trainer sets it
INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
SET_UP_HOST = r"""set -e
printf '%s\n' "$HOSTS" >> /etc/hosts
hostname "$NAME"
"""


@dataclass(frozen=True)
class Pod:
    """A pod: its host name, its DNS names, its environment variables and its command.

    injected: the variables that the operator adds to those of the file.
    """

    name: str
    names: tuple[str, ...]
    env: Mapping[str, str]
    injected: tuple[str, ...]
    command: tuple[str, ...]


@dataclass(frozen=True)
class PodResult:
    """The result of a pod: torchrun's exit code, and the output of torchrun and its ranks."""

    pod: Pod
    exit_code: int
    output: str


def pods(path: str | Path, addresses: tuple[str, ...] = (address_of(1), address_of(2)), **env: str) -> list[Pod]:
    """The pods of a file: a JobSet, a TrainJob with its runtime, or a SkyPilot task on machines with `addresses`.

    `env` changes variables that a SkyPilot task declares, as `sky launch --env` does. Raises InputError if the file
    holds none of the three.
    """
    by_kind = {document.get("kind"): document for document in documents(path)}
    if "TrainJob" in by_kind:
        job = by_kind["TrainJob"]
        reference = job["spec"]["runtimeRef"]
        runtime = by_kind.get(reference.get("kind", "ClusterTrainingRuntime"))
        if not runtime or runtime["metadata"]["name"] != reference["name"]:
            raise InputError(f"{path}: the runtime {reference['name']!r} of its TrainJob is not in the file")
        return _pods_of_job_set(job_set_of(job, runtime))
    if "JobSet" in by_kind:
        return _pods_of_job_set(by_kind["JobSet"])
    if None in by_kind and "run" in by_kind[None]:
        return _pods_of_task(by_kind[None], addresses, env)
    raise InputError(f"{path} holds neither a JobSet nor a TrainJob, nor a SkyPilot task with `run`")


def job_set_of(job: dict, runtime: dict) -> dict:
    """The JobSet that Kubeflow Trainer makes of a TrainJob: its runtime's template, filled in, with PET_* variables."""
    name, trainer = job["metadata"]["name"], job["spec"].get("trainer", {})
    spec = copy.deepcopy(runtime["spec"]["template"]["spec"])
    policy = runtime["spec"]["mlPolicy"]
    nodes = trainer.get("numNodes", policy.get("numNodes", 1))
    injected = _torch_variables(name, nodes, trainer) if "torch" in policy else []
    for replicated in spec["replicatedJobs"]:
        labels = replicated["template"].get("metadata", {}).get("labels", {})
        if labels.get("trainer.kubeflow.org/trainjob-ancestor-step") == "trainer":
            inner = replicated["template"]["spec"]
            inner["parallelism"] = inner["completions"] = nodes
            for container in inner["template"]["spec"]["containers"]:
                if container["name"] == "node":
                    _fill_in(container, trainer, injected)
    return {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": {"name": name}, "spec": spec}


def _torch_variables(name: str, nodes: int, trainer: dict) -> list[dict]:
    """The variables that the torch plugin adds to the containers of the TrainJob `name`."""
    return [
        {"name": "PET_NNODES", "value": str(nodes)},
        {"name": "PET_NPROC_PER_NODE", "value": str(_processes(trainer))},
        {"name": "PET_NODE_RANK", "valueFrom": {"fieldRef": {"fieldPath": INDEX}}},
        {"name": "PET_MASTER_ADDR", "value": f"{name}-node-0-0.{name}"},
        {"name": "PET_MASTER_PORT", "value": PORT},
    ]


def _fill_in(container: dict, trainer: dict, injected: list[dict]) -> None:
    """Override the runtime's container by the fields of the TrainJob, and add the injected variables."""
    container |= {field: trainer[field] for field in ("image", "command", "args") if field in trainer}
    if "resourcesPerNode" in trainer:
        container["resources"] = trainer["resourcesPerNode"]
    own = trainer.get("env", [])
    env = [variable for variable in container.get("env", []) if variable["name"] not in _names(own)] + own
    if reserved := sorted(_names(env) & _names(injected)):
        raise InputError(f"{', '.join(reserved)}: Kubeflow Trainer sets these itself, and refuses the job")
    container["env"] = env + injected


def variables_of(job: dict, runtime: dict) -> dict[str, str]:
    """The PET_* variables of each pod of a TrainJob; for PET_NODE_RANK, the path of the field with its value."""
    (replicated,) = job_set_of(job, runtime)["spec"]["replicatedJobs"]
    variables = replicated["template"]["spec"]["template"]["spec"]["containers"][0]["env"]
    return {
        variable["name"]: variable["value"] if "value" in variable else variable["valueFrom"]["fieldRef"]["fieldPath"]
        for variable in variables
        if variable["name"].startswith("PET_")
    }


def _processes(trainer: dict) -> int | str:
    """PET_NPROC_PER_NODE: numProcPerNode if given; "auto" if there are GPUs; else one process per core, rounded up."""
    resources = trainer.get("resourcesPerNode", {})
    counts = resources.get("limits", {}) | resources.get("requests", {})
    if "numProcPerNode" in trainer or any("gpu" in name.lower() for name in counts):
        return trainer.get("numProcPerNode", "auto")
    cores = str(counts.get("cpu", 1))
    return max(1, math.ceil(float(cores[:-1]) / 1000 if cores.endswith("m") else float(cores)))


def _pods_of_job_set(document: dict) -> list[Pod]:
    """The pods of a JobSet: named by job and index, with JOB_COMPLETION_INDEX in their environment."""
    name, pods = document["metadata"]["name"], []
    subdomain = document["spec"].get("network", {}).get("subdomain", name)
    for replicated in document["spec"]["replicatedJobs"]:
        spec = replicated["template"]["spec"]
        container = spec["template"]["spec"]["containers"][0]
        for job in range(replicated.get("replicas", 1)):
            for index in range(spec.get("completions", 1)):
                host = f"{name}-{replicated['name']}-{job}-{index}"
                env = _environment(container, index)
                words = [*container.get("command", []), *container.get("args", [])]
                command = tuple(_expanded(word, env) for word in words)
                injected = tuple(key for key in env if key.startswith("PET_") or key == "JOB_COMPLETION_INDEX")
                pods.append(Pod(host, (f"{host}.{subdomain}", host), env, injected, command))
    return pods


def _environment(container: dict, index: int) -> dict[str, str]:
    """The variables of a container in the pod of this index; a value may contain the variables before it."""
    env = {"JOB_COMPLETION_INDEX": str(index)}
    for variable in container.get("env", []):
        path = variable.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
        env[variable["name"]] = str(index) if path == INDEX else _expanded(variable.get("value", ""), env)
    return env


def _pods_of_task(task: dict, addresses: tuple[str, ...], env: dict[str, str]) -> list[Pod]:
    """The pods of a SkyPilot task: each machine gets the addresses of all machines and its own rank."""
    declared = task.get("envs", {})
    if unknown := sorted(env.keys() - declared.keys()):
        raise InputError(f"the task declares no variable {', '.join(unknown)}; its envs are {', '.join(declared)}")
    nodes = task.get("num_nodes", 1)
    if len(addresses) != nodes:
        raise InputError(f"the task has num_nodes: {nodes}, so it needs that many addresses; got {len(addresses)}")
    gpus = re.search(r":(\d+)$", str(task.get("resources", {}).get("accelerators", "")))
    injected = {
        "SKYPILOT_NODE_IPS": "\n".join(addresses),
        "SKYPILOT_NUM_NODES": str(nodes),
        "SKYPILOT_NUM_GPUS_PER_NODE": gpus[1] if gpus else "0",
    }
    return [
        Pod(
            f"node{rank + 1}",
            (),
            {**declared, **env, **injected, "SKYPILOT_NODE_RANK": str(rank)},
            (*injected, "SKYPILOT_NODE_RANK"),
            ("bash", "-c", task["run"]),
        )
        for rank in range(nodes)
    ]


def _names(variables: list[dict]) -> set[str]:
    """The set of the variables' names."""
    return {variable["name"] for variable in variables}


def _expanded(text: str, env: Mapping[str, str]) -> str:
    """The text with $(NAME) expanded as by Kubernetes: only known names, and $$(NAME) becomes $(NAME)."""
    return re.sub(r"\$(\$?)\(([^)]+)\)", lambda m: m[0][1:] if m[1] else env.get(m[2], m[0]), text)


def run(
    cluster: Cluster,
    started: list[Pod],
    *more: object,
    folder: str | Path,
    timeout: float = 300,
    env: Mapping[str, object] | None = None,
) -> list[PodResult]:
    """Run each pod's command, with `more` arguments, on a machine with the pod's name; return when all have ended.

    The commands start in `folder`, which replaces the working folder of the image and gets a link to this package, and
    the logs and exit codes of the pods. `env`: added to each environment; the pod's own variables win. When a pod has
    failed, the others are stopped, as operators do. Raises InputError unless there is one machine per pod, and after
    `timeout` seconds.
    """
    if len(started) != len(cluster.nodes):
        raise InputError(f"there are {len(started)} pods, so that many machines are needed; got {len(cluster.nodes)}")
    folder = Path(folder).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "ddp_course").exists():
        (folder / "ddp_course").symlink_to(Path(ddp_course.__file__).parent)
    hosts = "\n".join(f"{address_of(n)} {' '.join(pod.names)}" for n, pod in enumerate(started, 1) if pod.names)
    tasks = []
    for node, pod in zip(cluster.nodes, started, strict=True):
        cluster.run(node, SET_UP_HOST, env={"HOSTS": hosts, "NAME": pod.name})
        files = {name: folder / f"{pod.name}.{name}" for name in ("log", "exit")}
        for file in files.values():
            file.unlink(missing_ok=True)
        task = cluster.task(node, [*pod.command, *more], {"PYTHONUNBUFFERED": "1", **(env or {}), **pod.env})
        tasks.append(task | {name: str(file) for name, file in files.items()})
    running = subprocess.Popen(entering(tasks), stdin=subprocess.DEVNULL, cwd=folder)
    try:
        running.wait(timeout)
    except subprocess.TimeoutExpired:
        raise InputError(f"the pods were still running after {timeout} s; their logs are in {folder}") from None
    finally:
        running.kill()  # its children end with it (PR_SET_PDEATHSIG)
        running.wait()
    return [
        PodResult(pod, int((folder / f"{pod.name}.exit").read_text()), (folder / f"{pod.name}.log").read_text())
        for pod in started
    ]
