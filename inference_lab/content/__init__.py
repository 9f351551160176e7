"""What the model says and how it is counted. Pure; imports nothing of ours."""
