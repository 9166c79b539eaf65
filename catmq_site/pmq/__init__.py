"""Reads the metadata database of PMQ or of the Java CatMQ for an import."""
