"""Pictures and tables of what the compiler did. Reads Programs and Records; nothing reads it.

dot.py draws a Program as a Graphviz graph, boxes.py decides which ops share a box, network.py draws
the partition's flow network, render.py turns DOT into pictures with whatever is installed, and
gallery.py writes one picture a stage and a page that shows them. report.py prints a Record as
tables, with memory.py and kernels.py; training.py shows two runs side by side, plot.py draws curves
in text. labels.py, tables.py and units.py are what these share.
"""
