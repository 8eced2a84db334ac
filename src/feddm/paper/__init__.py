"""The paper's evaluation: what its tables and figures are made of, at several scales."""
