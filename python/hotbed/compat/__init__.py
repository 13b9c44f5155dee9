"""Other libraries' Python names over Hotbed's tables, so that their programs run unchanged."""
