"""How long a step of data parallel training takes, before it is run: links, computation, DDP's schedule."""
