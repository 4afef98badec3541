"""What several tests need beside networks: other programs as witnesses, readers, damage, counts."""
