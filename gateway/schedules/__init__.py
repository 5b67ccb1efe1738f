"""What happens at a time: the gateway's own jobs."""
