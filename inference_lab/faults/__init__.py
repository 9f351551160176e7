"""What to say before dying, and how to die."""
