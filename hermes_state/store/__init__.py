"""The database: one writer with group commit, readers, migrations, lock and backup."""
