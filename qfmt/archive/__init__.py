"""Many models in one folder: an archive, which its manifest `archive.jsonl` describes (docs/archive.md).

manifest.py  what the folder holds, a line for each source
sources.py   the sources among files, folders and globs
filling.py   convert what is not in the archive yet; equal models are stored once
workers.py   processes with one task at a time, which may die
"""
