"""Studies of accuracy: what a state loses by being stored, for every format."""
