-- The database of the node, made at the first start of the container, which makes that of metadata itself.
CREATE DATABASE catmq_node1 CHARACTER SET utf8mb4;
GRANT ALL ON catmq_node1.* TO catmq@'%';
GRANT PROCESS ON *.* TO catmq@'%';
