"""How one API spells its frames. Imports nothing of ours but small types."""
