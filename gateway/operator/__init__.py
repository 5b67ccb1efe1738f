"""What operators ask: the control socket and its answers, `doctor`, probes, look-ups and spending."""
