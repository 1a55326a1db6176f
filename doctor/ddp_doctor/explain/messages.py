"""The known messages of failing jobs: how each is recognised, what it means, and the first thing to do.

A line has the first message that fits, so the order of the rows counts. To add a message, add a row, and a log that has
it to tests/logs. `role` is what a message implies about the rank that prints it:

    cause     the failure began on this rank
    setup     the start, the environment or the machine is wrong; several ranks may print it
    network   a connection failed: because of the network, or of a rank that did not run
    symptom   the rank lost contact, or waited: another rank is at fault, or none
    warning   no failure by itself
"""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Message:
    role: str
    name: str
    texts: tuple[str, ...]  # as printed; a line with one of them has the message
    cause: str
    first_step: str
    next_command: str = ""  # a key of report.NEXT_COMMANDS


def _of_role(role: str):
    """Makes a message of this role: its texts are separated by " | "."""
    return lambda name, texts, *rest: Message(role, name, tuple(filter(None, texts.split(" | "))), *rest)


cause, setup, network, symptom, warning = map(_of_role, ("cause", "setup", "network", "symptom", "warning"))

MESSAGES = [
    # --- memory and processes that are killed
    cause(
        "out of GPU memory",
        "CUDA out of memory | OutOfMemoryError: CUDA | CUDA error: out of memory | HIP out of memory | "
        "Cuda failure 'out of memory' | Cuda failure 2 'out of memory'",
        "the GPU of this rank had no room for an allocation",
        "Lower the batch size of a rank. If GPU 0 alone is full, call torch.cuda.set_device(LOCAL_RANK) before "
        'anything allocates, and load files with map_location="cpu". If much is "reserved by PyTorch but unallocated": '
        "PYTORCH_ALLOC_CONF=expandable_segments:True.",
    ),
    cause(
        "loader worker killed",
        ") is killed by signal | ) exited unexpectedly | Unexpected bus error encountered in worker",
        "the system killed a worker process of a DataLoader: memory or /dev/shm ran out, or the worker crashed",
        "Look at `df -h /dev/shm` and `dmesg`; use fewer workers (they count once per rank), or a larger /dev/shm "
        "(docker run --ipc=host). num_workers=0 shows a crash in the dataset itself.",
    ),
    cause(
        "out of memory on the host",
        "oom_kill event | oom-kill event | OOM Killed | OOMKilled | : Out Of Memory | "
        "DefaultCPUAllocator: can't allocate",
        "a process asked for more main memory than the machine or the job has",
        "Ask for more memory (--mem, the pod's limit), or hold less: a list data set is copied into every worker of "
        "every rank, and a checkpoint is read by every rank.",
    ),
    cause(
        "time limit of the scheduler",
        "DUE TO TIME LIMIT | DUE to TIME LIMIT | DUE TO PREEMPTION | DUE TO NODE FAILURE",
        "the scheduler ended the job: its time was over, it was preempted, or a machine failed",
        "Save a checkpoint before the limit (`#SBATCH --signal=B:TERM@120`, which the batch script passes on to "
        "the tasks by `scancel --signal=TERM`), and let the next job resume from it.",
    ),
    # --- collectives that do not fit, and ranks that did not join one
    cause(
        "monitored barrier",
        "failed to pass monitoredBarrier",
        "the rank that the message names did not come to monitored_barrier",
        "Look at what the named rank did instead: its own lines, or its stack.",
        "attach",
    ),
    cause(
        "collectives differ",
        "Detected mismatch between collectives on ranks",
        "two ranks started different collectives, or tensors of other sizes, at the same moment",
        "Compare the two calls that the message quotes. Which of them is wrong only the program can say.",
        "run",
    ),
    cause(
        "ranks that did not join",
        "but didn't join collective | missing ranks: | collective mismatch around rank",
        "the report lists the ranks that did not start the collective that the others wait in",
        "Look at what these ranks did instead: their own lines, or their stacks.",
        "attach",
    ),
    cause(
        "sizes differ",
        "Received data size doesn't match expected size | op.preamble.length <= op.nbytes",
        "gloo got a tensor of another size than it expected, and aborted: the ranks were in different collectives, or "
        "in the same one with other sizes. The rank that aborts is the one that received",
        "Print the sizes on all ranks before that line, or set TORCH_DISTRIBUTED_DEBUG=DETAIL (without DDP: on gloo, "
        "DETAIL and DDP together crash in torch 2.13).",
        "run",
    ),
    # --- the model under DDP
    cause(
        "different models",
        "DDP expects same model across all ranks | appears not to match sizes of the same param",
        "the ranks built different models",
        "Build the model from the same arguments on every rank, before DistributedDataParallel wraps it.",
        "check",
    ),
    cause(
        "graph changed",
        "your training graph has changed in this iteration",
        "static_graph=True promised that every step uses the same parameters, and a step did not",
        "Drop static_graph=True, or use the same parameters in every step.",
    ),
    cause(
        "unused parameters",
        "Expected to have finished reduction in the prior iteration",
        "parameters got no gradient in the step before, so DDP still waits for them; the message names their indices",
        "Use every parameter in every step, or freeze it before DDP wraps the model, or pass "
        "find_unused_parameters=True. TORCH_DISTRIBUTED_DEBUG=INFO prints their names.",
        "run",
    ),
    cause(
        "ready twice",
        "marked as ready twice | mark a variable ready only once",
        "a parameter got two gradients in one backward pass: checkpoint(use_reentrant=True), or a shared layer that is "
        "used again outside forward()",
        "Use torch.utils.checkpoint with use_reentrant=False; call the model once per step.",
    ),
    cause(
        "modified in place",
        "has been modified by an inplace operation",
        "a tensor that backward needs was overwritten. Under DDP this is often the second forward before backward: it "
        "copies rank 0's buffers (BatchNorm) over those of the first",
        "Call the model once with both inputs concatenated, or pass broadcast_buffers=False (or use SyncBatchNorm).",
    ),
    cause(
        "no gradient",
        "is not needed when a module doesn't have any parameter | does not require grad and does not have a grad_fn",
        "nothing in the wrapped model, or in the loss, requires a gradient",
        "Check which parameters have requires_grad=True; do not wrap a frozen model in DDP. With gradient "
        "checkpointing and a frozen embedding (LoRA) call model.enable_input_require_grads().",
    ),
    cause(
        "attribute of the wrapped model",
        "'DistributedDataParallel' object has no attribute | 'DataParallel' object has no attribute",
        "the attribute belongs to the model inside of the wrapper",
        "Write model.module.NAME. Do not compute a loss through model.module: its gradients are not averaged.",
    ),
    cause(
        "keys with module.",
        '"module. | Missing key(s) in state_dict | Unexpected key(s) in state_dict',
        "the names in the file and in the model differ; `module.` is DDP's prefix, `_orig_mod.` torch.compile's",
        "Save model.module.state_dict(), or load with {key.removeprefix('module.'): value for key, value in ...}.",
    ),
    cause(
        "Tensor mixed with DTensor",
        "got mixed torch.Tensor and DTensor",
        "an operation got a sharded parameter (DTensor) and a plain tensor",
        "Make the plain tensor a DTensor (distribute_tensor, same mesh), or take .full_tensor() or .to_local() of the "
        "other. A gradient norm under FSDP2 is a DTensor, too.",
    ),
    cause(
        "recomputed otherwise",
        "have different metadata than during the forward pass | A different number of tensors was saved during",
        "activation checkpointing ran a block again, and it did not make the same tensors",
        "Compare the saved and the recomputed shape; checkpoint(..., debug=True) names the operations. Known reasons: "
        "routing to experts, context parallelism, ZeRO-3 with frozen weights, torch.compile.",
    ),
    cause(
        "device_map in a distributed run",
        "loaded with `device_map='auto'` in any distributed mode",
        "device_map='auto' spreads one model over all GPUs, and each process needs a whole one",
        "Load without device_map; in 8 or 4 bits with device_map={'': torch.cuda.current_device()}.",
    ),
    cause(
        "SyncBatchNorm without a group",
        "SyncBatchNorm layers only work with | SyncBatchNorm expected input tensor to be on",
        "SyncBatchNorm runs on GPUs only",
        "Convert to SyncBatchNorm only when the job runs on GPUs with more than one rank.",
    ),
    # --- files
    cause(
        "key that the checkpoint lacks",
        "Missing key in checkpoint state_dict",
        "torch.distributed.checkpoint was to load a key that the files do not have",
        "Compare with FileSystemReader(path).read_metadata().state_dict_metadata: nesting, prefixes, optimizer state "
        "that did not exist yet. DefaultLoadPlanner(allow_partial_load=True) skips such keys.",
    ),
    cause(
        "torn checkpoint",
        "PytorchStreamReader failed | failed finding central directory | invalid header or archive is corrupted",
        "a checkpoint file is not whole: it was read while another rank wrote it, or its writer was killed",
        "Write to a temporary name and rename it; write on one rank, then a barrier, then read.",
        "check",
    ),
    cause(
        "weights_only",
        "Weights only load failed",
        "torch.load reads tensors and plain values only, since torch 2.6",
        "Save plain values and tensors; weights_only=False only for a file that you wrote yourself.",
    ),
    setup(
        "shared memory",
        "Error while creating shared memory segment | failed to extend /dev/shm | unable to open shared memory object",
        "/dev/shm of this machine or container is full (64 MB is a container's default), or a limit on open files is "
        "reached",
        "Look at `df -h /dev/shm` and `ulimit -n`; start the container with --ipc=host or a larger --shm-size.",
    ),
    cause(
        "disk full",
        "No space left on device",
        "a disk, or /dev/shm, is full",
        "Look at `df -h` of the checkpoint folder, of $TMPDIR and of /dev/shm.",
    ),
    # --- how a process ended, known by its exit code or not at all
    cause(
        "killed",
        "",
        "the process was killed; for SIGKILL that is most often the system, when memory ran out",
        "Look at `dmesg` of that machine, the scheduler's log, or the pod's status (OOMKilled), at that time.",
    ),
    cause(
        "crashed",
        "Fatal Python error: Segmentation fault | Segfault encountered | Segmentation fault (core dumped)",
        "the process crashed in compiled code",
        "Start again with PYTHONFAULTHANDLER=1: the process then prints its stack as it dies.",
        "run",
    ),
    cause(
        "left with an exit code",
        "",
        "the rank ended by itself while the others still needed it",
        "Look for sys.exit, os._exit or an early return in what this rank does.",
        "run",
    ),
    cause(
        "left early",
        "",
        "the rank printed no error and is not among those that failed: it may have ended with exit code 0 while others "
        "still waited for it",
        "Look for an early return, a shorter loop or an exit in what this rank does.",
        "run",
    ),
    cause(
        "no error text",
        "",
        "a launcher reports that a rank failed, and the rank's own error is not in this log",
        "Look further up, or in the rank's own stderr. Start again with `torchrun --log-dir logs --tee 3`, or decorate "
        "main() by @record (torch.distributed.elastic.multiprocessing.errors): the report then has the traceback.",
        "run",
    ),
    cause("exception", "", "", "Fix that line; the other ranks' errors follow from it."),
    # --- the start
    setup(
        "more processes than GPUs",
        "invalid device ordinal",
        "the rank asked for a GPU whose number does not exist: more processes than GPUs on this machine, or RANK used "
        "where LOCAL_RANK belongs, or CUDA_VISIBLE_DEVICES (its GPUs are numbered from 0)",
        "Start --nproc-per-node=(number of GPUs of the machine), and use cuda:LOCAL_RANK.",
    ),
    setup(
        "two ranks on one GPU",
        "Duplicate GPU detected",
        "two ranks use the same GPU, which NCCL refuses",
        "Call torch.cuda.set_device(int(os.environ['LOCAL_RANK'])) first; start at most as many ranks as GPUs.",
    ),
    setup(
        "port in use",
        "EADDRINUSE | Address already in use | address already in use",
        "another process listens on the port of the rendezvous: a second job, or a process left over from the last one",
        "Start with `torchrun --standalone`, which takes a free port, or another --master-port for each job.",
    ),
    setup(
        "launched without torchrun",
        "environment variable RANK expected | environment variable WORLD_SIZE expected | "
        "environment variable MASTER_ADDR expected | environment variable MASTER_PORT expected | "
        "environment variable LOCAL_RANK expected | KeyError: 'LOCAL_RANK' | KeyError: 'RANK'",
        "the script was started by plain python, so the variables that torchrun sets are missing",
        "Start it with `torchrun --standalone --nproc-per-node=2 train.py`.",
    ),
    setup(
        "no process group",
        "Default process group has not been initialized",
        "a collective, a sampler or SyncBatchNorm was used before init_process_group, or in a script for one process",
        "Call dist.init_process_group() first, in every process; or guard the call by dist.is_initialized().",
    ),
    setup(
        "another number of processes",
        "in store based barrier",
        "the processes that came to the store are not as many as the world size",
        "Compare worker_count with world_size in the message. Fewer: a rank did not come. More: two jobs use a store, "
        "such as a port or an old init file, or the start runs twice.",
        "meet",
    ),
    setup(
        "--local-rank",
        "unrecognized arguments: --local-rank | unrecognized arguments: --local_rank",
        "torch.distributed.launch passes --local-rank to the script, which does not know it",
        "Start with torchrun, and read LOCAL_RANK from the environment.",
    ),
    setup(
        "no backend for this device",
        "No backend type associated with device type",
        "the process group has no backend for tensors on this device (objects, DCP and offloading send CPU tensors)",
        'init_process_group("cpu:gloo,cuda:nccl") has both; or move the tensor to the GPU.',
    ),
    setup(
        "no NCCL",
        "Distributed package doesn't have NCCL | ProcessGroupNCCL is only supported with GPUs, no GPUs found",
        "the backend nccl was asked for where there is no NCCL or no GPU",
        'Use init_process_group("gloo") on a CPU; NCCL exists on Linux (WSL2) with a CUDA build of torch.',
    ),
    setup(
        "libuv",
        "without libuv support",
        "this torch has no libuv (Windows), which the store asks for by default",
        "Set USE_LIBUV=0 before the start; better: use WSL2.",
    ),
    setup(
        "CUDA and fork",
        "Cannot re-initialize CUDA in forked subprocess | CUDA has been initialized before",
        "a process that had used the GPU was forked",
        "Touch no GPU before the processes start (in a notebook: restart the kernel), or start by torchrun or spawn.",
    ),
    cause(
        "GPU fault",
        "uncorrectable ECC error | fallen off the bus | NVRM: Xid",
        "the GPU itself reported a fault",
        "Look at `dmesg | grep -i xid` on that machine, and leave it out of the next run.",
    ),
    cause(
        "device-side assert",
        "device-side assert triggered | an illegal memory access was encountered | unspecified launch failure",
        "a kernel read outside of a tensor: most often because a label or a token is not a valid index",
        "Run the same batch on the CPU, or with CUDA_LAUNCH_BLOCKING=1: the line in this traceback may be a later one.",
    ),
    # --- what ends a job from outside
    cause(
        "stopped from outside",
        "got signal:  | death signal, shutting down workers | KeyboardInterrupt",
        "a user or the scheduler ended the job by a signal",
        "Look at the scheduler's log, and at what the lines before say.",
    ),
    warning(
        "group not destroyed",
        "destroy_process_group() was not called before program exit",
        "a warning, no failure: the script ends without dist.destroy_process_group()",
        "Call it at the end on every rank; if the job hung or failed, that is not the reason.",
    ),
    warning(
        "needless flag",
        "but did not find any unused parameters in the forward pass",
        "a warning, no failure: find_unused_parameters=True costs a walk over the graph in every step, for nothing",
        "Drop find_unused_parameters=True.",
    ),
    warning(
        "GPU of the rank is unknown",
        "device used by this process is currently unknown | using the device under current context",
        "a warning, no failure so far: barrier() guesses which GPU belongs to the rank, and a wrong guess hangs",
        "Pass device_id=torch.device('cuda', LOCAL_RANK) to init_process_group.",
    ),
    # --- the machines
    network(
        "rendezvous: no connection",
        "RendezvousConnectionError | The connection to the C10d store has failed",
        "torchrun could not reach the endpoint of the rendezvous, or lost it as its host left",
        "Check that the host of --rdzv-endpoint runs torchrun, is named by an address the others see, and that its "
        "port is open.",
        "meet",
    ),
    setup(
        "rendezvous: timeout",
        "RendezvousTimeoutError | RendezvousClosedError",
        "not all machines joined the rendezvous in time, or it was closed when this one joined",
        "Start torchrun on all machines, with the same --nnodes, --rdzv-id and --rdzv-endpoint.",
        "meet",
    ),
    cause(
        "abort at exit",
        "terminate called without an active exception",
        "the process aborted as it ended, after its work: gloo's threads were still alive",
        "Drop the DDP wrapper and the optimizer before dist.destroy_process_group(), best inside a function.",
    ),
    network(
        "gloo: no connection",
        "Gloo connectFullMesh failed",
        "a rank could not connect to the others: one of them is gone, or never came. After a restart by torchrun, "
        "gloo reads the addresses of the previous attempt",
        "After a restart set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1; else look for the rank that is missing.",
        "meet",
    ),
    # --- NCCL
    symptom(
        "NCCL: no unique id",
        "retrieving ncclUniqueId | retreiving ncclUniqueId",
        "the first collective of a group needs an id from its first rank, which did not come to it",
        "Look at what that rank did before its first collective (a download, an error), or raise timeout=.",
        "hang",
    ),
    symptom(
        "NCCL: timeout",
        "Watchdog caught collective operation timeout | timed out in blocking wait | collective timeout from | "
        "timeout watchdog detected operation timeout",  # the last one: from torch 2.15 on
        "the rank waited for the others until the timeout of the group",
        "Look at the rank that is behind, not at those that waited.",
        "hang",
    ),
    symptom(
        "NCCL: watchdog stuck",
        "watchdog got stuck | Heartbeat monitor timed out",
        "the thread that watches NCCL made no progress: a CUDA call hangs, or a thread holds the GIL",
        "Look at the stacks of the process while it hangs; TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC gives it more time.",
        "hang",
    ),
    symptom(
        "NCCL: a peer is gone",
        "ncclRemoteError | Connection closed by remote peer | NCCL communicator was aborted | "
        "remote process exited or there was a network error",
        "the connection to another rank broke: its process ended, or the network failed",
        "Look for the rank that ended first, in its own log.",
        "hang",
    ),
    network(
        "NCCL: network",
        "ncclSystemError | unhandled system error | NCCL WARN Call to connect | NCCL WARN socketStartConnect | "
        "Got completion from peer | No route to host",
        "a system call of NCCL failed: a wrong network interface, a firewall, /dev/shm too small, or a peer that ended",
        "Start again with NCCL_DEBUG=INFO and read the first `NCCL WARN`; set NCCL_SOCKET_IFNAME to the interface that "
        "the machines share; NCCL_IB_DISABLE=1 tells whether InfiniBand is at fault.",
        "meet",
    ),
    network(
        "NCCL: internal error",
        "ncclInternalError | ncclUnhandledCudaError | unhandled cuda error | ncclInvalidUsage | NCCL error in | "
        "NCCL WARN Cuda failure",
        "NCCL failed; the text after `Last error:`, or the first `NCCL WARN`, says in what",
        "Start again with NCCL_DEBUG=INFO; compare driver and NCCL versions of the machines.",
        "meet",
    ),
    warning(
        "NCCL: warning",
        "NCCL WARN",
        "NCCL warns; it need not be what ended the job",
        "Read on from the first `NCCL WARN`; NCCL_DEBUG=INFO says more.",
        "meet",
    ),
    # --- a peer is gone, or did not come: gloo and the store
    symptom(
        "connection closed",
        "Connection closed by peer | received errors while waiting for send/recv | Connection reset by peer | "
        "Application timeout caused pair closure | Socket closed | Connection was likely closed | "
        "failed to recv, got 0 bytes",
        "another rank was gone, so the connection to it closed",
        "Look for the rank that ended first: its exit code and its last lines.",
        "run",
    ),
    symptom(
        "timeout",
        "Timed out waiting | wait timeout after | Timed out after | timed out connecting",
        "the rank waited for another one until the timeout of the group",
        "Look at the rank that did not come, not at the one that waited.",
        "hang",
    ),
    network(
        "unknown host name",
        "cannot be retrieved (gai error | Name or service not known | Temporary failure in name resolution",
        "the name in MASTER_ADDR or --rdzv-endpoint is not known on this machine",
        "Use a name or an address that every machine resolves alike: `getent hosts NAME` on each.",
        "meet",
    ),
    network(
        "store: no connection",
        "client socket has timed out | failed to connect to | connect() timed out | Timeout waiting for key | "
        "Connection refused",
        "a rank could not reach the store of rank 0: not started, another address or port, or a firewall",
        "Check MASTER_ADDR and MASTER_PORT on each machine, and that rank 0 runs.",
        "meet",
    ),
    symptom(
        "store: gone",
        "should dump | TCPStore check for dump key | sendBytes failed | recvValue failed | Broken pipe",
        "the store of rank 0 was gone: rank 0 had ended",
        "Look at how rank 0 ended: this line only says that it has.",
    ),
]
BY_NAME = {message.name: message for message in MESSAGES}
CONNECTION_ERRORS = ("Connection", "BrokenPipeError", "EOFError")
ABOUT_PEERS = ("monitored barrier", "gloo: no connection", "store: no connection")
SYMPTOMS = tuple(
    text for message in MESSAGES if message.role == "symptom" or message.name in ABOUT_PEERS for text in message.texts
)  # of gloo, the store and NCCL, which a rank prints when another rank is at fault


def recognise(error: str, files: Iterable[str] = ()) -> Message | None:
    """The first message that the text of an error, of one line or several, contains.

    files: those of its traceback. A connection error in torch/utils/data means that a worker process is dead.
    """
    if error.startswith(CONNECTION_ERRORS) and any("torch/utils/data/" in file for file in files):
        return BY_NAME["loader worker killed"]
    return next((message for message in MESSAGES if any(text in error for text in message.texts)), None)
