"""Check whether this system can run machines made of namespaces; if not, explain why and what to do."""

import functools
import getpass
import platform
import shutil
import sys

from ddp_course.cluster import namespaces
from ddp_course.cluster.cable import limit

INSTALL = "install iproute2 and util-linux (on Debian and Ubuntu: sudo apt-get install iproute2 util-linux)"
ELSEWHERE = "use Linux, in a virtual machine for example; the notebooks go on with stored results"


@functools.cache
def unavailable() -> str | None:
    """None if a Cluster can be started here, else a sentence with the reason and what to do.

    The first call starts one machine and ends it (0.1 s).
    """
    if sys.platform != "linux":
        return f"A cluster of namespaces needs Linux, and this is {platform.system()}: {ELSEWHERE}."
    for tool in ("unshare", "ip", "tc"):
        if not shutil.which(tool, path=namespaces.path()):
            return f"A cluster of namespaces needs the command {tool}, which is not installed: {INSTALL}."
    try:
        holder, pids = namespaces.build(["node1"], limit("100mbit"))
    except RuntimeError as failure:
        return explain(str(failure))
    namespaces.end(holder, pids)
    return None


def explain(error: str) -> str:
    """The sentence for the error with which the first machine failed to start."""
    error = " ".join(error.split())[:300]
    if "qdisc" in error:
        return f"The kernel does not limit the speed of a cable ({error}): load the module, sudo modprobe sch_tbf."
    if namespaces.user_namespace_options():
        return (
            f"This system does not let {getpass.getuser()} create network namespaces ({error}): start Jupyter or "
            f"the tests with sudo, or allow it with sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0."
        )
    return (
        f"This system does not let root, in this container, create network namespaces ({error}): start the container "
        f"with --privileged, or use a virtual machine; sudo alone does not help here."
    )
