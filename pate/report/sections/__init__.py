"""What a report says, section by section: for the page, the terminal and the privacy statement alike."""
