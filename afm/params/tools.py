"""`sandbox`: limits of model-written code."""

from afm.params._model import Positive, PositiveFloat, Section


class SandboxParams(Section):
    """Section `sandbox`."""

    wall_s: PositiveFloat
    """Wall time of one execution [s]."""
    cpu_s: Positive
    """CPU time of one execution [s]."""
    memory_mib: Positive
    """Address space of one execution [MiB]."""
    max_output_bytes: Positive
    """Output beyond this ends the execution [bytes]."""
    max_file_bytes: Positive
    """Largest file that the code may write [bytes]."""
    max_processes: Positive
