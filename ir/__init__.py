"""Values that cross folders: meshes, layouts, graphs, strategies, plans, and their files."""
