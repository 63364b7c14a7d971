"""Renderings of records: the page, the terminal's lines, the CI's summary and annotations."""
