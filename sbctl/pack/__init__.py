"""The pack: everything a closed site needs for one sb.yml, in one verified file. Its form, its writer, its reader, and what apply takes from it."""
