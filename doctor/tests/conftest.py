"""Fixtures of the doctor's tests when they run without those of the course."""

import signal

# A job in a shell's background ignores interrupts, and so would every process that is started here.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
