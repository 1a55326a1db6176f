"""Messages about what a script does: memory, the model under DDP, its files, collectives that do not fit."""

from ddp_doctor.explain.message import cause

SCRIPTS = [
    # --- memory and processes that are killed
    cause(
        "out of GPU memory",
        (
            "CUDA out of memory",
            "OutOfMemoryError: CUDA",
            "CUDA error: out of memory",
            "HIP out of memory",
            "Cuda failure 'out of memory'",
            "Cuda failure 2 'out of memory'",
        ),
        "the GPU of this rank had no room for an allocation",
        "Lower the batch size of a rank. If GPU 0 alone is full, call torch.cuda.set_device(LOCAL_RANK) before "
        'anything allocates, and load files with map_location="cpu".',
    ),
    cause(
        "loader worker killed",
        ("is killed by signal", "exited unexpectedly", "Unexpected bus error encountered in worker"),
        "the system killed a worker process of a DataLoader: memory or /dev/shm ran out, or the worker crashed",
        "Look at `df -h /dev/shm` and `dmesg`; use fewer workers (they count once per rank), or a larger /dev/shm "
        "(docker run --ipc=host). num_workers=0 shows a crash in the dataset itself.",
    ),
    cause(
        "out of memory on the host",
        (
            "oom_kill event",
            "oom-kill event",
            "OOM Killed",
            "OOMKilled",
            ": Out Of Memory",
            "DefaultCPUAllocator: can't allocate",
        ),
        "a process asked for more main memory than the machine or the job has",
        "Ask for more memory (--mem, the pod's limit), or hold less: a list data set is copied into every worker of "
        "every rank, and a checkpoint is read by every rank.",
    ),
    cause(
        "time limit of the scheduler",
        ("DUE TO TIME LIMIT", "DUE to TIME LIMIT", "DUE TO PREEMPTION", "DUE TO NODE FAILURE"),
        "the scheduler ended the job: its time was over, it was preempted, or a machine failed",
        "Save a checkpoint before the limit (`#SBATCH --signal=B:USR2@600`), and let the next job resume from it.",
    ),
    # --- collectives that do not fit, and ranks that did not join one
    cause(
        "monitored barrier",
        ("failed to pass monitoredBarrier",),
        "the rank that the message names did not come to monitored_barrier",
        "Look at what the named rank did instead: its own lines, or its stack.",
        "attach",
    ),
    cause(
        "collectives differ",
        ("Detected mismatch between collectives on ranks",),
        "two ranks started different collectives, or tensors of other sizes, at the same moment",
        "Compare the two calls that the message quotes. Which of them is wrong only the program can say.",
        "run",
    ),
    cause(
        "ranks that did not join",
        ("but didn't join collective", "missing ranks:", "collective mismatch around rank"),
        "the report lists the ranks that did not start the collective that the others wait in",
        "Look at what these ranks did instead: their own lines, or their stacks.",
        "attach",
    ),
    cause(
        "sizes differ",
        ("Received data size doesn't match expected size", "op.preamble.length <= op.nbytes"),
        "gloo got a tensor of another size than it expected, and aborted: the ranks were in different collectives, or "
        "in the same one with other sizes. The rank that aborts is the one that received",
        "Print the sizes on all ranks before that line, or set TORCH_DISTRIBUTED_DEBUG=DETAIL (without DDP: on gloo, "
        "DETAIL and DDP together crash in torch 2.13).",
        "run",
    ),
    # --- the model under DDP
    cause(
        "different models",
        ("DDP expects same model across all ranks", "appears not to match sizes of the same param"),
        "the ranks built different models",
        "Build the model from the same arguments on every rank, before DistributedDataParallel wraps it.",
        "check",
    ),
    cause(
        "graph changed",
        ("your training graph has changed in this iteration",),
        "static_graph=True promised that every step uses the same parameters, and a step did not",
        "Drop static_graph=True, or use the same parameters in every step.",
    ),
    cause(
        "unused parameters",
        ("Expected to have finished reduction in the prior iteration",),
        "parameters got no gradient in the step before, so DDP still waits for them; the message names their indices",
        "Use every parameter in every step, or freeze it before DDP wraps the model, or pass "
        "find_unused_parameters=True. TORCH_DISTRIBUTED_DEBUG=INFO prints their names.",
        "run",
    ),
    cause(
        "ready twice",
        ("marked as ready twice", "mark a variable ready only once"),
        "a parameter got two gradients in one backward pass: checkpoint(use_reentrant=True), or a shared layer that is "
        "used again outside forward()",
        "Use torch.utils.checkpoint with use_reentrant=False; call the model once per step.",
    ),
    cause(
        "modified in place",
        ("has been modified by an inplace operation",),
        "a tensor that backward needs was overwritten. Under DDP this is often the second forward before backward: it "
        "copies rank 0's buffers (BatchNorm) over those of the first",
        "Call the model once with both inputs concatenated, or pass broadcast_buffers=False (or use SyncBatchNorm).",
    ),
    cause(
        "no gradient",
        ("is not needed when a module doesn't have any parameter", "does not require grad and does not have a grad_fn"),
        "nothing in the wrapped model, or in the loss, requires a gradient",
        "Check which parameters have requires_grad=True; do not wrap a frozen model in DDP. With gradient "
        "checkpointing and a frozen embedding (LoRA) call model.enable_input_require_grads().",
    ),
    cause(
        "attribute of the wrapped model",
        ("'DistributedDataParallel' object has no attribute", "'DataParallel' object has no attribute"),
        "the attribute belongs to the model inside of the wrapper",
        "Write model.module.NAME. Do not compute a loss through model.module: its gradients are not averaged.",
    ),
    cause(
        "keys with module.",
        ('"module.', "Missing key(s) in state_dict", "Unexpected key(s) in state_dict"),
        "the names in the file and in the model differ; `module.` is DDP's prefix, `_orig_mod.` torch.compile's",
        "Save model.module.state_dict(), or load with {key.removeprefix('module.'): value for key, value in ...}.",
    ),
    cause(
        "Tensor mixed with DTensor",
        ("got mixed torch.Tensor and DTensor",),
        "an operation got a sharded parameter (DTensor) and a plain tensor",
        "Make the plain tensor a DTensor (distribute_tensor, same mesh), or take .full_tensor() or .to_local() of the "
        "other. A gradient norm under FSDP2 is a DTensor, too.",
    ),
    cause(
        "SyncBatchNorm without a group",
        ("SyncBatchNorm layers only work with", "SyncBatchNorm expected input tensor to be on"),
        "SyncBatchNorm runs on GPUs only",
        "Convert to SyncBatchNorm only when the job runs on GPUs with more than one rank.",
    ),
    # --- files
    cause(
        "torn checkpoint",
        ("PytorchStreamReader failed", "failed finding central directory", "invalid header or archive is corrupted"),
        "a checkpoint file is not whole: it was read while another rank wrote it, or its writer was killed",
        "Write to a temporary name and rename it; write on one rank, then a barrier, then read.",
        "check",
    ),
    cause(
        "weights_only",
        ("Weights only load failed",),
        "torch.load reads tensors and plain values only, since torch 2.6",
        "Save plain values and tensors; weights_only=False only for a file that you wrote yourself.",
    ),
    cause(
        "disk full",
        ("No space left on device",),
        "a disk, or /dev/shm, is full",
        "Look at `df -h` of the checkpoint folder, of $TMPDIR and of /dev/shm.",
    ),
    # --- how a process ended, known by its exit code or not at all
    cause(
        "killed",
        (),
        "the process was killed; for SIGKILL that is most often the system, when memory ran out",
        "Look at `dmesg` of that machine, the scheduler's log, or the pod's status (OOMKilled), at that time.",
    ),
    cause(
        "crashed",
        ("Fatal Python error: Segmentation fault", "Segfault encountered", "Segmentation fault (core dumped)"),
        "the process crashed in compiled code",
        "Start again with PYTHONFAULTHANDLER=1: the process then prints its stack as it dies.",
        "run",
    ),
    cause(
        "left with an exit code",
        (),
        "the rank ended by itself while the others still needed it",
        "Look for sys.exit, os._exit or an early return in what this rank does.",
        "run",
    ),
    cause(
        "left early",
        (),
        "the rank printed no error and is not among those that failed: it may have ended with exit code 0 while others "
        "still waited for it",
        "Look for an early return, a shorter loop or an exit in what this rank does.",
        "run",
    ),
    cause(
        "no error text",
        (),
        "a launcher reports that a rank failed, and the rank's own error is not in this log",
        "Look further up, or in the rank's own stderr. Start again with `torchrun --log-dir logs --tee 3`, or decorate "
        "main() by @record (torch.distributed.elastic.multiprocessing.errors): the report then has the traceback.",
        "run",
    ),
    cause("exception", (), "", "Fix that line; the other ranks' errors follow from it."),
]
