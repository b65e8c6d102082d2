"""What answers cost. Importable without ray and torch."""
