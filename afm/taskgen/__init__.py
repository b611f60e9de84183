"""Questions from facts, extended in depth and width, and tasks for the code tool."""
