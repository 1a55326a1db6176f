"""Whether machines can be made of namespaces here, and if not, why and what to do: one sentence."""

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
    """None if a Cluster can be started here, else a sentence. Tried once, with one machine, in a tenth of a second."""
    if sys.platform != "linux":
        return f"A cluster of namespaces needs Linux, and this is {platform.system()}: {ELSEWHERE}."
    for tool in ("unshare", "ip", "tc"):
        if not shutil.which(tool, path=namespaces.path()):
            return f"A cluster of namespaces needs the command {tool}, which is not installed: {INSTALL}."
    try:
        holder, pids = namespaces.build(["node1"], limit("100mbit"))
    except RuntimeError as error:
        return explained(str(error))
    namespaces.end(holder, pids)
    return None


def explained(said: str) -> str:
    """The sentence for what a trial has said."""
    said = " ".join(said.split())[:300]
    who = "root, in this container," if not namespaces.as_user() else getpass.getuser()
    if "qdisc" in said:
        return f"The kernel does not limit the speed of a cable ({said}): load the module, sudo modprobe sch_tbf."
    if namespaces.as_user():
        return (
            f"This system does not let {who} create network namespaces ({said}): start Jupyter or the tests with "
            f"sudo, or allow it with sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0."
        )
    return (
        f"This system does not let {who} create network namespaces ({said}): start the container with "
        f"--privileged, or use a virtual machine; sudo alone does not help here."
    )
