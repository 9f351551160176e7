"""From the engine's time to the reactor's: who may speak when."""
