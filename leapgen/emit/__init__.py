"""Plan to text: the view that templates see, rendering, and writing of generated modules."""
