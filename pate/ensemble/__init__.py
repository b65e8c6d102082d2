"""Teachers: trained on their own parts, asked together."""
