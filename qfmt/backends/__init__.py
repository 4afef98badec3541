"""From a Model to formats of other programs: one package per framework, imported on demand."""
