"""Messages about how a job is started, its GPUs, and what ends it from outside."""

from ddp_doctor.explain.message import cause, setup, warning

START = [
    # --- the start
    setup(
        "more processes than GPUs",
        ("invalid device ordinal",),
        "the rank asked for a GPU whose number does not exist: more processes than GPUs on this machine, or RANK used "
        "where LOCAL_RANK belongs, or CUDA_VISIBLE_DEVICES (its GPUs are numbered from 0)",
        "Start --nproc-per-node=(number of GPUs of the machine), and use cuda:LOCAL_RANK.",
    ),
    setup(
        "two ranks on one GPU",
        ("Duplicate GPU detected",),
        "two ranks use the same GPU, which NCCL refuses",
        "Call torch.cuda.set_device(int(os.environ['LOCAL_RANK'])) first; start at most as many ranks as GPUs.",
    ),
    setup(
        "port in use",
        ("EADDRINUSE", "Address already in use", "address already in use"),
        "another process listens on the port of the rendezvous: a second job, or a process left over from the last one",
        "Start with `torchrun --standalone`, which takes a free port, or another --master-port for each job.",
    ),
    setup(
        "launched without torchrun",
        (
            "environment variable RANK expected",
            "environment variable WORLD_SIZE expected",
            "environment variable MASTER_ADDR expected",
            "environment variable MASTER_PORT expected",
            "environment variable LOCAL_RANK expected",
            "KeyError: 'LOCAL_RANK'",
            "KeyError: 'RANK'",
        ),
        "the script was started by plain python, so the variables that torchrun sets are missing",
        "Start it with `torchrun --standalone --nproc-per-node=2 train.py`.",
    ),
    setup(
        "no process group",
        ("Default process group has not been initialized",),
        "a collective, a sampler or SyncBatchNorm was used before init_process_group, or in a script for one process",
        "Call dist.init_process_group() first, in every process; or guard the call by dist.is_initialized().",
    ),
    setup(
        "--local-rank",
        ("unrecognized arguments: --local-rank", "unrecognized arguments: --local_rank"),
        "torch.distributed.launch passes --local-rank to the script, which does not know it",
        "Start with torchrun, and read LOCAL_RANK from the environment.",
    ),
    setup(
        "no backend for this device",
        ("No backend type associated with device type",),
        "the process group has no backend for tensors on this device (objects, DCP and offloading send CPU tensors)",
        'init_process_group("cpu:gloo,cuda:nccl") has both; or move the tensor to the GPU.',
    ),
    setup(
        "no NCCL",
        ("Distributed package doesn't have NCCL", "ProcessGroupNCCL is only supported with GPUs, no GPUs found"),
        "the backend nccl was asked for where there is no NCCL or no GPU",
        'Use init_process_group("gloo") on a CPU; NCCL exists on Linux (WSL2) with a CUDA build of torch.',
    ),
    setup(
        "libuv",
        ("without libuv support",),
        "this torch has no libuv (Windows), which the store asks for by default",
        "Set USE_LIBUV=0 before the start; better: use WSL2.",
    ),
    setup(
        "CUDA and fork",
        ("Cannot re-initialize CUDA in forked subprocess", "CUDA has been initialized before"),
        "a process that had used the GPU was forked",
        "Touch no GPU before the processes start (in a notebook: restart the kernel), or start by torchrun or spawn.",
    ),
    cause(
        "GPU fault",
        ("uncorrectable ECC error", "fallen off the bus", "NVRM: Xid"),
        "the GPU itself reported a fault",
        "Look at `dmesg | grep -i xid` on that machine, and leave it out of the next run.",
    ),
    cause(
        "device-side assert",
        ("device-side assert triggered", "an illegal memory access was encountered", "unspecified launch failure"),
        "a kernel read outside of a tensor: most often because a label or a token is not a valid index",
        "Run the same batch on the CPU, or with CUDA_LAUNCH_BLOCKING=1: the line in this traceback may be a later one.",
    ),
    # --- what ends a job from outside
    cause(
        "stopped from outside",
        ("got signal: ", "death signal, shutting down workers", "KeyboardInterrupt"),
        "a user or the scheduler ended the job by a signal",
        "Look at the scheduler's log, and at what the lines before say.",
    ),
    warning(
        "group not destroyed",
        ("destroy_process_group() was not called before program exit",),
        "a warning, no failure: the script ends without dist.destroy_process_group()",
        "Call it at the end on every rank; if the job hung or failed, that is not the reason.",
    ),
    warning(
        "needless flag",
        ("but did not find any unused parameters in the forward pass",),
        "a warning, no failure: find_unused_parameters=True costs a walk over the graph in every step, for nothing",
        "Drop find_unused_parameters=True.",
    ),
    warning(
        "GPU of the rank is unknown",
        ("device used by this process is currently unknown", "using the device under current context"),
        "a warning, no failure so far: barrier() guesses which GPU belongs to the rank, and a wrong guess hangs",
        "Pass device_id=torch.device('cuda', LOCAL_RANK) to init_process_group.",
    ),
]
