"""The front end: a YAML file to a checked, frozen `Spec`."""
