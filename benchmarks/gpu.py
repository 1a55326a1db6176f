"""`make gpu`: measure on a GPU, in at most 20 minutes; README, notebooks and RESULTS.md show the records.

    make gpu                                 # each part that has no record of this commit and this machine
    make gpu ARGS="--only hang doctor"       # these parts, recorded or not

Each part writes records/gpu/PART.json: the machine, the commit, the command, and rows of numbers. A part that fails
writes none, and the next one starts. With two GPUs or more, launchables and peers run on one and on two; trace, hang
and doctor on two.
"""

import argparse
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import torch
from ddp_doctor import history
from ddp_doctor.diagnosis import diagnose
from ddp_doctor.watch import run_and_watch

os.environ["WORKLOAD"] = "gpt2"  # of the compared trainers; read when `workload` is imported
HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "doctor" / "tests"), str(HERE.parent / "tests")]

import cases  # noqa: E402
from finetune_files import make_examples, make_opt  # noqa: E402
from gpu_rank import PROFILED  # noqa: E402
from measure import ROOT, TRAINER, commit, run_script  # noqa: E402
from run import write_results  # noqa: E402
from trainers import PEERS, WARM_UP, logged, run_ours, tokens_per_second  # noqa: E402
from workload import WORKLOAD  # noqa: E402

from ddp_course.base.atomic_file import replacing  # noqa: E402
from ddp_course.lab.gpu_record import RECORDS, read_record  # noqa: E402
from ddp_course.lab.machine import describe  # noqa: E402
from ddp_course.lab.trace import read_traces  # noqa: E402
from ddp_course.launcher import torchrun  # noqa: E402
from ddp_course.models.minigpt import flops_per_token  # noqa: E402
from ddp_course.training.throughput import peak_flops  # noqa: E402

RANK = HERE / "gpu_rank.py"
STEPS = 12
GPT2 = ("--preset", "gpt2", "--tokens-per-update", 65_536, "--steps", STEPS, "--log-every", 1, "--sample-tokens", 0)
GPT2 += ("--validate-every", 0, "--validation-windows", 16, "--checkpoint-every", 0)
ONE_RUN = f"One run each, median of steps {WARM_UP + 1} to {STEPS}."
BROKEN = ("metric_on_rank_0", "early_stop_on_rank_0", "unused_parameter", "raises", "killed")
ON_GPU = (  # one line, so that a script's lines keep their numbers
    "import torch; gpu = int(__import__('os').environ['LOCAL_RANK']) % torch.cuda.device_count(); "
    "torch.cuda.set_device(gpu); torch.set_default_device(torch.device('cuda', gpu))"
)


@dataclass(frozen=True)
class Part:
    """A part of `make gpu`.

    measure gets a folder for files, and returns the "command", the "rows" and, if it has them, the "text" and "files"
    of the record.
    """

    description: str
    minutes: float
    measure: Callable[[Path], dict]


def gpu_counts() -> list[int]:
    """The numbers of GPUs to run on."""
    return [count for count in (1, 2) if count <= torch.cuda.device_count()]


def tests(_: Path) -> dict:
    command = ["pytest", "-v", "--no-header", "-p", "no:cacheprovider", "tests/test_gpu.py"]
    run = subprocess.run([sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True)
    if run.returncode:
        raise RuntimeError(run.stdout[-3000:])
    outcomes = [line.split()[:2] for line in run.stdout.splitlines() if line.startswith("tests/test_gpu.py::")]
    rows = [{"test": name.partition("::")[2], "outcome": outcome.lower()} for name, outcome in outcomes]
    return {"command": " ".join(command), "rows": rows}


def launchables(_: Path) -> dict:
    rows, problems = [], []
    with tempfile.TemporaryDirectory() as folder:
        to_tune = "--model", make_opt(Path(folder) / "opt"), "--data", make_examples(Path(folder))["sft"]
        for nproc in gpu_counts():
            pretrained = f"{folder}/{nproc}/minigpt"
            own_flags = dict.fromkeys(("minigpt", "diloco", "experts", "puzzles"), ()) | {
                "parallel": ("--shard", nproc),
                "reward": ("--backbone", f"minigpt:{pretrained}"),
                "grpo": ("--pretrained", pretrained),
                "finetune": (*to_tune, "--lora-layers", "q_proj,v_proj"),
            }
            flags = {
                name: ("--preset", "tiny", *words, "--run-dir", f"{folder}/{nproc}/{name}")
                for name, words in own_flags.items()
            }
            flags |= {"skeleton": ("--steps", 20), "ladder": ("--rungs", "data parallel")}
            for name, words in flags.items():
                script = ROOT / f"ddp_course/{name}_ddp.py"
                run = torchrun(script, *words, nproc=nproc, timeout=240, quiet=True, check=False)
                lines = [line for line in run.lines[0] if line.strip()]
                steps = [line for line in lines if line.startswith("step ")]
                last = (steps or lines or [""])[-1]
                row = {"script": f"{name}_ddp.py", "processes": nproc, "on": "CPU" if name == "ladder" else "GPU"}
                row |= {"exit code": run.exit_code, "seconds": round(run.seconds), "last line": last}
                rows.append(row)
                if run.exit_code:
                    problems.append(f"{run.command}\n{run.failure.text if run.failure else run}")
    if problems:
        raise RuntimeError("\n\n".join(problems))
    return {"command": "torchrun ddp_course/NAME_ddp.py --preset tiny", "rows": rows}


def gloo(_: Path) -> dict:
    rows = []
    for device, nproc in (("cuda", 1), ("cpu", 2)):
        with tempfile.TemporaryDirectory() as folder:
            flags = ("--preset", "tiny", "--device", device, "--run-dir", folder)
            run = torchrun(TRAINER, *flags, nproc=nproc, timeout=120, quiet=True)
            rows.append({"device": device, "processes": nproc, "loss of step 20": logged(folder, "loss")[-1]})
    return {"command": run.command, "rows": rows}


def gpt2_row(name: str, *flags: object) -> dict:
    """The row of a short run of the preset gpt2 on one GPU."""
    with tempfile.TemporaryDirectory() as folder:
        torchrun(TRAINER, *GPT2, *flags, "--run-dir", folder, nproc=1, timeout=400, quiet=True)
        seconds, speeds = logged(folder, "seconds"), logged(folder, "tokens_per_s")
        mfus, losses = logged(folder, "mfu"), logged(folder, "loss")
    return {
        "": name,
        "tokens/s": round(statistics.median(speeds[WARM_UP:])),
        "MFU": percent(statistics.median(mfus[WARM_UP:]) if mfus else None),
        "first step, s": round(seconds[0], 1),
        f"loss of step {STEPS}": round(losses[-1], 4),
    }


def percent(mfu: float | None) -> str:
    return "peak not known" if mfu is None else f"{mfu:.1%}"


def gpt2_command(flags: str) -> dict:
    return {"command": f"torchrun ddp_course/minigpt_ddp.py {' '.join(map(str, GPT2))} {flags}", "text": ONE_RUN}


def precision(_: Path) -> dict:
    rows = [gpt2_row(name, "--precision", name) for name in ("float32", "tf32", "bfloat16")]
    return gpt2_command("--precision NAME") | {"rows": rows}


def compiled(_: Path) -> dict:
    flags = ("--precision", "bfloat16")
    rows = [gpt2_row("eager", *flags), gpt2_row("compiled", *flags, "--compile")]
    return gpt2_command("--precision bfloat16 [--compile]") | {"rows": rows}


def peers(_: Path) -> dict:
    rows, peak = [], peak_flops(torch.cuda.get_device_name(), "bfloat16")
    flops = flops_per_token(WORKLOAD.model_config())
    loop = "nanogpt_trainer.py"
    others = {"a loop as nanoGPT's is": (loop,), "the same, compiled": (loop, "--compile")}
    others |= {name: (PEERS[name],) for name in ("DDP", "FSDP2")}
    for nproc in gpu_counts():
        for name in ("ours", "ours, compiled", *others):
            if name in others:
                script, *flags = others[name]
                result = run_script(script, "--steps", STEPS, *flags, nproc=nproc)
                speed, loss = tokens_per_second(WORKLOAD, nproc, result["seconds"]), result["losses"][0]
                memory = f"{result['memory'] / 1e9:.1f}"
            else:
                flags = ("--precision", "bfloat16", *["--compile"] * ("compiled" in name))
                speed, loss = run_ours(nproc, STEPS, *flags)
                memory = ""
            row = {
                "trainer": name,
                "GPUs": nproc,
                "tokens/s": round(speed),
                "MFU": percent(speed * flops / (peak * nproc) if peak else None),
                "peak memory, GB": memory,
                "loss of step 1": round(loss, 4),
            }
            rows.append(row)
    text = f"{ONE_RUN} Matrix products in bfloat16, GPT-2's sizes."
    return {"command": "python benchmarks/gpu.py --only peers", "rows": rows, "text": text}


def trace(folder: Path) -> dict:
    nproc = gpu_counts()[-1]
    run = torchrun(RANK, "trace", folder, nproc=nproc, timeout=180, quiet=True)
    rows = []
    for number, (variant, seconds) in enumerate(run.results[0].items()):
        file = f"trace_{number}_rank0.json.gz"
        [timeline] = read_traces([folder / file]).values()
        kernels = [span for span in timeline.spans if span.category == "kernel"]
        nccl_kernels = [span for span in kernels if "nccl" in span.name.lower()]
        row = {"": variant, "ms per step": f"{1e3 * seconds:.2f}", "GPUs": nproc}
        for name, spans in (("kernels", kernels), ("NCCL kernels", nccl_kernels)):
            row |= {f"{name}, ms": f"{1e3 * sum(span.end - span.start for span in spans) / PROFILED:.2f}"}
        rows.append(row)
    note = "" if nccl_kernels else "NCCL started no kernel. "
    text = f"{note}The trace files open in https://ui.perfetto.dev."
    files = ["trace_0_rank0.json.gz", "trace_1_rank0.json.gz"]
    return {"command": run.command, "rows": rows, "text": text, "files": files}


def memory(folder: Path) -> dict:
    run = torchrun(RANK, "memory", folder, nproc=1, timeout=120, quiet=True)
    rows = [
        {"activation checkpointing": checkpointing} | {moment: f"{size / 1e6:.0f} MB" for moment, size in sizes.items()}
        for checkpointing, sizes in run.results[0].items()
    ]
    text = "Unpacked, the snapshot opens in https://pytorch.org/memory_viz."
    return {"command": run.command, "rows": rows, "text": text, "files": ["memory_snapshot.pickle.gz"]}


def hang(folder: Path) -> dict:
    """NCCL's log of a start, and the flight recorder of rank 0 after a collective that never ended."""
    env = {"NCCL_DEBUG": "INFO", "TORCH_NCCL_DUMP_ON_TIMEOUT": 1, "TORCH_NCCL_TRACE_BUFFER_SIZE": 2000}
    env |= {name: folder / "dump_" for name in ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")}
    run = torchrun(RANK, "hang", folder, nproc=gpu_counts()[-1], timeout=120, quiet=True, check=False, env=env)
    if run.exit_code == 0 or run.timed_out:
        raise RuntimeError(f"the watchdog of NCCL should have ended rank 0: {run}")
    started = history.read(folder / "dump_0").collectives
    rows = [
        {"group": group, "number": collective.number, "collective": collective.name, "sizes": str(collective.sizes)}
        for group, collectives in started.items()
        for collective in collectives
    ]
    lines = [line for line in run.lines[0] if "NCCL INFO" in line][:60]
    lines += [line for line in run.lines[0] if "atchdog" in line or "FlightRecorder" in line][:10]
    text = "\n".join(lines).replace(socket.gethostname(), "host")
    return {"command": run.command, "rows": rows, "text": text, "files": ["dump_0"]}


def doctor(folder: Path) -> dict:
    """Broken scripts: with NCCL on two GPUs, or with gloo and tensors on a single GPU. Then a hang in NCCL."""
    rows, backend = [], "nccl" if torch.cuda.device_count() > 1 else "gloo"

    def add_row(script: str, backend: str, right: str, sentence: str) -> None:
        sentence = sentence.replace(f"{folder}/", "")
        rows.append({"script": script, "backend": backend, "right": right, "the doctor says": sentence})

    (folder / "sick").mkdir()
    for name in BROKEN:
        script = folder / "sick" / f"{name}.py"
        text = (cases.FOLDER / "sick" / script.name).read_text().replace("import torch\n", f"{ON_GPU}\n", 1)
        script.write_text(text.replace('"gloo"', f'"{backend}"'))
        case = cases.case(script)
        _, verdict, _ = cases.examine(case, idle=10)
        add_row(name, backend, "; ".join(cases.wrong(case, verdict)) or "yes", verdict.sentence)
    job = run_and_watch(RANK, ["hang", str(folder)], gpu_counts()[-1], idle=4, timeout=120, end_after=4)
    add_row("gpu_rank.py hang", "nccl", "not judged", diagnose(job).sentence)
    return {"command": "python benchmarks/gpu.py --only doctor", "rows": rows}


PARTS = {
    "tests": Part("the tests that need a GPU", 3, tests),
    "launchables": Part("every *_ddp.py for some steps: NCCL, and the ladder with gloo on the CPU", 4, launchables),
    "gloo": Part("two gloo processes on the CPU and one on the GPU: the same loss", 0.5, gloo),
    "precision": Part("GPT-2's sizes in float32, TF32 and bfloat16", 3, precision),
    "compile": Part("GPT-2's sizes with and without torch.compile", 2, compiled),
    "peers": Part("tokens/s of ours, nanoGPT's loop, DDP and FSDP2", 4, peers),
    "trace": Part("a profiler's trace, with and without .item() and pinned memory", 0.5, trace),
    "memory": Part("the GPU's memory through a step, with torch's snapshot", 0.5, memory),
    "hang": Part("a deliberate hang: NCCL's log, and the dump of its flight recorder", 0.5, hang),
    "doctor": Part("the doctor on five broken scripts", 2, doctor),
}


def this_machine() -> dict[str, str]:
    """The machine and commit that a record is valid for."""
    machine = describe()
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    drivers = subprocess.run(command, capture_output=True, text=True).stdout
    return {
        "GPUs": ", ".join(machine.gpus),
        "CPU": machine.cpu,
        "OS": machine.os,
        "driver": drivers.partition("\n")[0],
        "torch": machine.torch,
        "NCCL": ".".join(map(str, torch.cuda.nccl.version())),
        "Python": machine.python,
        # Without RESULTS.md, which each run rewrites.
        "commit": commit("ddp_course", "doctor", "benchmarks", "tests", ":!benchmarks/RESULTS.md"),
    }


def is_recorded(part: str, machine: dict[str, str]) -> bool:
    """Whether this part has run on this machine, at this commit without changes."""
    record = read_record(part)
    return record is not None and record["machine"] == machine and " with changes" not in machine["commit"]


def write_record(part: str, machine: dict[str, str]) -> None:
    RECORDS.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="ddp_course_gpu_") as folder:
        record = {"part": part, "machine": machine, "date": date.today().isoformat(), "text": "", "files": []}
        record |= PARTS[part].measure(Path(folder))
        files = [shutil.copy(Path(folder) / file, RECORDS / f"{part}_{file}") for file in record["files"]]
    record |= {"files": [file.name for file in files], "seconds": round(time.monotonic() - start)}
    record["command"] = record["command"].replace(f"{ROOT}/", "").replace(folder, "FOLDER")
    with replacing(RECORDS / f"{part}.json") as file:
        file.write(json.dumps(record, indent=1) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=PARTS, nargs="+", help="parts to run, recorded or not")
    chosen = parser.parse_args().only
    if not torch.cuda.is_available():
        build = f"torch {torch.__version__} (CUDA {torch.version.cuda})"
        print(f"make gpu needs an NVIDIA GPU, and {build} sees none: is the driver too old?", file=sys.stderr)
        return 1
    machine, failed = this_machine(), []
    for name in chosen or PARTS:
        if not chosen and is_recorded(name, machine):
            print(f"{name}: recorded at this commit on this machine", flush=True)
            continue
        print(f"{name}: {PARTS[name].description}, about {PARTS[name].minutes:g} min", flush=True)
        try:
            write_record(name, machine)
        except Exception as error:  # whatever it is, the next part may work
            failed.append(name)
            print(f"{name} FAILED: {type(error).__name__}: {error}", flush=True)
    write_results({})
    print(f"records: {os.path.relpath(RECORDS)}" + f"; failed: {', '.join(failed)}" * bool(failed))
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
