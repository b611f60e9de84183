"""The report page: what the run measured, as tables, plots and trajectories in one self-contained HTML file."""
