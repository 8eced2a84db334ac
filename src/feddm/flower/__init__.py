"""FedDM on several machines, by Flower (``pip install 'feddm[flower]'``)."""
