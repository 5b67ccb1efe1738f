"""Times: schedules of chats, and the gateway's own jobs."""
