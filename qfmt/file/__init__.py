"""The container: reading, writing and checking `.qfb` files (spec.md, "Container").

header.py   the first 128 bytes          decode.py, encode.py   FlatBuffers, by the tables of schema.py
reader.py   load                         decoded.py             what is decoded when it is asked for
records.py  schema ↔ model
writer.py   save                         checker.py             every rule of a file at once
shards.py   the data in other files      sharding.py            how they are named, and removed
opened.py, remote.py  the bytes of a file, local or by URL
replacing.py  files that take their place when they are complete
"""
