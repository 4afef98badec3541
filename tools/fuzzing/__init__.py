"""Mutated files, and whether qfmt survives them; `tools/fuzz.py` is the command.

targets.py   what is attacked: seeds, how they are mutated, what is done with a mutant
corpus.py    the seeds
qfb.py       mutants of `.qfb` files: bytes and records, digests that fit
altered.py   `.qfb` files of networks in which something is another thing
sources.py   mutants of foreign files: archives with code, pickles and JSON in them; safetensors
protos.py    mutants of ONNX models
flips.py     mutants of bytes
trees.py     mutants of trees, which records and JSON are
consumers.py what is done with a mutant
trial.py     one mutant: limits of time and memory, side effects, what came of it
batches.py   many mutants in child processes
readers.py   the readers in C and JavaScript
"""
