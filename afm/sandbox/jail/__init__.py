"""What runs inside the jail's process: the zygote, the layers that take rights away, and the runner of programs.

Loaded by a bare interpreter that imports nothing else of the project, so these modules import only each other and the
standard library.
"""
