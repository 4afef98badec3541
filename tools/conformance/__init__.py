"""What the conformance suite is made of; `tools/make_conformance.py` writes it.

networks.py        small networks, named tensor by tensor       twin.py       a file as JSON
sums.py rescaling.py tables.py moves.py                          the cases of level `integer`
requantized.py means.py dynamic.py elements.py                   the cases of level `float`
containers.py      the cases of level `read`                     refused.py    files that a reader must refuse
reals.py evaluate.py evaluate_*.py    a second evaluation: plain Python, big integers and fractions, nothing of qfmt
"""
