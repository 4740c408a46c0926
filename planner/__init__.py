"""Rules, prices, formulations and the search that make a plan."""
