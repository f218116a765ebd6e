"""The autotuner: candidates, checks, races and tables; see `leapgen.tune.tuner`."""
