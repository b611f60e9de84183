"""Training on this machine: the project's own small base model and the tools it needs."""
