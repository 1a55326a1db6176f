"""What runs inside the namespaces: builds the machines, then keeps them until the process that asked for them is gone.

    keeper.py keep FD LIMIT NAME...    the first process of the cluster; FD: a pidfd of whoever has started it
    keeper.py machine NAME ADDRESS LIMIT HOSTS

Both are the first process of a process namespace: when one ends, the kernel kills everything in it, with SIGKILL. The
namespaces, their interfaces and mounts go with their last process. Standard library only: it is up in milliseconds.
"""

import json
import select
import signal
import subprocess
import sys

SWITCH_ADDRESS = "10.77.0.254"
HEAD = "head"  # the name of the side on which the switch is


def command(*words, **more):
    """Runs a command; if it fails, this process ends with what it said."""
    done = subprocess.run(words, stderr=subprocess.PIPE, text=True, **more)
    if done.returncode:
        sys.exit(f"{' '.join(words)}: {done.stderr.strip() or done.returncode}")


def hosts_file(names):
    """The text of /etc/hosts. torch also looks up the name of an address that it was given in its IPv6 form."""
    lines = ["127.0.0.1 localhost"]
    for address, name in [*((f"10.77.0.{n}", name) for n, name in enumerate(names, 1)), (SWITCH_ADDRESS, HEAD)]:
        lines += [f"{address} {name}", f"::ffff:{address} {name}"]
    return "\n".join(lines) + "\n"


def settle(name, hosts):
    """This machine's name, its /etc/hosts, and /mnt as a disk that no other machine sees."""
    command("hostname", name)
    command("mount", "-t", "tmpfs", "hosts", "/mnt")
    with open("/mnt/hosts", "w") as file:
        file.write(hosts)
    command("mount", "--bind", "/mnt/hosts", "/etc/hosts")  # which keeps what it shows
    command("umount", "/mnt")
    command("mount", "-t", "tmpfs", "-o", "mode=1777", "local-disk", "/mnt")
    command("ip", "link", "set", "lo", "up")


def keep(kernel, limit, names):
    """Builds the switch and the machines, says "ready", and ends when the process behind the pidfd `kernel` does."""
    # A folder in memory that all machines see, and nobody else; it goes with them.
    command("mount", "-t", "tmpfs", "-o", "mode=755", "shared", "/srv")
    settle(HEAD, hosts_file(names))
    command("ip", "link", "add", "switch", "type", "bridge")
    command("ip", "address", "add", f"{SWITCH_ADDRESS}/24", "dev", "switch")
    command("ip", "link", "set", "switch", "up")
    own = ["unshare", "--net", "--uts", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    machines = []
    for n, name in enumerate(names, 1):
        words = [sys.executable, "-I", "-S", __file__, "machine", f"10.77.0.{n}", json.dumps(limit), hosts_file(names)]
        machines.append(
            subprocess.Popen([*own, *words, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        )
    for n, machine in enumerate(machines, 1):
        expect(machine, "born")
        end = ["type", "veth", "peer", "name", "eth0", "netns", str(machine.pid)]
        command("ip", "link", "add", f"port{n}", *end)
        command("ip", "link", "set", f"port{n}", "master", "switch", "up")
        if limit:
            command("tc", "qdisc", "replace", "dev", f"port{n}", "root", *limit)
        machine.stdin.write("plugged\n")
        machine.stdin.flush()
    for machine in machines:
        expect(machine, "ready")
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # whoever has lost its parent, and ends, is taken away
    print("ready", flush=True)
    select.select([kernel], [], [])


def expect(machine, word):
    if machine.stdout.readline().strip() != word:
        sys.exit(f"a machine has ended while it was being set up (exit code {machine.wait()})")


def be_a_machine(address, limit, hosts, name):
    """The first process of a machine."""
    print("born", flush=True)
    settle(name, hosts)
    sys.stdin.readline()
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
        be_a_machine(address, json.loads(limit), hosts, name)
