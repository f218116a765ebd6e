"""Reference models: a float64 interpreter of a spec and a NumPy model of the window."""
