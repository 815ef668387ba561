"""Everything that is printed. Text, markdown and JSON are views of one result object; the one owner of `rich`."""
