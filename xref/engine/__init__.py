"""The engine examines any operator: it makes calls of a subject, compares what comes of them, and keeps the findings.

A check yields calls, a call becomes a script of plain steps, and a script is performed where the subject is: in this
process (`executor`) or in one of its own (`stand`). What comes back are arrays, and they are judged here. Nothing in
this package knows an operator.
"""
