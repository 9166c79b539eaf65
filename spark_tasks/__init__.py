"""Jobs and a data source for Apache Spark; no Django here."""
