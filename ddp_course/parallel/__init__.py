"""Which part of a model a rank of a device mesh holds."""
