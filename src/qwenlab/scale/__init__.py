"""Work that several processes share."""
