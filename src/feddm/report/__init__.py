"""Reports: run directories -> one HTML file that opens anywhere, without a server or a network.

`runs` reads directories, `pictures` makes images of them, `page` turns all of it into one
string, and `writing` puts it on the disk.
"""
