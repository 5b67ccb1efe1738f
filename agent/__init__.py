"""One turn: prompt, model calls, tool loop. Knows no chat service and writes no reply."""
