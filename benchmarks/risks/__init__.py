"""Experiments that retire a risk of the design: one question, one script, one page each."""
