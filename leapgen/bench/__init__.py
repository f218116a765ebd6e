"""`leapgen bench`: what modules take, beside peers and ceilings of the same run."""
