"""The simulated GPU: costs, KV cache, scheduler, routing. No Twisted, no clock."""
