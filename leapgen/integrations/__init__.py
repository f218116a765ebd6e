"""Other people's kernels and engines: the only code where their names, and models' names, stand."""
