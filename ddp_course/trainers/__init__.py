"""Which part of a model a rank of a device mesh holds, and what the trainers of MiniGPT have in common."""
