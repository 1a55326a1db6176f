"""Refuses the doctor's former command, `python -m ddp_course.doctor`, and names the present one."""

import shlex
import sys

if __name__ == "__main__":
    command = shlex.join(["python", "-m", "ddp_doctor", *sys.argv[1:]])
    print(f"error: the doctor is a package of its own: {command}", file=sys.stderr)
    sys.exit(2)
