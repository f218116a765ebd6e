"""From a window to a plan: architectures, payload orders, buffers, and the traffic they imply."""
