"""``python -m inference_lab``."""

from inference_lab.cli import main

main()
