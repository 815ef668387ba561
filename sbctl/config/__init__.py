"""sb.yml: read, checked, merged, with every error at its line."""
