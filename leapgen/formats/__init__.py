"""State formats: how a boundary state is encoded, decoded, and how many bytes that takes."""
