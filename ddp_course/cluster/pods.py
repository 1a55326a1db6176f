"""What operators make of a job's file, and the same on machines made of namespaces: pods without Kubernetes.

    started = pods("ddp_course/cluster/templates/trainjob.yaml")      # a JobSet's, a TrainJob's or a SkyPilot task's
    started[1].name, started[1].env["PET_NODE_RANK"], started[1].command
    with Cluster(nodes=len(started)) as cluster:
        ended = run(cluster, started, "--steps", 100, folder=folder)

The rules are those of Kubeflow Trainer 2's torch plugin, of JobSet, of Kubernetes' indexed Jobs and of SkyPilot, as far
as a training job meets them. Images, volumes, limits, restarts and SkyPilot's `setup` have no counterpart here.
"""

import copy
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import ddp_course
from ddp_course.base.errors import InputError
from ddp_course.cluster.manifest import documents
from ddp_course.cluster.namespaces import entering

PORT = "29500"  # Kubeflow Trainer's
INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
INTO_HOSTS = r"""set -e
printf '%s\n' "$LINES_OF_PODS" >> /etc/hosts
hostname "$NAME"
"""


@dataclass(frozen=True)
class Pod:
    """One machine's part: its host name, under which names the others find it, its variables and its command.

    `injected` names the variables that stand in no file: an operator has added them.
    """

    name: str
    names: tuple[str, ...]
    env: Mapping[str, str]
    injected: tuple[str, ...]
    command: tuple[str, ...]


@dataclass(frozen=True)
class Ended:
    """How a pod has ended: torchrun's exit code, and all that it and its ranks have printed."""

    pod: Pod
    exit_code: int
    output: str


def pods(path: str | Path, addresses: tuple[str, ...] = ("10.77.0.1", "10.77.0.2"), **env: str) -> list[Pod]:
    """The pods of a file: a JobSet, a TrainJob with its runtime, or a SkyPilot task on machines with `addresses`.

    `env` changes variables that a SkyPilot task declares, as `sky launch --env` does.
    """
    found = {one.get("kind"): one for one in documents(path)}
    if "TrainJob" in found:
        job = found["TrainJob"]
        reference = job["spec"]["runtimeRef"]
        runtime = found.get(reference.get("kind", "ClusterTrainingRuntime"))
        if not runtime or runtime["metadata"]["name"] != reference["name"]:
            raise InputError(f"{path}: the runtime {reference['name']!r} of its TrainJob is not in the file")
        return _of_job_set(job_set_of(job, runtime))
    if "JobSet" in found:
        return _of_job_set(found["JobSet"])
    if None in found and "run" in found[None]:
        return _of_task(found[None], addresses, env)
    raise InputError(f"{path} holds neither a JobSet nor a TrainJob, nor a SkyPilot task with `run`")


def job_set_of(job: dict, runtime: dict) -> dict:
    """The JobSet that Kubeflow Trainer makes of a TrainJob: its runtime's template, filled in, with PET_* variables."""
    name, trainer = job["metadata"]["name"], job["spec"].get("trainer", {})
    spec = copy.deepcopy(runtime["spec"]["template"]["spec"])
    policy = runtime["spec"]["mlPolicy"]
    nodes = trainer.get("numNodes", policy.get("numNodes", 1))
    for replicated in spec["replicatedJobs"]:
        labels = replicated["template"].get("metadata", {}).get("labels", {})
        if labels.get("trainer.kubeflow.org/trainjob-ancestor-step") != "trainer":
            continue
        inner = replicated["template"]["spec"]
        inner["parallelism"] = inner["completions"] = nodes
        for container in inner["template"]["spec"]["containers"]:
            if container["name"] != "node":
                continue
            for ours in ("image", "command", "args"):
                if ours in trainer:
                    container[ours] = trainer[ours]
            if "resourcesPerNode" in trainer:
                container["resources"] = trainer["resourcesPerNode"]
            own = [one for one in container.get("env", []) if one["name"] not in _names(trainer.get("env", []))]
            container["env"] = own + trainer.get("env", [])
            if "torch" in policy:
                processes = trainer.get("numProcPerNode", "auto")
                added = {
                    "PET_NNODES": nodes,
                    "PET_NPROC_PER_NODE": processes,
                    "PET_NODE_RANK": None,
                    "PET_MASTER_ADDR": f"{name}-node-0-0.{name}",
                    "PET_MASTER_PORT": PORT,
                }
                if taken := sorted(_names(container["env"]) & added.keys()):
                    raise InputError(f"{', '.join(taken)}: Kubeflow Trainer sets these itself, and refuses the job")
                container["env"] += [
                    {"name": key, "value": str(value)}
                    if value is not None
                    else {"name": key, "valueFrom": {"fieldRef": {"fieldPath": INDEX}}}
                    for key, value in added.items()
                ]
    return {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": {"name": name}, "spec": spec}


def _of_job_set(document):
    """JobSet names pods by job and index; a Job tells each its index."""
    name, found = document["metadata"]["name"], []
    subdomain = document["spec"].get("network", {}).get("subdomain", name)
    for replicated in document["spec"]["replicatedJobs"]:
        spec = replicated["template"]["spec"]
        container = spec["template"]["spec"]["containers"][0]
        for job in range(replicated.get("replicas", 1)):
            for index in range(spec.get("completions", 1)):
                host = f"{name}-{replicated['name']}-{job}-{index}"
                env = {"JOB_COMPLETION_INDEX": str(index)}
                for one in container.get("env", []):
                    path = one.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
                    env[one["name"]] = str(index) if path == INDEX else _expanded(one.get("value", ""), env)
                words = [*container.get("command", []), *container.get("args", [])]
                command = tuple(_expanded(word, env) for word in words)
                injected = tuple(key for key in env if key.startswith("PET_") or key == "JOB_COMPLETION_INDEX")
                found.append(Pod(host, (f"{host}.{subdomain}", host), env, injected, command))
    return found


def _of_task(task, addresses, env):
    """SkyPilot tells each machine who is there, and its number; the machines have names of their own."""
    declared = task.get("envs", {})
    if unknown := sorted(env.keys() - declared.keys()):
        raise InputError(f"the task declares no variable {', '.join(unknown)}; its envs are {', '.join(declared)}")
    nodes = task.get("num_nodes", 1)
    if len(addresses) != nodes:
        raise InputError(f"the task has num_nodes: {nodes}, so it needs that many addresses; got {len(addresses)}")
    gpus = re.search(r":(\d+)$", str(task.get("resources", {}).get("accelerators", "")))
    told = {
        "SKYPILOT_NODE_IPS": "\n".join(addresses),
        "SKYPILOT_NUM_NODES": str(nodes),
        "SKYPILOT_NUM_GPUS_PER_NODE": gpus[1] if gpus else "0",
    }
    return [
        Pod(
            f"node{rank + 1}",
            (),
            {**declared, **env, **told, "SKYPILOT_NODE_RANK": str(rank)},
            (*told, "SKYPILOT_NODE_RANK"),
            ("bash", "-c", task["run"]),
        )
        for rank in range(nodes)
    ]


def _names(variables):
    return {one["name"] for one in variables}


def _expanded(text, env):
    """$(NAME) as Kubernetes replaces it: only names that are known, and $$(NAME) not at all."""
    return re.sub(r"\$(\$?)\(([^)]+)\)", lambda m: m[0][1:] if m[1] else env.get(m[2], m[0]), text)


def run(
    cluster,
    started: list[Pod],
    *more,
    folder: str | Path,
    timeout: float = 300,
    env: Mapping[str, object] | None = None,
) -> list[Ended]:
    """Each pod's command, with `more` arguments, on a machine that has its name, until all have ended.

    They start in `folder`, which stands for the folder of the image: it gets a link to this package. `env` is for what
    differs between this machine and a container. When one pod has failed the others are ended, as operators do.
    """
    if len(started) != len(cluster.nodes):
        raise InputError(f"there are {len(started)} pods, so that many machines are needed; got {len(cluster.nodes)}")
    folder = Path(folder).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "ddp_course").exists():
        (folder / "ddp_course").symlink_to(Path(ddp_course.__file__).parent)
    lines = "\n".join(f"10.77.0.{n} {' '.join(pod.names)}" for n, pod in enumerate(started, 1) if pod.names)
    tasks = []
    for node, pod in zip(cluster.nodes, started, strict=True):
        cluster.run(node, INTO_HOSTS, env={"LINES_OF_PODS": lines, "NAME": pod.name})
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
        running.kill()  # and with it, by their parents' death, what it has started
        running.wait()
    return [
        Ended(pod, int((folder / f"{pod.name}.exit").read_text()), (folder / f"{pod.name}.log").read_text())
        for pod in started
    ]
