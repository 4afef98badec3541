"""Runs other engines in a worker process, and reports when they crash.

torch and ONNX Runtime are large native libraries. `verify` has them compute what an untrusted file requests, so they
run in a worker process: a crash becomes an error message, memory is limited, and of the source they receive only
what qfmt has read. `parent` talks to the worker, `child` is the worker, `wire` defines their messages.
"""
