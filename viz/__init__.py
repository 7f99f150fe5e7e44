"""Pictures and tables of what the compiler did. Reads Programs and Records; nothing reads it.

dot.py draws a Program as a Graphviz graph, boxes.py decides which ops share a box, render.py turns
DOT into pictures with whatever is installed, gallery.py writes one picture a stage and a page that
shows them, report.py prints Records as tables, training.py shows two runs side by side, plot.py
draws curves in text.
"""
