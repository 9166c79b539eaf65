"""The metadata database of PMQ or of the Java CatMQ, read for an import."""
