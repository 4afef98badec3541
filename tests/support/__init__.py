"""Support for multiple tests besides networks: other programs as witnesses, readers, damaged files, counts."""
