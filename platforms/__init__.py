"""One package per chat service: SDK objects in, values out, and the other way round."""
