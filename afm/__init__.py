"""The Chain-of-Agents method as a library: formats, tools, rewards, masks, training and metrics.

Nothing in here knows about DVC, Prefect, MLflow or Kubernetes; `stages/` wraps it and `flows/` schedules it.
"""
