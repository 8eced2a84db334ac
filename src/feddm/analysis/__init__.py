"""What comes out of runs: tables, studies, figures, costs and reports."""
