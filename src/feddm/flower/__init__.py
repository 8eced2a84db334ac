"""FedDM on several machines, with Flower (``pip install 'feddm[flower]'``)."""
