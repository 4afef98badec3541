"""Mutates files and tests whether qfmt survives them; `tools/fuzz.py` is the command.

targets.py   the targets: seeds, mutations, and the action on a mutant
corpus.py    the seeds
qfb.py       mutants of `.qfb` files: bytes and records, digests that fit
altered.py   `.qfb` files of networks with an altered part
sources.py   mutants of foreign files: archives with code, pickles and JSON in them; safetensors
protos.py    mutants of ONNX models
flips.py     mutants of bytes
trees.py     mutants of trees, which records and JSON are
consumers.py the actions on a mutant
trial.py     one mutant: limits of time and memory, side effects, the outcome
batches.py   many mutants in child processes
readers.py   the readers in C and JavaScript
"""
