"""What leaves: deliveries, the gates that pace them, notices, and the adapters that send."""
