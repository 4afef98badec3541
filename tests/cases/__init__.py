"""Random inputs of operators, and networks of one node."""
