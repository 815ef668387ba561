"""What people and programs see. Result objects come in, text or JSON goes out; nothing here decides anything."""
