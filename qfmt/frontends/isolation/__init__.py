"""Foreign engines in a process of their own: what they are given and give, and what happens when they die.

torch and ONNX Runtime are large native libraries. `verify` has them compute what an untrusted file requests, so they
run in a worker process: a crash is a message, memory has a limit, and no byte of the source but what qfmt has read
reaches them. `parent` talks to the worker, `child` is the worker, `wire` is what they say to each other.
"""
