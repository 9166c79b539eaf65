"""Filters of the portal's templates."""
