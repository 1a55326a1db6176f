"""Build the machines inside the namespaces, and keep them until the process that started the cluster ends.

    keeper.py keep FD LIMIT NAME...    the first process of the cluster; FD: a pidfd of the process that started it
    keeper.py machine ADDRESS LIMIT HOSTS NAME

LIMIT: the words of `tc` that limit a cable, as JSON. HOSTS: the text of /etc/hosts.

Each is the first process of a pid namespace: when it ends, the kernel kills all others in it with SIGKILL. The
namespaces, their interfaces and mounts end with their last process. Standard library only: it starts in milliseconds.
"""

import json
import select
import signal
import subprocess
import sys

SWITCH_ADDRESS = "10.77.0.254"
HEAD = "head"  # the name of the machine with the switch
UNSHARE = ["unshare", "--net", "--uts", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]


def command(*words):
    """Run a command; if it fails, exit this process with the command's stderr."""
    done = subprocess.run(words, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(words)}: {done.stderr.strip() or done.returncode}")


def address_of(number):
    """The address of node1, node2, ..."""
    return f"10.77.0.{number}"


def hosts_file(names):
    """The text of /etc/hosts, with IPv4-mapped IPv6 addresses, which torch looks up, too."""
    lines = ["127.0.0.1 localhost"]
    for address, name in [*((address_of(n), name) for n, name in enumerate(names, 1)), (SWITCH_ADDRESS, HEAD)]:
        lines += [f"{address} {name}", f"::ffff:{address} {name}"]
    return "\n".join(lines) + "\n"


def set_up_host(name, hosts):
    """Set up this machine's name, its /etc/hosts, and /mnt as a local disk."""
    command("hostname", name)
    command("mount", "-t", "tmpfs", "hosts", "/mnt")
    with open("/mnt/hosts", "w") as file:
        file.write(hosts)
    command("mount", "--bind", "/mnt/hosts", "/etc/hosts")  # the bind mount outlives the unmounted /mnt
    command("umount", "/mnt")
    command("mount", "-t", "tmpfs", "-o", "mode=1777", "local-disk", "/mnt")
    command("ip", "link", "set", "lo", "up")


def keep(owner, limit, names):
    """Build the switch and the machines, print "ready", and end when the process of the pidfd `owner` ends."""
    command("mount", "-t", "tmpfs", "-o", "mode=755", "shared", "/srv")  # shared by the machines only
    set_up_host(HEAD, hosts_file(names))
    command("ip", "link", "add", "switch", "type", "bridge")
    command("ip", "address", "add", f"{SWITCH_ADDRESS}/24", "dev", "switch")
    command("ip", "link", "set", "switch", "up")
    machines = []
    for n, name in enumerate(names, 1):
        words = [sys.executable, "-I", "-S", __file__, "machine", address_of(n), json.dumps(limit), hosts_file(names)]
        machines.append(
            subprocess.Popen([*UNSHARE, *words, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        )
    for n, machine in enumerate(machines, 1):
        expect(machine, "started")
        cable = ["type", "veth", "peer", "name", "eth0", "netns", str(machine.pid)]
        command("ip", "link", "add", f"port{n}", *cable)
        command("ip", "link", "set", f"port{n}", "master", "switch", "up")
        if limit:
            command("tc", "qdisc", "replace", "dev", f"port{n}", "root", *limit)
        machine.stdin.write("connected\n")
        machine.stdin.flush()
    for machine in machines:
        expect(machine, "ready")
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # reap orphaned processes
    print("ready", flush=True)
    select.select([owner], [], [])


def expect(machine, word):
    """Wait until a machine's process prints the word; exit if it prints another or ends."""
    if machine.stdout.readline().strip() != word:
        sys.exit(f"a machine has ended while it was being set up (exit code {machine.wait()})")


def run_machine(address, limit, hosts, name):
    """Set up a machine, print "ready", and keep it until this process is killed."""
    print("started", flush=True)
    set_up_host(name, hosts)
    sys.stdin.readline()  # when eth0 is there
    command("ip", "address", "add", f"{address}/24", "dev", "eth0")
    command("ip", "link", "set", "eth0", "up")
    if limit:
        command("tc", "qdisc", "replace", "dev", "eth0", "root", *limit)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    print("ready", flush=True)
    while True:
        signal.pause()


if __name__ == "__main__":
    if sys.argv[1] == "keep":
        keep(int(sys.argv[2]), json.loads(sys.argv[3]), sys.argv[4:])
    else:
        address, limit, hosts, name = sys.argv[2:]
        run_machine(address, json.loads(limit), hosts, name)
