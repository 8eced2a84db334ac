"""Reports: run directories -> one HTML file that needs no server and no network.

`runs` reads directories, `means` and `summary` turn them into numbers and texts, `pictures`
makes images, `page` renders everything to one string, and `writing` writes it to disk.
"""
