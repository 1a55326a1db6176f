"""The parts of a trainer around its step: command line, settings, loop, optimizer, precision, progress, stopping."""
