"""TOML to frozen, validated settings. Imports nothing of ours."""
