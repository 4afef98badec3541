"""From a Model to what other programs run: one package per framework, imported when it is asked for."""
