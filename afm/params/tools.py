"""`sandbox`: limits of model-written code."""

from afm.params._model import Positive, PositiveFloat, Section


class SandboxParams(Section):
    """Section `sandbox`."""

    wall_s: PositiveFloat
    """Wall time of one execution [s]."""
    cpu_s: Positive
    """CPU time of one execution [s]."""
    memory_mib: Positive
    """Address space that one execution may take, beyond the interpreter and its libraries [MiB]."""
    max_output_bytes: Positive
    """Output beyond this ends the execution [bytes]."""
    max_file_bytes: Positive
    """Largest file that the code may write [bytes]."""
    max_processes: Positive
    """Threads of one execution; it cannot start processes."""
    scratch_mib: Positive
    """All files of one execution together [MiB]."""
    max_files: Positive
    """Files and folders that one execution may have."""
    unsafe: bool
    """Run programs WITHOUT isolation on a machine where nothing isolates. A warning is logged."""
