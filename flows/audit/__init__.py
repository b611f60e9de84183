"""Audit: from any model back to every query that made it, and forward again. Reads records, ledgers and locks alone."""
