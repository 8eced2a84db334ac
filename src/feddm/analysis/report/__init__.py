"""Reports: run directories -> one HTML file that opens anywhere, without a server or a network.

`runs` reads directories, `means` and `summary` turn them into numbers and words, `pictures`
makes images, `page` is the whole as one string, and `writing` puts it on the disk.
"""
