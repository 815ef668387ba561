"""Planning, pure: desired, recorded, observed and `now` in; changes out. No file, no network, no clock."""
