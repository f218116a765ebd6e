"""Loading generated modules and running them. `host` is the part that is copied beside them."""
