"""What `afm gc` may take away: what can be had again, and what nothing reaches."""
