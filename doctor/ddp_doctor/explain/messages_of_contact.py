"""Messages about the contact between ranks: the rendezvous, NCCL, gloo and the store."""

from ddp_doctor.explain.message import cause, network, setup, symptom, warning

CONTACT = [
    # --- the machines
    network(
        "rendezvous: no connection",
        ("RendezvousConnectionError", "The connection to the C10d store has failed"),
        "torchrun could not reach the endpoint of the rendezvous, or lost it as its host left",
        "Check that the host of --rdzv-endpoint runs torchrun, is named by an address the others see, and that its "
        "port is open.",
        "meet",
    ),
    setup(
        "rendezvous: timeout",
        ("RendezvousTimeoutError", "RendezvousClosedError"),
        "not all machines joined the rendezvous in time, or it was closed when this one joined",
        "Start torchrun on all machines, with the same --nnodes, --rdzv-id and --rdzv-endpoint.",
        "meet",
    ),
    cause(
        "abort at exit",
        ("terminate called without an active exception",),
        "the process aborted as it ended, after its work: gloo's threads were still alive",
        "Drop the DDP wrapper and the optimizer before dist.destroy_process_group(), best inside a function.",
    ),
    network(
        "gloo: no connection",
        ("Gloo connectFullMesh failed",),
        "a rank could not connect to the others: one of them is gone, or never came. After a restart by torchrun, "
        "gloo reads the addresses of the previous attempt",
        "After a restart set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1; else look for the rank that is missing.",
        "meet",
    ),
    # --- NCCL
    symptom(
        "NCCL: no unique id",
        ("retrieving ncclUniqueId", "retreiving ncclUniqueId"),
        "the first collective of a group needs an id from its first rank, which did not come to it",
        "Look at what that rank did before its first collective (a download, an error), or raise timeout=.",
        "hang",
    ),
    symptom(
        "NCCL: timeout",
        ("Watchdog caught collective operation timeout", "timed out in blocking wait", "collective timeout from"),
        "the rank waited for the others until the timeout of the group",
        "Look at the rank that is behind, not at those that waited.",
        "hang",
    ),
    symptom(
        "NCCL: watchdog stuck",
        ("watchdog got stuck", "Heartbeat monitor timed out"),
        "the thread that watches NCCL made no progress: a CUDA call hangs, or a thread holds the GIL",
        "Look at the stacks of the process while it hangs; TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC gives it more time.",
        "hang",
    ),
    symptom(
        "NCCL: a peer is gone",
        (
            "ncclRemoteError",
            "Connection closed by remote peer",
            "NCCL communicator was aborted",
            "remote process exited or there was a network error",
        ),
        "the connection to another rank broke: its process ended, or the network failed",
        "Look for the rank that ended first, in its own log.",
        "hang",
    ),
    network(
        "NCCL: network",
        (
            "ncclSystemError",
            "unhandled system error",
            "NCCL WARN Call to connect",
            "NCCL WARN socketStartConnect",
            "Got completion from peer",
            "No route to host",
        ),
        "a system call of NCCL failed: a wrong network interface, a firewall, /dev/shm too small, or a peer that ended",
        "Start again with NCCL_DEBUG=INFO and read the first `NCCL WARN`; set NCCL_SOCKET_IFNAME to the interface that "
        "the machines share; NCCL_IB_DISABLE=1 tells whether InfiniBand is at fault.",
        "meet",
    ),
    network(
        "NCCL: internal error",
        (
            "ncclInternalError",
            "ncclUnhandledCudaError",
            "unhandled cuda error",
            "ncclInvalidUsage",
            "NCCL error in",
            "NCCL WARN Cuda failure",
        ),
        "NCCL failed; the text after `Last error:`, or the first `NCCL WARN`, says in what",
        "Start again with NCCL_DEBUG=INFO; compare driver and NCCL versions of the machines.",
        "meet",
    ),
    warning(
        "NCCL: warning",
        ("NCCL WARN",),
        "NCCL warns; it need not be what ended the job",
        "Read on from the first `NCCL WARN`; NCCL_DEBUG=INFO says more.",
        "meet",
    ),
    # --- a peer is gone, or did not come: gloo and the store
    symptom(
        "connection closed",
        (
            "Connection closed by peer",
            "received errors while waiting for send/recv",
            "Connection reset by peer",
            "Application timeout caused pair closure",
            "Socket closed",
            "Connection was likely closed",
            "failed to recv, got 0 bytes",
        ),
        "another rank was gone, so the connection to it closed",
        "Look for the rank that ended first: its exit code and its last lines.",
        "run",
    ),
    symptom(
        "timeout",
        ("Timed out waiting", "wait timeout after", "Timed out after", "timed out connecting"),
        "the rank waited for another one until the timeout of the group",
        "Look at the rank that did not come, not at the one that waited.",
        "hang",
    ),
    network(
        "unknown host name",
        ("cannot be retrieved (gai error", "Name or service not known", "Temporary failure in name resolution"),
        "the name in MASTER_ADDR or --rdzv-endpoint is not known on this machine",
        "Use a name or an address that every machine resolves alike: `getent hosts NAME` on each.",
        "meet",
    ),
    network(
        "store: no connection",
        (
            "client socket has timed out",
            "failed to connect to",
            "connect() timed out",
            "Timeout waiting for key",
            "Connection refused",
        ),
        "a rank could not reach the store of rank 0: not started, another address or port, or a firewall",
        "Check MASTER_ADDR and MASTER_PORT on each machine, and that rank 0 runs.",
        "meet",
    ),
    symptom(
        "store: gone",
        ("should dump", "sendBytes failed", "recvValue failed", "Broken pipe"),
        "the store of rank 0 was gone: rank 0 had ended",
        "Look at how rank 0 ended: this line only says that it has.",
    ),
]
