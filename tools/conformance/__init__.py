"""What the conformance suite is made of; `tools/make_conformance.py` writes it.

networks.py                                   small networks, named tensor by tensor
products.py windows.py rescaling.py tables.py moves.py resizing.py    the cases of level `integer`
requantized.py means.py elements.py dynamic.py distinguishing.py roundings.py    the cases of level `float`
containers.py foreign.py                      the cases of level `read`; one of them by flatc
refused/ altered.py                           files that a reader must refuse
twin.py                                       a file as JSON
evaluate.py evaluate_*.py operators.py reals.py    a second evaluation: plain Python, nothing of qfmt
"""
