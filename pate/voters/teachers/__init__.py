"""Teachers: trained on their own parts, asked together, with or without Ray."""
