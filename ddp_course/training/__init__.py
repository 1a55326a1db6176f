"""What a trainer needs around its step: command line, settings, loop, optimizer, precision, progress, stopping."""
