"""What the commands print: values first, then text. Nothing here parses arguments or exits."""
